"""`minibert encode`: texts -> sentence vectors, one line each or a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from minibert.models.open.options import SENTENCES, add_options

from .common import Parser, add_model, add_prompts, add_texts, load_model, print_lines, tell, tell_truncated
from .embed import chunks_of, ending_of, give, streamed

ABOUT = """Runs the whole model with the pooling, prompts and maximum length that its
folder names. stderr says how many texts were truncated.

Prints one vector per line, with all digits, as soon as its text is read. A
model of late interaction (MultiVectorEncoder) gives a line for each token, and
an empty line after each text; a SparseEncoder gives a line of id:weight. Their
files end in .safetensors."""
EXAMPLE = 'minibert encode -m ./all-MiniLM-L6-v2 "a text" "another text" -o vectors.npy'


def declare(parser: Parser) -> None:
    """Add the arguments."""
    from minibert.equations.quantization import PRECISIONS

    add_texts(parser)
    parser.add_argument(
        "--task", choices=("query", "document"),
        help="as encode_query or encode_document: the folder's prompt of that name, unless another is given, and its "
             "other settings for the task",
    )  # fmt: skip
    parser.add_argument("--normalize", action="store_true", help="scale each vector to length 1")
    parser.add_argument(
        "--precision", choices=tuple(PRECISIONS), default="float32",
        help="of the numbers: float32 (default), half as large, a byte each, or a bit each; int8 and uint8 take their "
        "ranges from all texts, so all are read first",
    )  # fmt: skip
    add_prompts(parser)
    add_options(parser, "sentences")
    add_model(parser, side=False, usual=SENTENCES, threads=True)
    add_options(parser, "bits")


def run(arguments: Any) -> None:
    """Print the vectors of each chunk of texts when it is done, or write all of them."""
    import numpy as np

    from minibert.equations.quantization import BITS, PRECISIONS
    from minibert.models.run.pipeline import chunked
    from minibert.models.sentences.sentences import OUTPUTS, check_smaller

    ending_of(arguments.output, "mean")  # raises before anything is read
    cut: list[int] = []
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
            steps = encoder.pipeline(prompt_name, prompt, task=task).noting(cut)
            _give_sparse(streamed(steps.stream, chunks, "encode", arguments), arguments.output)
            tell_truncated(len(cut))
            return
        steps = encoder.pipeline(prompt_name, prompt, normalize_embeddings=arguments.normalize, task=task).noting(cut)
        parts = (part for chunk in chunks for part in chunked(chunk, steps.chunk))
        vectors, dim = streamed(steps.stream, parts, "encode", arguments), encoder.get_embedding_dimension()
        if precision != "float32":
            vectors, dim = _smaller(vectors, precision), -(-dim // 8) if precision in BITS else dim
        give(vectors, dim, np.dtype(PRECISIONS[precision]), pooling, arguments.output, ending)
    tell_truncated(len(cut))


def _give_sparse(vectors: Iterator[Any], output: Path | None) -> None:
    """Print a line of id:weight for each text, or write ids and weights of all, one text behind the other."""
    import numpy as np

    from minibert.files.arrays import write_arrays

    if output is None:
        for chunk in vectors:
            print_lines(" ".join(f"{i}:{weight:.9g}" for i, weight in zip(*each, strict=True)) for each in chunk)
        return
    every = [each for chunk in vectors for each in chunk]
    none = np.empty(0, np.int64), np.empty(0, np.float32)
    ids, weights = (np.concatenate(each) for each in zip(none, *every, strict=True))
    offsets = np.cumsum([0, *(len(each.ids) for each in every)])
    arrays = {"ids": ids, "weights": weights, "offsets": offsets}
    write_arrays(output, arrays)
    tell(f"wrote {output}: " + ", ".join(f"{name} {array.shape}" for name, array in arrays.items()))


def _smaller(vectors: Iterable[Any], precision: str) -> Iterator[Any]:
    """Quantize vectors chunk by chunk, or all at once where they need ranges."""
    import numpy as np

    from minibert.equations.quantization import STEPS, quantized
    from minibert.models.sentences.sentences import warn_few_vectors

    if precision in STEPS and (parts := [*vectors]):
        vectors = [np.concatenate(parts)]
        if said := warn_few_vectors(precision, len(vectors[0])):
            tell(said)
    yield from (quantized(part, precision) for part in vectors)
