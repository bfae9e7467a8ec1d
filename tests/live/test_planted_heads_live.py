"""Mistakes of heads and input layers, planted in transformers' own models: found where they are, and named."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted_heads import PLANTED, judged, right

pytestmark = pytest.mark.reference


@pytest.mark.parametrize("name", PLANTED)
def test_a_mistake_of_a_head_or_an_input_layer_is_named_at_its_place(name: str, tmp_path: Path) -> None:
    report = judged(PLANTED[name], tmp_path)
    assert not report.passed and right(PLANTED[name], report), "\n".join(report.lines)
