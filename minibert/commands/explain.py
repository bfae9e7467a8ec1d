"""`minibert explain`: a text's way through the layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .common import Parser, add_model, add_whole, coloured, load_layer, print_lines, tell

ABOUT = """show each step that the layer takes for a text
by its name, shape, formula, the function in minibert.equations, and the first
numbers of one token."""
EXAMPLE = 'minibert explain "We lived above the clouds"'


def declare(parser: Parser) -> None:
    """Declare what it takes."""
    parser.add_argument("text", metavar="TEXT")
    parser.add_argument(
        "--pair", metavar="TEXT", help="a second text, to see token types at work; an empty one means none"
    )
    parser.add_argument("--full", action="store_true", help="show every token's rows, and the steps taken by hand")
    parser.add_argument("--truncate", action="store_true", help="cut a text that is too long for the model")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page for a browser instead, FILE.html")
    add_model(parser)
    add_whole(parser)


def run(arguments: Any) -> None:
    """Print the steps, or write the page."""
    from minibert.show.explain import explain

    html: Path | None = arguments.html
    if html is not None:
        from minibert.files.writing import output_ending
        from minibert.show.page import page, save

        output_ending(html, (".html", ".htm"))
        with load_layer(arguments, lazy=not arguments.whole) as layer:
            save(page(layer, arguments.text, arguments.pair, arguments.truncate), html)
        tell(f"wrote {html}")
        return
    with load_layer(arguments, lazy=not arguments.whole) as layer:
        print_lines(
            explain(layer, arguments.text, arguments.pair, coloured(), arguments.full, truncation=arguments.truncate)
        )
