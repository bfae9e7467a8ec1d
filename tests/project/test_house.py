"""The size of the package's files, and the functions that one use goes through: what keeps the code readable in a day.

Only `sh scripts/check` runs this file.
"""

from __future__ import annotations

import contextlib
import re
import runpy
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Patch, Printed

import minibert
from minibert.cli import main

pytestmark = pytest.mark.check
PACKAGE = Path(minibert.__file__).parent
ROOT = Path(__file__).parents[2]
LONGEST = 500  # lines of a file
SHORT, FEW_SHORT = 100, 20  # a file below 100 lines wants a reason: at most 20 have one
NOT_ENTERED = {"<module>", "<genexpr>", "<lambda>", "<listcomp>", "<dictcomp>", "<setcomp>"}

# use -> at most so many functions, files, and returns to a file that was left: a tenth above the counts of today
LIMITS = {"encode": (71, 14, 19), "load_encoder": (165, 28, 64), "verify": (353, 46, 146), "bulk": (403, 51, 171)}


def test_a_file_is_a_chapter() -> None:
    files = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
    lines = {file: len(text.splitlines()) for file, text in files.items() if not file.endswith("__init__.py")}
    assert [file for file, text in files.items() if len(text.splitlines()) > LONGEST] == []
    of_models = re.compile("families/(?!.*parts)")
    assert sum(count < SHORT and not of_models.match(file) for file, count in lines.items()) <= FEW_SHORT


def test_the_mistakes_of_scripts_mutants_follow_the_code() -> None:
    """Each text that is replaced stands once in its file: a renaming changes it there too."""
    runpy.run_path(str(ROOT / "scripts/mutants.py"))["checked"]()


def _entered(use: Callable[[], object]) -> list[str]:
    """The file of each function of the package that the second call of `use` enters, in order of first calls."""
    seen: dict[tuple[str, int], None] = {}

    def note(frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)) and code.co_name not in NOT_ENTERED:
            seen.setdefault((code.co_filename, code.co_firstlineno))

    use()  # imports and caches are not counted
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        use()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return [file for file, _ in seen]


def _walk(files: list[str]) -> tuple[int, int, int]:
    """Functions, files, and returns to a file that was left."""
    left: set[str] = set()
    returns = 0
    for before, file in zip([None, *files], files, strict=False):
        if file != before:
            returns += file in left
            left.add(file)
    return len(files), len(left), returns


@pytest.mark.parametrize("name", LIMITS)
def test_the_way_of_one_text_stays_short(
    name: str, minilm: Path, tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    monkeypatch.setenv("MINIBERT_MODEL", str(minilm))
    encoder, trace, lines = minibert.load_encoder(str(minilm)), tmp_path / "trace.safetensors", tmp_path / "lines.txt"
    lines.write_text("".join(f"line number {row}\n" for row in range(30)), "utf-8")
    runs = iter(range(2))

    def command(*words: object) -> None:
        with contextlib.suppress(SystemExit):
            main([str(word) for word in words])

    uses: dict[str, Callable[[], object]] = {
        "encode": lambda: encoder.encode(["a short text"]),
        "load_encoder": lambda: minibert.load_encoder(str(minilm)),
        "verify": lambda: command("verify", "--encoder", "--against", trace),
        "bulk": lambda: command("bulk", lines, "-o", tmp_path / f"out{next(runs)}"),
    }
    if name == "verify":
        command("verify", "--encoder", "--save", trace)
    assert _walk(["a", "a", "b", "a", "c"]) == (5, 3, 1)
    counts = _walk(_entered(uses[name]))
    capsys.readouterr()
    assert (np.array(counts) <= LIMITS[name]).all(), f"{counts}, at most {LIMITS[name]}"
    assert counts[0] > LIMITS[name][0] / 2, f"{counts}: the use ended early, or the limit is far too wide"
