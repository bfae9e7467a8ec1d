"""Many texts -> a folder of vectors: records are read, streamed through a model, and written shard by shard.

Everything is done by shards: a run that ends early keeps whole shards, only sentences of one shard are batched together
(so that a continued run gives the same bits), and a continued run checks the shards before it.

The bits are the same on one machine, with any number of threads; with `same_bits` of `load_encoder` they do not depend
on the other texts either. If a run is continued on another machine, each number of a sentence vector may differ by 1e-6
of the vector's length (measured on MiniLM: 2.8e-7 with OpenBLAS's code for another processor). The same holds where
NumPy's BLAS cannot be held to one thread, as Apple's. Vectors of the input layer do not depend on threads or other
texts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.quantization import BITS, STEPS, check_precision, quantized, ranges_of
from minibert.errors import Option, TokenizerError, error_of, parts_of
from minibert.files.tokenizer import Encoded
from minibert.models.open.vectors import TextModel
from minibert.models.run.pipeline import check_positive, stream
from minibert.models.run.truncated_texts import length_of
from minibert.models.sentences.token_vectors import TokenVectors, changed, rows_of
from minibert.threads.pool import behind

from .manifest import MEND
from .records import Record, Records
from .shards import ShardFolder

ROWS_PER_SHARD = 16_384
BAD_ROWS = ("stop", "skip")
CHUNK = 2048  # rows of an earlier run that are read again at once
Progress = Callable[[int, "int | None"], object]


class Part(NamedTuple):
    """The result of a chunk of records: ids and vectors of the good ones, and the bad ones without their texts."""

    read: int
    lines: bytes
    ids: list[int | str]
    vectors: Array | TokenVectors
    truncated: int
    bad: list[Record]


def bulk(
    records: Records,
    folder: ShardFolder,
    model: TextModel,
    settings: dict[str, Any],
    *,
    rows_per_shard: int = ROWS_PER_SHARD,
    truncation: bool = False,
    bad_rows: str = "stop",
    precision: str = "float32",
    progress: Progress = lambda done, expected: None,
) -> dict[str, Any]:
    """Write a vector for each record, or continue; return the final meta.json.

    settings: what else made the vectors; a folder made with other settings is refused. bad_rows: "stop" raises
    ValueError at the first row without a text, once all whole shards before it are written; "skip" lists such rows in
    bad_rows.jsonl. precision: as of `encode`; the ranges of int8 and uint8 come from the first shard with rows, which
    must have two or more, and are stored in meta.json. progress: called with the rows done and the estimated total or
    None, first before this run has done any.
    """
    if bad_rows not in BAD_ROWS:
        raise ValueError(f"bad_rows must be {' or '.join(map(repr, BAD_ROWS))}, found {bad_rows!r}")
    check_positive("rows_per_shard", rows_per_shard)
    if model.pipeline.dim is None and precision in BITS:
        raise error_of(ValueError, Option("precision", precision), " has no measure for vectors of tokens; take int8")
    sizes = zip(records.names, records.sizes, strict=True)
    settings = {
        **settings,
        "dim": model.width,
        "max_seq_length": None if model.kind == "input" else model.model.max_seq_length,
        "precision": precision,
        "dtype": np.dtype(check_precision(precision)).name,
        **model.compared,
        "format": folder.form,
        "rows_per_shard": int(rows_per_shard),  # JSON knows no integer of NumPy's
        "truncate": truncation,
        "input": [{"name": Path(name).name, "bytes": size} for name, size in sizes],
    }
    with folder.opened(settings, {**records.source, "model": model.opened.lasting}):
        rows = iter(records)
        _pass_over(rows, folder, rows_per_shard)
        done = sum(shard.read for shard in folder.shards)
        progress(done, records.expected)
        long_is_bad = model.kind == "input" and not truncation
        parts: list[Part] = []  # of the next shard
        lines = hashlib.sha256()
        with behind(partial(_write, folder, precision)) as write:
            for part in _parts(rows, model, rows_per_shard, long_is_bad, bad_rows == "stop"):
                lines.update(part.lines)
                parts.append(part._replace(lines=b""))  # texts are not kept until the shard is written
                if sum(each.read for each in parts) == rows_per_shard:
                    write((parts, lines.hexdigest()))
                    parts, lines = [], hashlib.sha256()
                done += part.read
                progress(done, records.expected)
            if parts:
                write((parts, lines.hexdigest()))
        return folder.finish()


def lines_of(records: Iterable[Record]) -> bytes:
    """Write each row's id and text, of good and bad rows; a shard's `input_sha256` is of these lines.

    `ascii` of a tuple: the same in every version of Python, and four times as fast as JSON.
    """
    return "".join(f"{(record.id, record.text)!a}\n" for record in records).encode()


def _pass_over(rows: Iterator[Record], folder: ShardFolder, rows_per_shard: int) -> None:
    """Read the rows of earlier runs again. Raises ValueError if they have changed."""
    for number, shard in enumerate(folder.shards):
        count, found = 0, hashlib.sha256()
        while chunk := list(islice(rows, min(shard.read - count, CHUNK))):
            count += len(chunk)
            found.update(lines_of(chunk))
        if found.hexdigest() != shard.input_sha256:
            raise ValueError(
                f"the input is another one: of the {shard.read:,} rows of shard {number}, ids or texts were others "
                "when this folder was begun; choose another folder"
            )
    ended = folder.complete or (folder.shards and folder.shards[-1].read < rows_per_shard)
    if ended and next(rows, None) is not None:
        raise ValueError("the input is another one: it has more rows than when this folder was made; choose another")


def _parts(
    rows: Iterator[Record], model: TextModel, rows_per_shard: int, long_is_bad: bool, stop: bool
) -> Iterator[Part]:
    """Take the records through the model chunk by chunk; no chunk has rows of two shards.

    stop: a bad row is an error at once, even if no row follows yet.
    """
    pipeline = model.pipeline

    def chunks() -> Iterator[list[Record]]:
        room = rows_per_shard
        while chunk := list(_until_bad(islice(rows, min(room, pipeline.chunk)), stop)):
            room = (room - len(chunk)) or rows_per_shard
            yield chunk

    def tokenize(read: list[Record], start: int) -> tuple[list[Record], list[Encoded], bytes]:
        lines = lines_of(read)
        good = [record for record in read if not record.problem]
        try:
            encoded = pipeline.tokenize([record.text or "" for record in good], start)
        except TokenizerError:
            for record in good:  # the first that is refused alone
                try:
                    pipeline.tokenize([record.text or ""], 0)
                except TokenizerError as error:
                    raise error_of(TokenizerError, *parts_of(error), place=record.place) from None
            raise
        if long_is_bad and any(ids.truncated for ids in encoded):
            each = iter(encoded)
            read = [record if record.problem else _fitting(record, next(each), model) for record in read]
            encoded = [ids for ids in encoded if not ids.truncated]
        if stop and (first := next((record for record in read if record.problem), None)):
            skips = Option("bad_rows", "skip"), " lists such rows and goes on"
            raise error_of(ValueError, first.problem, "; ", *skips, place=first.place)
        return read, encoded, lines

    def vectors(ready: tuple[list[Record], list[Encoded], bytes]) -> Part:
        read, encoded, lines = ready
        found = pipeline.vectors(encoded)
        found = found if pipeline.dim else TokenVectors.of(found, "vectors")
        ids: list[Any] = [record.id for record in read if not record.problem]
        bad = [record._replace(text=None) for record in read if record.problem]
        return Part(len(read), lines, ids, found, sum(ids.truncated > 0 for ids in encoded), bad)

    return stream(chunks(), tokenize, vectors, prefetching=pipeline.prefetching)


def _until_bad(records: Iterable[Record], stop: bool) -> Iterator[Record]:
    for record in records:
        yield record
        if stop and record.problem:
            return


def _fitting(record: Record, ids: Encoded, model: TextModel) -> Record:
    if not ids.truncated:
        return record
    return record._replace(
        problem=f"the text has {length_of(ids)} tokens, but the longest sequence is {model.model.max_length} "
        "(the position table); truncation shortens such texts"
    )


def _write(folder: ShardFolder, precision: str, shard: tuple[list[Part], str]) -> None:
    parts, input_sha256 = shard
    vectors = [part.vectors for part in parts if len(part.vectors)]
    if vectors and precision in STEPS and "ranges" not in folder.notes:
        folder.keep_ranges(_ranges(vectors, precision, folder))
    ranges = folder.notes.get("ranges")
    bad = [{"file": record.file, "row": record.row, "problem": record.problem} for part in parts for record in part.bad]
    try:
        folder.add(
            [ident for part in parts for ident in part.ids],
            [changed(part, lambda rows: quantized(rows, precision, ranges)) for part in vectors],
            sum(part.read for part in parts),
            sum(part.truncated for part in parts),
            input_sha256,
            bad,
        )
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror}; what was written before it is whole: once this is mended, the same "
            "command goes on after it",
            error.filename,
        ) from None


def _ranges(vectors: Sequence[Array | TokenVectors], precision: str, folder: ShardFolder) -> Array:
    """Give the ranges of the first shard's vectors: the same for any number of threads and after a kill."""
    if any(shard.rows for shard in folder.shards):
        raise ValueError(f"{folder.path}: meta.json has lost its ranges; {MEND}")
    if sum(len(rows_of(part)) for part in vectors) < 2:
        raise error_of(
            ValueError, Option("precision", precision), " takes its ranges from the first shard, which has one vector; "
            "pass more rows, or take another precision",
        )  # fmt: skip
    parts = [rows for part in vectors if len(rows := rows_of(part))]
    return ranges_of(np.concatenate([extreme(rows, axis=0)[None] for rows in parts for extreme in (np.min, np.max)]))
