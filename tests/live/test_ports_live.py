"""Ports, heads and vectors with planted mistakes, made by other programs: each is named, and honest ones pass."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import honest_ports
import planted_ports
import planted_vectors
import pytest
from needed import need_sentence_transformers
from planted_mistakes import OF_LAYERS, OF_STATES, PLANTED, judged_of_layer
from planted_ports import Planted
from planted_vectors import Made, Model
from ports import arrays, verify_encoder

from minibert.models.open.load_encoder import load_encoder
from minibert.verify.report import Comparison
from minibert.verify.shipped import TEXTS
from minibert.verify.vectors import judge

pytestmark = pytest.mark.reference


def slow_but(every: int, names: Iterable[str]) -> list[Any]:
    """All cases, marked slow but for one in `every`."""
    return [pytest.param(name, marks=[pytest.mark.slow] * (i % every > 0)) for i, name in enumerate(names)]


def found_where_it_is(report: Comparison, port: Planted) -> None:
    assert not report.passed
    assert {each.key for each in report.local} == set(port.wrong), str(report)


@pytest.mark.parametrize("name", slow_but(6, PLANTED))
def test_a_planted_mistake_is_found_where_it_is_and_named(name: str, tmp_path: Path) -> None:
    report = planted_ports.judged(PLANTED[name], tmp_path)
    found_where_it_is(report, PLANTED[name])
    for each in report.local:
        wanted = PLANTED[name].wrong[each.key]
        assert wanted in each.fits if wanted else not each.fits, str(report)


@pytest.mark.parametrize("name", OF_STATES)
def test_of_hidden_states_alone_the_mistake_is_named_too(name: str, tmp_path: Path) -> None:
    """For a port without intermediates of its blocks: as a whole, else block by block."""
    planted = OF_STATES[name]
    report = planted_ports.judged(planted.port, tmp_path, states_alone=True)
    assert not report.passed and report.matches == planted.matches, str(report)
    if planted.fits:
        fits = {int(each.key.rpartition(".")[2]): each.fits for each in report.local}
        assert fits == {i: [named] for i, named in planted.fits.items()}, str(report)
    else:
        assert not any("nothing explains" in line for line in report.lines)


@pytest.mark.parametrize("name", OF_LAYERS)
def test_a_mistake_of_an_input_layer_is_named(name: str) -> None:
    report = judged_of_layer(OF_LAYERS[name])
    assert not report.passed and report.matches == [name], str(report)


@pytest.mark.parametrize("name", slow_but(4, honest_ports.HONEST))
def test_an_honest_port_passes_in_its_own_format_in_those_that_round_more_and_by_what_hooks_give(
    name: str, tmp_path: Path
) -> None:
    port, own = honest_ports.HONEST[name]
    folder, inputs, traces = honest_ports.write(port, tmp_path)
    for form in honest_ports.FORMATS:
        report = verify_encoder(folder, arrays(inputs, traces), format=form)
        wider = honest_ports.FORMATS.index(own) <= honest_ports.FORMATS.index(form)
        assert report.passed == wider, (form, str(report))
        if form == "float32":
            assert report.rounding == ("" if own == form else own)
        elif own == "float32":
            assert f"right in float32, not computed in {form}" in report.lines
        elif wider:
            assert any(line.startswith(f"every module that is shown is right in {form}; ") for line in report.lines)
    # hooks of modules give no sum, no scores, no heads joined again. Of the long text there are not even attention
    # weights: what rounds then is shown nowhere
    hooked = {kind: {key: x for key, x in trace.items() if key.rpartition(".")[2] not in ("sum", "scores", "context")}
              for kind, trace in traces.items()}  # fmt: skip
    assert not any("attentions" in key for key in hooked["long"])
    only = sorted({key for trace in hooked.values() for key in trace})
    report = verify_encoder(folder, arrays(inputs, hooked), format=own, only=only)
    assert report.passed, str(report)


@pytest.mark.parametrize("name", honest_ports.WRONG)
def test_a_wrong_port_in_a_narrow_format_is_found_where_it_is(name: str, tmp_path: Path) -> None:
    port, form = honest_ports.WRONG[name]
    folder, inputs, traces = honest_ports.write(port, tmp_path)
    report = verify_encoder(folder, arrays(inputs, traces), format=form)
    found_where_it_is(report, port)
    assert report.rounding == "" and all(port.wrong[each.key] in each.fits for each in report.local), str(report)


ASKED = [each.text for each in TEXTS]


@pytest.fixture(autouse=True, scope="module")
def _reference() -> None:
    need_sentence_transformers()


def judged(folder: Path, texts: list[str], made: Made) -> Comparison:
    report = Comparison()
    with load_encoder(folder) as encoder:
        judge(report, encoder, texts, made(Model(folder), texts))
    return report


@pytest.mark.parametrize("name", planted_vectors.HONEST)
def test_honest_vectors_are_the_model_s(name: str, minilm: Path) -> None:
    rounding, make = planted_vectors.HONEST[name]
    report = judged(minilm, ASKED, make)
    assert report.passed and not report.matches and report.rounding == rounding, str(report)


@pytest.mark.parametrize("name", slow_but(10, planted_vectors.PLANTED))
def test_a_planted_mistake_is_named_and_no_other(name: str, minilm: Path) -> None:
    named, make = planted_vectors.PLANTED[name]
    report = judged(minilm, ASKED, make)
    assert not report.passed and report.matches == [named], str(report)


# in few numbers a difference does not always show that rounding made it: then the vectors are not passed, nor named
NOT_TOLD = {(name, "computed in float16") for name in ("cls", "dense", "prompts", "bfloat16")}
NOT_TOLD |= {(name, "computed in bfloat16") for name in ("cls", "last-token", "prompts", "bfloat16")}
# a Qwen3 has one special token, at the end
ALSO = {("last-token", "special tokens left out"): "last special token left out"}


@pytest.fixture(scope="module", params=planted_vectors.FOLDERS)
def named(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return request.param, planted_vectors.write(request.param, tmp_path_factory.mktemp("folders"))


@pytest.mark.parametrize("how", planted_vectors.HONEST_OF_FOLDERS)
def test_honest_vectors_of_other_models_are_theirs(how: str, named: tuple[str, Path]) -> None:
    name, folder = named
    rounding, make = planted_vectors.HONEST[how]
    report = judged(folder, planted_vectors.TEXTS, make)
    assert not report.matches, str(report)
    assert report.passed or (name, how) in NOT_TOLD, str(report)
    assert not report.passed or report.rounding == rounding


def test_planted_mistakes_are_named_and_never_a_wrong_one_alone(named: tuple[str, Path]) -> None:
    name, folder = named
    found = {
        mistake: judged(folder, planted_vectors.TEXTS, make)
        for mistake, make in planted_vectors.OF_FOLDERS[name].items()
    }
    assert [mistake for mistake, report in found.items() if report.passed] == []
    told = [mistake for mistake, report in found.items() if ALSO.get((name, mistake), mistake) in report.matches]
    assert {mistake: x.matches for mistake, x in found.items() if x.matches and mistake not in told} == {}
    assert len(told) >= 0.85 * len(found) - 1, set(found) - set(told)


def test_numbers_that_no_mistake_gives_have_no_name(named: tuple[str, Path]) -> None:
    for what, change in planted_vectors.UNLIKE.items():
        report = judged(named[1], planted_vectors.TEXTS, lambda *asked, change=change: change(Model.encode(*asked)))
        assert not report.passed and not report.matches, what
