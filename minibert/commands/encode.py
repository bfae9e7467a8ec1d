"""`minibert encode` and `embed`: texts -> sentence vectors, or vectors of the input layer, one line each or a file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minibert.errors import Text, error_of, parts_of
from minibert.files.reading import STDIN, arriving_texts, check_stdin
from minibert.models.open.options import SENTENCES, add_options

from . import common
from .common import Command, Parser, add_model, add_whole, load_layer, load_model, print_lines, tell

if TYPE_CHECKING:
    import numpy as np

    from minibert.models.run.pipeline import Truncated

FEW_TEXTS = 32  # for at most this many, only the rows they need are fetched from the Hub


# -- encode --------------------------------------------------------------------------------------------------------


def _declare_encode(parser: Parser) -> None:
    add_texts(parser)
    parser.add_argument(
        "--task", choices=("query", "document"),
        help="as encode_query or encode_document: the folder's prompt of that name, unless another is given, and its "
             "other settings for the task",
    )  # fmt: skip
    parser.add_argument("--normalize", action="store_true", help="scale each vector to length 1")
    common.add_precision(parser, "all texts, so all are read first")
    common.add_prompts(parser)
    add_options(parser, "sentences")
    add_model(parser, side=False, usual=SENTENCES, threads=True)
    add_options(parser, "bits")


def run_encode(arguments: Any) -> None:
    """Print the vectors of each chunk of texts when it is done, or write all of them."""
    import numpy as np

    from minibert.equations.quantization import BITS, PRECISIONS
    from minibert.models.run.pipeline import chunked
    from minibert.models.sentences.sentences import OUTPUTS, check_smaller

    ending_of(arguments.output, "mean")  # raises before anything is read
    truncated: list[Truncated] = []
    precision = arguments.precision
    chunks = chunks_of(arguments)
    with load_model(arguments) as encoder:
        late, sparse = encoder.result == "tokens", encoder.result == "sparse"
        check_smaller(precision, OUTPUTS[late or sparse])
        pooling = None if late or sparse else "mean"
        ending = ending_of(arguments.output, pooling)
        prompt_name, prompt, task = arguments.prompt_name, arguments.prompt, arguments.task
        prompt_name = task if prompt_name is None and prompt is None and task in encoder.prompts else prompt_name
        if sparse:
            if arguments.normalize:
                raise ValueError("--normalize is for dense vectors; leave it out")
            pipeline = encoder.pipeline(prompt_name, prompt, task=task).noting(truncated)
            _output_sparse(streamed(pipeline.stream, chunks, "encode", arguments), arguments.output)
            _tell_truncated(truncated, arguments)
            return
        pipeline = encoder.pipeline(prompt_name, prompt, normalize_embeddings=arguments.normalize, task=task)
        pipeline = pipeline.noting(truncated)
        parts = (part for chunk in chunks for part in chunked(chunk, pipeline.chunk))
        vectors, dim = streamed(pipeline.stream, parts, "encode", arguments), encoder.get_embedding_dimension()
        if precision != "float32":
            vectors, dim = _smaller(vectors, precision), -(-dim // 8) if precision in BITS else dim
        output_vectors(vectors, dim, np.dtype(PRECISIONS[precision]), pooling, arguments.output, ending)
    _tell_truncated(truncated, arguments)


def _output_sparse(vectors: Iterator[Any], output: Path | None) -> None:
    """Print a line of id:weight for each text, or write the ids and weights of all texts, one after another."""
    from minibert.files.arrays import write_arrays
    from minibert.models.sentences.comparing import joined

    if output is None:
        for chunk in vectors:
            print_lines(" ".join(f"{i}:{weight:.9g}" for i, weight in zip(*vector, strict=True)) for vector in chunk)
        return
    arrays = dict(zip(("ids", "weights", "offsets"), joined([*chain.from_iterable(vectors)]), strict=True))
    write_arrays(output, arrays)
    tell(f"wrote {output}: " + ", ".join(f"{name} {array.shape}" for name, array in arrays.items()))


def _smaller(vectors: Iterable[Any], precision: str) -> Iterator[Any]:
    """Quantize vectors chunk by chunk, or all at once if they need ranges."""
    import numpy as np

    from minibert.equations.quantization import STEPS, quantized
    from minibert.models.sentences.sentences import warn_few_vectors

    if precision in STEPS and (parts := [*vectors]):
        vectors = [np.concatenate(parts)]
        if warning := warn_few_vectors(precision, len(vectors[0])):
            tell(warning)
    yield from (quantized(part, precision) for part in vectors)


# -- embed ---------------------------------------------------------------------------------------------------------


def _declare_embed(parser: Parser) -> None:
    add = parser.add_argument
    add_texts(parser)
    add(
        "--pooling", default="mean", metavar="{mean,max,none}",
        help="pool a text's tokens (default: mean); none: one token per line, and an empty line after each text",
    )  # fmt: skip
    add("--normalize", action="store_true", help="scale each vector to length 1")
    add("--truncate", action="store_true", help="truncate texts that are too long for the model; stderr says how many")
    add_model(parser, threads=True)
    add_whole(parser)


def run_embed(arguments: Any) -> None:
    """Print the vectors of each chunk of texts when it is done, or write all of them."""
    pooling = None if arguments.pooling == "none" else arguments.pooling
    ending = ending_of(arguments.output, pooling)
    chunks = chunks_of(arguments)
    first = next(chunks, [])
    truncated: list[Truncated] = []
    with load_layer(arguments, lazy=len(first) <= FEW_TEXTS and not arguments.whole) as layer:
        pipeline = layer.pipeline(pooling, arguments.normalize, arguments.truncate, arguments.threads).noting(truncated)
        vectors = streamed(pipeline.stream, chain([first], chunks), "embed", arguments)
        output_vectors(vectors, layer.dim, layer.dtype, pooling, arguments.output, ending)
    _tell_truncated(truncated, arguments)


# -- texts in, vectors out -----------------------------------------------------------------------------------------


def add_texts(parser: Parser) -> None:
    """Add the texts, and -o for the file of their vectors."""
    parser.add_argument(
        "texts",
        nargs="*",
        metavar="TEXT",
        help="default, or -: each line of stdin is a text, in UTF-8; empty lines are skipped",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE",
        help="write FILE.npy or FILE.safetensors instead of printing; a pipe gets .npy",
    )  # fmt: skip


def ending_of(output: Path | None, pooling: str | None) -> str:
    """Return the file's ending, if a file is written. Called before anything is read."""
    from minibert.files.writing import output_ending

    if output is None:
        return ""
    ending = output_ending(output, (".npy", ".safetensors") if pooling else (".safetensors", ".npy"))
    if pooling is None and ending == ".npy":
        wrong = f"{output}: a .npy file holds one array, and texts have different numbers of tokens or weights"
        raise ValueError(f"{wrong}; use .safetensors, which gets offsets: text i begins at row offsets[i]")
    return ending


