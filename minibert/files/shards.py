"""A folder of vectors, written shard by shard, that a later run can continue: nothing lost, nothing twice.

    meta.json             what made the vectors: model, settings, input; how many, once `complete` is true
    shards.jsonl          a line for each whole shard
    bad_rows.jsonl        a line for each row that was left out
    vectors-00000.parquet     columns id and vector; or vectors-00000.npy with ids-00000.json beside it

A shard counts from the moment when its line stands in shards.jsonl. Whatever else a killed run has left is cut off or
written again by the next one.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array

from .parquet import arrow, write_vectors
from .reading import read_object
from .records import STDIN
from .writing import atomic_file, atomic_write, naming

META, DONE, BAD, LOCK = "meta.json", "shards.jsonl", "bad_rows.jsonl", ".lock"
FORMATS = ("parquet", "npy")
SHARD = re.compile(r"vectors-\d+\.(parquet|npy)|ids-\d+\.json")
LEFT = re.compile(rf"\.({SHARD.pattern}|meta\.json)\.[0-9a-f]{{16}}")  # by a killed run
MEND = "put it back, or begin again in another folder"


class Shard(NamedTuple):
    """A line of shards.jsonl. `read`: rows of the input, `rows`: vectors, `cut`: texts that were too long.

    `input_sha256` is of the ids and texts that were read; `bad_bytes` is where bad_rows.jsonl ends after this shard.
    """

    files: dict[str, int]  # name -> bytes
    read: int
    rows: int
    cut: int
    input_sha256: str
    bad_bytes: int


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

    @contextmanager
    def opened(self, settings: Mapping[str, Any]) -> Iterator[ShardFolder]:
        """Make the folder, or continue it where it was made with the same settings; hold it until the end."""
        from filelock import FileLock, Timeout

        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(f"{self.path} is a file; name a folder, new or to be continued")
        self.path.mkdir(parents=True, exist_ok=True)
        self._refuse_foreign()
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
        self.shards = list(self._whole_shards())
        self.complete = found.get("complete") is True
        counts = {name: found.get(name) for name in ("rows", "skipped")}
        if self.complete and counts != {name: self.counts()[name] for name in counts}:
            raise ValueError(f"{self.path / DONE}: shards are missing of those that {META} counts; {MEND}")
        self._cut_bad_rows()

    def _made_nothing(self, found: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
        """Say whether no row was written with these other settings, as when a column's name was wrong at first."""
        ours = found.keys() == {*settings, "complete"} and found["complete"] is False
        return ours and not any(path.name == DONE or SHARD.fullmatch(path.name) for path in self.path.iterdir())

    def _cut_bad_rows(self) -> None:
        """Cut off what a killed run has added for a shard that it has not finished."""
        path, end = self.path / BAD, self.shards[-1].bad_bytes if self.shards else 0
        with naming(path):
            found = path.stat().st_size if path.exists() else 0
            if found < end:
                raise ValueError(f"{path}: expected at least {end:,} bytes, found {found:,}; {MEND}")
            if found > end:
                os.truncate(path, end)

    def _whole_shards(self) -> Iterator[Shard]:
        """Read shards.jsonl, and cut off a line that a killed run has begun."""
        path = self.path / DONE
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            os.truncate(path, len(whole))
        for line in whole.splitlines():
            shard = _shard(line)
            if shard is None:
                raise ValueError(f"{path}: a line is not one of `minibert bulk`, found {line[:80]!r}; {MEND}")
            for name, size in shard.files.items():
                found = (self.path / name).stat().st_size if (self.path / name).exists() else "none"
                if found != size:
                    raise ValueError(f"{self.path / name}: expected a file of {size:,} bytes, found {found}; {MEND}")
            yield shard

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
        if bad:
            self._append(BAD, bad)
        end = (self.path / BAD).stat().st_size if (self.path / BAD).exists() else 0
        shard = Shard(files, read, len(ids), cut, input_sha256, end)
        self._append(DONE, [shard._asdict()])
        self.shards.append(shard)

    def finish(self) -> dict[str, Any]:
        """Say in meta.json that all is done, and what came out."""
        named = {name for shard in self.shards for name in shard.files}
        for path in [path for path in self.path.iterdir() if SHARD.fullmatch(path.name) and path.name not in named]:
            path.unlink()  # of a killed run that has read other rows: a stream's, which nobody can know beforehand
        return self._write_meta(self.settings, {"complete": True, **self.counts()})

    def counts(self) -> dict[str, int]:
        """Count what stands in shards.jsonl."""
        return {
            "rows": sum(shard.rows for shard in self.shards),
            "skipped": sum(shard.read - shard.rows for shard in self.shards),
            "cut": sum(shard.cut for shard in self.shards),
            "shards": sum(bool(shard.files) for shard in self.shards),
        }

    def _write_meta(self, settings: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
        meta = {**settings, **more}
        atomic_write(self.path / META, _json(meta, indent=1), lasting=True)
        return meta

    def _append(self, name: str, lines: Sequence[Mapping[str, Any]]) -> None:
        """Add whole lines to a file. After an error, as of a full disk, it ends where it ended before."""
        path = self.path / name
        end = path.stat().st_size if path.exists() else 0
        with naming(path):
            try:
                with open(path, "ab") as file:
                    file.writelines(map(_json, lines))
                    file.flush()
                    os.fsync(file.fileno())
            except BaseException:
                with suppress(OSError):  # now that it is closed: closing writes what is left of a line
                    os.truncate(path, end)
                raise

    def _write(self, number: str, ids: Sequence[int | str], vectors: Sequence[Array]) -> dict[str, int]:
        files: dict[str, Callable[[BinaryIO], object]]
        if self.form == "parquet":
            files = {f"vectors-{number}.parquet": partial(write_vectors, ids, vectors)}
        else:
            named = json.dumps(list(ids), ensure_ascii=False).encode()
            files = {
                f"ids-{number}.json": lambda file: file.write(named),
                f"vectors-{number}.npy": partial(_npy, vectors),
            }
        sizes = {}
        for name, write in files.items():
            with atomic_file(self.path / name, lasting=True) as file:
                write(file)
                sizes[name] = file.tell()
        return sizes


def _shard(line: bytes) -> Shard | None:
    """Read a line of shards.jsonl; None where it is damaged."""
    try:
        shard = Shard(**json.loads(line))
    except (ValueError, TypeError, RecursionError):
        return None
    if not (isinstance(shard.files, dict) and all(map(SHARD.fullmatch, shard.files))):
        return None
    numbers = [*shard.files.values(), shard.read, shard.rows, shard.cut, shard.bad_bytes]
    return shard if all(type(number) is int and number >= 0 for number in numbers) else None


def _json(value: Any, indent: int | None = None) -> bytes:
    """Give lines of JSON; a byte of a file's name that is not UTF-8 is written as JSON writes a lone surrogate."""
    return (json.dumps(value, indent=indent, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def _npy(vectors: Sequence[Array], file: BinaryIO) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (sum(map(len, vectors)), vectors[0].shape[1])}
    np.lib.format.write_array_header_1_0(file, header)
    file.writelines(np.ascontiguousarray(part, "<f4").data for part in vectors)


def _differing(was: Any, now: Any) -> tuple[Any, Any]:
    """Of two objects, keep what is not the same in both."""
    if not (isinstance(was, dict) and isinstance(now, dict)):
        return was, now
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    return {name: was.get(name) for name in names}, {name: now.get(name) for name in names}


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}..."
