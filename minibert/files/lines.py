"""The lines of a file or of stdin, as bytes: one by one, and none without an end."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from .reading import may_not_read

STDIN = "-"
LONGEST_LINE = 1 << 26  # bytes: a file without ends of lines must not be read whole
UTF16 = (b"\xff\xfe", b"\xfe\xff")
UTF8 = b"\xef\xbb\xbf"  # the mark that some programs put first


def raw_lines(name: str) -> Iterator[bytes]:
    """Give the lines of a file, or of stdin, as bytes with their ends, without the mark that some programs put first.

    Raises ValueError that names the file for UTF-16 and for a line that is too long to be one; OSError.
    """
    with reading(name, "lines"), _opened(name) as file:
        done = 0
        while line := file.readline(LONGEST_LINE):
            if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                raise endless(name, done)
            if not done and line.startswith(UTF16):
                # its letters of ASCII would be read as UTF-8, each with a NUL
                raise ValueError(f"{name}: expected UTF-8, found the mark of UTF-16 at its first byte; convert it")
            text = line if done else line.removeprefix(UTF8)
            done += len(line)
            if text:
                yield text


def endless(name: str, begin: int) -> ValueError:
    """Make the error about a line without an end."""
    return ValueError(
        f"{'stdin' if name == STDIN else name}: a line of more than {LONGEST_LINE:,} bytes begins at byte {begin:,}; "
        "is it in another format?"
    )


@contextmanager
def _opened(name: str) -> Iterator[BinaryIO]:
    if name != STDIN:
        with open(name, "rb") as file:
            yield file
    elif sys.stdin is None or sys.stdin.closed:
        raise ValueError("stdin is closed; name a file")
    else:
        try:
            number = sys.stdin.fileno()
        except io.UnsupportedOperation:  # what stands in for it in a test has none
            yield sys.stdin.buffer
        else:
            # not Python's own reader: a thread that waits in it holds its lock, and Python aborts at the end
            with open(number, "rb", closefd=False) as file:
                yield file


@contextmanager
def reading(name: str, form: str, *failures: type[Exception], advice: str = "is it whole?") -> Iterator[None]:
    """Let every error of reading name the file."""
    expected: tuple[type[Exception], ...] = (OSError, *failures)
    try:
        yield
    except expected as error:
        if isinstance(error, PermissionError):
            raise PermissionError(may_not_read(name)) from None
        if isinstance(error, OSError) and error.errno is not None:  # without a number it is pyarrow's, of damaged data
            raise OSError(error.errno, os.strerror(error.errno), name) from None
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{name}: not readable as {form} ({reason}); {advice}") from None
