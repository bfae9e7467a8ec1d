"""`minibert extract`: a folder with a model's input layer alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .common import Parser, add_model, from_hub, print_lines

ABOUT = """The folder has the config, the tokenizer and one safetensors file. Its vectors
are the model's input. For a small model of what sentences mean, `minibert
distill` is the better choice: its rows have passed the whole model."""
EXAMPLE = "minibert extract bert-base-uncased -o ./bert-input --dtype float16"


def declare(parser: Parser) -> None:
    """Add the arguments."""
    add_model(parser, side=False, argument=True)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FOLDER", help="the folder to write")
    parser.add_argument(
        "--dtype", choices=("float32", "float16", "bfloat16"), help="of the tables (default: as each is stored)"
    )


def run(arguments: Any) -> None:
    """Write the folder, and print how much smaller it is."""
    from minibert.models.open.extract import extract
    from minibert.show.text import size

    made = extract(arguments.model, arguments.output, arguments.dtype, **from_hub(arguments))
    share = made.bytes_after / made.bytes_before
    print_lines([
        f"{made.folder}: {made.tensors} tensors",
        f"before          {size(made.bytes_before)}",
        f"after           {size(made.bytes_after)} ({share:.0%})",
    ])  # fmt: skip
