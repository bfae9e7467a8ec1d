"""The recipes: at most six lines each, and they do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from needed import absent, missing

import minibert

RECIPES = Path(__file__).parents[2] / "scripts" / "readme" / "recipes"
MOST_LINES = 6
NAME = "sentence-transformers/all-MiniLM-L6-v2"
TEXTS = [
    "My card was billed twice this month.", "I want a refund for the last invoice.", "The price on the bill is wrong.",
    "The app closes when I open it.", "The screen stays black after the update.", "It shows an error when I log in.",
]  # fmt: skip
LABELS = ["money"] * 3 + ["software"] * 3


def run(name: str, minilm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (RECIPES / name).read_text(encoding="utf-8")
    assert 0 < sum(bool(line.strip()) for line in source.splitlines()) <= MOST_LINES
    load = minibert.load_encoder
    monkeypatch.setattr(minibert, "load_encoder", lambda given: load({NAME: minilm}[given]), raising=False)
    exec(compile(source, name, "exec"), {"texts": TEXTS, "labels": LABELS})


@pytest.mark.reference  # whose extra brings scikit-learn
def test_a_classifier(minilm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if absent("sklearn"):
        missing("scikit-learn not installed; it is in the extra `reference`")
    run("classify.py", minilm, monkeypatch)
    assert capsys.readouterr().out == "['money']\n"


def test_nearest_neighbours(minilm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("nearest.py", minilm, monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert [line[7:] for line in lines] == [TEXTS[0], TEXTS[2], TEXTS[1]]
    assert [line[:5] for line in lines] == sorted((line[:5] for line in lines), reverse=True)


def test_an_engine(minilm: Path) -> None:
    """The one that the tests' own extra brings; the others are tried by hand, as the file says."""
    command = [sys.executable, RECIPES.parent / "engines.py", minilm, "polars"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    tried = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (tried.returncode, tried.stderr) == (0, "")
    assert re.fullmatch(r"\| polars \| [\d.]+ \| \d\.\de[+-]\d\d \|", tried.stdout.splitlines()[-1])
