"""`minibert bulk`: files of many texts -> a folder of vectors, which stays consistent if the run is killed."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from minibert.files.reading import STDIN
from minibert.models.open.options import SENTENCES, add_options, sentence_options

from .common import Parser, add_model, add_precision, add_prompts, tell, tell_typing

ABOUT = """Reads Parquet, JSON lines, CSV or plain lines, and writes their columns with the
vectors in shards. Memory does not grow with the number of rows. If a run ends
early, the same command continues after the last shard. --check writes nothing:
it compares each column in FOLDER with its checksum."""
EXAMPLE = "minibert bulk questions.parquet -o ./vectors --model ./all-MiniLM-L6-v2"
EVERY = 5.0  # seconds between two lines of progress


def declare(parser: Parser) -> None:
    """Add the arguments."""
    from minibert.bulk.texts import FORMATS, ID

    add = parser.add_argument
    add("inputs", nargs="*", metavar="INPUT", help="files; default, or -: each line of stdin is a text")
    add("-o", "--output", type=Path, required=True, metavar="FOLDER", help="the folder to write or continue")
    add("--text-column", default="text", metavar="NAME", help="the column of the texts (default: text)")
    add(
        "--id-column", metavar="NAME",
        help=f"the column that names the rows (default: {ID}, if it exists; otherwise rows are numbered from 0)",
    )  # fmt: skip
    add(
        "--keep", nargs="*", metavar="COLUMN",
        help="columns that are kept beside ids and texts (default: all that are not nested)",
    )  # fmt: skip
    add("--input-format", choices=FORMATS, help="the format of all input files (default: by file extension)")
    add(
        "--format", choices=("arrow", "parquet"), default="arrow",
        help="the format of the shards: arrow is mapped, so `minibert search` reads it 20 times as fast (default); "
        "most other programs read parquet",
    )  # fmt: skip
    add_precision(parser, "the first shard")
    add(
        "--rows-per-shard", type=int, metavar="N",
        help="rows of the input in a shard; a run that ends early loses one shard at most (default: 4096; 16384 for "
        "int8 and uint8; in a folder that is continued, as before)",
    )  # fmt: skip
    add(
        "--bad-rows", choices=("error", "skip"), default="error",
        help="how to treat rows without text: stop with an error (default), or leave them out",
    )  # fmt: skip
    add("--check", action="store_true", help="only check whether FOLDER is complete and undamaged")
    add_prompts(parser)
    add_options(parser, "sentences", "measure")
    add_model(parser, side=False, usual=SENTENCES, threads=True)
    add_options(parser, "weights", "bits")


def run(arguments: Any) -> None:
    """Read, compute, write; report on stderr."""
    from minibert.bulk.job import bulk, last_metadata
    from minibert.bulk.stored import check_folder
    from minibert.bulk.texts import ROWS, Texts
    from minibert.models.open.load_encoder import open_vectors
    from minibert.models.sentences.sentence_config import SentenceOptions
    from minibert.models.sentences.sentences import warn_few_vectors
    from minibert.show.text import counted

    folder = arguments.output
    if arguments.check:
        if arguments.inputs:
            raise ValueError(f"--check reads only FOLDER, found also {arguments.inputs[0]!r}; leave it out")
        rows, shards = check_folder(folder)
        tell(f"checked {folder}: {counted(rows, 'vector')} in {counted(shards, 'shard')}, complete and as written")
        return
    if arguments.inputs in ([], [STDIN]):
        tell_typing()
    columns = arguments.text_column, arguments.id_column, arguments.input_format, arguments.keep
    texts = Texts(arguments.inputs, *columns, arguments.rows_per_shard or ROWS)
    sentences = SentenceOptions(**sentence_options(arguments))
    options = {name: getattr(arguments, name) for name in ("prompt_name", "prompt", "same_bits")}
    memory = {name: getattr(arguments, name) for name in ("threads", "mmap")}  # a continued run may change these
    model = open_vectors(arguments.model, overrides=sentences, **arguments.hub, **options, **memory)
    settings = {
        "minibert": arguments.version,
        "model": arguments.model,
        **options,
        "options": sentences.passed() or None,
    }
    progress = Progress(texts.expected)
    with model.model:
        before = last_metadata(folder)
        try:
            meta = bulk(
                texts, folder, model, settings, form=arguments.format, rows_per_shard=arguments.rows_per_shard,
                skip=arguments.bad_rows == "skip", precision=arguments.precision, progress=progress,
            )  # fmt: skip
        except KeyboardInterrupt:
            kept = counted(last_metadata(folder).get("read", 0), "row")
            tell(f"stopped: {folder} keeps {kept}, and the same command continues after them")
            raise
    vectors, width = counted(meta["rows"], "vector"), f"of {meta['dim']}"
    if meta["result"] != "dense":
        vectors, width = f"{meta['result']} vectors of {counted(meta['rows'], 'text')},", f"{meta['dim']} numbers each,"
    if remark := warn_few_vectors(arguments.precision, min(meta["rows"], meta["rows_per_shard"])):
        tell(remark)
    done = f"{folder} is complete" if before.get("last") else f"wrote {folder}"
    less = f"{counted(meta['skipped'], 'row')} left out, {counted(meta['cut'], 'text')} truncated"
    tell(f"{done}: {vectors} {width} in {counted(meta['shards'], 'shard')}, {less}")


class Progress:
    """Prints every few seconds the progress of a run, its rate, and the time left."""

    def __init__(self, expected: int | None) -> None:
        self._expected = expected
        self._began = self._told = 0.0
        self._before: int | None = None

    def __call__(self, done: int) -> None:
        if self._before is None:
            self._before, self._began = done, time.monotonic()
            self._told = self._began
        elif (now := time.monotonic()) - self._told >= EVERY:
            self._told = now
            tell(_line(done, done - self._before, now - self._began, self._expected))


def _line(done: int, here: int, seconds: float, expected: int | None) -> str:
    """Return one line about the progress of a run.

    >>> _line(3000, 1000, 10.0, 9000)
    '3,000 of about 9,000 rows, 100 rows/s, 0:01:00 left'
    >>> _line(3000, 1000, 10.0, None)
    '3,000 rows, 100 rows/s'
    """
    rate = here / seconds
    if expected is None or not here:
        return f"{done:,} rows, {rate:,.0f} rows/s"
    left = timedelta(seconds=round(max(0, expected - done) / rate))
    return f"{done:,} of about {expected:,} rows, {rate:,.0f} rows/s, {left} left"
