"""The recipes: at most six lines each, and they do what they say."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Patch, Printed
from needed import absent, missing

import minibert
from minibert.cli import main

RECIPES = Path(__file__).parents[2] / "scripts" / "readme" / "recipes"
MOST_LINES = 6
NAME = "sentence-transformers/all-MiniLM-L6-v2"
TEXTS = [
    "My card was billed twice this month.", "I want a refund for the last invoice.", "The price on the bill is wrong.",
    "The app closes when I open it.", "The screen stays black after the update.", "It shows an error when I log in.",
]  # fmt: skip
LABELS = ["money"] * 3 + ["software"] * 3


def run(name: str, minilm: Path, monkeypatch: Patch) -> None:
    source = (RECIPES / name).read_text(encoding="utf-8")
    assert 0 < sum(bool(line.strip()) for line in source.splitlines()) <= MOST_LINES
    load = minibert.load_encoder
    monkeypatch.setattr(minibert, "load_encoder", lambda given: load({NAME: minilm}[given]), raising=False)
    exec(compile(source, name, "exec"), {"texts": TEXTS, "labels": LABELS})


@pytest.mark.parametrize("name", ["classify.py", "nearest.py"])
def test_the_page_shows_it_as_it_is_run(name: str) -> None:
    assert (RECIPES / name).read_text(encoding="utf-8").strip() in (RECIPES / "README.md").read_text(encoding="utf-8")


@pytest.mark.reference  # whose extra brings scikit-learn
def test_a_classifier(minilm: Path, monkeypatch: Patch, capsys: Printed) -> None:
    if absent("sklearn"):
        missing("scikit-learn not installed; it is in the extra `reference`")
    run("classify.py", minilm, monkeypatch)
    assert capsys.readouterr().out == "['money']\n"


def test_nearest_neighbours(minilm: Path, monkeypatch: Patch, capsys: Printed) -> None:
    run("nearest.py", minilm, monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert [line[7:] for line in lines] == [TEXTS[0], TEXTS[2], TEXTS[1]]
    assert [line[:5] for line in lines] == sorted((line[:5] for line in lines), reverse=True)


def test_a_search_of_what_bulk_wrote(minilm: Path, tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    """The two commands as the page has them, then the program; only the model's name stands for its folder."""
    monkeypatch.chdir(tmp_path)
    rows = (json.dumps({"text": text}) + "\n" for text in TEXTS)
    Path("texts.jsonl").write_text("".join(rows), encoding="utf-8")
    page = (RECIPES / "README.md").read_text(encoding="utf-8")
    lines = re.findall(r"^minibert (.*)$", page, re.MULTILINE)
    assert [line.split()[0] for line in lines] == ["bulk", "search"]
    for line in lines:
        assert main([str(minilm) if word == NAME else word for word in shlex.split(line)]) == 0
    found = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=2)[2] for line in found] == [TEXTS[0], TEXTS[2], TEXTS[1]]
    run("stored.py", minilm, monkeypatch)
    shown = capsys.readouterr().out
    assert all(repr(text) in shown for text in TEXTS[:3]) and found[0][:4] in shown


def test_an_engine(minilm: Path) -> None:
    """The one that the tests' own extra brings; the others are tried by hand, as the file says."""
    command = [sys.executable, RECIPES.parent / "engines.py", minilm, "polars"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    tried = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (tried.returncode, tried.stderr) == (0, "")
    assert re.fullmatch(r"\| polars \| [\d.]+ \| \d\.\de[+-]\d\d \|", tried.stdout.splitlines()[-1])
