"""`minibert info`: the parts of a model, and what it is for."""

from __future__ import annotations

from typing import Any

from .common import Parser, add_model, print_lines

ABOUT = ""
EXAMPLE = "minibert info gpt2"


def declare(parser: Parser) -> None:
    """Add the arguments."""
    add_model(parser, argument=True)


def run(arguments: Any) -> None:
    """Print the modules and the sizes."""
    from minibert.models.open.load import assemble, family_of, open_model
    from minibert.show.info import info

    # lazy: only sizes are needed
    opened = open_model(
        arguments.model, revision=arguments.revision, local_files_only=arguments.local_files_only, lazy=True
    )
    family = family_of(opened)
    source = opened.source()
    with assemble(opened, source, family, arguments.side) as layer:
        print_lines(info(layer, opened.root, source, opened.where))
