"""`minibert embed`: texts -> vectors of the input layer, one line each or a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from .common import Parser, add_model, add_whole, load_layer, print_lines, tell

if TYPE_CHECKING:
    import numpy as np

    from minibert.equations.input_layer import Array
    from minibert.models.layer import EmbeddingLayer

BLOCK = 1 << 20  # bytes copied at a time
BAR_AFTER = 1.0  # seconds; a shorter run shows no bar
FEW_TEXTS = 32  # for at most this many, only the rows they need are fetched from the Hub

ABOUT = """turn texts into vectors without context
A word has the same row in every sentence, and the order of words hardly counts:
these vectors are the model's input, before any attention. Use them for nearest
words, as features of a small classifier, and as the first stage of a model that
runs elsewhere. For the meaning of a sentence use `minibert encode`.

Prints one vector per line, with all digits, as soon as its text is read."""
EXAMPLE = 'minibert embed "a text" "another text" --normalize -o vectors.npy'


def declare(parser: Parser) -> None:
    """Add the arguments."""
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
    parser.add_argument("--normalize", action="store_true", help="scale each vector to length 1")
    parser.add_argument("--truncate", action="store_true", help="truncate texts that are too long for the model")
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
    """Print the vectors of each chunk of texts when it is done, or write all of them."""
    pooling = None if arguments.pooling == "none" else arguments.pooling
    output: Path | None = arguments.output
    ending = "" if output is None else ending_of(output, pooling)
    chunks = chunks_of(arguments)
    first = next(chunks, [])
    with load_layer(arguments, lazy=len(first) <= FEW_TEXTS and not arguments.whole) as layer:
        vectors = _vectors(layer, chain([first], chunks), pooling, arguments)
        if output is None:
            print_vectors(vectors, layer.dim, pooling)
        else:
            write_vectors(output, ending, vectors, layer.dim, layer.dtype, pooling)


def ending_of(output: Path, pooling: str | None) -> str:
    """Choose the format of the file before anything is read."""
    from minibert.files.writing import output_ending

    ending = output_ending(output, (".npy", ".safetensors") if pooling else (".safetensors", ".npy"))
    if pooling is None and ending == ".npy":
        raise ValueError(
            f"{output}: texts have different numbers of tokens, and a .npy file holds one array; use .safetensors, "
            "which gets embeddings (tokens, dim) and offsets: text i has the rows offsets[i] to offsets[i + 1] - 1"
        )
    return ending


def chunks_of(arguments: Any) -> Iterator[list[str]]:
    """Give the texts in chunks: those of the command line, or stdin's lines as they come."""
    from minibert.models.layer import CHUNK
    from minibert.models.pipeline import chunked

    from .stdin import lines_as_they_come

    arguments.from_stdin = arguments.texts in ([], ["-"])
    if not arguments.from_stdin:
        return iter([arguments.texts]) if arguments.pair else chunked(arguments.texts, CHUNK)
    if arguments.pair:
        raise ValueError("--pair goes with texts that are arguments, not with the lines of stdin")
    return lines_as_they_come(CHUNK)


def _vectors(layer: EmbeddingLayer, chunks: Iterable[list[str]], pooling: str | None, arguments: Any) -> Iterator[Any]:
    options = {"normalize": arguments.normalize, "truncation": arguments.truncate}
    if arguments.pair:
        (texts,) = chunks
        yield layer.embed(texts, pooling, text_pair=arguments.pair, **options)
        return
    if wants_bar(arguments):
        from minibert.models.pipeline import shown

        total = None if arguments.from_stdin else len(arguments.texts)
        chunks = shown(chunks, total, "embed", BAR_AFTER)
    try:
        yield from layer.embed_stream(chunks, pooling, **options)
    except ValueError as error:
        from .stdin import of_line

        raise of_line(error) if arguments.from_stdin else error from None


def wants_bar(arguments: Any) -> bool:
    """Whether to draw a bar: stderr is a terminal, and neither texts nor vectors are on it."""
    stdin, stdout, stderr = (stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    return stderr and not (arguments.from_stdin and stdin) and (arguments.output is not None or not stdout)


def print_vectors(vectors: Iterable[Any], dim: int, pooling: str | None) -> None:
    """Print a line for each vector, and where nothing is pooled an empty line after each text."""
    pattern = " ".join(["%.9g"] * dim)  # nine digits tell any two float32 numbers apart
    for chunk in vectors:
        if pooling:
            print_lines(pattern % tuple(row.tolist()) for row in chunk)
        else:
            print_lines(line for rows in chunk for line in [*(pattern % tuple(row.tolist()) for row in rows), ""])


def write_vectors(
    path: Path, ending: str, vectors: Iterable[Any], dim: int, dtype: np.dtype[Any], pooling: str | None
) -> None:
    """Write the vectors; the file appears complete or not at all.

    The file's header has their number, which is known only after the last text. Until then they are in a temporary file
    beside it: memory holds only one chunk of them.
    """
    import numpy as np

    from minibert.files.writing import naming, refuse_model_file, write_output

    refuse_model_file(path)  # before anything is computed
    lengths = [0]  # of each text, where a text has several rows
    with _temporary(path) as spool:
        for chunk in vectors:
            if not pooling:
                lengths += [len(rows) for rows in chunk]
            for rows in [chunk] if pooling else chunk:
                with naming(path):
                    spool.write(np.ascontiguousarray(rows).data)
        with naming(path):
            spool.flush()
        shape = (spool.tell() // (dim * dtype.itemsize), dim)
        arrays = {"embeddings": np.broadcast_to(np.zeros((), dtype), shape)}  # as large, in no memory
        if not pooling:
            arrays["offsets"] = np.cumsum(lengths, dtype=np.int64)
        spool.seek(0)
        # read block by block: the pages of a map would count as memory of this process
        write_output(path, *_header(arrays, ending), iter(lambda: spool.read(BLOCK), b""))
    tell(f"wrote {path}: " + ", ".join(f"{name} {array.shape}" for name, array in arrays.items()))


def _temporary(path: Path) -> BinaryIO:
    """Open a file without a name on the disk that `path` is on; for a pipe or a device, where such files belong."""
    from tempfile import TemporaryFile

    from minibert.files.writing import naming

    with naming(path):
        beside = path.absolute().parent if path.is_file() or not path.exists() else None
        return cast(BinaryIO, TemporaryFile(dir=beside))


def _header(arrays: dict[str, Array], ending: str) -> list[Any]:
    """Give the part of a file before the numbers of the embeddings, piece by piece."""
    from io import BytesIO

    import numpy as np

    rows = arrays["embeddings"]
    if ending == ".npy":
        header = BytesIO()  # np.save wants a file that it can seek in, and forgets why a write failed
        fields = {"descr": np.lib.format.dtype_to_descr(rows.dtype), "fortran_order": False, "shape": rows.shape}
        np.lib.format.write_array_header_1_0(header, fields)
        return [header.getvalue()]
    from minibert.models.extract import safetensors_header

    formats = {name: (f"{array.dtype.kind.upper()}{8 * array.itemsize}", array) for name, array in arrays.items()}
    return [safetensors_header(formats), *(array.data for name, array in arrays.items() if name == "offsets")]
