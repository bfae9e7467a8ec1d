"""The manifest of a folder of vectors, shards.jsonl: reads it, and compares the folder's files with it.

Each line has the sha256 of its shard's files, and of itself with the line before it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from minibert.files.reading import read_object, sha256_of
from minibert.files.writing import naming
from minibert.threads.cores import cores
from minibert.threads.pool import parallel_for

META, DONE, BAD, LOCK = "meta.json", "shards.jsonl", "bad_rows.jsonl", ".lock"
SHARD = re.compile(r"vectors-\d+\.(parquet|npy)|ids-\d+\.json|offsets-\d+\.npy")
LEFT = re.compile(rf"\.({SHARD.pattern}|meta\.json)\.[0-9a-f]{{16}}")  # by a killed run
MEND = "put it back, or begin again in another folder"


class File(TypedDict):
    """Size and checksum of a file of a shard."""

    bytes: int
    sha256: str


class Shard(NamedTuple):
    """A line of shards.jsonl. `read`: rows of the input, `rows`: vectors, `cut`: texts that were too long.

    `input_sha256` is of the ids and texts that were read; `bad_bytes` is where bad_rows.jsonl ends after this shard,
    and `bad_sha256` is of the shard's lines there. `line_sha256` is of this line and the one before it: it shows a line
    that is damaged, lost or in another place.
    """

    files: dict[str, File]  # by their names
    read: int
    rows: int
    cut: int
    input_sha256: str
    bad_bytes: int
    bad_sha256: str
    line_sha256: str = ""

    def sealed(self, before: str) -> Shard:
        """Give the shard with its `line_sha256`; `before` is that of the line before it."""
        content = as_json({**self._asdict(), "line_sha256": before})
        return self._replace(line_sha256=hashlib.sha256(content).hexdigest())


def check_folder(path: Path) -> dict[str, int]:
    """Read a whole folder again, and change nothing: count rows and shards.

    Raises ValueError for a folder that is incomplete or damaged, OSError; both name the file.
    """
    found = read_object(path / META, ValueError, MEND)
    shards, end = read_shards(path)
    check_files(path, shards)
    check_complete(path, found, shards)
    for name, expected in ((DONE, end), (BAD, shards[-1].bad_bytes if shards else 0)):
        if (size := size_of(path / name) or 0) != expected:
            raise ValueError(f"{path / name}: expected {expected:,} bytes, found {size:,}; {MEND}")
    known = {name for shard in shards for name in shard.files}
    if more := sorted(file.name for file in path.iterdir() if SHARD.fullmatch(file.name) and file.name not in known):
        raise ValueError(f"{path / more[0]}: {DONE} does not know it; take it away")
    return counts_of(shards)


def read_shards(path: Path) -> tuple[list[Shard], int]:
    """Read shards.jsonl: its whole lines, and where they end. Raises ValueError for a line that is damaged."""
    content = (path / DONE).read_bytes() if (path / DONE).exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    shards: list[Shard] = []
    for line in whole.splitlines():
        shard = _shard(line)
        if shard is None or shard != shard.sealed(shards[-1].line_sha256 if shards else ""):
            raise ValueError(f"{path / DONE}: a line is not one of `bulk`, found {line[:80]!r}; {MEND}")
        shards.append(shard)
    return shards, len(whole)


def check_files(path: Path, shards: Sequence[Shard], first: int = 0) -> None:
    """Compare the files of the shards from `first` on with their lines. Raises ValueError for a damaged one."""
    check_sizes(path, shards[first:])  # all of them first, since that takes no time
    files = {name: file for shard in shards[first:] for name, file in shard.files.items()}
    damaged: list[str] = []

    def check(name: str) -> None:
        if sha256_of(path / name) != files[name]["sha256"]:
            damaged.append(name)

    parallel_for(check, files, cores())
    if damaged:
        raise ValueError(f"{path / min(damaged)}: damaged, its sha256 is not that of what was written; {MEND}")
    start = shards[first - 1].bad_bytes if first else 0
    if shards[first:] and shards[-1].bad_bytes > start:
        _check_bad_rows(path / BAD, shards[first:], start)


def check_sizes(path: Path, shards: Sequence[Shard]) -> None:
    """Compare the sizes of the shards' files with their lines. Raises ValueError for another size."""
    for name, file in ((name, file) for shard in shards for name, file in shard.files.items()):
        if (size := size_of(path / name)) != file["bytes"]:
            found = "none" if size is None else f"{size:,}"
            raise ValueError(f"{path / name}: expected a file of {file['bytes']:,} bytes, found {found}; {MEND}")


