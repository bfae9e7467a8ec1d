"""`minibert plot`: a picture of a model's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minibert.show.pictures import PICTURES, picture

from .common import Parser, add_model, load_layer, load_model, shown_name, tell

ABOUT = ""
EXAMPLE = 'minibert plot sum --text "We lived above the clouds" -o sum.svg'


def declare(parser: Parser) -> None:
    """Add the arguments."""
    kinds = "\n".join(f"  {name:14} {each.about}" for name, each in PICTURES.items())
    parser.epilog = f"pictures:\n{kinds}\n\n{parser.epilog}"
    parser.add_argument("kind", choices=PICTURES, metavar="PICTURE", help="a picture from the list below")
    parser.add_argument(
        "--text", metavar="TEXT", help="the text for sum, attention, terms and patching; rows shows its first token"
    )
    parser.add_argument("--other", metavar="TEXT", help="for patching: another text of as many tokens")
    parser.add_argument(
        "--token", type=int, metavar="N",
        help="for sum and rows: the token at this position, as explain counts; for patching: the predicting token",
    )  # fmt: skip
    parser.add_argument("--block", type=int, metavar="N", help="for attention: the block, counted from 0")
    parser.add_argument("--head", type=int, metavar="N", help="for attention: the head, counted from 0")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="FILE.svg, .png or .pdf (default: a window)")
    add_model(parser)


def run(arguments: Any) -> None:
    """Write the picture, or show it in a window."""
    output: Path | None = arguments.output
    try:
        import matplotlib as mpl
    except ModuleNotFoundError:
        raise ImportError("plot needs matplotlib: pip install 'matplotlib>=3.9'") from None
    from minibert.files.writing import output_ending, refuse_model_file
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
        figure = picture(arguments.kind, layer, model=shown_name(arguments.model), **choices)
        if needs_blocks and (arguments.block is None) != (arguments.head is None):
            tell(f"this is block {arguments.block or 0}, head {arguments.head or 0}; --block and --head choose another")
        if output is None:
            plt.show()
        else:
            save(figure, output)
            tell(f"wrote {output}")
