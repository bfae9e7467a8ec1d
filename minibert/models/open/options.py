"""The options of `load_encoder` as arguments of a command line: those of `minibert` and of the server are these."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minibert.errors import Load, MinibertError, Option, error_of, parts_of

SENTENCES = "sentence-transformers/all-MiniLM-L6-v2"  # the default where sentence vectors are needed
OF_SENTENCES = ("prompts", "default_prompt_name", "truncate_dim", "similarity_fn_name", "max_seq_length")


def add_sentence_options(parser: Any) -> None:
    """Add the settings that stand in place of a folder's own for sentence vectors."""
    parser.add_argument(
        "--prompts", action="append", metavar="NAME=TEXT", type=_named_prompt,
        help='a prompt of the model in place of its own, as in "query=query: "; may be repeated',
    )  # fmt: skip
    parser.add_argument(
        "--default-prompt-name", metavar="NAME", help="the prompt that is put before each text if none is named"
    )
    parser.add_argument("--truncate-dim", type=int, metavar="N", help="keep the first N numbers of each vector")
    parser.add_argument(
        "--similarity-fn-name", metavar="MEASURE", help="how vectors are compared: cosine, dot, euclidean or manhattan"
    )
    parser.add_argument("--max-seq-length", type=int, metavar="N", help="truncate a text after N tokens")


def _named_prompt(text: str) -> tuple[str, str]:
    name, equals, prompt = text.partition("=")
    if not (name and equals):
        raise ArgumentTypeError(f"expected NAME=TEXT, found {text!r}")
    return name, prompt


def sentence_options(arguments: Any) -> dict[str, Any]:
    """Give the options of `add_sentence_options` that were passed, as keyword arguments of `load_encoder`."""
    given = {name: value for name in OF_SENTENCES if (value := getattr(arguments, name, None)) is not None}
    return given | ({"prompts": dict(given["prompts"])} if "prompts" in given else {})


def add_hub(parser: Any) -> None:
    """Add --revision and --local-files-only."""
    parser.add_argument("--revision", metavar="R", help="a branch, tag or commit on the Hub")
    parser.add_argument("--local-files-only", action="store_true", help="use the cache only; never ask the Hub")


def add_threads(parser: Any) -> None:
    """Add --threads."""
    parser.add_argument(
        "--threads", type=int, metavar="N", help="compute on at most N threads (default: "
        "MINIBERT_THREADS, or all available cores)",
    )  # fmt: skip


def add_same_bits(parser: Any) -> None:
    """Add --same-bits."""
    parser.add_argument(
        "--same-bits", action="store_true",
        help="a text has the same vector, to the last bit, in any batch and on any number of threads; with some "
        "processors that is always so, with others it takes longer: see `minibert info`",
    )  # fmt: skip


@contextmanager
def model_named_by(option: str) -> Iterator[None]:
    """Begin errors about an option's model with the option, which names the model to take instead too."""
    try:
        yield
    except (MinibertError, ValueError) as error:
        parts = (part._replace(option=option) if isinstance(part, Load) else part for part in parts_of(error))
        first = () if option == "model" else (Option(option), ": ")
        raise error_of(type(error), *first, *parts) from None
