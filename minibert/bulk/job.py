"""Many texts -> a folder of vectors: a shard's rows are read, their vectors are computed, and the shard is written.

A run that ends early keeps whole shards, and only texts of one shard are computed together. Therefore a
continued run writes the same bits on one machine, with any number of threads. On another machine, each number of a
sentence vector may differ by 1e-6 of the vector's length (measured on MiniLM: 2.8e-7 with OpenBLAS's code for another
processor).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from minibert.equations.quantization import BITS, STEPS, quantized, ranges_of
from minibert.errors import Option, Text, TokenizerError, error_of, parts_of
from minibert.files.writing import naming, sync_folder
from minibert.models.open.load_encoder import TextModel
from minibert.models.run.attributes import check_positive
from minibert.models.run.pipeline import Truncated, chunked
from minibert.models.sentences.comparing import TokenVectors, changed, rows_of
from minibert.models.sentences.search import BLOCK
from minibert.threads.pool import prefetch

from .stored import (
    LOCK,
    Metadata,
    batches,
    column_of,
    compared,
    difference,
    metadata_of,
    no_vectors,
    shards_of,
    write_shard,
)
from .texts import ID, NO_TEXT, PLACE, VECTOR, Texts, arrow

ROWS_PER_SHARD = 4_096  # after an early end, at most this many are computed again
ROWS_FOR_RANGES = 16_384  # for int8 and uint8, since their ranges come from the first shard
LONGEST_SHARD = 1 << 29  # bytes of its texts and kept columns: a column of strings ends at 2 GiB, and memory holds some


def bulk(
    texts: Texts,
    folder: Path,
    model: TextModel,
    settings: Metadata,
    *,
    form: str = "arrow",
    rows_per_shard: int | None = None,
    skip: bool = False,
    precision: str = "float32",
    progress: Callable[[int], object] = lambda done: None,
) -> Metadata:
    """Write a vector for each row, or continue an earlier run; return the metadata of the last shard.

    settings: what else made the vectors; a folder made with other settings is refused. rows_per_shard: None is the
    number of the folder that is continued, else ROWS_PER_SHARD or ROWS_FOR_RANGES; LONGEST_SHARD ends a shard earlier.
    skip: leave rows without a text out, and list them in the shard's metadata; else the first one raises ValueError,
    once all whole shards before it are written. precision: as in `encode`; the ranges of int8 and uint8 come from the
    first shard with rows, which must have two or more. progress: called with the rows done.
    """
    if rows_per_shard is not None:
        check_positive("rows_per_shard", rows_per_shard)
    if model.result == "tokens" and precision in BITS:
        raise error_of(ValueError, Option("precision", precision), " has no measure for vectors of tokens; take int8")
    if model.result == "sparse" and precision != "float32":
        raise error_of(ValueError, Option("precision", precision), " is for dense vectors; leave it out")
    settings = {
        **settings,
        "text_column": texts.text_column,
        "commit": model.opened.commit,
        "model_path": model.opened.lasting,
        "columns": {field.name: str(field.type) for field in texts.schema},
        "id_column": texts.id_column,
        "result": model.result,
        "dim": model.width,
        "max_seq_length": model.model.max_seq_length,
        "precision": precision,
        **model.compared,
        **model.named_in(last_metadata(folder)),  # after the settings that explain it: an error names the first
        "format": form,
        "rows_per_shard": rows_per_shard and int(rows_per_shard),  # json cannot write NumPy's integers
        "input": [{"name": Path(x).name, "bytes": size} for x, size in zip(texts.names, texts.sizes, strict=True)],
    }
    with locked(folder) as check:
        meta, tables = _begun(folder, json.loads(json.dumps(settings)), texts)
        progress(meta["read"])
        for table, last in prefetch(_shards(tables, meta), model.pipeline.prefetching):
            vectors, meta = _computed(table, {**meta, "last": last}, model, skip, progress)
            meta = _write(folder, table, vectors, meta, check)
        return meta


def last_metadata(folder: Path) -> Metadata:
    """Read the metadata of a folder's last shard; empty if there is none."""
    shards = shards_of(folder) if folder.is_dir() else []
    return metadata_of(shards[-1]) if shards else {}


# -- read ----------------------------------------------------------------------------------------------------------


