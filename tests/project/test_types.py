"""What others see of the package before anything runs: the types of its methods, and its names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from needed import absent, missing

import minibert

ROOT = Path(__file__).resolve().parents[2]
CALLS = ROOT / "tests/support/typed_calls.py"


@pytest.mark.slow
def test_mypy_knows_what_methods_give(tmp_path: Path) -> None:
    """Also that it would tell: each of three wrong lines is an error."""
    if absent("mypy"):
        missing("mypy not installed; it is in the extra `test`")
    wrong = tmp_path / "wrong.py"
    lines = "encoder.encode('a').shape[1]", "assert_type(encoder.encode(texts), Vector)", "encoder.fill(3)"
    wrong.write_text(CALLS.read_text("utf-8") + "".join(f"    {line}\n" for line in lines), "utf-8")
    for path, errors in ((CALLS, 0), (wrong, 3)):
        command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), str(path)]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        found = [line for line in result.stdout.splitlines() if ": error: " in line]
        assert len(found) == errors, result.stdout + result.stderr


def test_dir_shows_public_names_alone() -> None:
    """Not the modules and helpers that this file happens to have imported, nor what it uses itself."""
    minibert.load  # noqa: B018
    names = dir(minibert)
    assert names == sorted({*minibert.__all__, "__version__"})
    assert all(hasattr(minibert, name) for name in names)
