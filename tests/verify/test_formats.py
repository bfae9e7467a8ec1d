"""Narrow formats: an honest port passes in its own, a mistake in it is found, and what rounding can hide is said.

In every format nothing passes unseen: NaN, zeros, a part of a mistake, and what `only` left out.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import encoders
import loops
import numpy as np
import pytest
import vector_port
from command_line import Patch
from head_files import HEAD_CASE
from ports import arrays, few, opened, rewritten, saved_of, verify_encoder

import minibert
from minibert.families.parts.heads import BoundHead
from minibert.families.parts.plan import Plan
from minibert.models.encoder import Encoder
from minibert.models.open.load_encoder import load_encoder
from minibert.verify.mistakes import MISTAKES, wrong_modules
from minibert.verify.mistakes.mistake import At, Mistake, all_places, begin, kept, with_mistake
from minibert.verify.mistakes.wrong_modules import ROUNDINGS
from minibert.verify.places import Replay, differing, narrowed, places, rounded_step
from minibert.verify.report import OF_A_PORT, Comparison, over_kinds
from minibert.verify.subjects import EncoderSubject, encoder_batches, trace
from minibert.verify.traces import Traces
from minibert.verify.verify import FORMATS

Array = np.ndarray[Any, Any]
DDOF = "variance divided by dim - 1"
# of two batches of a model of 16 numbers; MiniLM's are enough for these too
HIDDEN = {("activation gelu_new", "float16"), ("activation gelu_new", "bfloat16"), ("eps 0.001", "bfloat16")}


def test_each_format_has_its_rounding() -> None:
    """`verify` names the formats without importing the roundings."""
    assert ("float32", *wrong_modules.FORMATS) == FORMATS


class Narrow(loops.Port):
    """Plain loops whose parameters and intermediates are all rounded."""

    def __init__(self, folder: Path, form: str, mistake: str = "") -> None:
        super().__init__(folder, mistake)
        self.round = ROUNDINGS.get(form, np.asarray)
        self.tensors = {name: self.round(x) for name, x in self.tensors.items()}

    def norm(self, path: str, rows: Array) -> Array:
        return self.round(loops.normed(self, path, rows, ddof=int(self.wrong == DDOF), eps=float(self.eps)))

    def dense(self, path: str, rows: Array) -> Array:
        return self.round(super().dense(path, rows))


def written(folder: Path, port: loops.Port, form: str, states_alone: bool = False) -> tuple[Traces, Traces]:
    with load_encoder(folder) as encoder:
        inputs, rounding = few(encoder), ROUNDINGS.get(form, np.asarray)
    return inputs, {
        kind: {key: rounding(x) if x.dtype.kind == "f" else x for key, x in port.run(batch).items()
               if not states_alone or key.startswith("hidden_states.")}
        for kind, batch in inputs.items()
    }  # fmt: skip


def judged(folder: Path, port: loops.Port, form: str, states_alone: bool = False) -> Comparison:
    only = [f"hidden_states.{i}" for i in range(3)] if states_alone else None
    return verify_encoder(folder, arrays(*written(folder, port, form, states_alone)), format=form, only=only)


@pytest.mark.parametrize("form", ["float16", "bfloat16"])
@pytest.mark.parametrize("states_alone", [False, True])
def test_an_honest_port_passes_and_what_rounding_hides_is_said(form: str, states_alone: bool, folder: Path) -> None:
    report = judged(folder, Narrow(folder, form), form, states_alone)
    assert report.passed, str(report)
    assert report.rounding == form and "variance in one pass" in report.hidden
    assert any(line.startswith(f"every module that is shown is right in {form}; ") for line in report.lines)


@pytest.mark.parametrize("form", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "mistake", ["activation gelu_new", "no division by sqrt(head_dim)", "bias missing", DDOF, "eps 0.001"]
)
def test_of_hidden_states_alone_a_mistake_is_no_rounding(form: str, mistake: str, folder: Path) -> None:
    """Below the rounding that was asked for it may pass, and then the last line names it."""
    port = Narrow(folder, form, mistake)
    if mistake == "bias missing":
        port.tensors |= {name: 0 * x for name, x in port.tensors.items() if "query.bias" in name}
    if mistake == "eps 0.001":
        port.eps = np.float32(1e-3)
    report = judged(folder, port, form, states_alone=True)
    assert report.passed == ((mistake, form) in HIDDEN), str(report)
    assert (mistake in report.hidden) == report.passed
    assert report.passed or mistake in report.matches or mistake == "bias missing"  # that one is of queries alone


def test_a_format_is_of_a_whole_port(folder: Path) -> None:
    with pytest.raises(ValueError, match="float32, float16, bfloat16"):
        minibert.compare(folder, against={}, format="int4")
    with pytest.raises(ValueError):
        minibert.compare(folder, against={}, encoder=False, format="float16")


# -- parts of 32 numbers, as GGUF has them -----------------------------------------------------------------------


def in_blocks_of_32(x: Array, levels: int = 127, scales: type = np.float16) -> Array:
    """As GGUF stores numbers in Q8_0: 32 int8 with one scale in float16."""
    parts = x.reshape(-1, 32 if x.shape[-1] % 32 == 0 else x.shape[-1])
    scale = np.abs(parts).max(-1, keepdims=True) / np.float32(levels)
    made = np.rint(parts / np.where(scale, scale, 1)) * scale.astype(scales).astype(np.float32)
    return np.asarray(made.reshape(x.shape))


@pytest.mark.parametrize("levels", [127, 7])  # llama.cpp's Q8_0 and Q4_0: 32 numbers share a scale
def test_other_weights_are_said_in_one_line(levels: int, folder: Path) -> None:
    port = loops.Port(folder)
    maps = {name: x for name, x in port.tensors.items() if x.ndim == 2 and "layer" in name}
    port.tensors |= {name: in_blocks_of_32(x, levels, np.float32) for name, x in maps.items()}
    found = arrays(*written(folder, port, ""))
    report = verify_encoder(folder, found)
    assert not report.passed and report.rounding == ""
    # rows of this model are so short that a scale for each row is one for each 32 numbers
    assert report.matches == ["weights in int8"] * (levels == 127)
    said = [line for line in report.lines if "the weights are not this model's: 12 of 12 linear maps differ by" in line]
    assert len(said) == (levels == 7)
    assert levels == 127 or not any(line.startswith("  block") for line in report.lines)
    assert levels == 7 or verify_encoder(folder, found, tolerance=0.2).passed


def quantized(name: str, x: Array, change: Callable[[Array], Array] = in_blocks_of_32) -> Array:
    return change(x) if x.ndim == 2 and ("encoder" in name or "word" in name) else x


class Quantized(loops.Port):
    """Linear maps with weights and inputs in Q8_0, all else in float32."""

    def __init__(self, folder: Path, mistake: str = "") -> None:
        super().__init__(folder, mistake)
        self.tensors = {name: quantized(name, x) for name, x in self.tensors.items()}

    def dense(self, path: str, rows: Array) -> Array:
        return super().dense(path, in_blocks_of_32(rows))


@pytest.fixture
def wide(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A BERT of sentences whose rows are two blocks of 32 numbers."""
    for name, size in (("DIM", 64), ("WIDTH", 64), ("DEPTH", 1)):
        monkeypatch.setattr(encoders, name, size)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    monkeypatch.setattr(encoders, "COMMON", {**encoders.COMMON, **sizes})
    return vector_port.write(tmp_path / "wide")