def _check_bad_rows(path: Path, shards: Sequence[Shard], start: int) -> None:
    if (size := size_of(path) or 0) < (end := shards[-1].bad_bytes):
        raise ValueError(f"{path}: expected at least {end:,} bytes, found {size:,}; {MEND}")
    with naming(path), open(path, "rb") as file:
        file.seek(start)
        for shard in shards:
            if hashlib.sha256(file.read(shard.bad_bytes - file.tell())).hexdigest() != shard.bad_sha256:
                raise ValueError(f"{path}: damaged before byte {shard.bad_bytes:,}; {MEND}")


def check_complete(path: Path, meta: Mapping[str, Any], shards: Sequence[Shard]) -> None:
    """Refuse a folder whose run has not ended, or that has lost shards. Raises ValueError."""
    if meta.get("complete") is not True:
        raise ValueError(f"{path}: not complete; what is there is whole, and the same command goes on after it")
    compare_counts(path, meta, shards)


def counts_of(shards: Sequence[Shard]) -> dict[str, int]:
    """Add up the lines of shards.jsonl."""
    return {
        "rows": sum(shard.rows for shard in shards),
        "skipped": sum(shard.read - shard.rows for shard in shards),
        "cut": sum(shard.cut for shard in shards),
        "shards": sum(bool(shard.files) for shard in shards),
    }


def compare_counts(path: Path, meta: Mapping[str, Any], shards: Sequence[Shard]) -> None:
    """Refuse fewer shards than a complete folder's meta.json counts. Raises ValueError."""
    counts = counts_of(shards)
    if {name: meta.get(name) for name in counts} != counts:
        raise ValueError(f"{path / DONE}: shards are missing of those that {META} counts; {MEND}")


def open_own(path: Path, mode: str, buffering: int = -1) -> Any:
    """Open a file of the job; follow no link. Raises ValueError for a link, a folder, a pipe."""

    def opener(name: str, flags: int) -> int:
        # O_NONBLOCK: opening a pipe would wait for its other end
        return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)

    other = ValueError(f"{path}: expected a file of this job, found a link, a folder or a pipe; take it away")
    try:
        file = open(path, mode, buffering, opener=opener)  # noqa: SIM115 - the caller closes it
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO, errno.EISDIR):
            raise other from None
        raise
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise other
    return file


def shorten(path: Path, end: int) -> None:
    """Remove the unfinished end that a killed run has left."""
    if (size_of(path) or 0) > end:
        with naming(path), open_own(path, "r+b") as file:
            file.truncate(end)


def size_of(path: Path) -> int | None:
    """Give the size of a file; None if it is absent."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _shard(line: bytes) -> Shard | None:
    """Read a line of shards.jsonl; None if it is damaged."""
    try:
        shard = Shard(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    if not (isinstance(shard.files, dict) and all(map(SHARD.fullmatch, shard.files))):
        return None
    if not all(isinstance(file, dict) and file.keys() == {"bytes", "sha256"} for file in shard.files.values()):
        return None
    sizes = [file["bytes"] for file in shard.files.values()]
    numbers = [*sizes, shard.read, shard.rows, shard.cut, shard.bad_bytes]
    return shard if all(type(number) is int and number >= 0 for number in numbers) else None


def as_json(value: Any, indent: int | None = None) -> bytes:
    """Write JSON and an end of line; bytes of a file's name that are not UTF-8 become escaped surrogates."""
    return (json.dumps(value, indent=indent, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
