"""`minibert bulk`: files of many texts -> a folder of vectors, which a killed run leaves consistent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from minibert.models.open.options import SENTENCES, add_options, sentence_options

from .common import Parser, add_model, add_prompts, from_hub, tell
from .progress import Progress

ABOUT = """Reads Parquet, JSON lines, CSV or plain lines, and writes their columns with the
vectors in shards. Memory does not grow with the number of rows. If a run ends
early, the same command continues after the last shard. --check writes nothing:
it compares each column in FOLDER with its checksum."""
EXAMPLE = "minibert bulk questions.parquet -o ./vectors --model ./all-MiniLM-L6-v2"


def declare(parser: Parser) -> None:
    """Add the arguments."""
    from minibert.bulk.texts import FORMATS, ID
    from minibert.equations.quantization import PRECISIONS

    parser.add_argument("inputs", nargs="*", metavar="INPUT", help="files; default, or -: each line of stdin is a text")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FOLDER", help="the folder to write or continue"
    )
    parser.add_argument("--text-column", default="text", metavar="NAME", help="the column of the texts (default: text)")
    parser.add_argument(
        "--id-column", metavar="NAME",
        help=f"the column that names the rows (default: {ID}, if it exists; otherwise rows are numbered from 0)",
    )  # fmt: skip
    parser.add_argument(
        "--keep", nargs="*", metavar="COLUMN",
        help="columns that are kept beside ids and texts (default: all that are not nested)",
    )  # fmt: skip
    parser.add_argument("--input-format", choices=FORMATS, help="of all input files (default: by file extension)")
    parser.add_argument(
        "--format", choices=("arrow", "parquet"), default="arrow",
        help="of the shards: arrow is mapped, so `minibert search` reads it 20 times as fast (default); parquet is "
        "what most other programs read",
    )  # fmt: skip
    parser.add_argument(
        "--precision", choices=tuple(PRECISIONS), default="float32",
        help="of the numbers: float32 (default), half as large, a byte each, or a bit each; int8 and uint8 take their "
        "ranges from the first shard",
    )  # fmt: skip
    parser.add_argument(
        "--rows-per-shard", type=int, metavar="N",
        help="rows of the input for a shard, which a run that ends early loses at most (default: 4096; 16384 for int8 "
        "and uint8; in a folder that is continued, those it was begun with)",
    )  # fmt: skip
    parser.add_argument(
        "--bad-rows", choices=("error", "skip"), default="error",
        help="how to treat rows without text: stop with an error (default), or leave them out",
    )  # fmt: skip
    parser.add_argument("--check", action="store_true", help="only check whether FOLDER is complete and undamaged")
    add_prompts(parser)
    add_options(parser, "sentences", "measure")
    add_model(parser, side=False, usual=SENTENCES, threads=True)
    add_options(parser, "weights", "bits")


def run(arguments: Any) -> None:
    """Read, compute, write; report on stderr."""
    from minibert.bulk.job import bulk, last_said
    from minibert.bulk.shards import check_folder
    from minibert.bulk.texts import ROWS, Texts
    from minibert.models.open.load_encoder import open_vectors
    from minibert.models.sentences.sentence_config import SentenceOptions
    from minibert.models.sentences.sentences import warn_few_vectors
    from minibert.show.text import counted

    folder = arguments.output
    if arguments.check:
        if arguments.inputs:
            raise ValueError(f"--check reads FOLDER alone, found also {arguments.inputs[0]!r}; leave it out")
        rows, shards = check_folder(folder)
        tell(f"checked {folder}: {counted(rows, 'vector')} in {counted(shards, 'shard')}, complete and as written")
        return
    if arguments.inputs in ([], ["-"]) and sys.stdin is not None and sys.stdin.isatty():
        tell("each line is a text; end with Ctrl-D")
    columns = arguments.text_column, arguments.id_column, arguments.input_format, arguments.keep
    texts = Texts(arguments.inputs, *columns, arguments.rows_per_shard or ROWS)
    asked = SentenceOptions(**sentence_options(arguments))
    names = ("prompt_name", "prompt", "threads", "mmap", "same_bits")
    options = {name: getattr(arguments, name) for name in names}
    model = open_vectors(arguments.model, asked=asked, **from_hub(arguments), **options)
    named = ("model", "prompt_name", "prompt", "same_bits")
    settings = {
        "minibert": arguments.version,
        **{name: getattr(arguments, name) for name in named},
        "options": asked.given() or None,
    }
    with model.model:
        before = last_said(folder)
        try:
            said = bulk(
                texts, folder, model, settings, form=arguments.format, rows_per_shard=arguments.rows_per_shard,
                skip=arguments.bad_rows == "skip", precision=arguments.precision, progress=Progress(),
            )  # fmt: skip
        except KeyboardInterrupt:
            kept = counted(last_said(folder).get("read", 0), "row")
            tell(f"stopped: {folder} keeps {kept}, and the same command continues after them")
            raise
    made, of = counted(said["rows"], "vector"), f"of {said['dim']}"
    if said["result"] != "dense":
        made, of = f"{said['result']} vectors of {counted(said['rows'], 'text')},", f"{said['dim']} numbers each,"
    if remark := warn_few_vectors(arguments.precision, min(said["rows"], said["rows_per_shard"])):
        tell(remark)
    done = f"{folder} is complete" if before.get("last") else f"wrote {folder}"
    tell(
        f"{done}: {made} {of} in {counted(said['shards'], 'shard')}, "
        f"{counted(said['skipped'], 'row')} left out, {counted(said['cut'], 'text')} truncated"
    )
