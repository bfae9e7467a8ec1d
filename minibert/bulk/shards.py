"""A folder of vectors, written shard by shard, that a later run can continue: nothing lost, nothing twice.

    meta.json             what made the vectors: model, settings, input; how many, once `complete` is true
    shards.jsonl          a line for each whole shard
    bad_rows.jsonl        a line for each row that was left out
    vectors-00000.parquet     columns id and vector; or vectors-00000.npy with ids-00000.json beside it

A shard is valid once its line is in shards.jsonl. Whatever else a killed run has left is cut off or
written again by the next one. Each file's sha256 stands there too, and is compared when the folder is continued, when
it is finished, and by `check_folder`. What is written here follows no link.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypedDict, cast

import numpy as np

from minibert.equations.input_layer import Array
from minibert.files.lines import STDIN
from minibert.files.reading import read_object, sha256_of
from minibert.files.writing import atomic_file, atomic_write, naming, sync_folder
from minibert.threads import cores, spread

from .parquet import arrow, write_vectors

META, DONE, BAD, LOCK = "meta.json", "shards.jsonl", "bad_rows.jsonl", ".lock"
FORMATS = ("parquet", "npy")
SHARD = re.compile(r"vectors-\d+\.(parquet|npy)|ids-\d+\.json")
LEFT = re.compile(rf"\.({SHARD.pattern}|meta\.json)\.[0-9a-f]{{16}}")  # by a killed run
MEND = "put it back, or begin again in another folder"


class File(TypedDict):
    """What a file of a shard must be."""

    bytes: int
    sha256: str


class Shard(NamedTuple):
    """A line of shards.jsonl. `read`: rows of the input, `rows`: vectors, `cut`: texts that were too long.

    `input_sha256` is of the ids and texts that were read; `bad_bytes` is where bad_rows.jsonl ends after this shard,
    and `bad_sha256` of what the shard has added there. `line_sha256` is of this line and the one before it: a line that
    is damaged, lost or in another place is seen.
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
        """Give it with its `line_sha256`, behind the line that has the one before."""
        content = _json({**self._asdict(), "line_sha256": before})
        return self._replace(line_sha256=hashlib.sha256(content).hexdigest())


