"""The names that porters need: each mistake is planted by loops or a few lines of NumPy, never by the list's code."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import encoders
import loops
import numpy as np
import pytest
import vector_port
from head_files import HEAD_CASE
from ports import arrays, by_steps, few, judged, verify_part
from safetensors.numpy import load_file, save_file

import minibert
from minibert.equations.input_layer import Array
from minibert.models.open.load_encoder import load_encoder
from minibert.verify.report import Comparison
from minibert.verify.subjects import EncoderSubject
from minibert.verify.traces import Traces

BLOCK, LOOKS, LAYER = "encoder.layer.{i}.", "encoder.layer.{i}.attention.self.", "layers.{i}.self_attn."
HEADS = encoders.HEADS


def fits(report: Comparison, key: str) -> list[str]:
    assert not report.passed
    found = {each.key: each.fits for each in report.local}
    assert key in found, "\n".join(report.lines)
    return found[key]


# -- norms -------------------------------------------------------------------------------------------------------


def tutorial(ddof: int, eps: float, port: Any, path: str, rows: Array) -> Array:
    """`(x - mean) / (std + eps)`, as tutorials print it."""
    off = rows - rows.mean(-1, keepdims=True)
    std = np.sqrt((off**2).sum(-1, keepdims=True) / (rows.shape[-1] - ddof))
    return np.asarray(off / (std + eps) * port.tensors[f"{path}.weight"] + port.tensors[f"{path}.bias"], np.float32)


def of_eps(eps: float, port: Any, path: str, rows: Array) -> Array:
    off = rows - rows.mean(-1, keepdims=True)
    root = np.sqrt((off**2).mean(-1, keepdims=True) + eps)
    return np.asarray(off / root * port.tensors[f"{path}.weight"] + port.tensors[f"{path}.bias"], np.float32)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT whose rows are so small that each eps shows in its first norm."""
    folder = encoders.write(tmp_path_factory.mktemp("small") / "bert", "bert")
    stored = load_file(folder / "model.safetensors")
    save_file({k: x * np.float32(2e-4) if "_embeddings" in k else x for k, x in stored.items()},
              folder / "model.safetensors")  # fmt: skip
    return folder


@pytest.mark.parametrize("eps", [1e-5, 1e-6, 1e-8])
@pytest.mark.parametrize("ddof", [0, 1])
def test_the_norm_of_tutorials_is_named_with_its_eps(ddof: int, eps: float, small: Path) -> None:
    port: Any = loops.Port(small)
    port.norm = partial(tutorial, ddof, eps, port)
    report = judged(small, port)
    name = ("variance divided by dim - 1, " if ddof else "") + f"eps outside the root, with eps {eps:g}"
    assert report.matches == [name], "\n".join(report.lines)
    assert fits(report, "embeddings.LayerNorm") == [name]


def test_an_eps_of_tutorials_is_no_other_one(small: Path) -> None:
    port: Any = loops.Port(small)
    port.norm = partial(of_eps, 1e-8, port)
    assert judged(small, port).matches == ["eps 1e-08"]


# -- linear maps, rows, activations, scores, masks -----------------------------------------------------------------


class Odd(loops.Port):
    """A port with other tensors, scores times a factor of the block, or another mask."""

    def __init__(self, folder: Path, **odd: Callable[[Any], Any]) -> None:
        super().__init__(folder)
        self.odd = odd
        self.tensors |= odd.get("tensors", lambda stored: {})(self.tensors)

    def looks(self, i: int, at: str, x: Array, kept: dict[str, Array]) -> list[Array]:
        q, *others = super().looks(i, at, x, kept)
        return [q * np.float32(self.odd.get("factor", lambda i: 1)(i)), *others]

    def block(self, i: int, x: Array, mask: Array, kept: dict[str, Array]) -> Array:
        return super().block(i, x, self.odd.get("mask", lambda mask: mask)(mask), kept)


def exchanged(stored: dict[str, Array]) -> dict[str, Array]:
    """The biases of queries and keys."""
    pairs = [[f"{LOOKS.format(i=i)}{name}.bias" for name in ("query", "key")] for i in range(encoders.DEPTH)]
    return {one: stored[other] for q, k in pairs for one, other in ((q, k), (k, q))}


