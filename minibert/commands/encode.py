"""`minibert encode`: texts -> sentence vectors, one line each or a file."""

from __future__ import annotations

from typing import Any

from .common import SENTENCES, Parser, add_model, add_prompts, add_same_bits, add_texts, load_model, tell_truncated
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
    add_texts(parser)
    parser.add_argument(
        "--task", choices=("query", "document"),
        help="as encode_query or encode_document: the prompt of that name, if no other is asked for, and what else the "
        "model's folder says of it",
    )  # fmt: skip
    add_prompts(parser)
    add_model(parser, side=False, usual=SENTENCES, threads=True)
    add_same_bits(parser)


def run(arguments: Any) -> None:
    """Print the vectors of each chunk of texts when it is done, or write all of them."""
    from minibert.models.run.pipeline import chunked
    from minibert.models.run.truncated_texts import TruncatedTexts

    ending_of(arguments.output, "mean")  # raises before anything is read
    arguments.pair, truncated = None, TruncatedTexts()
    chunks = chunks_of(arguments)
    with load_model(arguments) as encoder:
        pooling = None if encoder.sentence_config.late else "mean"
        ending = ending_of(arguments.output, pooling)
        prompt_name, prompt, task = arguments.prompt_name, arguments.prompt, arguments.task
        prompt_name = task if prompt_name is None and prompt is None else prompt_name
        pipeline = truncated.of(encoder.pipeline(prompt_name, prompt, task=task))
        parts = (part for chunk in chunks for part in chunked(chunk, pipeline.chunk))
        vectors = streamed(pipeline.stream, parts, "encode", arguments)
        give(vectors, encoder.get_embedding_dimension(), encoder.dtype, pooling, arguments.output, ending)
    tell_truncated(truncated.count)
