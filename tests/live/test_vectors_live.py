"""Mistakes planted in vectors by sentence-transformers and transformers, of the real MiniLM: each is named, and no
other; honest vectors are the model's."""

from __future__ import annotations

from pathlib import Path

import pytest
from needed import need_sentence_transformers
from planted_vectors import HONEST, PLANTED, Model

from minibert.models.open.load_encoder import load_encoder
from minibert.verify.report import Report
from minibert.verify.sides.texts import TEXTS
from minibert.verify.vectors.vectors import judge

pytestmark = pytest.mark.reference

ASKED = [each.text for each in TEXTS]


@pytest.fixture(autouse=True, scope="module")
def _reference() -> None:
    need_sentence_transformers()


def judged(minilm: Path, name: str) -> Report:
    make = {**HONEST, **PLANTED}[name][1]
    report = Report()
    with load_encoder(minilm) as encoder:
        judge(report, encoder, ASKED, make(Model(minilm), ASKED))
    return report


@pytest.mark.parametrize("name", HONEST)
def test_honest_vectors_are_the_model_s(name: str, minilm: Path) -> None:
    report = judged(minilm, name)
    assert report.passed and not report.matches and report.rounding == HONEST[name][0], "\n".join(report.lines)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (i % 10 > 0)) for i, name in enumerate(PLANTED)]
)
def test_a_planted_mistake_is_named_and_no_other(name: str, minilm: Path) -> None:
    report = judged(minilm, name)
    assert not report.passed
    assert report.matches == [PLANTED[name][0]], "\n".join(report.lines)
