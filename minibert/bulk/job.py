"""Many texts -> a folder of vectors: rows are read, streamed through a model, and written shard by shard.

A run that ends early keeps whole shards, and only texts of one shard are computed together: so a continued run gives
the same bits, on one machine with any number of threads. Continued on another machine, each number of a sentence vector
may differ by 1e-6 of the vector's length (measured on MiniLM: 2.8e-7 with OpenBLAS's code for another processor).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.quantization import BITS, STEPS, check_precision, quantized, ranges_of
from minibert.errors import Option, TokenizerError, error_of, parts_of
from minibert.models.open.vectors import TextModel
from minibert.models.run.pipeline import check_positive, stream
from minibert.models.run.truncated_texts import length_of
from minibert.models.sentences.search import BLOCK
from minibert.models.sentences.token_vectors import TokenVectors, changed, rows_of
from minibert.threads.pool import behind

from .shards import about, batches, column_of, locked, none_of, shards_of, write
from .texts import ID, NUMBER, PLACE, VECTOR, Texts, arrow

ROWS_PER_SHARD = 16_384
BAD_ROWS = ("error", "skip")
MAY_DIFFER = ("model_path",)  # from run to run: where the model is now
NO_TEXT = "it has no text, or is not of its file's format"
Progress = Callable[[int, "int | None"], object]


class Part(NamedTuple):
    """A chunk's rows that have a vector, and what is to be said of all."""

    table: Any
    vectors: Any  # before they are computed, the ids of their tokens
    read: int
    cut: int
    left_out: list[str]


def bulk(
    texts: Texts,
    folder: Path,
    model: TextModel,
    settings: dict[str, Any],
    *,
    form: str = "arrow",
    rows_per_shard: int = ROWS_PER_SHARD,
    truncation: bool = False,
    bad_rows: str = "error",
    precision: str = "float32",
    progress: Progress = lambda done, expected: None,
) -> dict[str, Any]:
    """Write a vector for each row, or continue; give what the last shard says.

    settings: what else made the vectors; a folder made with other settings is refused. bad_rows: "error" raises
    ValueError at the first row without a text, once all whole shards before it are written; "skip" leaves such rows
    out, and the shard's metadata list them. precision: as of `encode`; the ranges of int8 and uint8 come from the first
    shard with rows, which must have two or more. progress: called with the rows done and the expected total or None.
    """
    if bad_rows not in BAD_ROWS:
        raise error_of(ValueError, Option("bad_rows"), f" must be {' or '.join(BAD_ROWS)}, found {bad_rows!r}")
    check_positive("rows_per_shard", rows_per_shard)
    check_precision(precision)
    if model.result == "tokens" and precision in BITS:
        raise error_of(ValueError, Option("precision", precision), " has no measure for vectors of tokens; take int8")
    if model.result == "sparse" and precision != "float32":
        raise error_of(ValueError, Option("precision", precision), " is for dense vectors; leave it out")
    settings = {
        **settings,
        "columns": {field.name: str(field.type) for field in texts.schema},
        "id_column": texts.id_column,
        "result": model.result,
        "dim": model.width,
        "max_seq_length": None if model.kind == "input" else model.model.max_seq_length,
        "precision": precision,
        **model.compared,
        "format": form,
        "rows_per_shard": int(rows_per_shard),  # JSON knows no integer of NumPy's
        "truncate": truncation,
        "input": [{"name": Path(x).name, "bytes": size} for x, size in zip(texts.names, texts.sizes, strict=True)],
    }
    with locked(folder) as check:
        said, rows = _begun(folder, json.loads(json.dumps(settings)), texts)
        progress(done := said["read"], texts.expected)
        if said["last"]:
            return said
        parts: list[Part] = []  # of the next shard
        long_is_bad = model.kind == "input" and not truncation
        chunks = _chunks(rows, model.pipeline.chunk, rows_per_shard)
        write_next = partial(_write, folder, said, texts.schema.empty_table(), check)
        with behind(write_next) as submit:
            try:
                for part in _parts(chunks, texts, model, long_is_bad, bad_rows == "error"):
                    if sum(each.read for each in parts) == rows_per_shard:  # and it is not the last
                        full, parts = parts, []  # first: Ctrl-C must not have it written twice
                        submit((full, False))
                    parts.append(part)
                    progress(done := done + part.read, texts.expected)
            except Exception:  # of a row behind the shard
                if sum(each.read for each in parts) == rows_per_shard:
                    submit((parts, False))
                raise
        write_next((parts, True))
        return said


def _begun(folder: Path, settings: dict[str, Any], texts: Texts) -> tuple[dict[str, Any], Iterator[Any]]:
    """Look where an earlier run has ended. Raises ValueError where the settings or the input were others."""
    shards = shards_of(folder)
    if not shards:
        none = {"shards": 0, "read": 0, "rows": 0, "cut": 0, "skipped": 0, "at": None, "last": False}
        return {**settings, **none}, texts.rows()
    said = about(shards[-1])
    for name, value in settings.items():
        before = said.get(name)
        if before != value and name not in MAY_DIFFER:
            if isinstance(before, dict) and isinstance(value, dict):  # the entries that differ
                keys = [key for key in {**before, **value} if before.get(key) != value.get(key)]
                before, value = ({key: each.get(key) for key in keys} for each in (before, value))
            raise ValueError(
                f"{folder} was made with {name} {before!r:.200}, now it is {value!r:.200}; choose another folder, or "
                "continue with what it was made with"
            )
    at, read = said["at"], said["read"]
    rows = texts.rows(read if at is None else at)
    if at is not None:
        names = [texts.id_column or ID, texts.text_column]
        *_, batch = batches(shards[-1], BLOCK, names)
        before = batch.slice(len(batch) - 1).to_pylist()
        first = next(rows, texts.schema.empty_table())
        now = first.slice(0, 1).select(names).to_pylist()
        if now != before:
            raise ValueError(
                f"the input has changed: row {at + 1:,} of all was {before!r:.200} when {folder} was made, now it is "
                f"{now!r:.200}; choose another folder, or put the input back"
            )
        rows = _after(chain([first], rows), read - at)
    if said["last"] and next(rows, None) is not None:
        raise ValueError(
            f"the input has changed: it has more rows than the {read:,} of {folder}; choose another folder"
        )
    return {**said, **settings}, rows


