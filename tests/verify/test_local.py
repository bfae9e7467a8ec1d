"""Several modules of a port wrong at once: each is found by itself, and named if its formula has that mistake."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import loops
import numpy as np
import planted_loops
import pytest
from encoder_files import CASE
from planted_loops import normed
from ports import arrays, few, judged, numbers, verify_encoder
from safetensors.numpy import load_file

from minibert.equations.input_layer import Array
from minibert.models.open.load_encoder import load_encoder
from minibert.verify.local import local_mistakes
from minibert.verify.subjects import EncoderSubject

Q0, O0, O1, DOWN1 = (f"encoder.layer.{path}" for path in (
    "0.attention.self.query", "0.attention.output.dense", "1.attention.output.dense", "1.output.dense"))  # fmt: skip
N0, N1 = "encoder.layer.0.attention.output.LayerNorm", "encoder.layer.1.output.LayerNorm"


Formula = Callable[[Any, str, Array], Array]  # from the port, a module's path, and its rows


class Wrong(loops.Port):
    """A port in loops with some modules replaced."""

    replaced: Mapping[str, Formula] = {}

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
    "dim - 1": {N0: (DDOF, partial(normed, ddof=1))},
    "rms and a bias after it": {N0: ("RMSNorm for LayerNorm", RMS), DOWN1: ("bias missing", NO_BIAS)},
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


def wrong(folder: Path, replaced: Mapping[str, Formula]) -> Wrong:
    port = Wrong(folder)
    port.replaced = replaced
    return port


@pytest.mark.parametrize("name", PLANTED)
def test_each_wrong_module_is_found_and_named_by_itself(name: str, folder: Path) -> None:
    planted = PLANTED[name]
    report = judged(folder, wrong(folder, {path: made for path, (_, made) in planted.items()}))
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
        word, place, kind = (f"embeddings.{name}_embeddings" for name in ("word", "position", "token_type"))
        norm, table = "embeddings.LayerNorm", self.tensors[f"{place}.weight"]
        if self.wrong == "rows one further":
            kept[place] = table[kept["position_ids"] + 1]
        if self.wrong == "counted from 2":
            kept["position_ids"] = kept["position_ids"] + 2
            kept[place] = table[kept["position_ids"]]
        if self.wrong == "type 1":
            kept[kind] = 0 * kept[kind] + self.tensors[f"{kind}.weight"][1]
        kept["sum"] = kept[word] + kept[place] if self.wrong == "no types" else kept[word] + kept[kind] + kept[place]
        kept[norm] = self.norm(norm, kept["sum"])
        if self.wrong == "norm's bias":
            kept[norm] -= self.tensors[f"{norm}.bias"]
        if self.wrong == "one more":
            return kept[norm] + np.float32(1)
        return kept["sum" if self.wrong == "no norm" else norm]


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
    made = wrong(folder, {Q0: NO_BIAS}).run(inputs["left_pad"])
    padding = inputs["left_pad"]["attention_mask"] == 0
    for key, x in made.items():
        if x.ndim == 3 and not key.startswith("embeddings") and key != "sum":
            x[padding] = math.nan
    report = verify_encoder(folder, arrays(inputs, {"left_pad": made}))
    assert [each.key for each in report.local] == [Q0]


@pytest.mark.parametrize("name", planted_loops.PLANTED)
def test_a_mistake_in_a_port_by_loops_is_found_and_named(name: str, folders: dict[str, Path]) -> None:
    planted = planted_loops.PLANTED[name]
    folder = folders[planted.model]
    report = judged(folder, loops.Port(folder, planted.mistake, blocks=planted.blocks))
    assert not report.passed
    assert {each.key for each in report.local} == set(planted.wrong), str(report)
    for each in report.local:
        assert planted.wrong[each.key] in each.fits, str(report)


def in_float16(folder: Path, mistake: str = "") -> dict[str, Array]:
    with np.errstate(over="ignore"):  # the mask is -inf in float16
        return numbers(folder, loops.Port(folder, mistake, np.float16))


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