@pytest.mark.parametrize("mistake", ["", "no division by sqrt(head_dim)"])
def test_q8_0_passes_a_right_port_and_no_wrong_one(mistake: str, wide: Path) -> None:
    found = arrays(*written(wide, Quantized(wide, mistake), ""))
    assert not verify_encoder(wide, found).passed
    report = verify_encoder(wide, found, format="q8_0")
    assert report.passed == (not mistake) and report.matches == [mistake] * bool(mistake), str(report)
    if not mistake:
        assert report.rounding == "q8_0" and "weights in int8" not in report.hidden
        assert any("right in q8_0; such rounding can hide: " in line for line in report.lines)


@pytest.mark.parametrize("form", ["q8_0", ""])
def test_vectors_of_a_model_in_q8_0_are_its_own(form: str, wide: Path, tmp_path: Path) -> None:
    other = partial(quantized, change=in_blocks_of_32 if form else lambda x: x * np.float32(0.98))
    texts = ["we lived above the clouds", "the clouds", "above the clouds we lived.", "we lived", "clouds!", "a b c d"]
    with load_encoder(rewritten(wide, tmp_path / "narrow", other)) as encoder:
        report = minibert.compare(wide, against=encoder.encode(texts), texts=texts)
    assert report.passed == bool(form) and report.rounding == form, str(report)


def test_float32_numbers_stored_in_float16_pass(folder: Path) -> None:
    """Their modules read numbers that the file does not have in full."""
    report = judged(folder, loops.Port(folder), "float16")
    assert report.passed and report.rounding == "float16", str(report)


