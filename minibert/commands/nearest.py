"""`minibert nearest`: the words whose rows are nearest to a word's."""

from __future__ import annotations

from typing import Any

from .common import Parser, add_model, coloured, load_layer, print_lines

ABOUT = """show the words whose rows in the table are nearest to a word's
by the cosine between them. The rows know no context: a word of two meanings has
one row for both. Special and unused tokens are left out."""
EXAMPLE = "minibert nearest king paris seven -k 5"


def declare(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("words", nargs="+", metavar="WORD")
    parser.add_argument("-k", type=int, default=10, metavar="K", help="how many words to show (default: 10)")
    add_model(parser)


def run(arguments: Any) -> None:
    """Print each word, and below it its neighbours with their cosines."""
    from minibert.show.text import columns_of, fitting, padded, styles

    with load_layer(arguments) as layer:  # every row is read
        answers = [(word, layer.nearest(word, arguments.k)) for word in arguments.words]
    bold, _ = styles(coloured())
    for i, (word, found) in enumerate(answers):
        names = [fitting(token) for token, _ in found]
        wide = max((columns_of(name) for name in names), default=0)
        lines = [f"  {padded(name, wide)}  {cosine:7.4f}" for name, (_, cosine) in zip(names, found, strict=True)]
        print_lines([*([""] if i else []), bold(fitting(word)), *lines])
