"""`minibert bulk`: files of many texts -> a folder of vectors, which a killed run leaves consistent."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

from .common import (
    SENTENCES,
    Parser,
    add_model,
    add_prompts,
    add_same_bits,
    add_sentence_options,
    from_hub,
    sentence_options,
    tell,
)

EVERY = 5.0  # seconds between two lines in a log

ABOUT = """turn files of many texts into a folder of vectors
Reads Parquet, JSON lines, CSV or plain lines, and writes the vectors in shards.
Memory does not grow with the number of rows. If a run is killed, the same
command continues after the last complete shard. --check writes nothing: it
compares each file in FOLDER with its checksum."""
EXAMPLE = "minibert bulk questions.parquet -o ./vectors --model ./all-MiniLM-L6-v2"


def declare(parser: Parser) -> None:
    """Add the arguments."""
    from minibert.bulk.records import FORMATS, ID
    from minibert.equations.quantization import PRECISIONS

    parser.add_argument("inputs", nargs="*", metavar="INPUT", help="files; default, or -: each line of stdin is a text")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FOLDER", help="the folder to write or continue"
    )
    parser.add_argument(
        "--vectors", choices=("sentence", "input"), default="sentence",
        help="sentence: as `minibert encode` (default); input: the mean of the input layer's rows, without "
        "context",
    )  # fmt: skip
    parser.add_argument("--text-column", default="text", metavar="NAME", help="the column of the texts (default: text)")
    parser.add_argument(
        "--id-column", metavar="NAME",
        help=f"integers or texts that name the rows (default: {ID}, if it exists; otherwise rows are numbered from 0)",
    )  # fmt: skip
    parser.add_argument("--input-format", choices=FORMATS, help="of all input files (default: by file extension)")
    parser.add_argument(
        "--format", choices=("parquet", "npy"), default="parquet",
        help="of the vectors: parquet has the columns id and vector (default); npy is .npy files with the ids beside "
        "them, which `minibert search` reads ten times as fast",
    )  # fmt: skip
    parser.add_argument(
        "--precision", choices=tuple(PRECISIONS), default="float32",
        help="of the numbers: float32 (default), half as large, a byte each, or a bit each; int8 and uint8 take their "
        "ranges from the first shard; meta.json keeps them",
    )  # fmt: skip
    parser.add_argument(
        "--rows-per-shard", type=int, metavar="N", help="rows of the input for a shard (default: 16384)"
    )
    parser.add_argument(
        "--truncate", action="store_true",
        help="with --vectors input: truncate texts that are too long for the model; sentence vectors always do",
    )  # fmt: skip
    parser.add_argument(
        "--bad-rows", choices=("stop", "skip"), default="stop",
        help="how to treat rows without text: stop (default), or list them in bad_rows.jsonl and go on",
    )  # fmt: skip
    parser.add_argument("--check", action="store_true", help="only check whether FOLDER is complete and undamaged")
    add_prompts(parser)
    add_sentence_options(parser)
    add_model(parser, side=False, usual=SENTENCES, threads=True)
    add_same_bits(parser)


def run(arguments: Any) -> None:
    """Read, compute, write; report on stderr."""
    from minibert.bulk.job import ROWS_PER_SHARD, bulk
    from minibert.bulk.manifest import check_folder
    from minibert.bulk.records import Records
    from minibert.bulk.shards import ShardFolder
    from minibert.models.open.vectors import open_vectors
    from minibert.models.sentences.arguments import few
    from minibert.models.sentences.sentence_options import SentenceOptions
    from minibert.show.text.text import counted

    if arguments.check:
        if arguments.inputs:
            raise ValueError(f"--check reads FOLDER alone, found also {arguments.inputs[0]!r}; leave it out")
        counts = check_folder(arguments.output)
        tell(
            f"checked {arguments.output}: {counted(counts['rows'], 'vector')} in {counted(counts['shards'], 'shard')}, "
            "complete and as written"
        )
        return
    if arguments.inputs in ([], ["-"]) and sys.stdin is not None and sys.stdin.isatty():
        tell("each line is a text; end with Ctrl-D")
    records = Records(arguments.inputs, arguments.text_column, arguments.id_column, arguments.input_format)
    folder = ShardFolder(arguments.output, arguments.format)
    folder.refuse_sources(records.names)
    asked = SentenceOptions(**sentence_options(arguments))
    model = open_vectors(
        arguments.model,
        arguments.vectors,
        truncation=True,  # `bulk` itself decides about texts that are too long
        prompt_name=arguments.prompt_name,
        prompt=arguments.prompt,
        asked=asked,
        threads=arguments.threads,
        same_bits=arguments.same_bits,
        **from_hub(arguments),
    )
    named = ("model", "vectors", "prompt_name", "prompt", "text_column", "id_column", "same_bits")
    settings = {
        "minibert": arguments.version,
        **{name: getattr(arguments, name) for name in named},
        "options": asked.given() or None,
        "commit": model.opened.commit,
        "sha256": model.sha256(),  # last: the error names the first difference, and those above explain it
    }
    late = model.pipeline.dim is None
    with model.model, closing(_Progress()) as progress:
        meta = bulk(
            records,
            folder,
            model,
            settings,
            rows_per_shard=ROWS_PER_SHARD if arguments.rows_per_shard is None else arguments.rows_per_shard,
            truncation=arguments.truncate,
            bad_rows=arguments.bad_rows,
            precision=arguments.precision,
            progress=progress,
        )
    made = f"token vectors of {counted(meta['rows'], 'text')}," if late else f"{counted(meta['rows'], 'vector')} of"
    if said := few(arguments.precision, next((shard.rows for shard in folder.shards if shard.rows), 0)):
        tell(said)
    tell(
        f"wrote {arguments.output}: {made} {meta['dim']}{' numbers each,' if late else ''} in "
        f"{counted(meta['shards'], 'shard')}, {counted(meta['skipped'], 'row')} left out, "
        f"{counted(meta['cut'], 'text')} truncated"
    )


class _Progress:
    """A bar on a terminal, or a line every few seconds in a log, with the rate of this run and the remaining time."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._began = self._told = 0.0
        self._before: int | None = None

    def __call__(self, done: int, expected: int | None) -> None:
        if self._before is None:
            self._before, self._began = done, time.monotonic()
            self._told = self._began
            if sys.stderr is not None and sys.stderr.isatty():
                from tqdm.auto import tqdm

                self._bar = tqdm(total=expected, initial=done, desc="bulk", unit="row", delay=1.0)
        elif self._bar is not None:
            self._bar.total = expected
            self._bar.update(done - self._bar.n)
        elif (now := time.monotonic()) - self._told >= EVERY:
            self._told = now
            tell(_line(done, done - self._before, now - self._began, expected))

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _line(done: int, here: int, seconds: float, expected: int | None) -> str:
    """One line about the progress of a run.

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