@pytest.mark.slow
def test_a_real_model_with_weights_in_bfloat16_and_computation_in_float32(minilm: Path, tmp_path: Path) -> None:
    """One large number of a row can round to its true value: then our own error is smaller than the port's."""
    narrow = rewritten(
        minilm, tmp_path / "narrow", lambda name, x: ROUNDINGS["bfloat16"](x) if x.dtype == np.float32 else x
    )
    with opened(minilm) as (subject, inputs), load_encoder(narrow) as port:
        assert subject.encoder.pooler and subject.pooler is None  # vectors of sentences do without it
        theirs = {kind: trace(port, batch) for kind, batch in inputs.items()}
        found = [d for place in places(subject, inputs, theirs, "bfloat16") for d in differing(place.compared())]
    assert found == []


# -- nothing passes unseen ---------------------------------------------------------------------------------------

FLOATS = ("float32", "float16", "bfloat16")
FIRST = {"states": "hidden_states.1", "all": "encoder.layer.0.attention.self.query"}


@pytest.mark.parametrize("form", FLOATS)
@pytest.mark.parametrize("what", FIRST)
@pytest.mark.parametrize("number", [np.nan, -np.inf])
def test_numbers_that_are_not_finite_never_pass(what: str, form: str, number: float, folder: Path) -> None:
    """From block 0 on, in every batch but plain; the first one is the first difference, and named once."""
    inputs, traces = written(folder, Narrow(folder, form), form)
    named = [*traces["left_pad"]]
    for key in named[named.index("hidden_states.0") + 1 :]:
        if what == "all" or key.startswith("hidden_states"):
            traces["left_pad"][key] = np.full_like(traces["left_pad"][key], number)
    report = verify_encoder(folder, arrays(inputs, traces), format=form)
    text = str(report)
    assert not report.passed and report.rounding == "", text
    assert f"first difference: block 0, {FIRST[what]}, in left_pad;" in text
    assert [(each.key, each.fits) for each in report.local] == [(FIRST[what], ["NaN or infinity"])], text
    assert text.count("The cause is a division by 0") == 1
    assert not any("linear maps differ" in line for line in report.lines)


@pytest.mark.parametrize("form", FLOATS)
def test_a_file_of_zeros_lacks_no_bias(form: str, folder: Path) -> None:
    inputs, traces = written(folder, Narrow(folder, form), form)
    traces = {kind: {key: x * 0 if x.dtype.kind == "f" else x for key, x in trace.items()}
              for kind, trace in traces.items()}  # fmt: skip
    report = verify_encoder(folder, arrays(inputs, traces), format=form)
    assert not report.passed
    assert report.mistakes == ["only zeros"], str(report)


@pytest.mark.parametrize(
    ("name", "form", "hides"),
    [("llama", "bfloat16", "rotary frequencies in bfloat16"), ("ultrabert-masked_word", "bfloat16", "activation gelu")],
)
def test_every_mistake_that_a_format_hides_is_listed(
    name: str, form: str, hides: str, folders: dict[str, Path]
) -> None:
    """A head's activation too, though the blocks would show the same mistake."""
    folder = HEAD_CASE[name].folder if name in HEAD_CASE else folders[name]
    with opened(folder) as (subject, inputs):
        theirs, _ = ported(subject.encoder, inputs, None, 0, form, subject.head)
    report = verify_encoder(folder, arrays(inputs, theirs), format=form)
    assert report.passed, str(report)
    (line,) = [line for line in report.lines if "such rounding can hide" in line]
    assert hides in report.hidden and all(mistake in line for mistake in report.hidden), line


def test_only_says_what_it_left_out(folder: Path, tmp_path: Path) -> None:
    saved, only = saved_of(folder, tmp_path / "port.safetensors"), ["sum", "hidden_states.2"]
    report = verify_encoder(folder, saved, only=only)
    left = {key.removeprefix("plain|") for key in saved if key.startswith("plain|") and "inputs" not in key} - {*only}
    said, _, names = report.lines[-1].partition("s: ")
    assert report.passed and said == f"passed as far as it goes; not compared: {len(left)} intermediate"
    shown, _, more = names.partition(" and ")
    assert {*shown.split(", ")} < left and more == f"{len(left) - len(shown.split(', '))} more"


# -- half and a quarter of a mistake ---------------------------------------------------------------------------------

MODELS = ("bert", "gpt2", "mpnet", "modernbert", "gemma3_text", "umt5", "deberta-v2", "llama")
KINDS = ("plain", "left_pad", "mask_unlike_ids", "types")  # half a mistake shows in these; a quarter in all batches
SHOWN = 1e-4  # share of a number's size; a smaller difference may pass in float32. The largest that passes is 5.2e-5
AT_PADDING = "mask not applied to the rows"  # rows of padding are not compared


