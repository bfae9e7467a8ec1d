"""Errors carry data, and the library names no option of a shell: the command line rewrites arguments."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoints import write, write_vocab

import minibert
from minibert.cli import main
from minibert.errors import Option, Text, TokenizerError, error_of, parts_of

PACKAGE = Path(minibert.__file__).parent
SHELL = re.compile(r"(?<![\w-])--[a-z]|`minibert [a-z]")
OTHER = " --local-dir FOLDER`"  # the end of another program's command line, which has no other name


def messages(source: str) -> Iterator[str]:
    """Every string in a file except docstrings."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_the_library_speaks_no_shell() -> None:
    # servers are started by their commands alone, whose options their answers name; options.py is read by both
    own = {"commands", "cli.py", "serve", "live.py", "options.py"}
    files = [path for path in PACKAGE.rglob("*.py") if not own & {*path.relative_to(PACKAGE).parts}]
    assert len(files) > 50
    found = {(path.name, text) for path in files for text in messages(path.read_text(encoding="utf-8"))}
    assert [(name, text) for name, text in found if SHELL.search(text) and OTHER not in text] == []
    assert {name for name, text in found if OTHER in text} == {"repository.py"}


def test_an_error_has_its_data(tmp_path: Path) -> None:
    layer = minibert.load(write_vocab(write(tmp_path)))
    with pytest.raises(ValueError, match=r"text 1 has 22 tokens.*or pass truncation=True") as caught:
        layer.tokenize(["we", "we " * 20])
    error = caught.value
    assert parts_of(error)[0] == Text(1) and parts_of(error)[-1] == Option("truncation", True)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and parts_of(again) == parts_of(error)


def test_a_place_is_data_too() -> None:
    inner = error_of(ValueError, Text(3, "texts"), " is bad; pass ", Option("bad_rows", "skip"))
    error = error_of(TokenizerError, *parts_of(inner), place="a.csv, row 4")
    assert str(error) == 'a.csv, row 4: texts[3] is bad; pass bad_rows="skip"'
    assert parts_of(error)[2:] == parts_of(inner)
    assert parts_of(ValueError("plain")) == ("plain",)


def test_words_in_a_name_are_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the data becomes an option: a folder may have the name of an argument."""
    model, made = write(tmp_path / "model"), tmp_path / "pass truncation=True"
    made.mkdir()
    assert main(["extract", str(model), "-o", str(made)]) == 1
    assert f"{made} exists; choose another name" in capsys.readouterr().err
