"""`minibert explain`: the steps of one text through the input layer or a block; on a terminal or as a page."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import Parser, add_model, add_whole, coloured, load_layer, load_model, print_lines, shown_name, tell

if TYPE_CHECKING:
    from minibert.models.encoder import Encoder
    from minibert.models.input_layer import EmbeddingLayer

ABOUT = """Each step with its name, shape, formula, its function in minibert.equations, and
the first numbers of one token."""
EXAMPLE = 'minibert explain "We lived above the clouds"'


def declare(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("text", metavar="TEXT", nargs="?", help="the text; optional with --live")
    parser.set_defaults(without_text=lambda: parser.error("the following arguments are required: TEXT"))
    parser.add_argument("--pair", metavar="TEXT", help="a second text, to see token types; an empty one is ignored")
    parser.add_argument("--block", type=int, metavar="N", help="show this block instead of the layer, counted from 0")
    parser.add_argument(
        "--head", type=int, metavar="N", help="with --block: show the scores and weights of this head (default: 0)"
    )
    parser.add_argument("--truncate", action="store_true", help="truncate a text that is too long for the model")
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page for a browser; --whole fetches the blocks too"
    )
    parser.add_argument("--live", action="store_true", help="open a page that computes, only on this machine")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="with --live: its port (default: a free one)")
    parser.add_argument("--no-browser", action="store_true", help="with --live: print the address, open no browser")
    parser.add_argument("--beside", metavar="TEXT", help="with --html: compare a word in two texts, block by block")
    add_model(parser)
    add_whole(parser)


def run(arguments: Any) -> int:
    """Print the steps, or write the page, or serve one that computes."""
    if arguments.live:
        return _serve_page(arguments)
    if arguments.text is None:
        arguments.without_text()
    if arguments.port or arguments.no_browser:
        raise ValueError(f"--{'port' if arguments.port else 'no-browser'} is an option of --live; add --live")
    if arguments.beside is not None and arguments.html is None:
        raise ValueError("--beside compares two texts on a page; add --html page.html")
    if any(given is not None for given in (arguments.block, arguments.head)):
        _explain_block(arguments)
        return 0
    if arguments.html is not None:
        _write_page(arguments, arguments.html)
        return 0
    from minibert.show.explain import explain

    with load_layer(arguments, lazy=not arguments.whole) as layer:
        print_lines(explain(layer, arguments.text, arguments.pair, coloured(), arguments.truncate))
    return 0


def _write_page(arguments: Any, html: Path) -> None:
    from minibert.files.writing import output_ending, write_output
    from minibert.show.page import page

    output_ending(html, (".html", ".htm"))
    with load_layer(arguments, lazy=not arguments.whole) as layer, _with_blocks(arguments, layer) as model:
        written = page(
            model, arguments.text, arguments.pair, arguments.truncate, shown_name(arguments.model), arguments.beside
        )
        write_output(html, written.encode())
    tell(f"wrote {html}")


def _serve_page(arguments: Any) -> int:
    """Serve the page that computes, until Ctrl-C."""
    import webbrowser

    from minibert.show.live import Live
    from minibert.show.live_server import LiveServer

    from .serve import listen

    for name in ("html", "pair", "block", "head", "beside"):
        if getattr(arguments, name) is not None:
            raise ValueError(
                f"--live shows every block, head and token, and takes a second text there; leave out --{name}"
            )
    arguments.whole = True  # a page that computes needs the whole model
    with load_layer(arguments) as layer, _with_blocks(arguments, layer) as model:
        live = Live(model, shown_name(arguments.model))
        text = live.usual_text() if arguments.text is None else arguments.text
        live.state({"text": text})  # a text that the model refuses ends the command
        with LiveServer(listen("127.0.0.1", arguments.port), lambda: live.page(text), live.answers) as server:
            tell(f"{server.url}  Ctrl-C ends it")
            if not arguments.no_browser and has_browser():
                webbrowser.open(server.url)
            server.serve_forever()
    return 0


def has_browser() -> bool:
    """Check whether a browser can open a window here: not over ssh, nor on a Linux machine without a display."""
    shown = sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(shown) and not os.environ.get("SSH_CONNECTION")


def _with_blocks(arguments: Any, layer: EmbeddingLayer) -> Encoder | EmbeddingLayer:
    """Load the whole model if its blocks are on this machine or --whole is given; otherwise return the layer."""
    from minibert.show.info import stored_blocks

    if layer.side == "decoder" or not stored_blocks(layer):
        return layer
    from minibert.errors import HubError
    from minibert.models.open.load_encoder import load_encoder

    local = arguments.local_files_only or not arguments.whole
    try:
        return load_encoder(arguments.model, revision=arguments.revision, local_files_only=local)
    except HubError:
        if arguments.whole:
            raise
        tell("the page shows only the input layer; --whole fetches and shows the blocks too")
        return layer


def _explain_block(arguments: Any) -> None:
    if arguments.html is not None:
        raise ValueError("--html shows every block, head and token; leave out --block and --head")
    if arguments.block is None:
        raise ValueError("--head needs a block; add --block 0")
    from minibert.show.explain import explain_block

    with load_model(arguments) as encoder:
        given = arguments.pair, coloured(), arguments.truncate
        print_lines(explain_block(encoder, arguments.text, arguments.block, arguments.head or 0, *given))
