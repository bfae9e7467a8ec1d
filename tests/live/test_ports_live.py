"""Ports with planted mistakes, made by transformers' modules: each wrong module is found by itself and named rightly,
and honest ports pass. The table of `tests/reference/GOLDEN.md` has the rows that the same run gives."""

from __future__ import annotations

from pathlib import Path

import planted_blocks
import planted_ports
import pytest
from planted_ports import HONEST
from reference_files import REFERENCE

PAGE = (REFERENCE / "GOLDEN.md").read_text(encoding="utf-8")
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
    assert planted_ports.row(name, report) in PAGE.splitlines()


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_port_passes(name: str, tmp_path: Path) -> None:
    report = planted_ports.judged(HONEST[name], tmp_path)
    assert report.passed and not report.local, "\n".join(report.lines)
