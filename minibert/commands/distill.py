"""`minibert distill`: a small model without context, made from a large one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minibert.models.open.options import SENTENCES

from .common import Parser, add_model, load_model, print_lines
from .embed import wants_bar
from .similar import lines_of

ABOUT = """make a static model: one row for each token, no blocks
Runs every token of the vocabulary through the model by itself and keeps its
principal components. A text's vector is then the mean of its tokens' rows: some
hundred times as fast, and without context. sentence-transformers and model2vec
open the folder too. --texts weighs tokens by how often they stand in a file of
yours."""
EXAMPLE = "minibert distill -m ./all-MiniLM-L6-v2 -o ./static --texts questions.txt"


def declare(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help="the folder to write")
    parser.add_argument(
        "--dims", type=int, default=256, metavar="N", help="numbers in a row, at most the model's width (default: 256)"
    )
    parser.add_argument(
        "--texts", metavar="FILE", help="weigh tokens by these texts, one per line, not by Zipf's law; - for stdin"
    )
    add_model(parser, side=False, argument=True, usual=SENTENCES, threads=True)


def run(arguments: Any) -> None:
    """Write the folder, and list its files."""
    from minibert.models.open.distill import distill

    texts, bar = arguments.texts, wants_bar(reads=False, prints=False)
    with load_model(arguments) as encoder:
        made = distill(
            encoder, arguments.output, arguments.dims, texts=texts and lines_of(texts), show_progress_bar=bar
        )
        print_lines(_told(made, encoder.dim))


def _told(made: Any, width: int) -> Iterator[str]:
    from minibert.show.text.text import counted, size

    yield f"{made.folder}: {made.tokens:,} tokens, {made.dims} numbers each"
    yield f"size            {size(made.size)}"
    yield f"components      {made.dims} of {width}, with {made.variance:.1%} of the variance"
    yield f"rounding error  {made.rounding_error:.3g} at most"
    if (told := made.counted) is None:
        yield "weights         by Zipf's law"
        return
    found = f"{counted(told.texts, 'text')}: {counted(told.tokens, 'token')}, {told.seen:,} different"
    yield f"weights         by {found}"
