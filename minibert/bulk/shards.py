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
from minibert.equations.sentences import MAXSIMS, SIMILARITIES
from minibert.files.lines import reading
from minibert.files.writing import atomic_file, naming, sync_folder
from minibert.models.sentences.comparing import SparseVector, TokenVectors, Vectors, rows_of
from minibert.models.sentences.search import BLOCK

from .texts import VECTOR, arrow

FORMATS = ("arrow", "parquet")
SHARD = rf"vectors-\d{{5,}}\.({'|'.join(FORMATS)})"
LOCK = ".lock"
NAME = re.compile(rf"{SHARD}|{LOCK}|\.{SHARD}\.[0-9a-f]{{16}}")  # a shard; the lock; what a killed run has left
KEY = b"minibert"  # of the metadata, which are JSON
NO_IDS, NO_WEIGHTS = np.empty(0, np.int64), np.empty(0, np.float32)
MEND = "restore the file, or delete it and all later shards and run `bulk` again as before"
Said = dict[str, Any]  # a shard's metadata: the settings of its run, and its place there
# what metadata must have: the type of each entry, or its known values
PLACED: Said = {  # entries that differ from shard to shard; the counts include all shards before
    "shards": int, "read": int, "rows": int, "cut": int, "skipped": int, "left_out": list, "at": int | None,
    "last": bool, "sha256": dict,
}  # fmt: skip
SET: Said = {  # the settings that readers use; all shards of a folder have the same settings
    "text_column": str, "id_column": str | None, "columns": dict, "result": ("dense", "tokens", "sparse"), "dim": int,
    "precision": (*PRECISIONS,), "similarity": (*SIMILARITIES, *MAXSIMS), "normalized": bool,
    "commit": str | None, "model_path": str, "model_sha256": dict,
}  # fmt: skip
MAY_DIFFER = ("model_path",)  # from run to run: where the model is now


def shards_of(folder: Path) -> list[Path]:
    """List the shards in order. Raises ValueError for a folder that holds anything else, or where one is missing."""
    found = []
    with reading(str(folder), "a folder"):
        every = sorted(folder.iterdir())
    for path in every:
        if not NAME.fullmatch(path.name) or path.is_symlink() or not path.is_file():
            raise ValueError(f"{folder}: it holds {path.name!r}, so `bulk` has not made it; name another folder")
        found += [path] if path.name.startswith("vectors") else []
    found.sort(key=lambda path: int(path.stem.removeprefix("vectors-")))  # by name, 100000 comes before 99999
    for number, path in enumerate(found):
        if path.stem != f"vectors-{number:05}":
            if path.stem == f"vectors-{number - 1:05}":
                raise ValueError(
                    f"{path}: {found[number - 1].name} has the same number; delete the one that is not bulk's"
                )
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


def write(path: Path, table: Any, said: Said, check: Callable[[], None]) -> Said:
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


def _opened(path: Path, rows: int = BLOCK, columns: list[str] | None = None) -> tuple[Any, int, Iterator[Any]]:
    """Read a shard's schema, count and batches: Arrow files are mapped; Parquet is read `rows` at a time."""
    pa = arrow()
    if path.suffix == ".arrow":
        file = pa.ipc.open_file(pa.memory_map(str(path)))
        every = [file.get_batch(i) for i in range(file.num_record_batches)]
        cut = (batch if columns is None else batch.select(columns) for batch in every)
        return file.schema, sum(map(len, every)), cut
    from pyarrow.parquet import ParquetFile

    file = ParquetFile(path)
    cut = file.iter_batches(rows, columns=columns, use_threads=False)
    return file.schema_arrow, file.metadata.num_rows, cut


def about(path: Path) -> Said:
    """Read a shard's metadata. Raises ValueError for a file that `bulk` has not written."""
    return _about(path)[0]


def _about(path: Path) -> tuple[Said, int, Any]:
    """Read a shard's metadata, count its rows, and give its schema."""
    with _reading(path):
        schema, rows, _ = _opened(path)
        found = (schema.metadata or {}).get(KEY)
    if found is None:
        raise ValueError(f"{path}: it has no settings of `bulk`, so `bulk` has not written it; {MEND}")
    try:
        said = json.loads(found)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: its metadata are not readable as JSON ({error}); {MEND}") from None
    if not isinstance(said, dict):
        raise ValueError(f"{path}: expected metadata that are an object, found {type(said).__name__}; {MEND}")
    for name, kind in {**PLACED, **SET}.items():
        value = said.get(name)
        if name not in said or not (value in kind if isinstance(kind, tuple) else isinstance(value, kind)):
            raise ValueError(f"{path}: its metadata have {value!r:.200} as {name}, which `bulk` never writes; {MEND}")
    if {*schema.names} != {*said["columns"], VECTOR}:
        raise ValueError(f"{path}: its columns are not those that its metadata name; {MEND}")
    return said, rows, schema


