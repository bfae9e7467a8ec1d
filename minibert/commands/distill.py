"""`minibert distill` and `extract`: the folder of a smaller model, made from a large one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minibert.models.open.options import SENTENCES

from .common import Command, Parser, add_model, load_model, print_lines, wants_bar


def _declare_distill(parser: Parser) -> None:
    add = parser.add_argument
    add("-o", "--output", type=Path, required=True, metavar="FOLDER", help="the folder to write")
    add("--dims", type=int, default=256, metavar="N", help="numbers in a row, at most the model's width (default: 256)")
    add_model(parser, side=False, argument=True, usual=SENTENCES, threads=True)


def run_distill(arguments: Any) -> None:
    """Write the folder, and list its files."""
    from minibert.models.open.distill import distill

    bar = wants_bar(reads=False, prints=False)
    with load_model(arguments) as encoder:
        model = distill(encoder, arguments.output, arguments.dims, show_progress_bar=bar)
        print_lines(_described(model, encoder.dim))


def _described(model: Any, width: int) -> Iterator[str]:
    from minibert.show.text import size

    yield f"{model.folder}: {model.tokens:,} tokens, {model.dims} numbers each"
    yield f"size            {size(model.size)}"
    yield f"components      {model.dims} of {width}, with {model.variance:.1%} of the variance"
    yield "weights         by Zipf's law"


def _declare_extract(parser: Parser) -> None:
    add_model(parser, side=False, argument=True)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help="the folder to write")
    parser.add_argument(
        "--dtype",
        choices=("float32", "float16", "bfloat16"),
        help="the format of the tables (default: as each is stored)",
    )


def run_extract(arguments: Any) -> None:
    """Write the folder, and print how much smaller it is."""
    from minibert.models.open.extract import extract
    from minibert.show.text import size

    model = extract(arguments.model, arguments.output, arguments.dtype, **arguments.hub)
    share = model.bytes_after / model.bytes_before
    print_lines([
        f"{model.folder}: {model.tensors} tensors",
        f"before          {size(model.bytes_before)}",
        f"after           {size(model.bytes_after)} ({share:.0%})",
    ])  # fmt: skip


COMMANDS = {
    "distill": Command(
        """Runs every token of the vocabulary through the model by itself and keeps its
principal components. A text's vector is then the mean of its tokens' rows: some
hundred times as fast, and without context. sentence-transformers and model2vec
open the folder too.""",
        "minibert distill -m ./all-MiniLM-L6-v2 -o ./static",
        _declare_distill,
        run_distill,
    ),
    "extract": Command(
        """The folder has the config, the tokenizer and one safetensors file. Its vectors
are the model's input. For a small model of sentence meanings, `minibert
distill` is the better choice: its rows have passed the whole model.""",
        "minibert extract bert-base-uncased -o ./bert-input --dtype float16",
        _declare_extract,
        run_extract,
    ),
}
