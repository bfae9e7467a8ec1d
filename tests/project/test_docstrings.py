"""Docstrings begin with a sentence whose subject acts: a reader learns who does what before anything else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "minibert"
DEFINED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# a question in place of a subject, and words that name nothing
VAGUE = re.compile(r"^(What|Those|How|Where|Which)\b|\b(so many|what is|of its own|as it is)\b", re.IGNORECASE)


def first_sentences(source: str) -> Iterator[tuple[int, str]]:
    """Return the line and the first sentence of each docstring."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DEFINED) and (text := ast.get_docstring(node)):
            line = node.body[0].lineno
            yield line, re.split(r"(?<=[.:!?])\s", " ".join(text.split()), maxsplit=1)[0]


def test_first_sentences_say_who_does_what() -> None:
    found = [
        f"{path.relative_to(PACKAGE.parent)}:{line}: {sentence}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, sentence in first_sentences(path.read_text("utf-8"))
        if VAGUE.search(sentence)
    ]
    assert found == [], "name the subject, and let it act: " + "\n".join(found)


@pytest.mark.parametrize(
    ("sentence", "vague"),
    [
        ("What becomes of scores, in place.", True),
        ("Softmax over visible keys, in place.", False),
        ("Where one mistake explains all blocks, its name is taken.", True),
        ("Turns token ids into checked, packed inputs.", False),
        ("A step whose checkpoint has a name of its own.", True),
        ("Whatever a caller passes is checked.", False),
    ],
)
def test_vague_sentences_are_found(sentence: str, vague: bool) -> None:
    (found,) = (text for _, text in first_sentences(f'def f():\n    """{sentence} More. What else."""\n'))
    assert bool(VAGUE.search(found)) is vague
