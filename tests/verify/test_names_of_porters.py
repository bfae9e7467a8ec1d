"""The names that porters need: each mistake is planted by loops or a few lines of NumPy, never by the list's code.

Those that need no more than a port by loops are in `planted_loops`.
"""

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
from planted_loops import normed
from ports import arrays, by_steps, few, judged, rewritten, verify_encoder

import minibert
from minibert.equations.input_layer import Array
from minibert.models.open.load_encoder import load_encoder
from minibert.verify.report import Comparison
from minibert.verify.subjects import EncoderSubject
from minibert.verify.traces import Traces

LOOKS, UP = "encoder.layer.{i}.attention.self.", "encoder.layer.1.intermediate.dense"


def fits(report: Comparison, key: str) -> list[str]:
    assert not report.passed
    found = {each.key: each.fits for each in report.local}
    assert key in found, str(report)
    return found[key]


# -- norms -------------------------------------------------------------------------------------------------------


def with_small_rows(folder: Path, copy: Path) -> Path:
    """A model whose rows are so small that each eps shows in its first norm."""
    return rewritten(folder, copy, lambda name, x: x * np.float32(2e-4 if "_embeddings" in name else 1))


@pytest.fixture(scope="module")
def small(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_small_rows(folder, tmp_path_factory.mktemp("small") / "bert")


@pytest.mark.parametrize("eps", [1e-5, 1e-6, 1e-8])
@pytest.mark.parametrize("ddof", [0, 1])
def test_the_norm_of_tutorials_is_named_with_its_eps(ddof: int, eps: float, small: Path) -> None:
    port: Any = loops.Port(small)
    port.norm = partial(normed, port, ddof=ddof, eps=eps, outside=True)
    report = judged(small, port)
    name = ("variance divided by dim - 1, " if ddof else "") + f"eps outside the root, with eps {eps:g}"
    assert report.matches == [name], str(report)
    assert fits(report, "embeddings.LayerNorm") == [name]


def test_an_eps_of_tutorials_is_no_other_one(small: Path) -> None:
    port: Any = loops.Port(small)
    port.norm = partial(normed, port, eps=1e-8)
    assert judged(small, port).matches == ["eps 1e-08"]


# -- rows, linear maps, scores, activations ------------------------------------------------------------------------


def exchanged(stored: dict[str, Array]) -> dict[str, Array]:
    """The biases of queries and keys."""
    pairs = [[f"{LOOKS.format(i=i)}{name}.bias" for name in ("query", "key")] for i in range(encoders.DEPTH)]
    return {one: stored[other] for q, k in pairs for one, other in ((q, k), (k, q))}


POSITIONS, TYPES = (f"embeddings.{name}_embeddings" for name in ("position", "token_type"))
# mistake -> the module that it fits, "" for the whole port, and the other tensors
ODD: dict[str, tuple[str, Callable[[dict[str, Array]], dict[str, Array]]]] = {
    "position rows left out": (POSITIONS, lambda x: {f"{POSITIONS}.weight": 0 * x[f"{POSITIONS}.weight"]}),
    "type rows left out": (TYPES, lambda x: {f"{TYPES}.weight": 0 * x[f"{TYPES}.weight"]}),
    "weight's buffer read with the other shape": (
        UP, lambda x: {f"{UP}.weight": (w := x[f"{UP}.weight"]).ravel().reshape(w.shape[::-1]).T}),
    "biases of queries and keys exchanged": ("", exchanged),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_a_port_with_odd_tensors_is_named(name: str, folder: Path) -> None:
    (key, odd), port = ODD[name], loops.Port(folder)
    port.tensors |= odd(port.tensors)
    report = judged(folder, port)
    assert (fits(report, key) if key else report.matches) == [name], str(report)


def test_scores_divided_by_the_number_of_the_block(tmp_path: Path) -> None:
    """In block 1 the factor is 1 / sqrt(4 heads) too; block 2 tells them apart."""
    folder, name = encoders.write(tmp_path / "bert", "bert", num_hidden_layers=3), "scores divided by block + 1"
    report = judged(folder, loops.Port(folder, name))
    assert report.matches == [name]
    assert all(fits(report, LOOKS.format(i=i) + "scores") == [name] for i in (1, 2))


def test_relu6_is_not_relu(folder: Path, tmp_path: Path) -> None:
    """Some numbers of this model are above 6."""
    large = rewritten(folder, tmp_path / "large", lambda name, x: x * (4 if "layer.0.intermediate" in name else 1))
    assert judged(large, loops.Port(large, "activation relu6")).matches == ["activation relu6"]


# -- rotation ----------------------------------------------------------------------------------------------------


def turned(x: Array) -> Array:
    """x (seq, heads, size) by the angles of its positions, halves of a head as pairs."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None, None] / 1e4 ** (np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)


def test_a_fused_projection_cut_group_by_group(folders: dict[str, Path]) -> None:
    """Two key heads for four of queries: each group's queries, key and value side by side."""
    with load_encoder(folders["llama"]) as encoder:
        inputs = few(encoder, "plain")
        trace = by_steps(encoder, inputs["plain"])
    at, size, groups = "layers.0.self_attn.", 8, 2
    fused = np.concatenate([trace[f"{at}{name}_proj"] for name in "qkv"], -1)
    seq = fused.shape[1]
    parts = fused.reshape(len(fused), seq, groups, -1, size)
    for text in range(len(fused)):
        q = parts[text, :, :, :2].reshape(seq, 2 * groups, size)
        k, v = (parts[text, :, :, n].reshape(seq, groups, size).repeat(2, 1) for n in (2, 3))
        trace[f"{at}scores"][text] = np.einsum("ihd,jhd->hij", turned(q), turned(k)) / math.sqrt(size)
        context = np.einsum("hij,jhd->ihd", trace["attentions.0"][text], v)
        trace[f"{at}context"][text] = context.reshape(seq, -1)
    report = verify_encoder(folders["llama"], arrays(inputs, {"plain": trace}))
    assert fits(report, f"{at}scores") == ["queries, keys and values side by side for each head"]


# -- windows -----------------------------------------------------------------------------------------------------


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
    """A ModernBERT whose block 1 sees other distances; its file has no attention weights of the long text."""
    folder = encoders.write(tmp_path / "modernbert", "modernbert", local_attention=8)
    with load_encoder(folder) as encoder:
        assert encoder.stack.blocks[1].attention.window == 4
        inputs = few(encoder, "plain", "long")
        traces: Traces = {kind: by_steps(encoder, batch) for kind, batch in inputs.items()}
    for trace in traces.values():
        scores = trace["layers.1.attn.scores"].astype(float)
        places = np.arange(scores.shape[-1])
        weights = np.exp(np.where(visible(places[:, None] - places), scores, -np.inf))
        weights = trace["attentions.1"] = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
        v = np.split(trace["layers.1.attn.Wqkv"], 3, -1)[2].reshape(len(scores), len(places), encoders.HEADS, -1)
        context = np.einsum("bhij,bjhd->bihd", weights, v)
        trace["layers.1.attn.context"] = context.reshape(*context.shape[:2], -1).astype(np.float32)
    traces["long"] = {key: x for key, x in traces["long"].items()
                      if not key.startswith("attentions.") and not key.endswith(".scores")}  # fmt: skip
    order = [*traces["plain"]]
    only = order[: order.index("layers.1.attn.context") + 1]
    report = verify_encoder(folder, arrays(inputs, traces), only=only)
    named = [each for each in fits(report, "attentions.1") if each.startswith("window")]
    assert named == ([name] if name else []), str(report)


# -- heads -------------------------------------------------------------------------------------------------------


def test_a_head_that_skips_the_last_norm() -> None:
    case = HEAD_CASE["gpt2-next_word"]
    with case.load() as encoder:
        inputs = few(encoder, "plain")
        trace = by_steps(encoder, inputs["plain"], head=EncoderSubject(encoder, case.load).head)
        words = encoder["wte"].table.array()
        last = f"h.{len(encoder.stack.blocks) - 1}.mlp.sum"
    for key in ("lm_head", "logits"):
        assert key in trace
        trace[key] = (trace[last] @ words.T).astype(np.float32)
    report = verify_encoder(case.folder, arrays(inputs, {"plain": trace}))
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
    folder = with_small_rows(vector_port.write(tmp_path / "model"), tmp_path / "small")
    port: Any = vector_port.VectorPort(folder)
    port.port.norm = partial(normed, port.port, ddof=ddof, eps=eps, outside=True)
    report = minibert.compare(folder, against=port(TEXTS), texts=TEXTS)
    assert not report.passed and report.matches == names, str(report)
    assert "In float16" not in str(report)
