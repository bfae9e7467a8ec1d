"""Several modules of a port wrong at once: each is found by itself, and named if its formula has that mistake."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import loops
import numpy as np
import planted_loops
import pytest
from encoder_files import CASE
from ports import arrays, few, judged, numbers, verify_part
from safetensors.numpy import load_file

from minibert.equations.input_layer import Array
from minibert.models.open.load_encoder import load_encoder
from minibert.verify.local import local_mistakes
from minibert.verify.subjects import EncoderSubject

Q0, O1, DOWN1 = (f"encoder.layer.{path}" for path in (
    "0.attention.self.query", "1.attention.output.dense", "1.output.dense"))  # fmt: skip
N0, N1 = "encoder.layer.0.attention.output.LayerNorm", "encoder.layer.1.output.LayerNorm"


class Wrong(loops.Port):
    """A port in loops with some modules replaced: path -> from the port and the module's rows."""

    def __init__(self, folder: Path, replaced: dict[str, Callable[[Any, Array], Array]]) -> None:
        super().__init__(folder)
        self.replaced = replaced

    def dense(self, path: str, rows: Array) -> Array:
        made = self.replaced[path](self, rows) if path in self.replaced else super().dense(path, rows)
        return np.asarray(made, np.float32)

    def norm(self, path: str, rows: Array) -> Array:
        made = self.replaced[path](self, rows) if path in self.replaced else super().norm(path, rows)
        return np.asarray(made, np.float32)


def weight(port: Any, path: str) -> Array:
    return np.asarray(port.tensors[f"{path}.weight"])


def bias(port: Any, path: str) -> Array:
    return np.asarray(port.tensors[f"{path}.bias"])


def no_bias(path: str) -> Callable[[Any, Array], Array]:
    return lambda port, x: x @ weight(port, path).T


def transposed(path: str) -> Callable[[Any, Array], Array]:
    return lambda port, x: x @ weight(port, path) + bias(port, path)


def halved(path: str) -> Callable[[Any, Array], Array]:
    return lambda port, x: x @ weight(port, path).astype(np.float16).astype(np.float32).T + bias(port, path)


def of(path: str, other: str) -> Callable[[Any, Array], Array]:
    return lambda port, x: x @ weight(port, other).T + bias(port, other)


def normed(
    path: str, ddof: int = 0, eps: float = 1e-12, outside: bool = False, rms: bool = False
) -> Callable[[Any, Array], Array]:
    def made(port: Any, x: Array) -> Array:
        centred = x - (0 if rms else x.mean(-1, keepdims=True))
        variance = (centred**2).sum(-1, keepdims=True) / (x.shape[-1] - ddof)
        root = np.sqrt(variance) + eps if outside else np.sqrt(variance + eps)
        return np.asarray(centred / root * weight(port, path) + bias(port, path))

    return made


