"""Ports with planted mistakes, made by transformers' modules: each wrong module is found by itself and named rightly,
and honest ports pass."""

from __future__ import annotations

from pathlib import Path

import honest_ports
import planted_blocks
import planted_hidden_states
import planted_ports
import pytest
from ports import verify_part

from minibert.verify.sides.traces import read_traces, write_traces

PLANTED = {**planted_ports.PLANTED, **planted_blocks.PLANTED}
pytestmark = pytest.mark.reference


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (i % 6 > 0)) for i, name in enumerate(PLANTED)]
)
def test_a_planted_mistake_is_found_where_it_is_and_named(name: str, tmp_path: Path) -> None:
    report = planted_ports.judged(PLANTED[name], tmp_path)
    assert not report.passed
    assert {each.key for each in report.local} == set(PLANTED[name].wrong), "\n".join(report.lines)
    for each in report.local:
        wanted = PLANTED[name].wrong[each.key]
        assert wanted in each.fits if wanted else not each.fits, "\n".join(report.lines)


@pytest.mark.parametrize("name", planted_hidden_states.PLANTED)
def test_of_hidden_states_alone_the_mistake_is_named_too(name: str, tmp_path: Path) -> None:
    """Where a port gives nothing from within its blocks: as a whole, else block by block."""
    planted = planted_hidden_states.PLANTED[name]
    report = planted_ports.judged(planted.port, tmp_path, states_alone=True)
    assert not report.passed and report.matches == planted.matches, "\n".join(report.lines)
    if planted.fits:
        fits = {int(each.key.rpartition(".")[2]): each.fits for each in report.local}
        assert fits == {i: [named] for i, named in planted.fits.items()}, "\n".join(report.lines)
    else:
        assert not any("nothing explains" in line for line in report.lines)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (i % 4 > 0)) for i, name in enumerate(honest_ports.HONEST)]
)
def test_an_honest_port_passes_in_its_own_format_and_in_those_that_round_more(name: str, tmp_path: Path) -> None:
    port, own = honest_ports.HONEST[name]
    folder, path = honest_ports.write(port, tmp_path)
    for form in honest_ports.FORMATS:
        report = verify_part(str(folder), encoder=True, against=path, form=form)
        wider = honest_ports.FORMATS.index(own) <= honest_ports.FORMATS.index(form)
        assert report.passed == wider, (form, "\n".join(report.lines))
        if form == "float32":
            assert report.rounding == ("" if own == form else own)
        elif own == "float32":
            assert f"right in float32, not computed in {form}" in report.lines
        elif wider:
            assert any(line.startswith(f"every module that is shown is right in {form}; ") for line in report.lines)


def hooked(key: str) -> bool:
    """Whether hooks of modules give it: no sum, no scores, no heads joined again."""
    return key.rpartition(".")[2] not in ("sum", "scores", "context")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (i % 4 > 0)) for i, name in enumerate(honest_ports.HONEST)]
)
def test_an_honest_port_passes_by_what_hooks_give(name: str, tmp_path: Path) -> None:
    """Of the long text there are not even attention weights: what rounds then is shown nowhere."""
    port, own = honest_ports.HONEST[name]
    folder, path = honest_ports.write(port, tmp_path)
    inputs, traces = read_traces(path)
    traces = {kind: {key: x for key, x in trace.items() if hooked(key)} for kind, trace in traces.items()}
    assert not any("attentions" in key for key in traces["long"])
    write_traces(path, inputs, traces)
    only = sorted({key for trace in traces.values() for key in trace})
    report = verify_part(str(folder), encoder=True, against=path, form=own, only=only)
    assert report.passed, "\n".join(report.lines)


@pytest.mark.parametrize("name", honest_ports.WRONG)
def test_a_wrong_port_in_a_narrow_format_is_found_where_it_is(name: str, tmp_path: Path) -> None:
    """Much that is wrong is smaller than what the format does to the whole model."""
    port, form = honest_ports.WRONG[name]
    folder, path = honest_ports.write(port, tmp_path)
    report = verify_part(str(folder), encoder=True, against=path, form=form)
    assert not report.passed and report.rounding == "", "\n".join(report.lines)
    assert {each.key for each in report.local} == set(port.wrong), "\n".join(report.lines)
    for each in report.local:
        wanted = port.wrong[each.key]
        assert not wanted or wanted in each.fits, "\n".join(report.lines)
