"""Runs of the command line, on a BERT of twelve words."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from minibert.cli import main
from minibert.equations.input_layer import Array

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "we", "lived", "above", "the", "clouds", "dog", "bites", "man"]
VOCAB, DIM, LONGEST = len(WORDS), 8, 16
STUDY = Path(__file__).resolve().parents[2] / "scripts" / "study"  # has small models of letters, with their heads
SMALL_GPT2 = str(STUDY / "gpt2-words")

# the command line as it is where torch is not installed, also where it is: for a process of its own
WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; from minibert.cli import main; sys.exit(main())"

Printed, Patch = pytest.CaptureFixture[str], pytest.MonkeyPatch


def ran(printed: Printed, *arguments: object) -> tuple[str, str]:
    """Return stdout and stderr of a successful run."""
    printed.readouterr()  # of earlier runs
    assert main([*map(str, arguments)]) == 0
    return printed.readouterr()


def failure(printed: Printed, *arguments: object) -> str:
    """The message of a run that must fail: one line on stderr, an exit code, nothing on stdout."""
    printed.readouterr()
    # of verify 1 means that something differs
    assert main([*map(str, arguments)]) == (2 if arguments[0] == "verify" else 1)
    out, err = printed.readouterr()
    assert out == ""
    assert err.startswith("minibert: error: ") and err.count("\n") == 1
    return err.removeprefix("minibert: error: ").rstrip("\n")


def error_of(call: Callable[[], object]) -> str | None:
    """The message of the ValueError that a call raises; None where it raises none. Anything else goes on."""
    try:
        call()
    except ValueError as error:
        return str(error)
    return None


def numbers(text: str) -> Array:
    return np.array([line.split(" ") for line in text.splitlines()], np.float32)


class Drops(io.BytesIO):
    """A pipe that returns its content in the pieces in which it was sent."""

    def __init__(self, *pieces: bytes) -> None:
        super().__init__()
        self.pieces = list(pieces)

    def read1(self, size: int | None = -1) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""


def typed(monkeypatch: pytest.MonkeyPatch, *pieces: bytes) -> None:
    """Let stdin give this. Its errors are those of Python's own in the C locale."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Drops(*pieces), "utf-8", "surrogateescape"))