# with BERT's eps the two cannot be told apart
DDOF = "variance divided by dim - 1 or variance divided by dim - 1, eps outside the root"
PLANTED: dict[str, dict[str, tuple[str, Callable[[Any, Array], Array]]]] = {
    "another block's": {O1: ("weight and bias of encoder.layer.0.attention.output.dense",
                             of(O1, "encoder.layer.0.attention.output.dense"))},
    "dim - 1": {N0: (DDOF, normed(N0, ddof=1))},
    "rms and a bias after it": {
        N0: ("RMSNorm for LayerNorm", normed(N0, rms=True)), DOWN1: ("bias missing", no_bias(DOWN1))},
    "the last norm, and the first matrix": {
        Q0: ("bias missing", no_bias(Q0)), N1: (DDOF, normed(N1, ddof=1))},
    "four at once": {
        Q0: ("bias missing", no_bias(Q0)), N0: ("RMSNorm for LayerNorm", normed(N0, rms=True)),
        O1: ("weight transposed", transposed(O1)), DOWN1: ("", halved(DOWN1))},
    "an eps that no list has": {N0: ("", normed(N0, eps=0.03))},
    "a weight for another layout": {Q0: ("the same numbers in another order", lambda port, x: (
        x @ weight(port, Q0).T + bias(port, Q0))[..., np.arange(x.shape[-1]).reshape(4, -1).T.ravel()])},
    "what no list has": {Q0: ("", lambda port, x: np.tanh(x @ weight(port, Q0).T) + bias(port, Q0))},
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_each_wrong_module_is_found_and_named_by_itself(name: str, folder: Path) -> None:
    planted = PLANTED[name]
    replaced = {path: made for path, (_, made) in planted.items()}
    report = judged(folder, Wrong(folder, replaced))
    assert not report.passed
    assert {each.key: each.fits for each in report.local} == {
        path: fits.split(" or ") if fits else [] for path, (fits, _) in planted.items()
    }, "\n".join(report.lines)
    for each in report.local:  # what was tried is said where nothing fits
        assert bool(each.excluded) == (not each.fits) and ("bias missing" in each.excluded) == (not each.fits)
        tried = f"{each.key} by {each.largest:.2g}; none of {len(each.excluded)} mistakes fits"
        assert bool(each.fits) or tried in "\n".join(report.lines)


@pytest.mark.parametrize("block", [0, 1])
def test_a_module_that_several_blocks_use_is_judged_in_each(block: int) -> None:
    """ALBERT: one matrix, and a key of the trace for each block that it works in."""
    path, case = "encoder.albert_layer_groups.0.albert_layers.0", CASE["albert"]
    key, entering = f"{path}[{block}].attention.query", f"hidden_states.{block}"
    stored = {name.removeprefix("albert."): x for name, x in load_file(case.folder / "model.safetensors").items()}
    with case.load() as encoder:
        subject = EncoderSubject(encoder, case.load)
        inputs, theirs = few(encoder), {}
        for kind, batch in inputs.items():
            right = encoder.trace(**batch)
            made = right[entering] @ stored[f"{path}.attention.query.weight"]
            made += stored[f"{path}.attention.query.bias"]
            theirs[kind] = {name: right[name] for name in ("hidden_states.0", entering)} | {key: made}
        found = local_mistakes(subject, inputs, theirs).modules
    assert [(each.key, each.place, each.fits) for each in found] == [(key, f"block {block}", ["weight transposed"])]


class WrongInput(loops.Port):
    """A port whose input layer errs at one place."""

    def input_layer(self, given: Any, kept: dict[str, Array]) -> Array:
        super().input_layer(given, kept)
        word, place, kind = (kept[f"embeddings.{name}_embeddings"] for name in ("word", "position", "token_type"))
        table = self.tensors["embeddings.position_embeddings.weight"]
        if self.wrong == "rows one further":
            place = kept["embeddings.position_embeddings"] = table[kept["position_ids"] + 1]
        if self.wrong == "counted from 2":
            kept["position_ids"] = kept["position_ids"] + 2
            place = kept["embeddings.position_embeddings"] = table[kept["position_ids"]]
        if self.wrong == "type 1":
            kind = kept["embeddings.token_type_embeddings"] = 0 * kind + self.tensors[
                "embeddings.token_type_embeddings.weight"][1]  # fmt: skip
        kept["sum"] = word + place if self.wrong == "no types" else word + kind + place
        kept["embeddings.LayerNorm"] = self.norm("embeddings.LayerNorm", kept["sum"])
        if self.wrong == "norm's bias":
            kept["embeddings.LayerNorm"] -= self.tensors["embeddings.LayerNorm.bias"]
        if self.wrong == "one more":
            return kept["embeddings.LayerNorm"] + np.float32(1)
        return kept["sum"] if self.wrong == "no norm" else kept["embeddings.LayerNorm"]


@pytest.mark.parametrize(
    ("wrong", "key", "name"),
    [
        ("rows one further", "embeddings.position_embeddings", "rows of ids +1"),
        ("counted from 2", "position_ids", "positions from 2"),
        ("type 1", "embeddings.token_type_embeddings", "type 1 for all tokens or token types exchanged"),
        ("no types", "sum", "type rows left out"),
        ("norm's bias", "embeddings.LayerNorm", "bias missing"),
        ("no norm", "hidden_states.0", "it is sum"),
        ("one more", "hidden_states.0", ""),
    ],
)
def test_what_the_input_layer_has_wrong(wrong: str, key: str, name: str, folder: Path) -> None:
    """The blocks only follow."""
    report = judged(folder, WrongInput(folder, wrong))
    fits = name.split(" or ") if name else []
    assert not report.passed
    assert [(each.key, each.place, each.fits) for each in report.local] == [(key, "input layer", fits)]


def test_numbers_of_padding_that_are_none_do_not_spread(folder: Path) -> None:
    """A port may leave anything at padding."""
    with load_encoder(folder) as encoder:
        inputs = few(encoder, "left_pad")
    made = Wrong(folder, {Q0: no_bias(Q0)}).run(inputs["left_pad"])
    padding = inputs["left_pad"]["attention_mask"] == 0
    for key, x in made.items():
        if x.ndim == 3 and not key.startswith("embeddings") and key != "sum":
            x[padding] = math.nan
    report = verify_part(folder, arrays(inputs, {"left_pad": made}), encoder=True)
    assert [each.key for each in report.local] == [Q0]


@pytest.mark.parametrize("name", planted_loops.PLANTED)
def test_a_mistake_in_a_port_by_loops_is_found_and_named(name: str, folders: dict[str, Path]) -> None:
    planted = planted_loops.PLANTED[name]
    folder = folders[planted.model]
    report = judged(folder, loops.Port(folder, planted.mistake, blocks=planted.blocks))
    assert not report.passed
    assert {each.key for each in report.local} == set(planted.wrong), "\n".join(report.lines)
    for each in report.local:
        assert planted.wrong[each.key] in each.fits, "\n".join(report.lines)


def test_a_port_in_float16_is_told_so(folder: Path) -> None:
    """One line says it; within a tolerance the port passes, and the line is there all the same."""
    with np.errstate(over="ignore"):  # the mask is -inf in float16
        found = numbers(folder, loops.Port(folder, dtype=np.float16))
    report, again = (verify_part(folder, found, encoder=True, tolerance=most) for most in (0.0, 0.03))
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
    with np.errstate(over="ignore"):  # the mask is -inf in float16
        found = numbers(folder, loops.Port(folder, name, dtype=np.float16))
    report = verify_part(folder, found, encoder=True, tolerance=0.03)
    assert not report.passed
    assert len(report.local) == 2 and all(name in each.fits for each in report.local), "\n".join(report.lines)
