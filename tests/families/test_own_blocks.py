"""Blocks of one's own: every field of a row's parts against the textbook's formulas, a text and a head at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
from binders import Stored
from encoder_files import off
from own_blocks import CONFIGS, ROWS

import minibert
from minibert.equations.activations import gelu, gelu_tanh, silu
from minibert.equations.blocks import linear, rms_norm, softmax
from minibert.equations.input_layer import Array, layer_norm
from minibert.equations.rotary import rotary_angles, rotary_frequencies, rotate
from minibert.models.run import blocks

Tensors = Mapping[str, Array]

SAME = 1e-10  # both in float64, numbers up to 30; measured 4e-14
FLOAT32 = 2e-5  # measured 2.1e-6
LENGTHS = (9, 3, 9, 1, 6)
HEADS, SHARE = 4, 2  # query heads, and how many of them share a key head


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minibert.models.open.load_encoder.BLOCKS", ROWS)


def tensors(model_type: str) -> Tensors:
    """A checkpoint's numbers, in float64: of each shape that the row asks for."""
    row, family, data = ROWS[model_type], minibert.FAMILIES[model_type], CONFIGS[model_type]
    binder = Stored(config=row.configure(family, data, "config.json"))
    for i in range(2):
        row.bind(binder.config, binder, i)
    row.last_norm.bound(binder.config, binder, "", 12)
    if model_type == "bert":
        inside = {"word_embeddings.weight": 29, "position_embeddings.weight": 24, "token_type_embeddings.weight": 2}
        binder.asked |= {f"embeddings.{name}": (rows, 12) for name, rows in inside.items()}
        binder.asked |= {"embeddings.LayerNorm.weight": (12,), "embeddings.LayerNorm.bias": (12,)}
    else:
        binder.asked["embed_tokens.weight"] = (29, 12)
    made = {}
    for number, (name, shape) in enumerate(sorted(binder.asked.items())):
        spread = np.random.default_rng(number).standard_normal(shape) / (3 if len(shape) == 1 else 2)
        made[name] = (spread + ("norm" in name.lower() and name.endswith("weight"))).astype(np.float32)
    return made


