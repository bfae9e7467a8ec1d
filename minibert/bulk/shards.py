"""The shards of a folder: tables in Arrow's or Parquet's format, whose metadata say what made them.

    vectors-00000.arrow     the columns of the input that are kept, and `vector`: a list of fixed size of numbers; for
                            late interaction a list of such lists; of a sparse vector a list of (id, weight)

A shard appears complete or not at all. A finished folder holds shards alone; `.lock` is there while a run works in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.quantization import BITS, PRECISIONS
from minibert.files.lines import reading
from minibert.files.writing import atomic_file, naming, sync_folder
from minibert.models.sentences.comparing import SparseVector, Vectors
from minibert.models.sentences.search import BLOCK
from minibert.models.sentences.token_vectors import TokenVectors, rows_of

from .texts import arrow

FORMATS = ("arrow", "parquet")
SHARD = rf"vectors-\d{{5,}}\.({'|'.join(FORMATS)})"
LOCK = ".lock"
NAME = re.compile(rf"{SHARD}|{LOCK}|\.{SHARD}\.[0-9a-f]{{16}}")  # a shard; the lock; what a killed run has left
KEY = b"minibert"  # of the metadata, which are JSON
NO_IDS, NO_WEIGHTS = np.empty(0, np.int64), np.empty(0, np.float32)
MEND = "put it back, or begin again in another folder"


def shards_of(folder: Path) -> list[Path]:
    """List the shards in order. Raises ValueError for a folder that holds anything else, or where one is missing."""
    found = []
    with reading(str(folder), "a folder"):
        every = sorted(folder.iterdir())
    if folder / "meta.json" in every:
        raise ValueError(
            f"{folder}: an older version of minibert made it (its settings are in meta.json), and only that version "
            f"reads it; make the vectors again, in another folder"
        )
    for path in every:
        if not NAME.fullmatch(path.name) or path.is_symlink() or not path.is_file():
            raise ValueError(f"{folder}: it holds {path.name!r}, so `bulk` has not made it; choose a new folder")
        found += [path] if path.name.startswith("vectors") else []
    for number, path in enumerate(found):
        if path.stem != f"vectors-{number:05}":
            wanted = folder / f"vectors-{number:05}{found[0].suffix}"
            raise ValueError(f"{wanted}: missing, {path.name} stands in its place; {MEND}")
    return found


@contextmanager
def locked(folder: Path) -> Iterator[Callable[[], None]]:
    """Make the folder and keep other runs out; give a function that raises once the folder is not this run's.

    Raises ValueError where another run works in it.
    """
    from filelock import FileLock, Timeout

    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file; name a folder, new or to be continued")
    new = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    with naming(folder):
        for each in new:
            sync_folder(each.parent)
    shards_of(folder)  # raises for a folder that is not ours, before the lock is made
    path = folder / LOCK
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
        held = path.stat()
    except (Timeout, FileNotFoundError):
        raise ValueError(f"{folder}: another run is writing into this folder; wait for it, or choose another") from None

    def check() -> None:
        with suppress(OSError):
            if os.path.samestat(path.stat(), held):
                return
        raise ValueError(
            f"{folder}: it was moved or deleted while this run wrote into it, and nothing was written into the "
            f"folder there now; move it back, and run the same command to continue"
        )

    try:
        for left in folder.glob(".vectors-*"):
            left.unlink()
        yield check
    finally:
        with suppress(OSError, ValueError):
            check()
            path.unlink()  # before it is released: a run that locks it after that sees that it is not the folder's
        lock.release()


def write(path: Path, table: Any, said: dict[str, Any], check: Callable[[], None]) -> dict[str, Any]:
    """Write a shard with what it says of itself, which is given back; `check` is called before it gets its name."""
    pa = arrow()
    table = table.combine_chunks()
    said = {**said, "sha256": {name: checksum(table[name]) for name in table.column_names}}
    table = table.replace_schema_metadata({KEY: json.dumps(said, sort_keys=True)})
    with atomic_file(path, lasting=True) as file:
        if path.suffix == ".arrow":
            with pa.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
        else:
            from pyarrow import parquet

            # dictionaries and compression save next to nothing on a vector's numbers, and cost time
            parquet.write_table(table, file, use_dictionary=False, compression="none")
        check()
    return said


def _opened(path: Path, rows: int = BLOCK, columns: list[str] | None = None) -> tuple[Any, Iterator[Any]]:
    """Give a shard's schema and batches: one of Arrow is mapped and comes at once, one of Parquet `rows` by `rows`."""
    pa = arrow()
    if path.suffix == ".arrow":
        file = pa.ipc.open_file(pa.memory_map(str(path)))
        every = map(file.get_batch, range(file.num_record_batches))
        return file.schema, every if columns is None else (batch.select(columns) for batch in every)
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(path)
    return file.schema_arrow, file.iter_batches(rows, columns=columns, use_threads=False)