def _begun(folder: Path, settings: Metadata, texts: Texts) -> tuple[Metadata, Iterator[Any]]:
    """Return the metadata from which this run continues, and the rows that are left.

    Raises ValueError if an earlier run had other settings or another input.
    """
    shards, _, meta = compared(folder)
    if settings["rows_per_shard"] is None:
        usual = ROWS_FOR_RANGES if settings["precision"] in STEPS else ROWS_PER_SHARD
        settings = {**settings, "rows_per_shard": meta.get("rows_per_shard", usual)}
    no_rows = texts.schema.append(arrow().field(PLACE, arrow().string())).empty_table()
    if not shards:
        counts = {"shards": 0, "read": 0, "rows": 0, "cut": 0, "truncated": 0, "skipped": 0, "at": None, "last": False}
        return {**settings, **counts}, chain([no_rows], texts.rows())
    if changed_setting := difference(meta, settings):
        name, before, now = changed_setting
        wrong = f"{folder} was made with {name} {before!r:.200}, now it is {now!r:.200}"
        raise ValueError(f"{wrong}; choose another folder, or use the setting it was made with")
    last_row, read = meta["at"], meta["read"]
    rows = _after(texts.rows(), read if last_row is None else last_row)
    if last_row is not None:  # the last row that has a vector must be the same
        names = [texts.id_column or ID, texts.text_column]
        *_, batch = batches(shards[-1], BLOCK, names)
        before = batch.slice(len(batch) - 1).to_pylist()
        first = next(rows, no_rows)
        now = first.slice(0, 1).select(names).to_pylist()
        if now != before:
            wrong = f"row {last_row + 1:,} of all was {before!r:.200} when {folder} was made, now it is {now!r:.200}"
            raise ValueError(f"the input has changed: {wrong}; choose another folder, or put the input back")
        rows = _after(chain([first], rows), read - last_row)
    if meta["last"] and next(rows, None) is not None:
        raise ValueError(f"the input has changed: it has more than the {read:,} rows of {folder}; choose another")
    return {**meta, **settings}, chain([no_rows], rows)


def _after(tables: Iterator[Any], count: int) -> Iterator[Any]:
    """Leave the first `count` rows out."""
    for table in tables:
        if len(table) > count:
            yield table.slice(count)
        count = max(0, count - len(table))


def _shards(tables: Iterator[Any], meta: Metadata) -> Iterator[tuple[Any, bool]]:
    """Yield the rows of each shard, and whether it is the last: a finished folder needs no more shards, any other has
    at least one, even without rows."""
    if meta["last"]:
        return
    buffered = next(tables)
    for table in tables:
        buffered = arrow().concat_tables([buffered, table])
        while len(buffered) > (size := _shard_size(buffered, meta["rows_per_shard"])):
            yield buffered.slice(0, size), False
            buffered = buffered.slice(size)
    yield buffered, True


def _shard_size(table: Any, most: int) -> int:
    """Count the first rows that make a shard: `most`, or fewer with LONGEST_SHARD bytes of strings; at least one."""
    table = table.drop_columns([PLACE])  # not written: shards do not depend on the path of the input
    if table.nbytes <= LONGEST_SHARD:
        return most
    strings = [column for column in table.columns if str(column.type).endswith(("string", "binary"))]
    ends = sum(np.cumsum(arrow().compute.binary_length(column).fill_null(0), dtype=np.int64) for column in strings)
    return max(1, min(most, int(np.searchsorted(ends, LONGEST_SHARD, "right"))))


# -- compute -------------------------------------------------------------------------------------------------------


