"""Lines that the commands read as texts, from stdin and from files: ends, marks, numbers, and lines without an end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from command_line import Patch, Printed, failure, pipe, ran, typed
from reference_files import REFERENCE

from minibert.cli import main
from minibert.commands.common import did_you_mean
from minibert.commands.stdin import lines_as_they_come

DENSE = str(REFERENCE / "sentences-dense")


def lines(monkeypatch: Patch, *pieces: bytes) -> list[str]:
    pipe(monkeypatch, *pieces)
    return [line for chunk in lines_as_they_come(2) for line in chunk]


# -- stdin ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        ((b"a\r\r\nb\n",), ["a", "", "b"]),  # an end of line of old Macs, then one of Windows
        ((b"a\r", b"\r", b"\nb\n"), ["a", "", "b"]),
        ((b"a\rb\r\nc\n\nd",), ["a", "b", "c", "", "d"]),
        ((b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n",), ["a", "\ufeffb"]),  # a mark is one only at the first byte
        ((b"\xef", b"\xbb\xbf", b"a\nb"), ["a", "b"]),
        ((b"\xef\xbb\xbf",), []),
        ((b"a\n", b"b", b"\xef\xbb\xbf\n"), ["a", "b\ufeff"]),
        (("a \u2028 b\n".encode(),), ["a \u2028 b"]),
    ],
)
def test_ends_and_marks(monkeypatch: Patch, pieces: tuple[bytes, ...], found: list[str]) -> None:
    assert lines(monkeypatch, *pieces) == found


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(monkeypatch: Patch) -> None:
    monkeypatch.setattr("minibert.files.lines.LONGEST_LINE", 16)
    whole = b"x" * 15
    assert lines(monkeypatch, b"we\n" + whole, b"\n" + whole, b"\n") == ["we", "x" * 15, "x" * 15]
    for pieces in ((b"we\n" + b"x" * 16,), (b"w", b"e\n" + b"x" * 9, b"x" * 9), (b"we\n", b"x" * 8, b"x" * 8, b"\n")):
        with pytest.raises(ValueError, match=r"^stdin: a line of more than 16 bytes begins at byte 3;"):
            lines(monkeypatch, *pieces)


@pytest.mark.parametrize("at", [1, 7, 2500])
def test_lines_are_counted_through_all_pieces(monkeypatch: Patch, at: int) -> None:
    bad = b"we\n" * (at - 1) + b"caf\xe9\nwe\n"
    for size in (3, 100, len(bad)):
        with pytest.raises(ValueError, match=rf"^line {at} of stdin is not UTF-8 \("):
            lines(monkeypatch, *(bad[i : i + size] for i in range(0, len(bad), size)))


# -- similar --file ------------------------------------------------------------------------------------------------


def named(content: bytes, where: str, folder: Path, monkeypatch: Patch) -> str:
    """How the option names this content."""
    (folder / "lines").write_bytes(content)
    typed(monkeypatch, content)
    return str(folder / "lines") if where == "a file" else "-"


@pytest.mark.parametrize("where", ["a file", "stdin"])
def test_similar_reads_lines_of_any_end(where: str, tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    content = b"\xef\xbb\xbfclouds\r\n \r\n\nabove the\nwe\r\r\nlived"
    name = named(content, where, tmp_path, monkeypatch)
    found = ran(capsys, "similar", "-m", DENSE, "clouds", "--file", name)[0].split("\n")[:-1]
    assert found[0] == "1.000  clouds", "the mark is no part of the first line"
    assert sorted(line[7:] for line in found) == ["above the", "clouds", "lived", r"we\r"]


@pytest.mark.parametrize("where", ["a file", "stdin"])
def test_similar_names_the_line(where: str, tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    content = b"we\n\n" * 1000 + b"caf\xe9\n"
    name = named(content, where, tmp_path, monkeypatch)
    shown = name if where == "a file" else "stdin"
    assert f"line 2001 of {shown} is not UTF-8 (" in failure(capsys, "similar", "-m", DENSE, "we", "--file", name)


def test_similar_refuses_lines_without_end_and_other_files(tmp_path: Path, monkeypatch: Patch, capsys: Printed) -> None:
    monkeypatch.setattr("minibert.files.lines.LONGEST_LINE", 1 << 10)
    monkeypatch.setattr(sys, "stdin", None)
    (tmp_path / "wide").write_bytes("we\n".encode("utf-16"))
    for file, message in (
        ("/dev/zero", "/dev/zero: a line of more than 1,024 bytes begins at byte 0"),
        (tmp_path / "wide", "expected UTF-8, found the mark of UTF-16"),
        (tmp_path, f"{tmp_path}: Is a directory"),
        ("-", "stdin is closed; name a file"),
    ):
        assert message in failure(capsys, "similar", "-m", DENSE, "we", "--file", file)


@pytest.mark.parametrize(("terminal", "typed_in"), [(True, False), (True, True), (False, False)])
def test_similar_shows_a_bar_of_lines(
    terminal: bool, typed_in: bool, tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    from minibert.commands import similar

    monkeypatch.setattr(similar, "BAR_AFTER", 0.0)
    name = named(b"clouds\n\nabove\n", "stdin" if typed_in else "a file", tmp_path, monkeypatch)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: typed_in)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    out, err = ran(capsys, "similar", "-m", DENSE, "clouds", "--file", name)
    assert ("similar: 2text" in err) == (terminal and not typed_in), err
    assert out.startswith("1.000  clouds\n")


# -- names ---------------------------------------------------------------------------------------------------------


def test_only_words_that_are_alike_are_proposed(capsys: Printed) -> None:
    """Two dashes make no word like another."""
    for option, near in (("--json", None), ("--modle", "--model"), ("--outptu", "--output"), ("--x", None)):
        assert main(["embed", option, "we"]) == 2
        error = capsys.readouterr().err
        assert f"there is no option {option}" in error
        assert (f"did you mean {near}?" in error) if near else ("did you mean" not in error)
    assert did_you_mean("--revison", ["--revision", "-m"]) == "; did you mean --revision?"
    assert did_you_mean("--json", ["--revision", "--version", "-m"]) == ""
    assert did_you_mean("embd", ["embed", "encode"]) == "; did you mean embed?"
