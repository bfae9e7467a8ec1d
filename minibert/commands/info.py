"""`minibert info`: what a model's input layer is made of."""

from __future__ import annotations

from typing import Any

from .common import Parser, add_model, load_layer, print_lines

ABOUT = "show what a model's input layer and its blocks are made of"
EXAMPLE = "minibert info gpt2"


def declare(parser: Parser) -> None:
    """Declare what it takes."""
    add_model(parser, argument=True)


def run(arguments: Any) -> None:
    """Print the module tree and the sizes."""
    from minibert.show.info import info

    with load_layer(arguments, lazy=True) as layer:  # sizes alone are told
        print_lines(info(layer))