POSITIONS, TYPES = (f"embeddings.{name}_embeddings" for name in ("position", "token_type"))
UP = BLOCK.format(i=1) + "intermediate.dense"
# mistake -> the module that it fits, "" for the whole port, and what is odd
ODD: dict[str, tuple[str, dict[str, Callable[[Any], Any]]]] = {
    "position rows left out": (POSITIONS, {"tensors": lambda x: {f"{POSITIONS}.weight": 0 * x[f"{POSITIONS}.weight"]}}),
    "type rows left out": (TYPES, {"tensors": lambda x: {f"{TYPES}.weight": 0 * x[f"{TYPES}.weight"]}}),
    "weight's buffer read with the other shape": (
        UP, {"tensors": lambda x: {f"{UP}.weight": (w := x[f"{UP}.weight"]).ravel().reshape(w.shape[::-1]).T}}),
    "biases of queries and keys exchanged": ("", {"tensors": exchanged}),
    "scores divided by the root of 64": ("", {"factor": lambda i: math.sqrt(4) / 8}),  # 1 / 8 for 1 / sqrt(4)
    "mask taken as a length": ("attentions.0", {"mask": lambda x: (np.arange(len(x)) < x.sum()).astype(int)}),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_an_odd_port_is_named(name: str, folder: Path) -> None:
    key, odd = ODD[name]
    report = judged(folder, Odd(folder, **odd))
    named = fits(report, key) if key else report.matches
    assert named == [name] or (key == "attentions.0" and name in named), "\n".join(report.lines)


def test_scores_divided_by_the_number_of_the_block(tmp_path: Path) -> None:
    """In block 1 the factor is 1 / sqrt(4 heads) too; block 2 tells them apart."""
    folder = encoders.write(tmp_path / "bert", "bert", num_hidden_layers=3)
    report = judged(folder, Odd(folder, factor=lambda i: 1 / (i + 1)))
    for i in (1, 2):
        assert fits(report, LOOKS.format(i=i) + "scores") == ["scores divided by block + 1"]
    assert report.matches == ["scores divided by block + 1"]


def test_relu6_is_not_relu(tmp_path: Path) -> None:
    """Some numbers of this model are above 6."""
    folder = encoders.write(tmp_path / "bert", "bert", hidden_act="gelu")
    stored = load_file(folder / "model.safetensors")
    stored["encoder.layer.0.intermediate.dense.weight"] *= 4
    save_file(stored, folder / "model.safetensors")

    class Relu6(loops.Port):
        def feed_forward(self, at: str, x: Array, kept: dict[str, Array]) -> Array:
            self.names = {**self.names, "activation": lambda x: min(max(x, 0.0), 6.0)}
            return super().feed_forward(at, x, kept)

    report = judged(folder, Relu6(folder))
    assert report.matches == ["activation relu6"]


# -- rotation ----------------------------------------------------------------------------------------------------


def turned(x: Array, positions: Array, signs: tuple[int, int] = (-1, 1)) -> Array:
    """x (seq, heads, size) by the angles of its positions, halves of a head as pairs."""
    half = x.shape[-1] // 2
    angles = positions[:, None, None] / 1e4 ** (np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([a * cos + signs[0] * b * sin, b * cos + signs[1] * a * sin], -1).astype(np.float32)


ROTATIONS: dict[str, Callable[[Array, Array, bool], Array]] = {
    "queries alone rotated": lambda x, places, of_query: turned(x, places) if of_query else x,
    "keys alone rotated": lambda x, places, of_query: x if of_query else turned(x, places),
    "one sign of the rotation wrong": lambda x, places, of_query: turned(x, places, (1, 1)),
    "queries rotated by position +1": lambda x, places, of_query: turned(x, places + of_query),
    "rotary positions divided by 4": lambda x, places, of_query: turned(x, places / 4),
}


@pytest.mark.parametrize("name", ROTATIONS)
def test_rotations(name: str, folders: dict[str, Path]) -> None:
    class Rotating(loops.Port):
        def rotated(self, i: int, x: Array) -> Array:
            return ROTATIONS[name](x, np.arange(len(x)), x.shape[1] == self.heads)

    folder = folders["qwen3"]
    assert encoders.TODAY["num_key_value_heads"] != HEADS
    report = judged(folder, Rotating(folder))
    assert report.matches == [name], "\n".join(report.lines)
    assert fits(report, LAYER.format(i=1) + "scores") == [name]


def test_a_fused_projection_cut_group_by_group(folders: dict[str, Path]) -> None:
    """Two key heads for four of queries: each group's queries, key and value side by side."""
    with load_encoder(folders["llama"]) as encoder:
        inputs = few(encoder, "plain")
        trace = by_steps(encoder, inputs["plain"])
    at, size, groups = LAYER.format(i=0), 8, 2
    fused = np.concatenate([trace[f"{at}{name}_proj"] for name in "qkv"], -1)
    seq = fused.shape[1]
    parts = fused.reshape(len(fused), seq, groups, -1, size)
    for text in range(len(fused)):
        q = parts[text, :, :, :2].reshape(seq, 2 * groups, size)
        k, v = (parts[text, :, :, n].reshape(seq, groups, size).repeat(2, 1) for n in (2, 3))
        q, k = (turned(x, np.arange(seq)) for x in (q, k))
        trace[f"{at}scores"][text] = np.einsum("ihd,jhd->hij", q, k) / math.sqrt(size)
        context = np.einsum("hij,jhd->ihd", trace["attentions.0"][text], v)
        trace[f"{at}context"][text] = context.reshape(seq, -1)
    report = verify_part(folders["llama"], arrays(inputs, {"plain": trace}), encoder=True)
    assert fits(report, f"{at}scores") == ["queries, keys and values side by side for each head"]


# -- windows -----------------------------------------------------------------------------------------------------

SIZE = 4  # of a head


def windowed(folder: Path, visible: Callable[[Array], Array]) -> Comparison:
    """A ModernBERT whose block 1 sees other distances; its file has no attention weights of the long text."""
    with load_encoder(folder) as encoder:
        assert encoder.stack.blocks[1].attention.window == 4
        inputs = few(encoder, "plain", "long")
        traces: Traces = {kind: by_steps(encoder, batch) for kind, batch in inputs.items()}
    for trace in traces.values():
        scores = trace["layers.1.attn.scores"].astype(float)
        places = np.arange(scores.shape[-1])
        scores = np.where(visible(places[:, None] - places), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        trace["attentions.1"] = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
        v = np.split(trace["layers.1.attn.Wqkv"], 3, -1)[2].reshape(len(scores), len(places), HEADS, SIZE)
        context = np.einsum("bhij,bjhd->bihd", trace["attentions.1"], v)
        trace["layers.1.attn.context"] = context.reshape(*context.shape[:2], -1).astype(np.float32)
    traces["long"] = {key: x for key, x in traces["long"].items()
                      if not key.startswith("attentions.") and not key.endswith(".scores")}  # fmt: skip
    order = [*traces["plain"]]
    only = order[: order.index("layers.1.attn.context") + 1]
    return verify_part(folder, arrays(inputs, traces), encoder=True, only=only)


@pytest.mark.parametrize(
    ("name", "visible"),
    [
        ("window twice as wide", lambda back: np.abs(back) <= 8),
        ("window half as wide", lambda back: np.abs(back) <= 2),
        ("window open at one end", lambda back: back <= 4),
        ("window open at one end", lambda back: back >= -4),
        ("window forgotten", lambda back: back == back),
        ("", lambda back: np.abs(back) <= 11),  # the plain batch has seven tokens: there it is as if forgotten
    ],
)
def test_windows(name: str, visible: Callable[[Array], Array], tmp_path: Path) -> None:
    folder = encoders.write(tmp_path / "modernbert", "modernbert", local_attention=8)
    report = windowed(folder, visible)
    named = [each for each in fits(report, "attentions.1") if each.startswith("window")]
    assert named == ([name] if name else []), "\n".join(report.lines)


# -- heads -------------------------------------------------------------------------------------------------------


def test_a_head_that_skips_the_last_norm() -> None:
    case = HEAD_CASE["gpt2-next_word"]
    with case.load() as encoder:
        subject = EncoderSubject(encoder, case.load)
        inputs = few(encoder, "plain")
        trace = by_steps(encoder, inputs["plain"], head=subject.head)
        words = encoder["wte"].table.array()
        last = f"h.{len(encoder.stack.blocks) - 1}.mlp.sum"
    for key in ("lm_head", "logits"):
        assert key in trace
        trace[key] = (trace[last] @ words.T).astype(np.float32)
    report = verify_part(case.folder, arrays(inputs, {"plain": trace}), encoder=True)
    assert fits(report, "lm_head") == ["last norm not applied before the head"]


# -- vectors -----------------------------------------------------------------------------------------------------

TEXTS = ["we lived above the clouds", "the clouds", "above the clouds we lived.", "we lived", "clouds!", "a b c d e f"]


@pytest.mark.parametrize(
    ("ddof", "eps", "names"),
    [
        (1, 1e-6, ["variance divided by dim - 1, eps outside the root, with eps 1e-06"]),
        (0, 1e-5, ["eps outside the root, with eps 1e-05"]),
        (1, 3e-4, []),  # an eps that no tutorial prints, in float32: no mistake "in float16"
    ],
)
def test_the_norm_of_tutorials_is_named_in_vectors(ddof: int, eps: float, names: list[str], tmp_path: Path) -> None:
    folder = vector_port.write(tmp_path / "model")
    stored = load_file(folder / "model.safetensors")
    save_file({k: x * np.float32(2e-4) if "_embeddings" in k else x for k, x in stored.items()},
              folder / "model.safetensors")  # fmt: skip
    port: Any = vector_port.VectorPort(folder)
    port.port.norm = partial(tutorial, ddof, eps, port.port)
    report = minibert.compare(folder, against=port(TEXTS), texts=TEXTS)
    assert not report.passed and report.matches == names, "\n".join(report.lines)
    assert "In float16" not in str(report)