def _computed(
    table: Any, meta: Metadata, model: TextModel, skip: bool, progress: Callable[[int], object]
) -> tuple[list[Any], Metadata]:
    """Compute the vectors of a shard's rows, in chunks, and the shard's metadata.

    meta: the previous shard's. skip: leave out rows without a text; else they raise ValueError.
    """
    texts, places, pipeline = table[meta["text_column"]].to_pylist(), table[PLACE].to_pylist(), model.pipeline
    good, bad = ([i for i, text in enumerate(texts) if (text is None) is wrong] for wrong in (False, True))
    if bad and not skip:
        advice = f"{NO_TEXT}; ", Option("bad_rows", "skip"), " leaves such rows out"
        raise error_of(ValueError, *advice, place=places[bad[0]])
    truncated, vectors, chunks = list[Truncated](), list[Any](), [*chunked(good, pipeline.chunk)]
    stream = pipeline.noting(truncated).stream(([texts[i] for i in indexes] for indexes in chunks), prefetching=True)
    try:
        for indexes, part in zip(chunks, stream, strict=True):
            vectors.append(TokenVectors.of(part, "vectors") if model.result == "tokens" else part)
            progress(meta["read"] + indexes[-1] + 1)
    except (TokenizerError, ValueError):
        _refuse_text([texts[i] for i in good], [places[i] for i in good], model)
        raise
    if bad:  # these texts may be the last of the input
        progress(meta["read"] + len(texts))
    if vectors and meta["precision"] in STEPS and "ranges" not in meta:
        if len(numbers := np.concatenate([rows_of(part) for part in vectors])) < 2:
            wrong = " takes its ranges from the first shard, which has one vector; pass more rows, or another precision"
            raise error_of(ValueError, Option("precision", meta["precision"]), wrong)
        meta = {**meta, "ranges": ranges_of(numbers).tolist()}
    return vectors, {
        **meta,
        "shards": meta["shards"] + 1,
        "read": meta["read"] + len(texts),
        "rows": meta["rows"] + len(good),
        "cut": meta["cut"] + len(truncated),
        "truncated": len(truncated),
        "skipped": meta["skipped"] + len(bad),
        "left_out": [f"{places[i]}: {NO_TEXT}" for i in bad],
        "at": meta["read"] + good[-1] if good else None,
    }


def _refuse_text(texts: list[str], places: list[str], model: TextModel) -> None:
    """Raise an error for the first text that the tokenizer refuses, with the text's place."""
    for text, place in zip(texts, places, strict=True):
        try:
            model.pipeline.tokenize([text], 0)
        except (TokenizerError, ValueError) as error:
            parts = ("the text" if isinstance(part, Text) else part for part in parts_of(error))
            raise error_of(type(error), *parts, place=place) from None


# -- write ---------------------------------------------------------------------------------------------------------


@contextmanager
def locked(folder: Path) -> Iterator[Callable[[], None]]:
    """Make the folder and keep other runs out; yield a function that raises once the folder is no longer this run's.

    Raises ValueError if another run writes into it.
    """
    from filelock import FileLock, Timeout

    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file; name a folder, new or to be continued")
    created = [ancestor for ancestor in (folder, *folder.parents) if not ancestor.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    with naming(folder):
        for ancestor in created:
            sync_folder(ancestor.parent)
    shards_of(folder)  # raises for a folder that is not ours, before the lock is made
    path = folder / LOCK
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
        inode = path.stat()
    except (Timeout, FileNotFoundError):
        raise ValueError(f"{folder}: another run is writing into this folder; wait for it, or choose another") from None

    def check() -> None:
        with suppress(OSError):
            if os.path.samestat(path.stat(), inode):
                return
        wrong = f"{folder}: it was moved or deleted while this run wrote into it"
        raise ValueError(f"{wrong}; move it back, and run the same command to continue")

    try:
        for temporary in folder.glob(".vectors-*"):
            temporary.unlink()
        yield check
    finally:
        with suppress(OSError, ValueError):
            check()
            path.unlink()  # before it is released: a run that then locks this file sees that it is gone from the folder
        lock.release()


def _write(folder: Path, table: Any, vectors: list[Any], meta: Metadata, check: Callable[[], None]) -> Metadata:
    """Write a shard: its rows that have a text, their vectors in chunks, and its metadata, which are returned."""
    if meta["precision"] != "float32":
        smaller = partial(quantized, precision=meta["precision"], ranges=meta.get("ranges"))
        vectors = [changed(part, smaller) for part in vectors]
    column = arrow().chunked_array([column_of(part) for part in vectors or [no_vectors(meta)]])
    table = table.filter(table[meta["text_column"]].is_valid()).select([*meta["columns"]])
    path = folder / f"vectors-{meta['shards'] - 1:05}.{meta['format']}"
    try:
        return write_shard(path, table.append_column(VECTOR, column), meta, check)
    except OSError as error:
        check()  # the folder may have been moved
        advice = "the shards before it are complete; solve this, and run the same command to continue"
        raise OSError(error.errno, f"{error.strerror}; {advice}", error.filename) from None
