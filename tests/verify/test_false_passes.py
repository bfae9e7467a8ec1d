"""Nothing passes unseen: NaN and zeros in any batch, mistakes below a format's rounding, and what `only` left out."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import loops
import numpy as np
import pytest
from head_files import HEAD_CASE
from ports import few, verify_part
from test_formats import Narrow, written

from minibert.models.open.load_encoder import load_encoder
from minibert.verify.mistakes.mistake import all_places, begin, kept
from minibert.verify.mistakes.wrong_modules import ROUNDINGS
from minibert.verify.places import narrowed
from minibert.verify.report import Comparison
from minibert.verify.subjects import EncoderSubject
from minibert.verify.traces import Traces, read_traces, write_traces
from minibert.verify.verify import verify

FORMATS = ("float32", "float16", "bfloat16")
FIRST = {"states": "hidden_states.1", "all": "encoder.layer.0.attention.self.query"}


def right(folder: Path, form: str) -> tuple[Traces, Traces]:
    return written(folder, loops.Port(folder) if form == "float32" else Narrow(folder, form), form)


def judged(folder: Path, path: Path, inputs: Traces, traces: Traces, form: str) -> Comparison:
    write_traces(path, inputs, traces)
    return verify_part(str(folder), encoder=True, against=path, format=form)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("what", FIRST)
@pytest.mark.parametrize("number", [np.nan, -np.inf])
def test_numbers_that_are_not_finite_never_pass(
    what: str, form: str, number: float, folder: Path, tmp_path: Path
) -> None:
    """From block 0 on, in every batch but plain; the first one is the first difference, and named once."""
    inputs, traces = right(folder, form)
    named = [*traces["left_pad"]]
    for key in named[named.index("hidden_states.0") + 1 :]:
        if what == "all" or key.startswith("hidden_states"):
            traces["left_pad"][key] = np.full_like(traces["left_pad"][key], number)
    report = judged(folder, tmp_path / "port.safetensors", inputs, traces, form)
    text = "\n".join(report.lines)
    assert not report.passed and report.rounding == "", text
    assert f"first difference: block 0, {FIRST[what]}, in left_pad;" in text
    assert [(each.key, each.fits) for each in report.local] == [(FIRST[what], ["NaN or infinity"])], text
    assert text.count("The cause is a division by 0") == 1
    assert not any("linear maps differ" in line for line in report.lines)


def test_numbers_at_padding_are_never_looked_at(folder: Path, tmp_path: Path) -> None:
    inputs, traces = right(folder, "float32")
    padding = inputs["left_pad"]["attention_mask"] == 0
    for i in range(3):
        traces["left_pad"][f"hidden_states.{i}"][padding] = np.nan
    report = judged(folder, tmp_path / "port.safetensors", inputs, traces, "float32")
    assert report.passed, "\n".join(report.lines)


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_of_zeros_lacks_no_bias(form: str, folder: Path, tmp_path: Path) -> None:
    inputs, traces = right(folder, form)
    traces = {kind: {key: x * 0 if x.dtype.kind == "f" else x for key, x in trace.items()}
              for kind, trace in traces.items()}  # fmt: skip
    report = judged(folder, tmp_path / "port.safetensors", inputs, traces, form)
    assert not report.passed
    assert report.mistakes == ["only zeros"], "\n".join(report.lines)


def narrow(folder: Path, form: str) -> tuple[Traces, Traces]:
    """Compute each step of a model in a format, on two batches."""
    with load_encoder(folder) as encoder:
        subject = EncoderSubject(encoder, partial(load_encoder, folder))
        inputs, traces = few(encoder), Traces()
        for kind, batch in inputs.items():
            values, named = begin(batch), traces.setdefault(kind, {})
            for at in all_places(encoder, subject.head):
                for key, step in narrowed(ROUNDINGS[form], at).items():
                    values[key] = step.formula(*(values[name] for name in step.of))
                    if not step.hidden and values[key] is not None:
                        named[key] = values[key]
                values = kept(values)
    return inputs, traces


@pytest.mark.parametrize(
    ("name", "form", "hides"),
    [
        ("llama", "bfloat16", "rotary frequencies in bfloat16"),
        ("ultrabert-masked_word", "bfloat16", "activation gelu"),
    ],
)
def test_every_mistake_that_a_format_hides_is_listed(
    name: str, form: str, hides: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    """A head's activation too, though the blocks would show the same mistake."""
    folder = HEAD_CASE[name].folder if name in HEAD_CASE else folders[name]
    report = judged(folder, tmp_path / "port.safetensors", *narrow(folder, form), form)
    assert report.passed, "\n".join(report.lines)
    (line,) = [line for line in report.lines if "such rounding can hide" in line]
    assert hides in report.hidden and all(mistake in line for mistake in report.hidden), line


def test_only_says_what_it_left_out(folder: Path, tmp_path: Path) -> None:
    verify(str(folder), encoder=True, save=(path := tmp_path / "port.safetensors"))
    report = verify(str(folder), encoder=True, against=path, only=["sum", "hidden_states.2"])
    left = read_traces(path)[1]["plain"].keys() - {"sum", "hidden_states.2"}
    said, _, names = report.lines[-1].partition("s: ")
    assert report.passed and said == f"passed as far as it goes; not compared: {len(left)} intermediate"
    shown, _, more = names.partition(" and ")
    assert {*shown.split(", ")} < left and more == f"{len(left) - len(shown.split(', '))} more"
