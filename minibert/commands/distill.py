"""`minibert distill`: a small model without context, made from a large one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minibert.models.open.options import SENTENCES

from .common import Parser, add_model, load_model, print_lines
from .embed import wants_bar

ABOUT = """Runs every token of the vocabulary through the model by itself and keeps its
principal components. A text's vector is then the mean of its tokens' rows: some
hundred times as fast, and without context. sentence-transformers and model2vec
open the folder too."""
EXAMPLE = "minibert distill -m ./all-MiniLM-L6-v2 -o ./static"


def declare(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help="the folder to write")
    parser.add_argument(
        "--dims", type=int, default=256, metavar="N", help="numbers in a row, at most the model's width (default: 256)"
    )
    add_model(parser, side=False, argument=True, usual=SENTENCES, threads=True)


def run(arguments: Any) -> None:
    """Write the folder, and list its files."""
    from minibert.models.open.distill import distill

    bar = wants_bar(reads=False, prints=False)
    with load_model(arguments) as encoder:
        made = distill(encoder, arguments.output, arguments.dims, show_progress_bar=bar)
        print_lines(_told(made, encoder.dim))


def _told(made: Any, width: int) -> Iterator[str]:
    from minibert.show.text import size

    yield f"{made.folder}: {made.tokens:,} tokens, {made.dims} numbers each"
    yield f"size            {size(made.size)}"
    yield f"components      {made.dims} of {width}, with {made.variance:.1%} of the variance"
    yield "weights         by Zipf's law"
