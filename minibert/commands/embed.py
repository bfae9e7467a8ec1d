"""`minibert embed`: texts -> vectors of the input layer, one line each or a file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .common import Parser, add_model, add_texts, add_whole, load_layer, print_lines, tell, tell_empty, tell_truncated

if TYPE_CHECKING:
    import numpy as np


BAR_AFTER = 1.0  # seconds; a shorter run shows no bar
FEW_TEXTS = 32  # for at most this many, only the rows they need are fetched from the Hub

ABOUT = """These vectors are the model's input, before any attention: a word has the same
row in every sentence, and word order hardly counts. Use them for nearest words,
as features of a small classifier, or as the first stage of a model that runs
elsewhere. For the meaning of a sentence use `minibert encode`.

Prints one vector per line, with all digits, as soon as its text is read."""
EXAMPLE = 'minibert embed "a text" "another text" --normalize -o vectors.npy'


def declare(parser: Parser) -> None:
    """Add the arguments."""
    add_texts(parser)
    parser.add_argument(
        "--pooling", default="mean", metavar="{mean,max,none}",
        help="pool a text's tokens (default: mean); none: one token per line, and an empty line after each text",
    )  # fmt: skip
    parser.add_argument("--normalize", action="store_true", help="scale each vector to length 1")
    parser.add_argument(
        "--truncate", action="store_true", help="truncate texts that are too long for the model; stderr says how many"
    )
    add_model(parser, threads=True)
    add_whole(parser)


def run(arguments: Any) -> None:
    """Print the vectors of each chunk of texts when it is done, or write all of them."""

    pooling = None if arguments.pooling == "none" else arguments.pooling
    ending = ending_of(arguments.output, pooling)
    chunks = chunks_of(arguments)
    first, cut = next(chunks, []), list[int]()
    with load_layer(arguments, lazy=len(first) <= FEW_TEXTS and not arguments.whole) as layer:
        steps = layer.pipeline(pooling, arguments.normalize, arguments.truncate, arguments.threads).noting(cut)
        vectors = streamed(steps.stream, chain([first], chunks), "embed", arguments)
        give(vectors, layer.dim, layer.dtype, pooling, arguments.output, ending)
    tell_truncated(len(cut))


def ending_of(output: Path | None, pooling: str | None) -> str:
    """Choose the format of the file, if any, before anything is read."""
    from minibert.files.writing import output_ending

    if output is None:
        return ""
    ending = output_ending(output, (".npy", ".safetensors") if pooling else (".safetensors", ".npy"))
    if pooling is None and ending == ".npy":
        raise ValueError(
            f"{output}: texts have different numbers of tokens or weights, and a .npy file holds one array; use "
            ".safetensors, which gets offsets too: text i has the rows offsets[i] to offsets[i + 1] - 1"
        )
    return ending


def chunks_of(arguments: Any) -> Iterator[list[str]]:
    """Give the texts in chunks: the arguments, or stdin's lines as they come."""
    from minibert.models.input_layer import CHUNK
    from minibert.models.run.pipeline import chunked

    from .stdin import lines_as_they_come

    arguments.from_stdin, arguments.empty = arguments.texts in ([], ["-"]), []
    _refuse_files(arguments.texts)
    if not arguments.from_stdin:
        return chunked(arguments.texts, CHUNK)
    return _not_empty(lines_as_they_come(CHUNK), arguments.empty)


def _not_empty(chunks: Iterable[list[str]], empty: list[int]) -> Iterator[list[str]]:
    """Leave out the empty lines, and note their numbers, counted from 0."""
    before = 0
    for chunk in chunks:
        empty += [number for number, line in enumerate(chunk, before) if not line.strip()]
        before += len(chunk)
        if texts := [line for line in chunk if line.strip()]:
            yield texts


def _refuse_files(texts: list[str]) -> None:
    """Refuse a text that is a file of texts. Raises ValueError."""
    from minibert.bulk.texts import ENDINGS

    for text in texts:
        if Path(text).suffix.lower() in ENDINGS and os.path.isfile(text):  # noqa: PTH113  Path fails for a long text
            raise ValueError(
                f"{text!r} is a file, and each argument is a text here; `minibert bulk {text} -o FOLDER` reads the "
                "texts of files"
            )


def streamed(
    vectors: Callable[[Iterable[list[str]]], Iterator[Any]], chunks: Iterable[list[str]], name: str, arguments: Any
) -> Iterator[Any]:
    """Give the vectors of chunks of texts, with a bar on a terminal; an error names the line of stdin.

    At the end stderr gets the number of empty lines.
    """
    if wants_bar(arguments.from_stdin, arguments.output is None):
        from minibert.models.run.pipeline import shown

        total = None if arguments.from_stdin else len(arguments.texts)
        chunks = shown(chunks, total, name, BAR_AFTER)
    try:
        yield from vectors(chunks)
    except ValueError as error:
        from .stdin import of_line

        raise of_line(error, arguments.empty) if arguments.from_stdin else error from None
    tell_empty(len(arguments.empty))


def wants_bar(reads: bool, prints: bool) -> bool:
    """Whether to draw a bar: stderr is a terminal that neither shows the results nor is typed into."""
    stdin, stdout, stderr = (stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    return stderr and not (reads and stdin) and not (prints and stdout)


def give(
    vectors: Iterator[Any], dim: int, dtype: np.dtype[Any], pooling: str | None, output: Path | None, ending: str
) -> None:
    """Write the vectors into a file, or print a line for each; without pooling an empty line ends each text."""
    if output is not None:
        from minibert.files.arrays import write_vectors

        shapes = write_vectors(output, ending, vectors, dim, dtype, pooling)
        tell(f"wrote {output}: " + ", ".join(f"{name} {shape}" for name, shape in shapes.items()))
        return
    pattern = " ".join(["%.9g"] * dim)  # nine digits tell any two float32 numbers apart
    for chunk in vectors:
        if pooling:
            print_lines(pattern % tuple(row.tolist()) for row in chunk)
        else:
            print_lines(line for rows in chunk for line in [*(pattern % tuple(row.tolist()) for row in rows), ""])