def difference(said: Said, wanted: Said) -> tuple[str, Any, Any] | None:
    """Return the first wanted setting that differs, and its two values: of dictionaries the entries that differ."""
    for name, value in wanted.items():
        before = said.get(name)
        if before != value and name not in (*PLACED, *MAY_DIFFER):
            if isinstance(before, dict) and isinstance(value, dict):
                keys = [key for key in {**before, **value} if before.get(key) != value.get(key)]
                before, value = ({key: each.get(key) for key in keys} for each in (before, value))
            return name, before, value
    return None


def compared(folder: Path) -> tuple[list[Path], list[int], Said]:
    """Compare the metadata of all shards; return the shards, the rows up to the end of each, and the last metadata.

    Raises ValueError that names the first shard that is damaged, out of its place, or of another run.
    """
    paths, ends, before, same = shards_of(folder), [0], Said(), None
    for number, path in enumerate(paths):
        said, rows, schema = _about(path)
        same = same or schema
        wrong = ""
        if said["shards"] != number + 1:
            wrong = f"it was written as shard {said['shards'] - 1}"
        elif found := difference(said, before):
            name, value, other = found
            wrong = f"it was made with {name} {value!r:.200}, and {paths[number - 1].name} with {other!r:.200}"
        elif before and before["last"]:
            wrong = f"it is one too many, since {paths[number - 1].name} is the last shard of its run"
        elif said["rows"] != ends[-1] + rows:
            wrong = f"expected {said['rows'] - ends[-1]:,} rows, as its metadata say, found {rows:,}"
        elif differs := [field for field in schema if field not in same]:
            wrong = f"its column {differs[0].name!r} holds {differs[0].type}, and {paths[0].name} has another type"
        if wrong:
            raise ValueError(f"{path}: {wrong}; {MEND}")
        ends.append(said["rows"])
        before = said
    return paths, ends[1:], before


def batches(path: Path, rows: int, columns: list[str] | None = None) -> Iterator[Any]:
    """Read a shard: see `_opened`. Raises ValueError and OSError that name it."""
    with _reading(path):
        yield from _opened(path, rows, columns)[2]


def _reading(path: Path) -> AbstractContextManager[None]:
    return reading(str(path), path.suffix[1:], arrow().ArrowException, UnicodeDecodeError, advice=MEND)


def finished(folder: Path) -> tuple[list[Path], list[int], Said]:
    """Compare the shards as `compared` does. Raises ValueError also for a folder whose run has not ended."""
    try:
        shards, ends, said = compared(folder)
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{folder}: there is no such folder; name a folder that bulk wrote") from None
    if not shards:
        raise ValueError(f"{folder}: it holds no shard; name a folder that bulk wrote")
    if not said["last"]:
        raise ValueError(
            f"{folder}: not complete; run `bulk` again as it was begun, and it continues after {shards[-1].name}"
        )
    return shards, ends, said


def check_folder(folder: Path) -> tuple[int, int]:
    """Read a whole folder again, and change nothing: count its vectors and shards.

    Raises ValueError for a folder that is incomplete or damaged, and names the file.
    """
    shards, ends, _ = finished(folder)
    for path in shards:
        wanted = about(path)["sha256"]
        with _reading(path):
            schema, _, found = _opened(path)
            table = arrow().Table.from_batches(found, schema)
        for name in table.column_names:
            if checksum(table[name]) != wanted.get(name):
                raise ValueError(f"{path}: damaged, its column {name!r} has changed since it was written; {MEND}")
    return ends[-1], len(shards)


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


def none_of(said: Said) -> Vectors:
    """Give no vectors, in the form of the others."""
    if said["result"] == "sparse":
        return []
    width = -(-said["dim"] // 8) if said["precision"] in BITS else said["dim"]
    rows = np.empty((0, width), PRECISIONS[said["precision"]])
    return TokenVectors(rows, np.zeros(1, np.int64)) if said["result"] == "tokens" else rows
