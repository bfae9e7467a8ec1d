"""Reading files: a path, a JSON object, lines of text; and which files of models this process has opened.

Lines of text are defined only here. They are UTF-8, wherever they come from, so a file gives the same lines through
a pipe. A line ends with a line feed, with or without a carriage return before it. The byte order mark that some
programs write first is not part of a line.
"""

from __future__ import annotations

import io
import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any

from minibert.errors import CheckpointError

FileName = str | os.PathLike[str]

STDIN = "-"
LONGEST_LINE = 1 << 26  # bytes: a file without line ends must not be read whole
UTF16 = (b"\xff\xfe", b"\xfe\xff")
UTF8 = b"\xef\xbb\xbf"
READ_BYTES = 1 << 18  # bytes read at a time
_MODEL_FILES: dict[tuple[int, int], str] = {}  # device and number of a file -> its path when it was opened


def note_model_file(path: FileName) -> None:
    """Remember a file of a model, which `writing` never overwrites. A missing file is ignored."""
    with suppress(OSError, ValueError):
        status = os.stat(path)
        _MODEL_FILES[status.st_dev, status.st_ino] = os.path.abspath(path)


def model_file(path: FileName) -> str | None:
    """Return the name under which a model's file, by any name, was opened here; None for any other file."""
    try:
        status = os.stat(path)
        opened = _MODEL_FILES.get((status.st_dev, status.st_ino))
        # a file system reuses the numbers of deleted files
        return opened if opened is not None and os.path.samestat(os.stat(opened), status) else None
    except OSError:
        return None


def sha256_of(path: FileName) -> str:
    """Return the sha256 of a file."""
    import hashlib  # loads OpenSSL: 3 MiB that most processes do not need

    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def existing(path: FileName) -> bool:
    """Whether a file exists.

    Raises CheckpointError for a folder, a pipe, a link to nothing or to itself, and a file that this user may not read.
    """
    mode = mode_of(path)
    if not mode:
        if not os.path.lexists(path):
            return False
        raise CheckpointError(f"{path} is a link to nothing or to itself; fetch the file again")
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "no file"
        raise CheckpointError(f"{path} is {kind}, but a file is expected under this name; remove it, or fetch the file")
    return True


def mode_of(path: FileName) -> int:
    """Return the mode of a file or folder, 0 if nothing exists there. Raises CheckpointError if this user may not read
    it."""
    try:
        mode = os.stat(path).st_mode
    except PermissionError:
        raise CheckpointError(may_not_read(os.path.dirname(path))) from None
    except (OSError, ValueError):  # ValueError: a name that no file can have
        return 0
    if not os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
        raise CheckpointError(may_not_read(path))
    return mode


def may_not_read(path: FileName) -> str:
    """Return the error text for a path that this user may not read."""
    user = f"user {os.geteuid()}" if hasattr(os, "geteuid") else "this user"
    return f"{user} may not read {path}; its owner can allow it (chmod, chown)"


def read_object(path: FileName | None, kind: type[Exception] = CheckpointError) -> dict[str, Any]:
    """Read a JSON file that holds an object; {} without a path. Raises `kind`, which names the file."""
    if path is None:
        return {}
    try:
        with open(path, "rb") as file:
            data = json.loads(file.read().decode("utf-8-sig"))  # some editors write a byte order mark
        if not isinstance(data, dict):
            raise ValueError(f"expected an object, found {type(data).__name__}")
    except (ValueError, RecursionError, OSError) as error:
        raise kind(f"{path}: not readable as JSON ({error}); fetch it again") from None
    return data


@contextmanager
def reading(name: str, form: str, *failures: type[Exception], advice: str = "is it whole?") -> Iterator[None]:
    """Re-raise errors of reading with the name of the file: OSError, and `failures` as ValueError."""
    expected: tuple[type[Exception], ...] = (OSError, *failures)
    try:
        yield
    except expected as error:
        if isinstance(error, PermissionError):
            raise PermissionError(may_not_read(name)) from None
        if isinstance(error, OSError) and error.errno is not None:  # pyarrow raises it without errno for damaged data
            raise OSError(error.errno, os.strerror(error.errno), name) from None
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{name}: not readable as {form} ({reason}); {advice}") from None


# -- lines of text ---------------------------------------------------------------------------------------------------


def shown_file(name: str) -> str:
    """Return the name of a file as messages show it."""
    return "stdin" if name == STDIN else name.encode("utf-8", "backslashreplace").decode()


def raw_lines(name: str) -> Iterator[bytes]:
    """Read the lines of a file or of stdin as bytes, with their ends.

    Raises ValueError that names the file for UTF-16, for a line that is too long to be one, and for a closed stdin;
    OSError.
    """
    return chain.from_iterable(_arriving(name))


def arriving_texts(name: str) -> Iterator[list[str]]:
    """Read the lines as texts, in lists of the lines that have arrived: a line does not wait for the next one.

    Raises what `raw_lines` raises; ValueError with the line's number, from 1, for bytes that are not UTF-8.
    """
    number = 0
    for lines in _arriving(name):
        texts = []
        for line in lines:
            number += 1
            try:
                texts.append(without_end(line).decode())
            except UnicodeDecodeError as error:
                wrong = f"line {number} of {shown_file(name)} is not UTF-8 ({error.reason})"
                raise ValueError(f"{wrong}; convert it, as iconv does") from None
        yield texts


def without_end(line: bytes) -> bytes:
    """Remove the end of a line."""
    return line.removesuffix(b"\n").removesuffix(b"\r")


def _arriving(name: str) -> Iterator[list[bytes]]:
    """Read lists of the lines that have arrived."""
    begun: list[bytes] = []  # pieces of the line whose end has not arrived
    done = size = 0  # bytes of the lines before it, and its own
    block = b"more"
    with reading(shown_file(name), "lines"), _opened(name) as file:
        while block:
            block = file.read1(READ_BYTES)  # waits only if nothing has arrived
            end = block.rfind(b"\n") + 1
            if end or not block:  # whole lines, or at last a line without an end
                lines = io.BytesIO(b"".join([*begun, block[:end]])).readlines()
                if lines and not done:
                    if lines[0].startswith(UTF16):  # ASCII letters would be read as UTF-8, each with a NUL
                        wrong = "expected UTF-8, found the mark of UTF-16 at its first byte; convert it"
                        raise ValueError(f"{shown_file(name)}: {wrong}")
                    lines[0] = lines[0].removeprefix(UTF8)
                yield [line for line in lines if line]
                done, size, begun = done + size + end, 0, []
            begun.append(block[end:])
            size += len(block) - end
            if size >= LONGEST_LINE:
                wrong = f"a line of more than {LONGEST_LINE:,} bytes begins at byte {done:,}"
                raise ValueError(f"{shown_file(name)}: {wrong}; is it in another format?")


@contextmanager
def _opened(name: str) -> Iterator[Any]:
    if name != STDIN:
        with open(name, "rb") as file:
            yield file
        return
    check_stdin()
    try:
        number = sys.stdin.fileno()
    except io.UnsupportedOperation:  # a test's replacement for stdin has no file descriptor
        yield sys.stdin.buffer
    else:
        # not Python's own reader: a thread that waits in it holds its lock, and Python aborts at the end
        with open(number, "rb", closefd=False) as file:
            yield file


def check_stdin() -> None:
    """Raise ValueError for a closed stdin, before anything is computed."""
    if sys.stdin is None or sys.stdin.closed:
        raise ValueError("stdin is closed; name a file, or give the texts as arguments")