def about(path: Path) -> dict[str, Any]:
    """Read what a shard says of itself. Raises ValueError for a file that `bulk` has not written."""
    with _reading(path):
        found = _opened(path)[0].metadata or {}
    if KEY not in found:
        raise ValueError(f"{path}: it has no settings of `bulk`, so `bulk` has not written it; {MEND}")
    said: dict[str, Any] = json.loads(found[KEY])
    return said


def batches(path: Path, rows: int, columns: list[str] | None = None) -> Iterator[Any]:
    """Read a shard: see `_opened`. Raises ValueError and OSError that name it."""
    with _reading(path):
        yield from _opened(path, rows, columns)[1]


def _reading(path: Path) -> AbstractContextManager[None]:
    return reading(str(path), path.suffix[1:], arrow().ArrowException, UnicodeDecodeError)


def finished(folder: Path) -> tuple[list[Path], dict[str, Any]]:
    """Give the shards, and what the last one says. Raises ValueError for a folder whose run has not ended."""
    try:
        shards = shards_of(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{folder}: there is no such folder; name a folder that bulk wrote") from None
    if not shards:
        raise ValueError(f"{folder}: it holds no shard; name a folder that bulk wrote")
    said = about(shards[-1])
    if not said.get("last"):
        raise ValueError(f"{folder}: not complete; its shards are undamaged, and the same command continues after them")
    return shards, said


def check_folder(folder: Path) -> tuple[int, int]:
    """Read a whole folder again, and change nothing: count its vectors and shards.

    Raises ValueError for a folder that is incomplete or damaged, and names the file.
    """
    shards, last = finished(folder)
    for number, path in enumerate(shards, 1):
        said = about(path)
        with _reading(path):
            schema, found = _opened(path)
            table = arrow().Table.from_batches(found, schema)
        if said["shards"] != number:
            raise ValueError(f"{path}: it was written as shard {said['shards'] - 1}; {MEND}")
        for name, wanted in said["sha256"].items():
            if name not in table.column_names or checksum(table[name]) != wanted:
                raise ValueError(f"{path}: damaged, its column {name!r} has changed since it was written; {MEND}")
    return last["rows"], len(shards)


def checksum(column: Any) -> str:
    """Give the sha256 of a column's values, as Arrow sends them: the same in any format, however it is cut."""
    pa = arrow()
    found, whole = hashlib.sha256(b"%d" % len(column)), column.combine_chunks()
    for part in (whole.is_null(), whole.drop_null()):
        part = pa.concat_arrays([part, part.slice(0, 0)])  # a copy: its buffers begin at its first value
        found.update(pa.ipc.read_message(pa.record_batch([part], ["values"]).serialize()).body)
    return found.hexdigest()


# -- vectors as columns --------------------------------------------------------------------------------------------


def column_of(vectors: Vectors) -> Any:
    """Give dense vectors, token vectors or sparse vectors as an array of Arrow."""
    pa = arrow()
    if isinstance(vectors, list):
        ids, weights = (np.concatenate(each) for each in zip((NO_IDS, NO_WEIGHTS), *vectors, strict=True))
        pairs = pa.StructArray.from_arrays([pa.array(ids.astype(np.int32)), pa.array(weights)], ["id", "weight"])
        return pa.LargeListArray.from_arrays(np.cumsum([0, *(len(each.ids) for each in vectors)]), pairs)
    rows = rows_of(vectors)
    made = pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).reshape(-1)), rows.shape[1])
    return pa.LargeListArray.from_arrays(vectors.offsets, made) if isinstance(vectors, TokenVectors) else made


def vectors_of(column: Any) -> Vectors:
    """Give the vectors that an array of Arrow holds, without a copy where it has no nulls."""
    types = arrow().types
    if types.is_fixed_size_list(column.type):
        found: Array = column.flatten().to_numpy().reshape(len(column), column.type.list_size)
        return found
    offsets, inside = column.offsets.to_numpy() - column.offsets[0].as_py(), column.flatten()
    if not types.is_struct(inside.type):
        return TokenVectors(cast(Array, vectors_of(inside)), offsets)
    ids, weights = (part.to_numpy() for part in inside.flatten())
    return [SparseVector(ids[a:b], weights[a:b]) for a, b in pairwise(offsets.tolist())]


def none_of(said: dict[str, Any]) -> Vectors:
    """Give no vectors, in the form of the others."""
    if said["result"] == "sparse":
        return []
    width = -(-said["dim"] // 8) if said["precision"] in BITS else said["dim"]
    rows = np.empty((0, width), PRECISIONS[said["precision"]])
    return TokenVectors(rows, np.zeros(1, np.int64)) if said["result"] == "tokens" else rows