def plans(at: At, mistake: Mistake | None, form: str) -> tuple[Plan, Plan | None]:
    """The right steps, and the steps with the mistake, in a format."""
    wrong = mistake and with_mistake(mistake, at)
    if not form:
        return at.plan, wrong
    right, rounding = narrowed(ROUNDINGS[form], at), ROUNDINGS[form]
    changed = wrong and {key: right[key] if step is at.plan.get(key) else rounded_step(rounding, step)
                         for key, step in wrong.items()}  # fmt: skip
    return right, changed


def ported(
    encoder: Encoder, inputs: Traces, mistake: Mistake | None, much: float, form: str = "",
    head: BoundHead | None = None,
) -> tuple[Traces, float]:  # fmt: skip
    """A port's numbers, each module's moved by the share `much` towards the mistake, and the largest difference."""
    traces, most = Traces(), 0.0
    both = [plans(at, mistake, form) for at in all_places(encoder, head)]
    for kind, batch in inputs.items():
        fed, named = Replay({}, begin(batch)), traces.setdefault(kind, {})
        for right, wrong in both:
            fed.plan, fed.flow = right, kept(fed.flow)
            for key, step in right.items():
                x = fed.flow[key] = step.formula(*(fed.flow[name] for name in step.of))
                if step.hidden or x is None:
                    continue
                fed.fed.add(key)
                with suppress(KeyError, IndexError, ValueError, TypeError):  # of a later step, or of none
                    other = fed.value(key, wrong) if wrong and x.dtype.kind == "f" else None
                    if other is not None and other.shape == x.shape:
                        fed.flow[key] = (x + np.float32(much) * (other - x)).astype(x.dtype)
                        off = np.abs(fed.flow[key] - x) / np.maximum(1, np.abs(x))
                        most = max(most, float(np.nan_to_num(off, nan=np.inf).max(initial=0)))
                if form and fed.flow[key].dtype.kind == "f":
                    fed.flow[key] = ROUNDINGS[form](fed.flow[key])
                named[key] = fed.flow[key]
    return traces, most


@pytest.fixture(scope="module")
def models(folders: dict[str, Path]) -> dict[str, list[Mistake]]:
    """Each mistake in the first model that can have it."""
    left, found = [each for each in MISTAKES if not each.rounding and each.name != AT_PADDING], {}
    for name, folder in folders.items():
        with load_encoder(folder) as encoder:
            at = [*all_places(encoder)]
            found[name] = [mistake for mistake in left if any(with_mistake(mistake, each) for each in at)]
        left = [mistake for mistake in left if mistake not in found[name]]
    return found


@pytest.mark.parametrize("name", MODELS)
def test_a_part_of_a_mistake_does_not_pass(
    name: str, folders: dict[str, Path], models: dict[str, list[Mistake]]
) -> None:
    passed = {}
    with load_encoder(folders[name]) as encoder, np.errstate(all="ignore"):
        subject = EncoderSubject(encoder, partial(load_encoder, folders[name]))
        inputs = encoder_batches(encoder)
        some = {kind: batch for kind, batch in inputs.items() if kind in KINDS}
        ours = subject.traces(inputs, {})
        truth, last = subject.exact.traces(inputs, {}), f"hidden_states.{len(encoder.stack.blocks)}"
        for mistake in models[name]:
            for much, batches in ((0.5, some), (0.25, inputs)):
                theirs, most = ported(encoder, batches, mistake, much)
                whole = {kind: ours[kind] for kind in batches}
                states = {kind: {last: named[last]} for kind, named in whole.items()}  # most show there
                if all(d.accepted(OF_A_PORT) for part in (states, whole)
                       for d in over_kinds(subject.compare(batches, part, theirs, truth))):  # fmt: skip
                    passed[mistake.name, much] = most
    assert {key: most for key, most in passed.items() if most > SHOWN} == {}


@pytest.mark.parametrize("form", ["float16", "bfloat16"])
@pytest.mark.parametrize("mistake", ["activation gelu_new", "no division by sqrt(head_dim)", "eps 0.001",
                                     "residual missing", "mask ignored", "softmax over the heads"])  # fmt: skip
def test_in_a_format_half_of_a_mistake_passes_below_its_rounding_alone(form: str, mistake: str, folder: Path) -> None:
    """The report then names it in its last line."""
    (wrong,) = [each for each in MISTAKES if each.name == mistake]
    with opened(folder) as (subject, inputs), np.errstate(all="ignore"):
        theirs, most = ported(subject.encoder, inputs, wrong, 0.5, form)
    report = verify_encoder(folder, arrays(inputs, theirs), format=form)
    assert not report.passed or (mistake in report.hidden and most < 0.02), str(report)
