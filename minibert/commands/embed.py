"""`minibert embed`: texts -> vectors, a line each or a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import Parser, add_model, add_whole, load_layer, print_lines, tell

if TYPE_CHECKING:
    from minibert.equations.input_layer import Array
    from minibert.models.layer import EmbeddingLayer

FEW_TEXTS = 32  # up to so many, the rows they need are fetched from the Hub, and not the whole tables

ABOUT = "turn texts into vectors: one vector a line, with all its digits"
EXAMPLE = 'minibert embed "a text" "another text" --normalize -o vectors.npy'


def declare(parser: Parser) -> None:
    """Declare what it takes."""
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="without any, or with -, each line of stdin is a text")
    parser.add_argument(
        "--pair", action="append", metavar="TEXT",
        help="a second text, once for each text, as in question and answer; of an empty one the separator stays, with "
        "its type",
    )  # fmt: skip
    parser.add_argument(
        "--pooling", default="mean", metavar="{mean,max,none}",
        help="over a text's tokens (default: mean); none: one token a line, and an empty line after each text",
    )  # fmt: skip
    parser.add_argument("--normalize", action="store_true", help="divide each vector by its length")
    parser.add_argument("--truncate", action="store_true", help="cut texts that are too long for the model")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write FILE.npy or FILE.safetensors instead; into a pipe, .npy",
    )
    add_model(parser)
    add_whole(parser)


def run(arguments: Any) -> None:
    """Print the vectors, or write them."""
    pooling = None if arguments.pooling == "none" else arguments.pooling
    output: Path | None = arguments.output
    ending = ""
    if output is not None:
        from minibert.files.writing import output_ending, refuse_source

        ending = output_ending(output, (".npy", ".safetensors") if pooling else (".safetensors", ".npy"))
        if pooling is None and ending == ".npy":
            raise ValueError(
                f"{output}: texts have different numbers of tokens, and a .npy file holds one array; use .safetensors, "
                "which gets embeddings (tokens, dim) and offsets: text i has the rows offsets[i] to offsets[i + 1] - 1"
            )
    texts = _lines_of_stdin() if arguments.texts in ([], ["-"]) else arguments.texts
    with load_layer(arguments, lazy=len(texts) <= FEW_TEXTS and not arguments.whole) as layer:
        if output is not None:
            refuse_source(output, (tensor.file for tensor in layer.tensors))
        vectors = layer.embed(
            texts,
            pooling,
            text_pair=arguments.pair,
            normalize=arguments.normalize,
            truncation=arguments.truncate,
        )
        if output is not None:
            _write(output, ending, vectors, layer)
            return
        for rows in [vectors] if pooling else vectors:
            pattern = " ".join(["%.9g"] * layer.dim)  # nine digits tell any two float32 numbers apart
            print_lines(pattern % tuple(row.tolist()) for row in rows)
            if not pooling:
                print()


def _lines_of_stdin() -> list[str]:
    if sys.stdin.isatty():
        tell("each line is a text; end with Ctrl-D")
    try:
        return [line.removesuffix("\n") for line in sys.stdin]
    except UnicodeDecodeError as error:
        raise ValueError(f"stdin is not {error.encoding} ({error.reason}); convert it, with iconv or so") from None


def _write(path: Path, ending: str, vectors: Any, layer: EmbeddingLayer) -> None:
    """Write the vectors; the file appears whole or not at all."""
    from io import BytesIO

    import numpy as np

    from minibert.files.writing import write_output

    arrays: dict[str, Array] = {"embeddings": vectors}
    if isinstance(vectors, list):  # one array a text
        lengths = [len(rows) for rows in vectors]
        arrays = {
            "embeddings": np.concatenate([np.empty((0, layer.dim), layer.dtype), *vectors]),
            "offsets": np.cumsum([0, *lengths], dtype=np.int64),
        }
    if ending == ".npy":
        # np.save wants a file that it can seek in, and forgets why a write failed
        header, rows = BytesIO(), np.ascontiguousarray(arrays["embeddings"])
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(rows))
        write_output(path, header.getvalue(), rows.data)
    else:
        from safetensors.numpy import save

        write_output(path, save(arrays))  # not save_file, whose files their owner alone may read
    tell(f"wrote {path}: " + ", ".join(f"{name} {array.shape}" for name, array in arrays.items()))
