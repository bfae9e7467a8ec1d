"""The lab's notebooks: the answers are right, each blank left open says so, and each check refuses a wrong answer."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import blanks
import numpy as np
import pytest

STUDY = Path(__file__).resolve().parents[2] / "scripts" / "study"

NAMES = ("1_input_layer", "2_attention", "3_change_it")
GRADES = (1, 1, 1, 2, 2, 2, 3, 3)
Check = Callable[..., None]


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


def spoiled(answer: Any) -> Any:
    """A wrong answer of the same kind: as far off as a small slip."""
    if isinstance(answer, list):
        return answer[::-1]
    return answer + 1 if isinstance(answer, int) else np.asarray(answer) * 1.01


def refusing(lab: ModuleType, tried: list[str]) -> Check:
    """`check`, which has to refuse a wrong answer, and one of another shape, before it takes the right one."""

    def check(name: str, found: Any, wanted: Any, **options: Any) -> None:
        for wrong in (spoiled(found), np.zeros((2, 7)), None, "words"):
            with pytest.raises(lab.NotRightError, match=f"^{name} "):
                lab.check(name, wrong, wanted, **options)
        lab.check(name, found, wanted, **options)
        tried.append(name)

    return check


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_right_and_blanks_say_that_they_are_open(name: str, lab: ModuleType) -> None:
    space: dict[str, Any] = {"__name__": "__main__"}
    tried: list[str] = []
    for place, cell in enumerate(code_cells(source_of(name))):
        for number, blank in enumerate(blanks.found(cell)):
            asked = blank[2] if blank.re is blanks.LINE else re.findall(r"def (\w+)\(", cell[: blank.start()])[-1]
            with pytest.raises(lab.NotRightError, match=f"^{asked} is still open: write your answer"):
                exec(
                    compile(blanks.opened(cell, number), f"cell {place}, blank {number}", "exec"),
                    space | {"check": lab.check},
                )
        exec(compile(cell, f"{name}, cell {place}", "exec"), space)
        space["check"] = refusing(lab, tried)  # the first cell has imported the real one
    assert len(tried) == len(GRADES)


@pytest.mark.parametrize("name", NAMES)
def test_exercises_are_graded_and_each_has_a_blank_of_its_own(name: str, lab: ModuleType) -> None:
    source = source_of(name)
    found = re.findall(r"^# ## Exercise (\d) \(grade (\d)\): .+", source, re.MULTILINE)
    assert found == [(str(i + 1), str(grade)) for i, grade in enumerate(GRADES)]
    cells = code_cells(source)[1:]
    assert [len(blanks.found(cell)) for cell in cells] == [1] * len(GRADES)
    blank = blanks.opened(source)
    assert len(re.findall(r"(?: = |return )\.\.\.  # \w.+", blank)) == len(GRADES)
    assert "# blank:" not in blank and "# end\n" not in blank
    for answer in (match[0] for match in blanks.found(source)):
        body = (
            answer.splitlines()[1:-1] if answer.count("\n") > 1 else [answer.partition(" = ")[2].partition("  # ")[0]]
        )
        assert not any(line in blank for line in body if line), "no answer is left in the blanks"


def test_a_check_says_what_is_wrong(lab: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    for found, wanted, message in (
        (..., 1.0, "x is still open"),
        (np.zeros(3), np.zeros((3, 1)), r"x must have shape \(3, 1\), found \(3,\)"),
        (np.full(3, np.nan), np.zeros(3), "numbers are up to nan off"),
        ([1, 2], [2, 1], r"x is \[1, 2\], which is not the answer"),
        (np.array([1]), [1], "which is not the answer"),
        (object(), 1.0, "must be numbers"),
    ):
        with pytest.raises(lab.NotRightError, match=message):
            lab.check("x", found, wanted)
    with pytest.raises(lab.NotRightError, match="x cannot be used: no"):
        lab.check("x", 1, 1, used=lambda answer: (_ for _ in ()).throw(ValueError("no")))
    assert capsys.readouterr().out == ""
    lab.check("x", np.ones(2) + 1e-6, np.ones(2))
    assert capsys.readouterr().out == "x: right\n"


def test_the_index_names_every_notebook(lab: ModuleType) -> None:
    page = (STUDY / "README.md").read_text("utf-8")
    assert sorted(path.stem for path in (STUDY / "lab").glob("[0-9]_*.py")) == list(NAMES)
    for name in NAMES:
        assert f"(lab/{name}.py)" in page
    minutes = {1: 3, 2: 6, 3: 12}
    for most, time in ((1, 30), (2, 90), (3, 180)):
        taken = len(NAMES) * sum(minutes[grade] for grade in GRADES if grade <= most)
        assert 0.8 * time <= taken <= time
        assert f"| {time} minutes |" in page
