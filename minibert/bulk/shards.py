"""A folder of vectors, written shard by shard, that a later run can continue: nothing lost, nothing twice.

    meta.json             what made the vectors: model, settings, input; how many, once `complete` is true
    shards.jsonl          a line for each whole shard
    bad_rows.jsonl        a line for each row that was left out
    vectors-00000.parquet     columns id and vector; or vectors-00000.npy with ids-00000.json beside it
    offsets-00000.npy         of token vectors: text i has the rows offsets[i] to offsets[i + 1] - 1 of the .npy file

A shard is valid once its line is in shards.jsonl. The next run removes or rewrites anything else that a killed run has
left. Each file is compared with its line when the folder is continued, when it is finished, and by
`manifest.check_folder`. Nothing here follows a link.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import Option
from minibert.files.arrays import npy_header
from minibert.files.lines import STDIN
from minibert.files.reading import read_object
from minibert.files.writing import atomic_file, atomic_write, naming, sync_folder
from minibert.models.sentences.token_vectors import TokenVectors, rows_of

from .manifest import (
    BAD,
    DONE,
    LEFT,
    LOCK,
    MEND,
    META,
    SHARD,
    File,
    Shard,
    as_json,
    check_files,
    compare_counts,
    counts_of,
    open_own,
    read_shards,
    shorten,
)
from .parquet import arrow, write_vectors

FORMATS = ("parquet", "npy")
NOTES = ("source", "ranges")  # entries of meta.json that may differ between runs


class ShardFolder:
    """The folder of one job. `opened` makes it or continues it, and keeps other processes out.

    Raises ValueError, and OSError that names a file.
    """

    def __init__(self, path: Path, form: str) -> None:
        if form not in FORMATS:
            raise ValueError(f"format must be {' or '.join(map(repr, FORMATS))}, found {form!r}")
        if form == "parquet":
            arrow("; ", Option("format", "npy"), " does without")
        self.path, self.form = path, form
        self.shards: list[Shard] = []
        self.complete = False  # an earlier run has ended here
        self.notes: dict[str, Any] = {}  # other entries of meta.json: see `NOTES`
        self._checked = 0  # shards

    @contextmanager
    def opened(self, settings: Mapping[str, Any], source: Mapping[str, Any] | None = None) -> Iterator[ShardFolder]:
        """Make the folder, or continue it if it was made with the same settings; lock it until the end.

        source: where the rows and the model are now, for readers of the folder; may differ from run to run.
        """
        from filelock import FileLock, Timeout

        self._make()
        self._refuse_foreign()
        with open_own(self.path / LOCK, "ab"):
            pass  # a lock of some systems follows a link and empties the file behind it
        lock = FileLock(self.path / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(
                f"{self.path}: another run is writing into this folder; wait for it, or choose another folder"
            ) from None
        try:
            self.notes = {"source": source} if source else {}
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
        """Refuse input files in this folder. Raises ValueError."""
        for name in names:
            if name != STDIN and Path(name).absolute().parent.resolve() == self.path.resolve():
                raise ValueError(f"{name} lies in {self.path}, which is to be written; choose another folder")

    def _refuse_foreign(self) -> None:
        other = sorted({path.name for path in self.path.iterdir() if not LEFT.fullmatch(path.name)} - {LOCK})
        if other and META not in other:
            raise ValueError(
                f"{self.path}: the folder holds {other[0]!r} and no {META}, so `bulk` has not made it; "
                "choose a new folder"
            )

    def _continue(self, settings: Mapping[str, Any]) -> None:
        for path in [path for path in self.path.iterdir() if LEFT.fullmatch(path.name)]:
            path.unlink()
        for name in (META, DONE, BAD):
            if os.path.lexists(self.path / name):
                open_own(self.path / name, "rb").close()
        if not (self.path / META).exists():
            self._write_meta(dict(settings), {"complete": False})
        found = read_object(self.path / META, ValueError, MEND)
        now = json.loads(json.dumps(settings))
        if any(found.get(name) != value for name, value in now.items()) and self._made_nothing(found, settings):
            found = self._write_meta(now, {"complete": False})
        for name, value in now.items():
            if found.get(name) != value:
                before, after = map(_shown, _differing(found.get(name), value))
                raise ValueError(
                    f"{self.path} was made with {name} {before}, now it is {after}; "
                    "choose another folder, or continue with what it was made with"
                )
        self.settings = dict(settings)
        self.shards, end = read_shards(self.path)
        if "ranges" in found and any(shard.rows for shard in self.shards):
            self.notes["ranges"] = found["ranges"]
        self.complete = found.get("complete") is True
        if self.complete:
            compare_counts(self.path, found, self.shards)
        check_files(self.path, self.shards)
        self._checked = len(self.shards)
        shorten(self.path / DONE, end)
        shorten(self.path / BAD, self.shards[-1].bad_bytes if self.shards else 0)

    def _made_nothing(self, found: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
        """Whether the earlier run, with other settings, wrote no row, as after a wrong column name."""
        ours = found.keys() - {*NOTES} == {*settings, "complete"} and found["complete"] is False
        return ours and not any(path.name == DONE or SHARD.fullmatch(path.name) for path in self.path.iterdir())

    def add(
        self,
        ids: Sequence[int | str],
        vectors: Sequence[Array | TokenVectors],
        read: int,
        truncated: int,
        input_sha256: str,
        bad: Sequence[Mapping[str, Any]],
    ) -> None:
        """Write the next shard, completely or not at all."""
        files = self._write(f"{len(self.shards):05}", ids, vectors) if ids else {}
        end, before = (self.shards[-1].bad_bytes, self.shards[-1].line_sha256) if self.shards else (0, "")
        lines = b"".join(map(as_json, bad))
        if bad:
            self._append(BAD, lines)
        bad_sha256 = hashlib.sha256(lines).hexdigest()
        shard = Shard(files, read, len(ids), truncated, input_sha256, end + len(lines), bad_sha256).sealed(before)
        self._append(DONE, as_json(shard._asdict()))
        self.shards.append(shard)

    def keep_ranges(self, ranges: Array) -> None:
        """Write the ranges of int8 and uint8 into meta.json, before the first vectors."""
        self.notes["ranges"] = ranges.tolist()
        self._write_meta(self.settings, {"complete": False})

    def finish(self) -> dict[str, Any]:
        """Mark meta.json as complete, with the counts. Raises ValueError for a shard damaged since it was written."""
        check_files(self.path, self.shards, self._checked)
        named = {name for shard in self.shards for name in shard.files}
        for path in [path for path in self.path.iterdir() if SHARD.fullmatch(path.name) and path.name not in named]:
            path.unlink()  # of a killed run that has read other rows, from a stream
        return self._write_meta(self.settings, {"complete": True, **counts_of(self.shards)})

    def _write_meta(self, settings: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
        meta = {**settings, **self.notes, **more}
        atomic_write(self.path / META, as_json(meta, indent=1), lasting=True)
        return meta

    def _append(self, name: str, lines: bytes) -> None:
        """Append whole lines to a file. After an error, such as a full disk, the file is as before."""
        path = self.path / name
        new = not path.exists()
        with naming(path), open_own(path, "ab", buffering=0) as file:
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

    def _write(self, number: str, ids: Sequence[int | str], vectors: Sequence[Array | TokenVectors]) -> dict[str, File]:
        files: dict[str, Callable[[BinaryIO], object]]
        if self.form == "parquet":
            files = {f"vectors-{number}.parquet": partial(write_vectors, ids, vectors)}
        else:
            named = json.dumps(list(ids), ensure_ascii=False).encode()
            files = {
                f"ids-{number}.json": lambda file: file.write(named),
                f"vectors-{number}.npy": partial(_npy, [rows_of(part) for part in vectors]),
            }
            if offsets := [part.offsets for part in vectors if isinstance(part, TokenVectors)]:
                lengths = np.concatenate([[0], *(np.diff(each) for each in offsets)])
                files[f"offsets-{number}.npy"] = partial(_npy, [np.cumsum(lengths, dtype=np.int64)])
        written: dict[str, File] = {}
        for name, write in files.items():
            with atomic_file(self.path / name, lasting=True) as file:
                hashing = _Hashing(file)
                write(cast(BinaryIO, hashing))
                written[name] = {"bytes": file.tell(), "sha256": hashing.sha256.hexdigest()}
        return written


class _Hashing:
    """A file that is written in order, and its sha256."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.sha256 = file, hashlib.sha256()

    def write(self, content: Any) -> int:
        self.sha256.update(content)
        return self._file.write(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _npy(vectors: Sequence[Array], file: BinaryIO) -> None:
    kind = vectors[0].dtype.newbyteorder("<")
    file.write(npy_header(kind, (sum(map(len, vectors)), *vectors[0].shape[1:])))
    for part in vectors:
        file.write(np.ascontiguousarray(part, kind).data)


def _differing(was: Any, now: Any) -> tuple[Any, Any]:
    """Keep the entries of two objects that differ."""
    if not (isinstance(was, dict) and isinstance(now, dict)):
        return was, now
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    return {name: was.get(name) for name in names}, {name: now.get(name) for name in names}


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}..."
