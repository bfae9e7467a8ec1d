"""`minibert nearest`: the words whose rows are nearest to a word's."""

from __future__ import annotations

from typing import Any

from .answers import beside, print_answers
from .common import Parser, add_k, add_model, load_layer

ABOUT = """show the words whose table rows are nearest to a word's row
Nearness is the cosine. A row has no context: a word with two meanings has one
row for both. Special and unused tokens are left out."""
EXAMPLE = "minibert nearest king paris seven -k 5"


def declare(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("words", nargs="+", metavar="WORD")
    add_k(parser, "words", 10)
    add_model(parser)


def run(arguments: Any) -> None:
    """Print each word, and below it its neighbours with their cosines."""
    with load_layer(arguments) as layer:  # every row is read
        found = [layer.nearest(word, arguments.k) for word in arguments.words]
    lines = (beside([token for token, _ in near], (f"{cosine:7.4f}" for _, cosine in near)) for near in found)
    print_answers(arguments.words, lines)
