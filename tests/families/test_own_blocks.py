"""Blocks of one's own, of parts that no row has together: against the textbook's formulas, a text and a head at a time.

One map for queries, keys and values, its bias alone; shared key heads; a window that looks both ways; LayerNorm without
a bias after each sum, with an eps of its own.
"""

from __future__ import annotations

import math
from pathlib import Path

import checkpoints
import numpy as np
import pytest
from binders import Stored
from encoder_files import off

import minibert
from minibert.equations.activations import gelu
from minibert.equations.blocks import linear, softmax
from minibert.equations.input_layer import Array, layer_norm
from minibert.families.parts.block_parts import Attention, Blocks, FeedForward, Residual
from minibert.families.parts.steps import Norm
from minibert.models.run import packing

SAME = 1e-10  # both in float64, numbers up to 30; measured 4e-14
FLOAT32 = 2e-5  # measured 2.1e-6
LENGTHS = (9, 3, 9, 1, 6)
HEADS, SHARE = 4, 2  # query heads, and how many of them share a key head
MINE = Blocks(
    parts=(
        Residual(
            work=Attention(
                maps=("attention.self.qkv",), key_heads="num_key_value_heads", output="attention.output.dense",
                output_biased=False, window=lambda config, i: 2,
            ),
            post_norm=Norm(path="attention.output.LayerNorm", biased=False),
        ),
        Residual(
            work=FeedForward(up="intermediate.dense", down="output.dense", activation="intermediate.act", biased=False),
            post_norm=Norm(path="output.LayerNorm", biased=False, eps=0.5),
        ),
    ),
)  # fmt: skip
CONFIG = {
    "model_type": "bert", "vocab_size": 29, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": HEADS,
    "intermediate_size": 20, "max_position_embeddings": 24, "type_vocab_size": 2, "layer_norm_eps": 1e-5,
    "num_key_value_heads": HEADS // SHARE,
}  # fmt: skip


def tensors() -> dict[str, Array]:
    """A checkpoint's numbers: of each shape that the row asks for."""
    binder = Stored(config=MINE.configure(minibert.FAMILIES["bert"], CONFIG, "config.json"))
    for i in range(2):
        MINE.bind(binder.config, binder, i)
    rows = {"word_embeddings": 29, "position_embeddings": 24, "token_type_embeddings": 2}
    binder.asked |= {f"embeddings.{name}.weight": (count, 12) for name, count in rows.items()}
    binder.asked |= {f"embeddings.LayerNorm.{part}": (12,) for part in ("weight", "bias")}
    made = {}
    for number, (name, shape) in enumerate(sorted(binder.asked.items())):
        spread = np.random.default_rng(number).standard_normal(shape) / (3 if len(shape) == 1 else 2)
        made[name] = (spread + ("norm" in name.lower() and name.endswith("weight"))).astype(np.float32)
    return made


def by_hand(ids: list[int], t: dict[str, Array]) -> Array:
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


@pytest.mark.parametrize("scores", [1, 1 << 17])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", SAME), ("float32", FLOAT32)])
def test_a_row_of_one_s_own(
    scores: int, dtype: str, tolerance: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minibert.models.open.load_encoder.BLOCKS", {"bert": MINE})
    monkeypatch.setattr(packing, "SCORES", scores)  # 1: one head at a time
    folder = checkpoints.write(tmp_path, CONFIG, numbers := tensors())
    ids = np.arange(45).reshape(5, 9) * 7 % 28 + 1
    mask = (np.arange(9) < np.array(LENGTHS)[:, None]).astype(int)
    with minibert.load_encoder(folder, dtype=dtype) as encoder:
        found, trace = encoder(ids, attention_mask=mask), encoder.trace(ids, attention_mask=mask)
        assert off(trace["hidden_states.2"], found) <= tolerance
        keys = [key for i, block in enumerate(encoder.stack.blocks) for key in block.keys(i, encoder.stack)]
        assert [key for key in trace if key in keys] == keys
    exact = {name: array.astype(np.float64) for name, array in numbers.items()}
    for row, length in enumerate(LENGTHS):
        assert off(found[row, :length], by_hand(ids[row, :length].tolist(), exact)) <= tolerance
