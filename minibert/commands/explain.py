"""`minibert explain`, `info` and `plot`: one text step by step, a model's parts and uses, a picture of its numbers."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

from . import common
from .common import Command, Parser, add_model, add_whole, load_layer, load_model, print_lines, tell

if TYPE_CHECKING:
    from minibert.models.encoder import Encoder
    from minibert.models.input_layer import EmbeddingLayer

# -- explain -------------------------------------------------------------------------------------------------------


def _declare_explain(parser: Parser) -> None:
    add = parser.add_argument
    add("text", metavar="TEXT", nargs="?", help="the text; optional with --live")
    parser.set_defaults(without_text=lambda: parser.error("the following arguments are required: TEXT"))
    add("--pair", metavar="TEXT", help="a second text, to see token types; an empty one is ignored")
    add("--block", type=int, metavar="N", help="show this block instead of the layer, counted from 0")
    add("--head", type=int, metavar="N", help="with --block: show the scores and weights of this head (default: 0)")
    add("--truncate", action="store_true", help="truncate a text that is too long for the model")
    add("--html", type=Path, metavar="FILE", help="write a page for a browser; --whole fetches the blocks too")
    add("--live", action="store_true", help="open a page that computes, only on this machine")
    add("--port", type=int, default=0, metavar="N", help="with --live: its port (default: a free one)")
    add("--no-browser", action="store_true", help="with --live: print the address, open no browser")
    add("--beside", metavar="TEXT", help="with --html: compare a word in two texts, block by block")
    add_model(parser)
    add_whole(parser)


def run_explain(arguments: Any) -> None:
    """Print the steps, or write the page, or serve one that computes."""
    if arguments.live:
        _serve_page(arguments)
        return
    if arguments.text is None:
        arguments.without_text()
    if arguments.port or arguments.no_browser:
        raise ValueError(f"--{'port' if arguments.port else 'no-browser'} is an option of --live; add --live")
    if arguments.beside is not None and arguments.html is None:
        raise ValueError("--beside compares two texts on a page; add --html page.html")
    if arguments.block is not None or arguments.head is not None:
        _explain_block(arguments)
    elif arguments.html is not None:
        _write_page(arguments, arguments.html)
    else:
        from minibert.show.explain import explain

        with load_layer(arguments, lazy=not arguments.whole) as layer:
            print_lines(explain(layer, arguments.text, arguments.pair, common.coloured(), arguments.truncate))


def _write_page(arguments: Any, html: Path) -> None:
    from minibert.files.writing import output_ending, write_output
    from minibert.show.page import page

    output_ending(html, (".html", ".htm"))
    with load_layer(arguments, lazy=not arguments.whole) as layer, _with_blocks(arguments, layer) as model:
        name, pair, beside = common.shown_name(arguments.model), arguments.pair, arguments.beside
        write_output(html, page(model, arguments.text, pair, arguments.truncate, name, beside).encode())
    tell(f"wrote {html}")


def _serve_page(arguments: Any) -> None:
    """Serve the page that computes, until Ctrl-C."""
    import webbrowser

    from minibert.show.live import Live, LiveServer

    from .serve import listen

    for name in ("html", "pair", "block", "head", "beside"):
        if getattr(arguments, name) is not None:
            raise ValueError(f"--live shows every block and head, and has a second text; leave out --{name}")
    arguments.whole = True  # a page that computes needs the whole model
    with load_layer(arguments) as layer, _with_blocks(arguments, layer) as model:
        live = Live(model, common.shown_name(arguments.model))
        text = live.usual_text() if arguments.text is None else arguments.text
        live.state({"text": text})  # a text that the model refuses ends the command
        with LiveServer(listen("127.0.0.1", arguments.port), lambda: live.page(text), live.answers) as server:
            tell(f"{server.url}  Ctrl-C ends it")
            if live.head is None:
                tell("this model has no head, so the page has no prediction; -m names another model, such as "
                     "scripts/study/gpt2-novels of minibert's source, which predicts words")  # fmt: skip
            if not arguments.no_browser and has_browser():
                webbrowser.open(server.url)
            server.serve_forever()


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
        choices = arguments.pair, common.coloured(), arguments.truncate
        print_lines(explain_block(encoder, arguments.text, arguments.block, arguments.head or 0, *choices))


# -- info ----------------------------------------------------------------------------------------------------------


def _declare_info(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_model(parser, argument=True)


def run_info(arguments: Any) -> None:
    """Print the modules, the sizes and the identity."""
    from minibert.models.open.load import assemble, family_of, open_model
    from minibert.show.info import info, info_json

    opened = open_model(arguments.model, **arguments.hub, lazy=True)  # only sizes are needed
    family = family_of(opened)
    source = opened.source()
    with assemble(opened, source, family, arguments.side) as layer:
        whole = None if layer.side == "decoder" else partial(_identity, opened.lasting, opened.commit)
        sources = layer, opened.files.find, source, opened.where, whole
        print_lines([json.dumps(info_json(*sources), ensure_ascii=False)] if arguments.json else info(*sources))


def _identity(name: str, commit: str | None) -> str:
    """Compute the identity of a model. Raises CheckpointError if its weights are not all on this machine."""
    from minibert.errors import CheckpointError, HubError
    from minibert.models.open.load_encoder import load_encoder

    try:
        with catch_warnings():
            simplefilter("ignore")  # the other lines tell what is not read
            with load_encoder(name, revision=commit, local_files_only=True, mmap=True, low_memory=True) as encoder:
                return encoder.identity
    except HubError:
        raise CheckpointError("it is computed from all weights, and they are not on this machine") from None


# -- plot ----------------------------------------------------------------------------------------------------------


def _declare_plot(parser: Parser) -> None:
    from minibert.show.pictures import PICTURES

    add = parser.add_argument
    kinds = "\n".join(f"  {name:14} {drawing.about}" for name, drawing in PICTURES.items())
    parser.epilog = f"pictures:\n{kinds}\n\n{parser.epilog}"
    add("kind", choices=PICTURES, metavar="PICTURE", help="a picture from the list below")
    add(
        "--text",
        metavar="TEXT",
        help="the text for sum, attention, terms, patching and pairs; rows shows its first token",
    )
    add("--other", metavar="TEXT", help="for pairs: the other text; for patching: another text of as many tokens")
    add(
        "--token", type=int, metavar="N",
        help="for sum and rows: the token at this position, as explain counts; for patching: the predicting token",
    )  # fmt: skip
    add("--block", type=int, metavar="N", help="for attention: the block, counted from 0")
    add("--head", type=int, metavar="N", help="for attention: the head, counted from 0")
    add("-o", "--output", type=Path, metavar="FILE", help="FILE.svg, .png or .pdf (default: a window)")
    add_model(parser)


def run_plot(arguments: Any) -> None:
    """Write the picture, or show it in a window."""
    output: Path | None = arguments.output
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        raise ImportError("plot needs matplotlib: pip install 'matplotlib>=3.9'") from None
    from minibert.files.writing import output_ending, refuse_model_file
    from minibert.show.pictures import PICTURES, picture
    from minibert.show.plot import FORMATS, save

    if output is not None:
        output_ending(output, FORMATS)
        mpl.use("agg")  # draws without a window
    import matplotlib.pyplot as plt

    if output is None and plt.get_backend().lower() in ("agg", "cairo", "pdf", "pgf", "ps", "svg", "template"):
        raise ValueError("there is no display to open a window on; write a file: -o FILE.svg, .png or .pdf")
    needs_blocks = PICTURES[arguments.kind].needs_blocks
    # most pictures show one small table
    loaded = load_model(arguments) if needs_blocks else load_layer(arguments, lazy=True)
    with loaded as layer:
        if output is not None:
            refuse_model_file(output)  # before anything is drawn
        choices = {name: getattr(arguments, name) for name in ("text", "token", "block", "head", "other")}
        figure = picture(arguments.kind, layer, model=common.shown_name(arguments.model), **choices)
        if arguments.kind == "attention" and arguments.block is arguments.head is None:
            tell("these are all heads, without the tokens' names; --block N --head N draws one head with them")
        elif needs_blocks and (arguments.block is None) != (arguments.head is None):
            tell(f"this is block {arguments.block or 0}, head {arguments.head or 0}; --block and --head choose another")
        if output is None:
            plt.show()
        else:
            save(figure, output)
            tell(f"wrote {output}")


COMMANDS = {
    "explain": Command(
        """Each step with its name, shape, formula, its function in minibert.equations, and
the first numbers of one token.""",
        'minibert explain "We lived above the clouds"',
        _declare_explain,
        run_explain,
    ),
    "info": Command(
        """The identity is one string for the parameters that are used, the tokenizer and
all settings that change a vector: the same after a rename, a copy or in another
number format. It is computed if all weights are on this machine.

--json prints an object with the same lines: "modules" has the sizes of each
module by its path, and each fact is a text under its name with _ for a space:
family, vocabulary, width, longest_sequence, positions_here, in_attention,
numbers, on_disk, tokenizer, blocks, blocks_on_disk, heads, not_read, made_for,
sentence_vectors, token_vectors, queries, documents, longest_sentence, prompts,
identity, same_bits. A fact that a model does not have is missing.""",
        "minibert info gpt2",
        _declare_info,
        run_info,
    ),
    "plot": Command("", 'minibert plot sum --text "We lived above the clouds" -o sum.svg', _declare_plot, run_plot),
}
