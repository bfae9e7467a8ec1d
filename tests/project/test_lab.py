"""The lab's notebooks: the answers are right, each blank left open says so, and every exercise is tried."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import blanks
import pytest
from command_line import Printed

STUDY = Path(__file__).resolve().parents[2] / "scripts" / "study"

GRADES = dict.fromkeys(("1_input_layer", "2_attention", "3_change_it"), (1, 1, 1, 2, 2, 2, 3, 3))
GRADES["4_words"] = (1, 2, 3, 3, 3, 3)


@pytest.fixture
def lab(minilm: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The plumbing as a notebook has it, on the real checkpoint."""
    monkeypatch.setattr(sys, "argv", ["lab"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    for variable in ("MINIBERT_BERT", "MINIBERT_GPT2"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("MINIBERT_MODEL", str(minilm))
    import lab

    yield lab
    for name in ("lab", "study"):
        sys.modules.pop(name, None)


def source_of(name: str) -> str:
    return (STUDY / "lab" / f"{name}.py").read_text("utf-8")


def code_cells(source: str) -> list[str]:
    """The code cells of a percent-format file."""
    parts = re.split(r"^# %%(.*)\n", source, flags=re.MULTILINE)
    return [text for mark, text in zip(parts[1::2], parts[2::2], strict=True) if "markdown" not in mark]


@pytest.mark.parametrize("name", GRADES)
def test_answers_are_right_and_blanks_say_that_they_are_open(name: str, lab: ModuleType, capsys: Printed) -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    for place, cell in enumerate(code_cells(source_of(name))):
        answers = re.findall(r"^def (\w+)\(", cell, re.MULTILINE)[:1] if blanks.found(cell) else []
        assert len(answers) == (place > 0), "each cell but the first has an exercise"
        assert not blanks.found(blanks.opened(cell)), "no answer is left in the blanks"
        for source in (blanks.opened(cell), cell) if answers else (cell,):
            exec(compile(source, f"{name}, cell {place}", "exec"), space)
            printed = capsys.readouterr().out
            still_open = f"{answers[0]} is still open: write your answer" if answers else ""
            assert printed.startswith(still_open if source != cell else f"{answers[0]}: right\n" if answers else "")


def test_every_exercise_is_tried(lab: ModuleType) -> None:
    asked = [
        re.findall(r"^def (\w+)\(", cell, re.MULTILINE)[0]
        for name in GRADES for cell in code_cells(source_of(name))[1:]
    ]  # fmt: skip
    assert sorted(asked) == sorted(lab.TRIALS) and len(asked) == 30
