"""Several modules of a port wrong at once: each is found by itself, and named if its formula has that mistake.

And the names that porters need: each mistake is planted by loops or a few lines of NumPy, never by the list's code.
Those that need no more than a port by loops are in `loops`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import encoders
import loops
import numpy as np
import pytest
import vector_port
from encoder_files import CASE
from head_files import HEAD_CASE
from loops import normed
from ports import arrays, by_steps, few, judged, numbers, opened, rewritten, verify_encoder
from safetensors.numpy import load_file

import minibert
from minibert.equations.input_layer import Array
from minibert.models.open.load_encoder import load_encoder
from minibert.verify.local import local_mistakes
from minibert.verify.report import Comparison
from minibert.verify.traces import Traces

LOOKS, UP = "encoder.layer.{i}.attention.self.", "encoder.layer.1.intermediate.dense"
Q0, O0, O1, DOWN1 = (f"encoder.layer.{path}" for path in (
    "0.attention.self.query", "0.attention.output.dense", "1.attention.output.dense", "1.output.dense"))  # fmt: skip
WORDS, POSITIONS, TYPES = (f"embeddings.{name}_embeddings" for name in ("word", "position", "token_type"))
NORM, N0, N1 = "embeddings.LayerNorm", "encoder.layer.0.attention.output.LayerNorm", "encoder.layer.1.output.LayerNorm"


Formula = Callable[[Any, str, Array], Array]  # from the port, a module's path, and its rows


class Wrong(loops.Port):
    """A port in loops with some modules replaced."""

    def __init__(self, folder: Path, replaced: Mapping[str, Formula]) -> None:
        super().__init__(folder)
        self.replaced = replaced

    def dense(self, path: str, rows: Array) -> Array:
        return np.asarray(self.replaced.get(path, loops.Port.dense)(self, path, rows), np.float32)

    def norm(self, path: str, rows: Array) -> Array:
        return np.asarray(self.replaced.get(path, loops.Port.norm)(self, path, rows), np.float32)


def by(formula: Callable[[Array, Array, Array], Array], other: str = "") -> Formula:
    """A formula of a linear map's weight and bias, or of another one's, and its rows."""
    return lambda port, path, x: formula(*(port.tensors[f"{other or path}.{name}"] for name in ("weight", "bias")), x)


NO_BIAS, RMS = by(lambda w, b, x: x @ w.T), partial(normed, rms=True)
# with BERT's eps the two cannot be told apart
DDOF = "variance divided by dim - 1 or variance divided by dim - 1, eps outside the root"
PLANTED: dict[str, dict[str, tuple[str, Formula]]] = {
    "another block's": {O1: (f"weight and bias of {O0}", by(lambda w, b, x: x @ w.T + b, O0))},
    "the last norm, and the first matrix": {Q0: ("bias missing", NO_BIAS), N1: (DDOF, partial(normed, ddof=1))},
    "four at once": {
        Q0: ("bias missing", NO_BIAS), N0: ("RMSNorm for LayerNorm", RMS),
        O1: ("weight transposed", by(lambda w, b, x: x @ w + b)),
        DOWN1: ("", by(lambda w, b, x: x @ w.astype(np.float16).astype(np.float32).T + b))},
    "an eps that no list has": {N0: ("", partial(normed, eps=0.03))},
    "a weight for another layout": {Q0: ("the same numbers in another order", by(
        lambda w, b, x: (x @ w.T + b)[..., np.arange(x.shape[-1]).reshape(4, -1).T.ravel()]))},
    "what no list has": {Q0: ("", by(lambda w, b, x: np.tanh(x @ w.T) + b))},
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_each_wrong_module_is_found_and_named_by_itself(name: str, folder: Path) -> None:
    planted = PLANTED[name]
    report = judged(folder, Wrong(folder, {path: made for path, (_, made) in planted.items()}))
    assert not report.passed
    assert {each.key: each.fits for each in report.local} == {
        path: fits.split(" or ") if fits else [] for path, (fits, _) in planted.items()
    }, str(report)
    for each in report.local:  # what was tried is said where nothing fits
        assert bool(each.excluded) == (not each.fits) and ("bias missing" in each.excluded) == (not each.fits)
        tried = f"{each.key} by {each.largest:.2g}; none of {len(each.excluded)} mistakes fits"
        assert bool(each.fits) or tried in str(report)


@pytest.mark.parametrize("block", [0, 1])
def test_a_module_that_several_blocks_use_is_judged_in_each(block: int) -> None:
    """ALBERT: one matrix, and a key of the trace for each block that it works in."""
    path, case = "encoder.albert_layer_groups.0.albert_layers.0", CASE["albert"]
    key, entering = f"{path}[{block}].attention.query", f"hidden_states.{block}"
    stored = {name.removeprefix("albert."): x for name, x in load_file(case.folder / "model.safetensors").items()}
    with opened(case.folder) as (subject, inputs):
        theirs = Traces()
        for kind, batch in inputs.items():
            right = subject.encoder.trace(**batch)
            made = right[entering] @ stored[f"{path}.attention.query.weight"]
            made += stored[f"{path}.attention.query.bias"]
            theirs[kind] = {name: right[name] for name in ("hidden_states.0", entering)} | {key: made}
        found = local_mistakes(subject, inputs, theirs).modules
    assert [(each.key, each.place, each.fits) for each in found] == [(key, f"block {block}", ["weight transposed"])]


class WrongInput(loops.Port):
    """A port whose input layer errs at one place."""

    def input_layer(self, given: Mapping[str, Array], kept: dict[str, Array]) -> Array:
        mask = given.get("attention_mask", np.ones(len(given["input_ids"]), int))
        if self.wrong == "counted from 2":
            given = {**given, "position_ids": np.arange(2, 2 + len(mask))}
        if self.wrong == "counted by the mask":
            given = {**given, "position_ids": np.where(mask, mask.cumsum() - 1, 1)}
        x = super().input_layer(given, kept)
        if self.wrong in ("no types", "types last"):
            kept["sum"] = kept[WORDS] + kept[POSITIONS] + (kept[TYPES] if self.wrong == "types last" else 0)
            x = kept[NORM] = self.norm(NORM, kept["sum"])
        return {"no norm": kept["sum"], "one more": x + np.float32(1)}.get(self.wrong, x)


@pytest.mark.parametrize(
    ("wrong", "key", "name"),
    [
        ("counted from 2", "position_ids", "positions from 2"),
        ("counted by the mask", "position_ids", "positions counted by the mask"),
        ("no types", "sum", "type rows left out"),
        ("types last", "sum", "rows added in the other order"),
        ("no norm", "hidden_states.0", "it is sum"),
        ("one more", "hidden_states.0", ""),
    ],
)
def test_what_the_input_layer_has_wrong(wrong: str, key: str, name: str, folder: Path) -> None:
    """The blocks only follow."""
    report = judged(folder, WrongInput(folder, wrong))
    assert not report.passed
    names = [name] if name else []
    assert [(each.key, each.place, each.fits) for each in report.local] == [(key, "input layer", names)]


def test_numbers_of_padding_that_are_none_do_not_spread(folder: Path) -> None:
    """A port may leave anything at padding."""
    with load_encoder(folder) as encoder:
        inputs = few(encoder, "left_pad")
    made = Wrong(folder, {Q0: NO_BIAS}).run(inputs["left_pad"])
    padding = inputs["left_pad"]["attention_mask"] == 0
    for key, x in made.items():
        if x.ndim == 3 and not key.startswith("embeddings") and key != "sum":
            x[padding] = math.nan
    report = verify_encoder(folder, arrays(inputs, {"left_pad": made}))
    assert [each.key for each in report.local] == [Q0]


@pytest.mark.parametrize("name", loops.PLANTED)
def test_a_mistake_in_a_port_by_loops_is_found_and_named(name: str, folders: dict[str, Path]) -> None:
    planted = loops.PLANTED[name]
    folder = folders[planted.model]
    report = judged(folder, loops.Port(folder, planted.mistake, blocks=planted.blocks))
    assert not report.passed
    assert {each.key for each in report.local} == set(planted.wrong), str(report)
    for each in report.local:
        assert planted.wrong[each.key] in each.fits, str(report)


def in_float16(folder: Path, mistake: str = "") -> dict[str, Array]:
    with np.errstate(over="ignore"):  # the mask is -inf in float16
        return numbers(folder, loops.Port(folder, mistake, np.float16))


def test_a_mistake_at_one_of_two_residuals_is_not_the_mistake_at_both(folders: dict[str, Path]) -> None:
    report = judged(folders["gpt2"], loops.Port(folders["gpt2"], "second residual from the normed x"))
    assert not report.passed and report.matches == []


def test_a_port_in_float16_is_told_so(folder: Path) -> None:
    """One line says it; within a tolerance the port passes, and the line is there all the same."""
    found = in_float16(folder)
    report, again = (verify_encoder(folder, found, tolerance=most) for most in (0.0, 0.03))
    line = "all modules that are shown are right in float16; if that is meant, compare in that format"
    assert not report.passed and report.rounding == "float16" and not report.local and report.lines[1] == line
    assert again.passed and again.lines[1] == line


def test_a_tolerance_changes_what_passes_and_not_what_is_looked_for(folder: Path) -> None:
    port = loops.Port(folder, "activation gelu_new")
    report, again = (judged(folder, port, tolerance=most) for most in (0.0, 0.03))
    assert not report.passed and again.passed
    assert again.matches == report.matches == ["activation gelu_new"] and again.local == report.local != []
    assert "no difference beyond 0.03" in again.lines


@pytest.mark.parametrize("name", ["division by sqrt(dim)", "heads joined without transposing"])
def test_a_mistake_of_a_port_in_float16_is_named(name: str, folder: Path) -> None:
    """Its rounding, which is allowed, hides no name."""
    report = verify_encoder(folder, in_float16(folder, name), tolerance=0.03)
    assert not report.passed
    assert len(report.local) == 2 and all(name in each.fits for each in report.local), str(report)


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


def one_pass(port: loops.Port, path: str, x: Array) -> Array:
    mean = x.mean(-1, keepdims=True)
    root = np.sqrt((x * x).mean(-1, keepdims=True) - mean * mean + port.eps)
    return np.asarray((x - mean) / root * port.tensors[f"{path}.weight"] + port.tensors[f"{path}.bias"])


def test_a_variance_in_one_pass_is_named_where_the_mean_is_large(folder: Path, tmp_path: Path) -> None:
    """Rows around 100: there our own norm, in two passes, is right."""
    far = rewritten(folder, tmp_path / "far", lambda name, x: x + np.float32(100 * (name == f"{DOWN1}.bias")))
    assert fits(judged(far, Wrong(far, {N1: one_pass})), N1) == ["variance in one pass"]


def test_an_eps_of_tutorials_is_no_other_one(small: Path) -> None:
    port: Any = loops.Port(small)
    port.norm = partial(normed, port, eps=1e-8)
    assert judged(small, port).matches == ["eps 1e-08"]


# -- rows, linear maps, scores, activations ------------------------------------------------------------------------


# mistake -> the tensor that a port has otherwise; of its module alone the mistake then fits
ODD: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "position rows left out": (f"{POSITIONS}.weight", lambda table: 0 * table),
    "rows of ids +1": (f"{POSITIONS}.weight", lambda table: np.roll(table, -1, 0)),
    "rows of ids -1": (f"{WORDS}.weight", lambda table: np.roll(table, 1, 0)),
    "word rows times sqrt(dim)": (f"{WORDS}.weight", lambda table: table * np.float32(math.sqrt(encoders.DIM))),
    "padding row zeroed": (f"{WORDS}.weight", lambda table: table * (np.arange(len(table)) != 0)[:, None]),
    "type rows left out": (f"{TYPES}.weight", lambda table: 0 * table),
    "type 0 for all tokens": (f"{TYPES}.weight", lambda table: table[[0, 0]]),
    "type 1 for all tokens": (f"{TYPES}.weight", lambda table: table[[1, 1]]),
    "token types exchanged": (f"{TYPES}.weight", lambda table: table[[1, 0]]),
    "bias missing": (f"{NORM}.bias", lambda bias: 0 * bias),
    "weight's buffer read with the other shape": (f"{UP}.weight", lambda w: w.ravel().reshape(w.shape[::-1]).T),
}


@pytest.mark.parametrize("name", ODD)
def test_a_port_with_an_odd_tensor_is_named(name: str, folder: Path) -> None:
    (tensor, change), port = ODD[name], loops.Port(folder)
    port.tensors[tensor] = change(port.tensors[tensor])
    report = judged(folder, port, "plain", "types", "right_pad_no_mask")
    assert not report.passed
    assert [(each.key, each.fits) for each in report.local] == [(tensor.rpartition(".")[0], [name])]


def test_exchanged_biases_of_queries_and_keys_are_named(folder: Path) -> None:
    port = loops.Port(folder)
    for i in range(encoders.DEPTH):
        q, k = (f"{LOOKS.format(i=i)}{name}.bias" for name in ("query", "key"))
        port.tensors[q], port.tensors[k] = port.tensors[k], port.tensors[q]
    assert judged(folder, port).matches == ["biases of queries and keys exchanged"]


def with_heads(many: int) -> Callable[[Path], loops.Port]:
    def made(folder: Path) -> loops.Port:
        port = loops.Port(folder)
        port.heads, port.key_heads, port.size = many, many, encoders.DIM // many
        return port

    return made


STATES_ALONE: dict[str, tuple[str, Callable[[Path], loops.Port]]] = {
    "twice as many heads": ("bert", with_heads(2 * encoders.HEADS)),
    "half as many heads": ("bert", with_heads(encoders.HEADS // 2)),
    "feed-forward beside attention": ("gpt2", lambda folder: loops.Port(folder, "feed-forward from the block's input")),
}


@pytest.mark.parametrize("name", STATES_ALONE)
def test_of_hidden_states_alone_what_no_single_module_shows_is_named(name: str, folders: dict[str, Path]) -> None:
    model, port = STATES_ALONE[name]
    found = numbers(folders[model], port(folders[model]))
    states = {key: x for key, x in found.items() if "|inputs|" in key or "|hidden_states." in key}
    report = verify_encoder(folders[model], states)
    assert not report.passed and report.matches == [name], str(report)


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
    folder = HEAD_CASE["gpt2-next_word"].folder
    with opened(folder, "plain") as (subject, inputs):
        trace = by_steps(subject.encoder, inputs["plain"], head=subject.head)
        words = subject.encoder["wte"].table.array()
        last = f"h.{len(subject.encoder.stack.blocks) - 1}.mlp.sum"
    for key in ("lm_head", "logits"):
        assert key in trace
        trace[key] = (trace[last] @ words.T).astype(np.float32)
    report = verify_encoder(folder, arrays(inputs, {"plain": trace}))
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
