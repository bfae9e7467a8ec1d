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
from typing import Any

import numpy as np

from minibert.equations.quantization import BITS, STEPS, quantized, ranges_of
from minibert.errors import Option, Text, TokenizerError, error_of, parts_of
from minibert.models.open.load_encoder import TextModel
from minibert.models.run.pipeline import check_positive, chunked
from minibert.models.sentences.comparing import TokenVectors, changed, rows_of
from minibert.models.sentences.search import BLOCK
from minibert.threads.pool import behind, prefetch

from .shards import Said, about, batches, column_of, compared, difference, locked, none_of, shards_of, write
from .texts import ID, NO_TEXT, PLACE, VECTOR, Texts, arrow

ROWS_PER_SHARD = 4_096  # a run that ends early computes no more of them again
ROWS_FOR_RANGES = 16_384  # of int8 and uint8, whose ranges come from the first shard
LONGEST_SHARD = 1 << 29  # bytes of its texts and kept columns: a column of strings ends at 2 GiB, and memory holds some
Progress = Callable[[int, "int | None"], object]


def bulk(
    texts: Texts,
    folder: Path,
    model: TextModel,
    settings: Said,
    *,
    form: str = "arrow",
    rows_per_shard: int | None = None,
    skip: bool = False,
    precision: str = "float32",
    progress: Progress = lambda done, expected: None,
) -> Said:
    """Write a vector for each row, or continue; give what the last shard says.

    settings: what else made the vectors; a folder made with other settings is refused. rows_per_shard: None is the
    number of the folder that is continued, else ROWS_PER_SHARD or ROWS_FOR_RANGES; LONGEST_SHARD ends a shard earlier.
    skip: leave rows without a text out, and list them in the shard's metadata; else the first one raises ValueError,
    once all whole shards before it are written. precision: as of `encode`; the ranges of int8 and uint8 come from the
    first shard with rows, which must have two or more. progress: called with the rows done and the expected total or
    None.
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
        "model_sha256": model.sha256(),  # after the settings that explain it: an error names the first difference
        "columns": {field.name: str(field.type) for field in texts.schema},
        "id_column": texts.id_column,
        "result": model.result,
        "dim": model.width,
        "max_seq_length": model.model.max_seq_length,
        "precision": precision,
        **model.compared,
        "format": form,
        "rows_per_shard": rows_per_shard and int(rows_per_shard),  # JSON knows no integer of NumPy's
        "input": [{"name": Path(x).name, "bytes": size} for x, size in zip(texts.names, texts.sizes, strict=True)],
    }
    with locked(folder) as check:
        said, rows = _begun(folder, json.loads(json.dumps(settings)), texts)
        progress(said["read"], texts.expected)
        none = texts.schema.append(arrow().field(PLACE, arrow().string())).empty_table()
        shards = _shards(rows, none, said["rows_per_shard"]) if not said["last"] else iter(())
        with behind(partial(_write, folder, check)) as submit:
            for table, last in prefetch(lambda found: found, shards, model.pipeline.prefetching):
                good, vectors, said = _computed(table, said, texts, model, skip, progress)
                said = {**said, "last": last}
                submit((good.select(texts.schema.names), vectors, said))
        return about(shards_of(folder)[-1])


def last_said(folder: Path) -> Said:
    """Give what the last shard of a folder says; nothing if there is none."""
    shards = shards_of(folder) if folder.is_dir() else []
    return about(shards[-1]) if shards else {}


def _begun(folder: Path, settings: Said, texts: Texts) -> tuple[Said, Iterator[Any]]:
    """Look where an earlier run has ended. Raises ValueError where the settings or the input were others."""
    shards, _, said = compared(folder)
    if settings["rows_per_shard"] is None:
        usual = ROWS_FOR_RANGES if settings["precision"] in STEPS else ROWS_PER_SHARD
        settings = {**settings, "rows_per_shard": said.get("rows_per_shard", usual)}
    if not shards:
        none = {"shards": 0, "read": 0, "rows": 0, "cut": 0, "skipped": 0, "at": None, "last": False}
        return {**settings, **none}, texts.rows()
    if found := difference(said, settings):
        name, before, now = found
        raise ValueError(
            f"{folder} was made with {name} {before!r:.200}, now it is {now!r:.200}; choose another folder, or use "
            f"the setting it was made with"
        )
    at, read = said["at"], said["read"]
    rows = _after(texts.rows(), read if at is None else at)
    if at is not None:  # the last row that has a vector must be the same
        names = [texts.id_column or ID, texts.text_column]
        *_, batch = batches(shards_of(folder)[-1], BLOCK, names)
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


def _after(tables: Iterator[Any], count: int) -> Iterator[Any]:
    """Leave the first `count` rows out."""
    for table in tables:
        if len(table) > count:
            yield table.slice(count)
        count = max(0, count - len(table))


def _shards(tables: Iterator[Any], none: Any, size: int) -> Iterator[tuple[Any, bool]]:
    """Put tables together to one for each shard, and say which is the last: there is one, if only of no rows."""
    held = none
    for table in tables:
        held = arrow().concat_tables([held, table])
        while len(held) > (rows := _fitting(held, size)):
            yield held.slice(0, rows), False
            held = held.slice(rows)
    yield held, True


def _fitting(table: Any, size: int) -> int:
    """Count the first rows that make a shard: `size`, or fewer with LONGEST_SHARD bytes of strings; one at least."""
    if table.nbytes <= LONGEST_SHARD:
        return size
    strings = [column for column in table.columns if str(column.type).endswith(("string", "binary"))]
    ends = sum(np.cumsum(arrow().compute.binary_length(each).fill_null(0), dtype=np.int64) for each in strings)
    return max(1, min(size, int(np.searchsorted(ends, LONGEST_SHARD, "right"))))


def _computed(
    table: Any, said: Said, texts: Texts, model: TextModel, skip: bool, progress: Progress
) -> tuple[Any, list[Any], Said]:
    """Take a shard's rows through the model: give the good ones, their vectors in chunks, and what the shard says.

    said: by the shard before. skip: a row without a text is left out; else it is a ValueError.
    """
    every, places, pipeline = table[texts.text_column].to_pylist(), table[PLACE].to_pylist(), model.pipeline
    good, bad = ([i for i, text in enumerate(every) if (text is None) is wrong] for wrong in (False, True))
    if bad and not skip:
        advice = f"{NO_TEXT}; ", Option("bad_rows", "skip"), " leaves such rows out"
        raise error_of(ValueError, *advice, place=places[bad[0]])
    cut, read, found = 0, said["read"], list[Any]()

    def tokenize(rows: list[int]) -> list[Any]:
        nonlocal cut
        encoded = _tokenized(pipeline, [every[i] for i in rows], [places[i] for i in rows])
        cut += sum(ids.truncated > 0 for ids in encoded)
        return encoded

    chunks = [*chunked(good, pipeline.chunk)]
    for rows, encoded in zip(chunks, prefetch(tokenize, chunks, pipeline.prefetching), strict=True):
        made = pipeline.vectors(encoded)
        found.append(TokenVectors.of(made, "vectors") if model.result == "tokens" else made)
        progress(read + rows[-1] + 1, texts.expected)
    if bad:  # they may be the last ones
        progress(read + len(every), texts.expected)
    if found and said["precision"] in STEPS and "ranges" not in said:
        if len(numbers := np.concatenate([rows_of(each) for each in found])) < 2:
            wrong = " takes its ranges from the first shard, which has one vector; pass more rows, or another precision"
            raise error_of(ValueError, Option("precision", said["precision"]), wrong)
        said = {**said, "ranges": ranges_of(numbers).tolist()}
    return table.filter(table[texts.text_column].is_valid()), found, {
        **said,
        "shards": said["shards"] + 1,
        "read": read + len(every),
        "rows": said["rows"] + len(good),
        "cut": said["cut"] + cut,
        "skipped": said["skipped"] + len(bad),
        "left_out": [f"{places[i]}: {NO_TEXT}" for i in bad],
        "at": read + good[-1] if good else None,
    }  # fmt: skip


def _tokenized(pipeline: Any, texts: list[str], places: list[str]) -> list[Any]:
    """Tokenize texts; one that is refused is an error with its place."""
    try:
        encoded: list[Any] = pipeline.tokenize(texts, 0)
    except (TokenizerError, ValueError):
        for text, place in zip(texts, places, strict=True):  # the first that is refused alone
            try:
                pipeline.tokenize([text], 0)
            except (TokenizerError, ValueError) as error:
                parts = ("the text" if isinstance(part, Text) else part for part in parts_of(error))
                raise error_of(type(error), *parts, place=place) from None
        raise
    return encoded


def _write(folder: Path, check: Callable[[], None], shard: tuple[Any, list[Any], Said]) -> None:
    """Write a shard: a table, its vectors in chunks, and what it says of itself."""
    table, made, said = shard
    if said["result"] != "sparse":
        made = [changed(each, lambda rows: quantized(rows, said["precision"], said.get("ranges"))) for each in made]
    column = arrow().chunked_array([column_of(each) for each in made or [none_of(said)]])
    path = folder / f"vectors-{said['shards'] - 1:05}.{said['format']}"
    try:
        write(path, table.append_column(VECTOR, column), said, check)
    except OSError as error:
        check()  # the folder may not be at its path any more
        raise OSError(
            error.errno,
            f"{error.strerror}; the shards before it are complete; solve this, and run the same command to continue",
            error.filename,
        ) from None
