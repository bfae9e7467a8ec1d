"""`minibert encode`: texts -> sentence vectors, one line each or a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .common import (
    SENTENCES,
    Parser,
    add_model,
    add_prompts,
    add_same_bits,
    add_sentence_options,
    add_texts,
    load_model,
    tell,
    tell_truncated,
)
from .embed import chunks_of, ending_of, give, streamed

ABOUT = """turn texts into sentence vectors, as sentence-transformers does
Runs the whole model with the pooling, prompts and maximum length that its
folder names. stderr says how many texts were truncated.

Prints one vector per line, with all digits, as soon as its text is read. A
model of late interaction (MultiVectorEncoder) gives a line for each token, and
an empty line after each text; a file for them ends in .safetensors."""
EXAMPLE = 'minibert encode -m ./all-MiniLM-L6-v2 "a text" "another text" -o vectors.npy'


def declare(parser: Parser) -> None:
    """Add the arguments."""
    from minibert.equations.quantization import PRECISIONS

    add_texts(parser)
    parser.add_argument(
        "--task", choices=("query", "document"),
        help="as encode_query or encode_document: the prompt of that name, if no other is asked for, and what else the "
        "model's folder says of it",
    )  # fmt: skip
    parser.add_argument("--normalize", action="store_true", help="scale each vector to length 1")
    parser.add_argument(
        "--precision", choices=tuple(PRECISIONS), default="float32",
        help="of the numbers: float32 (default), half as large, a byte each, or a bit each; int8 and uint8 take their "
        "ranges from all texts, so all are read first",
    )  # fmt: skip
    add_prompts(parser)
    add_sentence_options(parser)
    add_model(parser, side=False, usual=SENTENCES, threads=True)
    add_same_bits(parser)


def run(arguments: Any) -> None:
    """Print the vectors of each chunk of texts when it is done, or write all of them."""
    import numpy as np

    from minibert.equations.quantization import BITS, PRECISIONS
    from minibert.models.run.pipeline import chunked
    from minibert.models.run.truncated_texts import TruncatedTexts
    from minibert.models.sentences.arguments import OUTPUTS, check_smaller

    ending_of(arguments.output, "mean")  # raises before anything is read
    arguments.pair, truncated, precision = None, TruncatedTexts(), arguments.precision
    chunks = chunks_of(arguments)
    with load_model(arguments) as encoder:
        late = encoder.sentence_config.late is not None
        check_smaller(precision, OUTPUTS[late])
        pooling = None if late else "mean"
        ending = ending_of(arguments.output, pooling)
        prompt_name, prompt, task = arguments.prompt_name, arguments.prompt, arguments.task
        prompt_name = task if prompt_name is None and prompt is None else prompt_name
        pipeline = truncated.of(
            encoder.pipeline(prompt_name, prompt, normalize_embeddings=arguments.normalize, task=task)
        )
        parts = (part for chunk in chunks for part in chunked(chunk, pipeline.chunk))
        vectors, dim = streamed(pipeline.stream, parts, "encode", arguments), encoder.get_embedding_dimension()
        if precision != "float32":
            vectors, dim = _smaller(vectors, precision), -(-dim // 8) if precision in BITS else dim
        give(vectors, dim, np.dtype(PRECISIONS[precision]), pooling, arguments.output, ending)
    tell_truncated(truncated.count)


def _smaller(vectors: Iterable[Any], precision: str) -> Iterator[Any]:
    """Quantize vectors chunk by chunk, or all at once where they need ranges."""
    import numpy as np

    from minibert.equations.quantization import STEPS, quantized
    from minibert.models.sentences.arguments import few

    if precision in STEPS and (parts := [*vectors]):
        vectors = [np.concatenate(parts)]
        if said := few(precision, len(vectors[0])):
            tell(said)
    yield from (quantized(part, precision) for part in vectors)