def attended(
    x: Array, t: Tensors, at: str, width: int, scale: float, angles: Any, seen: Callable[[int, int], bool]
) -> Array:
    """Attention with shared key heads, norms in each head and a rotation: x (seq, dim), token by token."""
    q, k, v = (linear(x, t[f"{at}.self_attn.{name}_proj.weight"]) for name in "qkv")
    context = np.zeros_like(q)
    for head in range(HEADS):
        own, shared = (slice(h * width, (h + 1) * width) for h in (head, head // SHARE))
        rotated = [
            rotate(rms_norm(part, plus(t, f"{at}.self_attn.{name}_norm.weight"), 1e-5), *angles)
            for part, name in ((q[:, own], "q"), (k[:, shared], "k"))
        ]
        for i, query in enumerate(rotated[0]):
            keys = [j for j in range(len(x)) if seen(i, j)]
            weights = softmax(scale * np.array([query @ rotated[1][j] for j in keys]))
            context[i, own] = weights @ v[keys, shared]
    return linear(context, t[f"{at}.self_attn.o_proj.weight"])


def plus(t: Tensors, name: str) -> Array:
    return t[name] + ("gemma" in t)


def gated(x: Array, t: Tensors, at: str, f: Callable[[Array], Array]) -> Array:
    gate, up, down = (t[f"{at}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return linear(f(linear(x, gate)) * linear(x, up), down)


def qwen3(ids: list[int], t: Tensors) -> Array:
    x = t["embed_tokens.weight"][ids]
    angles = rotary_angles(np.arange(len(ids)), rotary_frequencies(6, 100.0))
    for at in ("layers.0", "layers.1"):
        y = rms_norm(x, t[f"{at}.input_layernorm.weight"], 1e-5)
        x = x + attended(y, t, at, 6, 1 / math.sqrt(6), angles, lambda i, j: j <= i)
        x = x + gated(rms_norm(x, t[f"{at}.post_attention_layernorm.weight"], 1e-5), t, at, silu)
    return rms_norm(x, t["norm.weight"], 1e-5)


def gemma3(ids: list[int], t: Tensors) -> Array:
    t = {**t, "gemma": np.ones(1)}
    x = t["embed_tokens.weight"][ids] * math.sqrt(12)
    for at, base, window in (("layers.0", 50.0, 2), ("layers.1", 1000.0, 99)):
        angles = rotary_angles(np.arange(len(ids)), rotary_frequencies(6, base))
        y = rms_norm(x, plus(t, f"{at}.input_layernorm.weight"), 1e-5)
        y = attended(y, t, at, 6, 1 / math.sqrt(3), angles, lambda i, j: 0 <= i - j <= window)  # noqa: B023
        x = x + rms_norm(y, plus(t, f"{at}.post_attention_layernorm.weight"), 1e-5)
        y = gated(rms_norm(x, plus(t, f"{at}.pre_feedforward_layernorm.weight"), 1e-5), t, at, gelu_tanh)
        x = x + rms_norm(y, plus(t, f"{at}.post_feedforward_layernorm.weight"), 1e-5)
    return rms_norm(x, plus(t, "norm.weight"), 1e-5)


def mine(ids: list[int], t: Tensors) -> Array:
    x = t["embeddings.word_embeddings.weight"][ids] + t["embeddings.token_type_embeddings.weight"][0]
    x = x + t["embeddings.position_embeddings.weight"][: len(ids)]
    x = layer_norm(x, t["embeddings.LayerNorm.weight"], t["embeddings.LayerNorm.bias"], 1e-5)
    for at in ("encoder.layer.0", "encoder.layer.1"):
        side_by_side = linear(x, *(t[f"{at}.attention.self.qkv.{part}"] for part in ("weight", "bias")))
        q, k, v = side_by_side[:, :12], side_by_side[:, 12:18], side_by_side[:, 18:]
        context = np.zeros_like(q)
        for head in range(HEADS):
            own, shared = (slice(h * 3, h * 3 + 3) for h in (head, head // SHARE))
            for i in range(len(ids)):
                near = slice(max(0, i - 2), i + 3)
                context[i, own] = softmax(q[i, own] @ k[near, shared].T / math.sqrt(3)) @ v[near, shared]
        y = linear(context, t[f"{at}.attention.output.dense.weight"])
        x = layer_norm(x + y, t[f"{at}.attention.output.LayerNorm.weight"], None, 1e-5)
        y = linear(gelu(linear(x, t[f"{at}.intermediate.dense.weight"])), t[f"{at}.output.dense.weight"])
        x = layer_norm(x + y, t[f"{at}.output.LayerNorm.weight"], None, 0.5)
    return x


BY_HAND = {"qwen3": qwen3, "gemma3_text": gemma3, "bert": mine}


@pytest.mark.parametrize("model_type", ROWS)
@pytest.mark.parametrize("scores", [1, 1 << 17])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", SAME), ("float32", FLOAT32)])
def test_a_row_of_one_s_own(
    model_type: str, scores: int, dtype: str, tolerance: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "SCORES", scores)  # 1: one head at a time
    numbers = tensors(model_type)
    folder = checkpoints.write(tmp_path, {"model_type": model_type, **CONFIGS[model_type]}, numbers)
    ids = np.arange(45).reshape(5, 9) * 7 % 28 + 1
    mask = np.arange(9) < np.array(LENGTHS)[:, None]
    with minibert.load_encoder(folder, dtype=dtype) as encoder:
        found = encoder(ids, attention_mask=mask.astype(int))
        trace = encoder.trace(ids, attention_mask=mask.astype(int))
        assert off(trace["hidden_states.2"], found) <= tolerance
        keys = [key for i, block in enumerate(encoder.stack.blocks) for key in block.keys(i, encoder.stack)]
        assert [key for key in trace if key in keys] == keys
    exact = {name: array.astype(np.float64) for name, array in numbers.items()}
    for row, length in enumerate(LENGTHS):
        assert off(found[row, :length], BY_HAND[model_type](ids[row, :length].tolist(), exact)) <= tolerance


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        *(
            ({"num_attention_heads": n, "num_key_value_heads": k}, f"must divide the {n} heads, found {k}")
            for n, k in ((4, 3), (0, 0), (0, 2))
        ),
        # a text's vectors would change with the texts around it
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "change with a text's length are not computed"),
    ],
)
def test_a_config_that_is_not_computed_is_refused(settings: dict[str, Any], said: str, tmp_path: Path) -> None:
    config = {"model_type": "qwen3", **CONFIGS["qwen3"], **settings}
    with pytest.raises(minibert.CheckpointError, match=said):
        minibert.load_encoder(checkpoints.write(tmp_path, config, tensors("qwen3")))


def test_the_modules_of_such_a_row_are_called_as_others(tmp_path: Path) -> None:
    numbers = tensors("gemma3_text")
    folder = checkpoints.write(tmp_path, {"model_type": "gemma3_text", **CONFIGS["gemma3_text"]}, numbers)
    x = np.linspace(-3, 4, 24, dtype=np.float32).reshape(2, 12)
    with minibert.load_encoder(folder) as encoder:
        norm, gate = encoder["layers.0.input_layernorm"], encoder["layers.0.mlp.gate_proj"]
        np.testing.assert_array_equal(norm(x), rms_norm(x, 1 + numbers["layers.0.input_layernorm.weight"], 1e-5))
        assert repr(norm) == "RMSNorm((12,), eps=1e-05)"
        assert repr(gate) == "Linear(in_features=12, out_features=20, bias=False)"
        with pytest.raises(ValueError, match="RMSNorm: the last axis must be 12 wide"):
            norm(x[:, :1])
