"""The lines of stdin as texts, in chunks of those that have arrived: a line does not wait for the next one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from minibert.errors import Text, error_of, parts_of

from .common import tell

BLOCK = 1 << 18  # bytes read at a time


def lines_as_they_come(most: int) -> Iterator[list[str]]:
    """Give the lines in lists of up to `most`, each list as soon as its lines have arrived.

    Raises ValueError at once for a closed stdin; later, with the line's number from 1, for bytes that are no text.
    """
    if sys.stdin is None or sys.stdin.closed:
        raise ValueError("stdin is closed, and no text is an argument; give texts, or lines on stdin")
    return _lines(most)


def _lines(most: int) -> Iterator[list[str]]:
    if sys.stdin.isatty():
        tell("each line is a text; end with Ctrl-D")
    from codecs import getincrementaldecoder
    from io import IncrementalNewlineDecoder

    from minibert.files.lines import LONGEST_LINE, STDIN, endless
    from minibert.files.writing import naming

    # stdin's own errors can be "surrogateescape", which lets anything pass
    decode = IncrementalNewlineDecoder(getincrementaldecoder(sys.stdin.encoding)("strict"), translate=True).decode
    begun: list[str] = []  # pieces of the last line, whose end has not arrived
    before = done = length = 0  # lines given; bytes read; bytes read since the last end of a line
    first = True
    source: Any = sys.stdin.buffer
    block = b"more"
    while block:
        with naming("stdin"):
            block = source.read1(BLOCK)  # what has arrived; waits only if nothing has
        at = block.rfind(b"\n")
        length = length + len(block) if at < 0 else len(block) - at - 1
        done += len(block)
        if length >= LONGEST_LINE:
            raise endless(STDIN, done - length)
        try:
            text = decode(block, final=not block)
        except UnicodeDecodeError as error:
            line = before + len((error.object[: error.start] + b"x").splitlines())
            raise ValueError(
                f"line {line} of stdin is not {error.encoding.upper()} ({error.reason}); convert it, with iconv or so"
            ) from None
        if text and first:
            text, first = text.removeprefix("\ufeff"), False  # the mark that some programs put first
        head, *others = text.split("\n")
        begun.append(head)
        lines: list[str] = []
        if others:
            lines = ["".join(begun), *others[:-1]]
            begun = [others[-1]]
        if not block and any(begun):
            lines.append("".join(begun))
        before += len(lines)
        for start in range(0, len(lines), most):
            yield lines[start : start + most]


def of_line(error: ValueError, empty: list[int]) -> ValueError:
    """Reword an error about text i of the stream, which names its line of stdin then.

    empty: the lines that gave no text, in order, counted from 0.
    """

    def line(text: Text) -> int:
        number = text.number
        for skipped in empty:
            number += skipped <= number
        return number + 1

    parts = (f"line {line(part)} of stdin" if isinstance(part, Text) else part for part in parts_of(error))
    return error_of(type(error), *parts)