class ShardFolder:
    """The folder of one job. `opened` makes it or continues it; meanwhile no other process can.

    Raises ValueError, and OSError that names a file.
    """

    def __init__(self, path: Path, form: str) -> None:
        if form not in FORMATS:
            raise ValueError(f"format must be {' or '.join(map(repr, FORMATS))}, found {form!r}")
        if form == "parquet":
            arrow("; --format npy does without")
        self.path, self.form = path, form
        self.shards: list[Shard] = []
        self.complete = False  # an earlier run has ended here
        self._checked = 0  # shards

    @contextmanager
    def opened(self, settings: Mapping[str, Any]) -> Iterator[ShardFolder]:
        """Make the folder, or continue it where it was made with the same settings; hold it until the end."""
        from filelock import FileLock, Timeout

        self._make()
        self._refuse_foreign()
        with _own(self.path / LOCK, "ab"):
            pass  # some locks would follow a link, and empty the file behind it
        lock = FileLock(self.path / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(
                f"{self.path}: another run is writing into this folder; wait for it, or choose another folder"
            ) from None
        try:
            self._continue(settings)
            yield self
        finally:
            lock.release()

    def _make(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(f"{self.path} is a file; name a folder, new or to be continued")
        new = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        with naming(self.path):
            for folder in new:
                sync_folder(folder.parent)

    def refuse_sources(self, names: Sequence[str]) -> None:
        """Refuse to read what lies in this folder. Raises ValueError."""
        for name in names:
            if name != STDIN and Path(name).absolute().parent.resolve() == self.path.resolve():
                raise ValueError(f"{name} lies in {self.path}, which is to be written; choose another folder")

    def _refuse_foreign(self) -> None:
        other = sorted({path.name for path in self.path.iterdir() if not LEFT.fullmatch(path.name)} - {LOCK})
        if other and META not in other:
            raise ValueError(
                f"{self.path}: the folder holds {other[0]!r} and no {META}, so `minibert bulk` has not made it; "
                "choose a new folder"
            )

    def _continue(self, settings: Mapping[str, Any]) -> None:
        for path in [path for path in self.path.iterdir() if LEFT.fullmatch(path.name)]:
            path.unlink()
        for name in (META, DONE, BAD):
            if os.path.lexists(self.path / name):
                _own(self.path / name, "rb").close()
        if not (self.path / META).exists():
            self._write_meta(dict(settings), {"complete": False})
        found = read_object(self.path / META, MEND)
        now = json.loads(json.dumps(settings))
        if found != {**now, "complete": False} and self._made_nothing(found, settings):
            found = self._write_meta(now, {"complete": False})
        for name, value in now.items():
            if found.get(name) != value:
                before, after = map(_shown, _differing(found.get(name), value))
                raise ValueError(
                    f"{self.path} was made with {name} {before}, now it is {after}; "
                    "choose another folder, or continue with what it was made with"
                )
        self.settings = dict(settings)
        self.shards, end = _read_shards(self.path)
        self.complete = found.get("complete") is True
        if self.complete:
            _compare_counts(self.path, found, self.shards)
        _check_files(self.path, self.shards)
        self._checked = len(self.shards)
        # what a killed run has begun
        _cut(self.path / DONE, end)
        _cut(self.path / BAD, self.shards[-1].bad_bytes if self.shards else 0)

    def _made_nothing(self, found: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
        """Whether no row was written with these other settings, as when a column's name was wrong at first."""
        ours = found.keys() == {*settings, "complete"} and found["complete"] is False
        return ours and not any(path.name == DONE or SHARD.fullmatch(path.name) for path in self.path.iterdir())

    def add(
        self,
        ids: Sequence[int | str],
        vectors: Sequence[Array],
        read: int,
        cut: int,
        input_sha256: str,
        bad: Sequence[Mapping[str, Any]],
    ) -> None:
        """Write the next shard; it is there whole or not at all."""
        files = self._write(f"{len(self.shards):05}", ids, vectors) if ids else {}
        end, before = (self.shards[-1].bad_bytes, self.shards[-1].line_sha256) if self.shards else (0, "")
        lines = b"".join(map(_json, bad))
        if bad:
            self._append(BAD, lines)
        bad_sha256 = hashlib.sha256(lines).hexdigest()
        shard = Shard(files, read, len(ids), cut, input_sha256, end + len(lines), bad_sha256).sealed(before)
        self._append(DONE, _json(shard._asdict()))
        self.shards.append(shard)

    def finish(self) -> dict[str, Any]:
        """Say in meta.json that all is done, and what came out. Raises ValueError for a shard damaged meanwhile."""
        _check_files(self.path, self.shards, self._checked)
        named = {name for shard in self.shards for name in shard.files}
        for path in [path for path in self.path.iterdir() if SHARD.fullmatch(path.name) and path.name not in named]:
            path.unlink()  # of a killed run that has read other rows: a stream's, which nobody can know beforehand
        return self._write_meta(self.settings, {"complete": True, **_counts(self.shards)})

    def _write_meta(self, settings: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
        meta = {**settings, **more}
        atomic_write(self.path / META, _json(meta, indent=1), lasting=True)
        return meta

    def _append(self, name: str, lines: bytes) -> None:
        """Add whole lines to a file. After an error, as of a full disk, it ends where it ended before."""
        path = self.path / name
        new = not path.exists()
        with naming(path), _own(path, "ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                left = memoryview(lines)
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
                if new:
                    sync_folder(self.path)
            except BaseException:
                with suppress(OSError):
                    file.truncate(end)
                raise

    def _write(self, number: str, ids: Sequence[int | str], vectors: Sequence[Array]) -> dict[str, File]:
        files: dict[str, Callable[[BinaryIO], object]]
        if self.form == "parquet":
            files = {f"vectors-{number}.parquet": partial(write_vectors, ids, vectors)}
        else:
            named = json.dumps(list(ids), ensure_ascii=False).encode()
            files = {
                f"ids-{number}.json": lambda file: file.write(named),
                f"vectors-{number}.npy": partial(_npy, vectors),
            }
        written: dict[str, File] = {}
        for name, write in files.items():
            with atomic_file(self.path / name, lasting=True) as file:
                hashing = _Hashing(file)
                write(cast(BinaryIO, hashing))
                written[name] = {"bytes": file.tell(), "sha256": hashing.sha256.hexdigest()}
        return written


class _Hashing:
    """A file that is written from its first byte to its last, and the sha256 of that."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.sha256 = file, hashlib.sha256()

    def write(self, content: Any) -> int:
        self.sha256.update(content)
        return self._file.write(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def check_folder(path: Path) -> dict[str, int]:
    """Read a whole folder again, and change nothing: count what is in it.

    Raises ValueError for a folder that is not complete or not what was written, OSError; both name the file.
    """
    found = read_object(path / META, MEND)
    shards, end = _read_shards(path)
    _check_files(path, shards)
    if found.get("complete") is not True:
        raise ValueError(f"{path}: not complete; what is there is whole, and the same command goes on after it")
    _compare_counts(path, found, shards)
    for name, expected in ((DONE, end), (BAD, shards[-1].bad_bytes if shards else 0)):
        if (size := _size(path / name) or 0) != expected:
            raise ValueError(f"{path / name}: expected {expected:,} bytes, found {size:,}; {MEND}")
    known = {name for shard in shards for name in shard.files}
    if more := sorted(file.name for file in path.iterdir() if SHARD.fullmatch(file.name) and file.name not in known):
        raise ValueError(f"{path / more[0]}: {DONE} does not know it; take it away")
    return _counts(shards)


def _read_shards(path: Path) -> tuple[list[Shard], int]:
    """Read shards.jsonl: its whole lines, and where they end. Raises ValueError for a line that is damaged."""
    content = (path / DONE).read_bytes() if (path / DONE).exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    shards: list[Shard] = []
    for line in whole.splitlines():
        shard = _shard(line)
        if shard is None or shard != shard.sealed(shards[-1].line_sha256 if shards else ""):
            raise ValueError(f"{path / DONE}: a line is not one of `minibert bulk`, found {line[:80]!r}; {MEND}")
        shards.append(shard)
    return shards, len(whole)


def _check_files(path: Path, shards: Sequence[Shard], first: int = 0) -> None:
    """Compare the files of the shards from `first` on with what was written. Raises ValueError for another one."""
    files = {name: file for shard in shards[first:] for name, file in shard.files.items()}
    for name, file in files.items():  # the sizes of all first, since that takes no time
        if (size := _size(path / name)) != file["bytes"]:
            found = "none" if size is None else f"{size:,}"
            raise ValueError(f"{path / name}: expected a file of {file['bytes']:,} bytes, found {found}; {MEND}")
    damaged: list[str] = []

    def check(name: str) -> None:
        if sha256_of(path / name) != files[name]["sha256"]:
            damaged.append(name)

    spread(check, files, cores())
    if damaged:
        raise ValueError(f"{path / min(damaged)}: damaged, its sha256 is not that of what was written; {MEND}")
    start = shards[first - 1].bad_bytes if first else 0
    if shards[first:] and shards[-1].bad_bytes > start:
        _check_bad_rows(path / BAD, shards[first:], start)


def _check_bad_rows(path: Path, shards: Sequence[Shard], start: int) -> None:
    if (size := _size(path) or 0) < (end := shards[-1].bad_bytes):
        raise ValueError(f"{path}: expected at least {end:,} bytes, found {size:,}; {MEND}")
    with naming(path), open(path, "rb") as file:
        file.seek(start)
        for shard in shards:
            if hashlib.sha256(file.read(shard.bad_bytes - file.tell())).hexdigest() != shard.bad_sha256:
                raise ValueError(f"{path}: damaged before byte {shard.bad_bytes:,}; {MEND}")


def _counts(shards: Sequence[Shard]) -> dict[str, int]:
    """Count what stands in shards.jsonl."""
    return {
        "rows": sum(shard.rows for shard in shards),
        "skipped": sum(shard.read - shard.rows for shard in shards),
        "cut": sum(shard.cut for shard in shards),
        "shards": sum(bool(shard.files) for shard in shards),
    }


def _compare_counts(path: Path, meta: Mapping[str, Any], shards: Sequence[Shard]) -> None:
    counts = _counts(shards)
    if {name: meta.get(name) for name in counts} != counts:
        raise ValueError(f"{path / DONE}: shards are missing of those that {META} counts; {MEND}")


def _own(path: Path, mode: str, buffering: int = -1) -> Any:
    """Open a file of our own, and follow no link. Raises ValueError for a link, a folder, a pipe."""

    def opener(name: str, flags: int) -> int:
        # without O_NONBLOCK a pipe would be waited for
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


def _cut(path: Path, end: int) -> None:
    if (_size(path) or 0) > end:
        with naming(path), _own(path, "r+b") as file:
            file.truncate(end)


def _size(path: Path) -> int | None:
    """Give the size of a file; None where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _shard(line: bytes) -> Shard | None:
    """Read a line of shards.jsonl; None where it is damaged."""
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


def _json(value: Any, indent: int | None = None) -> bytes:
    """Give lines of JSON; a byte of a file's name that is not UTF-8 is written as JSON writes a lone surrogate."""
    return (json.dumps(value, indent=indent, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def _npy(vectors: Sequence[Array], file: BinaryIO) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (sum(map(len, vectors)), vectors[0].shape[1])}
    np.lib.format.write_array_header_1_0(file, header)
    for part in vectors:
        file.write(np.ascontiguousarray(part, "<f4").data)


def _differing(was: Any, now: Any) -> tuple[Any, Any]:
    """Of two objects, keep what is not the same in both."""
    if not (isinstance(was, dict) and isinstance(now, dict)):
        return was, now
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    return {name: was.get(name) for name in names}, {name: now.get(name) for name in names}


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}..."
