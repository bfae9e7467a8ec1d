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
from minibert.models.run.pipeline import check_positive, chunked, stream
from minibert.models.run.truncated_texts import length_of
from minibert.models.sentences.search import BLOCK
from minibert.models.sentences.token_vectors import TokenVectors, changed, rows_of
from minibert.threads.pool import behind, prefetch

from .shards import about, batches, column_of, locked, none_of, shards_of, write
from .texts import ID, NUMBER, VECTOR, Texts, arrow

ROWS_PER_SHARD = 16_384
BAD_ROWS = ("error", "skip")
MAY_DIFFER = ("model_path",)  # from run to run: where the model is now
NO_TEXT = "it has no text, or is not of its file's format"
Progress = Callable[[int, "int | None"], object]


class Shard(NamedTuple):
    """A shard's rows that have a vector, and the messages on all of them."""

    table: Any
    vectors: list[Any]  # of each chunk that has some
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
        progress(said["read"], texts.expected)
        if said["last"]:
            return said
        long_is_bad = model.kind == "input" and not truncation
        tables = _shards(rows, texts.schema.empty_table(), rows_per_shard)
        with behind(partial(_write, folder, said, texts.schema.names, check)) as submit:
            for table, last in prefetch(lambda found: found, tables, model.pipeline.prefetching):
                submit((_computed(table, texts, model, long_is_bad, bad_rows == "skip", progress), last))
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
        starts = ((each, read - each[NUMBER][0].as_py()) for each in chain([first], rows))
        rows = (each.slice(max(0, start)) for each, start in starts if start < len(each))
    if said["last"] and next(rows, None) is not None:
        raise ValueError(
            f"the input has changed: it has more rows than the {read:,} of {folder}; choose another folder"
        )
    return {**said, **settings}, rows


def _shards(tables: Iterator[Any], none: Any, size: int) -> Iterator[tuple[Any, bool]]:
    """Put tables together to one for each shard, and say which is the last: there is one, if only of no rows."""
    held: list[Any] = []
    for table in tables:
        held.append(table)
        while sum(map(len, held)) > size:
            whole = arrow().concat_tables(held)
            yield whole.slice(0, size), False
            held = [whole.slice(size)]
    yield arrow().concat_tables(held) if held else none, True


def _computed(table: Any, texts: Texts, model: TextModel, long_is_bad: bool, skip: bool, progress: Progress) -> Shard:
    """Take a shard's rows through the model. skip: a row without a text is left out; else it is a ValueError."""
    pipeline, every, cut = model.pipeline, table[texts.text_column].to_pylist(), 0
    problems = {i: NO_TEXT for i, text in enumerate(every) if text is None}

    def place(i: int) -> str:
        return texts.place(table[NUMBER][i].as_py())

    def check() -> None:
        if problems and not skip:
            first = min(problems)
            wrong = f"{problems[first]}; ", Option("bad_rows", "skip"), " leaves such rows out"
            raise error_of(ValueError, *wrong, place=place(first))

    def tokenize(rows: list[int], start: int) -> list[Any]:
        nonlocal cut
        try:
            encoded: list[Any] = pipeline.tokenize([every[i] for i in rows], start)
        except TokenizerError:
            for i in rows:  # the first that is refused alone
                try:
                    pipeline.tokenize([every[i]], 0)
                except TokenizerError as error:
                    raise error_of(TokenizerError, *parts_of(error), place=place(i)) from None
            raise
        if long_is_bad:
            long = (
                f"the longest sequence is {model.model.max_length} (the position table); truncation shortens such texts"
            )
            lengths = {i: ids for i, ids in zip(rows, encoded, strict=True) if ids.truncated}
            problems.update((i, f"the text has {length_of(ids)} tokens, but {long}") for i, ids in lengths.items())
            encoded = [ids for ids in encoded if not ids.truncated]
            check()
        cut += sum(ids.truncated > 0 for ids in encoded)
        return encoded

    check()
    chunks = [*chunked([i for i in range(len(every)) if i not in problems], pipeline.chunk)]
    made, found = stream(chunks, tokenize, pipeline.vectors, pipeline.prefetching), []
    for rows, vectors in zip(chunks, made, strict=True):
        if len(vectors):
            found.append(TokenVectors.of(vectors, "vectors") if model.result == "tokens" else vectors)
        progress(table[NUMBER][rows[-1]].as_py() + 1, texts.expected)
    if len(table) - 1 in problems:  # the chunks end before it
        progress(table[NUMBER][-1].as_py() + 1, texts.expected)
    left_out = [f"{place(i)}: {problems[i]}" for i in sorted(problems)]
    good = arrow().array([i not in problems for i in range(len(table))], arrow().bool_())
    return Shard(table.filter(good), found, cut, left_out)


def _write(
    folder: Path, said: dict[str, Any], columns: list[str], check: Callable[[], None], shard: tuple[Shard, bool]
) -> None:
    """Write the next shard. `said`: what the one before says of itself, and in the end what this one does."""
    (table, made, cut, left_out), last = shard
    pa, precision = arrow(), said["precision"]
    if made and precision in STEPS and "ranges" not in said:
        every = np.concatenate([rows_of(each) for each in made])
        if len(every) < 2:
            wrong = " takes its ranges from the first shard, which has one vector; pass more rows, or another precision"
            raise error_of(ValueError, Option("precision", precision), wrong)
        said["ranges"] = ranges_of(every).tolist()
    if said["result"] != "sparse":
        made = [changed(each, lambda rows: quantized(rows, precision, said.get("ranges"))) for each in made]
    column = pa.chunked_array([column_of(each) for each in made or [none_of(said)]])
    now = {
        **said,
        "shards": said["shards"] + 1,
        "read": said["read"] + len(table) + len(left_out),
        "rows": said["rows"] + len(table),
        "cut": said["cut"] + cut,
        "skipped": said["skipped"] + len(left_out),
        "left_out": left_out,
        "at": table[NUMBER][-1].as_py() if len(table) else None,
        "last": last,
    }
    path = folder / f"vectors-{said['shards']:05}.{said['format']}"
    try:
        now = write(path, table.select(columns).append_column(VECTOR, column), now, check)
    except OSError as error:
        if isinstance(error, FileNotFoundError):  # the folder is not at its path, or another is
            check()
        raise OSError(
            error.errno,
            f"{error.strerror}; what was written before it is whole: once this is mended, the same command goes on "
            "after it",
            error.filename,
        ) from None
    said.update(now)