def chunks_of(arguments: Any) -> Iterator[list[str]]:
    """Yield the texts in chunks: the arguments, or the lines of stdin as they arrive."""
    from minibert.models.input_layer import CHUNK
    from minibert.models.run.pipeline import chunked

    arguments.from_stdin, arguments.empty = arguments.texts in ([], [STDIN]), []
    _refuse_files(arguments.texts)
    if not arguments.from_stdin:
        return chunked(arguments.texts, CHUNK)
    check_stdin()  # before a model is loaded
    common.tell_typing()
    lines = common.not_empty(arriving_texts(STDIN), arguments.empty)
    return (chunk for texts in lines for chunk in chunked(texts, CHUNK))


def _refuse_files(texts: list[str]) -> None:
    """Raise ValueError for a text that is the name of a file of texts."""
    from minibert.bulk.texts import ENDINGS

    for text in texts:
        if Path(text).suffix.lower() in ENDINGS and os.path.isfile(text):  # noqa: PTH113  Path fails for a long text
            raise ValueError(f"{text!r} is a file, not a text; `minibert bulk {text} -o FOLDER` reads its texts")


def streamed(
    vectors: Callable[[Iterable[list[str]]], Iterator[Any]], chunks: Iterable[list[str]], name: str, arguments: Any
) -> Iterator[Any]:
    """Yield the vectors of chunks of texts, with a bar on a terminal; an error names the line of stdin.

    At the end the number of empty lines is printed on stderr.
    """
    if common.wants_bar(arguments.from_stdin, arguments.output is None):
        from minibert.models.run.pipeline import shown

        total = None if arguments.from_stdin else len(arguments.texts)
        chunks = shown(chunks, total, name, common.BAR_AFTER)
    try:
        yield from vectors(chunks)
    except ValueError as error:
        raise _of_line(error, arguments.empty) if arguments.from_stdin else error from None
    common.tell_empty(len(arguments.empty))


def _tell_truncated(truncated: list[Truncated], arguments: Any) -> None:
    """Print which arguments or lines of stdin were truncated."""
    common.tell_truncated(truncated, line="line" if arguments.from_stdin else "", empty=arguments.empty)


def _of_line(error: ValueError, empty: list[int]) -> ValueError:
    """Return an error about text i with its line of stdin. empty: the numbers of the lines left out, from 0."""
    every, line = parts_of(error), common.line_number
    parts = (f"line {line(part.number, empty)} of stdin" if isinstance(part, Text) else part for part in every)
    return error_of(type(error), *parts)


def output_vectors(
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


COMMANDS = {
    "encode": Command(
        """Runs the whole model with the pooling, prompts and maximum length that its
folder names. stderr says how many texts were truncated.

Prints one vector per line, with all digits, as soon as its text is read. A
model of late interaction (MultiVectorEncoder) prints a line for each token, and
an empty line after each text; a SparseEncoder prints a line of id:weight. Their
files end in .safetensors.""",
        'minibert encode -m ./all-MiniLM-L6-v2 "a text" "another text" -o vectors.npy',
        _declare_encode,
        run_encode,
    ),
    "embed": Command(
        """These vectors are the model's input, before any attention: a word has the same
row in every sentence, and word order hardly counts. Use them for nearest words,
as features of a small classifier, or as the first stage of a model that runs
elsewhere. For the meaning of a sentence use `minibert encode`.

Prints one vector per line, with all digits, as soon as its text is read.""",
        'minibert embed "a text" "another text" --normalize -o vectors.npy',
        _declare_embed,
        run_embed,
    ),
}