def _after(tables: Iterator[Any], skip: int) -> Iterator[Any]:
    for table in tables:
        if skip < len(table):
            yield table.slice(skip)
        skip = max(0, skip - len(table))


def _chunks(tables: Iterator[Any], size: int, rows_per_shard: int) -> Iterator[Any]:
    """Cut tables into chunks of `size` rows; no chunk has rows of two shards."""
    held, room = [], rows_per_shard
    for table in tables:
        held.append(table)
        while sum(map(len, held)) >= (most := min(size, room)):
            whole = arrow().concat_tables(held)
            yield whole.slice(0, most)
            held, room = [whole.slice(most)], room - most or rows_per_shard
    if sum(map(len, held)):
        yield arrow().concat_tables(held)


def _parts(chunks: Iterator[Any], texts: Texts, model: TextModel, long_is_bad: bool, stop: bool) -> Iterator[Part]:
    """Take chunks through the model. stop: a row without a text is an error."""
    pipeline = model.pipeline

    def tokenize(table: Any, start: int) -> Part:
        every = table[texts.text_column].to_pylist()
        problems = {i: NO_TEXT for i, text in enumerate(every) if text is None}
        good = [i for i in range(len(every)) if i not in problems]
        try:
            encoded = pipeline.tokenize([every[i] for i in good], start)
        except TokenizerError:
            for i in good:  # the first that is refused alone
                try:
                    pipeline.tokenize([every[i]], 0)
                except TokenizerError as error:
                    raise error_of(TokenizerError, *parts_of(error), place=_place(table, i)) from None
            raise
        if long_is_bad:
            long = (
                f"the longest sequence is {model.model.max_length} (the position table); truncation shortens such texts"
            )
            lengths = {i: ids for i, ids in zip(good, encoded, strict=True) if ids.truncated}
            problems |= {i: f"the text has {length_of(ids)} tokens, but {long}" for i, ids in lengths.items()}
            encoded = [ids for ids in encoded if not ids.truncated]
        left_out = [f"{_place(table, i)}: {problems[i]}" for i in sorted(problems)]
        if stop and left_out:
            raise error_of(ValueError, left_out[0], "; ", Option("bad_rows", "skip"), " leaves such rows out")
        cut = sum(ids.truncated > 0 for ids in encoded)
        return Part(table.filter([i not in problems for i in range(len(table))]), encoded, len(table), cut, left_out)

    def vectors(part: Part) -> Part:
        found = pipeline.vectors(part.vectors)
        return part._replace(vectors=TokenVectors.of(found, "vectors") if model.result == "tokens" else found)

    return stream(chunks, tokenize, vectors, prefetching=pipeline.prefetching)


def _place(table: Any, row: int) -> str:
    file, number = (table[name][row].as_py() for name in PLACE)
    return f"{file}, row {number}"


def _write(
    folder: Path, said: dict[str, Any], none: Any, check: Callable[[], None], shard: tuple[list[Part], bool]
) -> None:
    """Write the next shard. `said`: what the one before says of itself, and in the end what this one does."""
    parts, last = shard
    pa, precision = arrow(), said["precision"]
    made = [part.vectors for part in parts if len(part.table)]
    if made and precision in STEPS and "ranges" not in said:
        every = np.concatenate([rows_of(each) for each in made])
        if len(every) < 2:
            wrong = " takes its ranges from the first shard, which has one vector; pass more rows, or another precision"
            raise error_of(ValueError, Option("precision", precision), wrong)
        said["ranges"] = ranges_of(every).tolist()
    if said["result"] != "sparse":
        made = [changed(each, lambda rows: quantized(rows, precision, said.get("ranges"))) for each in made]
    column = pa.chunked_array([column_of(each) for each in made or [none_of(said)]])
    table = pa.concat_tables([part.table for part in parts]) if parts else none
    read = said["read"] + sum(part.read for part in parts)
    now = {
        **said,
        "shards": said["shards"] + 1,
        "read": read,
        "rows": said["rows"] + len(table),
        "cut": said["cut"] + sum(part.cut for part in parts),
        "skipped": said["skipped"] + read - said["read"] - len(table),
        "left_out": [each for part in parts for each in part.left_out],
        "at": table[NUMBER][-1].as_py() if len(table) else None,
        "last": last,
    }
    path = folder / f"vectors-{said['shards']:05}.{said['format']}"
    try:
        now = write(path, table.select(none.column_names).append_column(VECTOR, column), now, check)
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror}; what was written before it is whole: once this is mended, the same command goes on "
            "after it",
            error.filename,
        ) from None
    said.update(now)
