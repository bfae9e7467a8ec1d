"""The options of `load_encoder` as command-line arguments, for `minibert` and for the server."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from minibert.errors import Load, MinibertError, Option, error_of, parts_of

SENTENCES = "sentence-transformers/all-MiniLM-L6-v2"  # the default of commands that need sentence vectors


def _named_prompt(text: str) -> tuple[str, str]:
    name, equals, prompt = text.partition("=")
    if not (name and equals):
        raise ArgumentTypeError(f"expected NAME=TEXT, found {text!r}")
    return name, prompt


# group -> option of `load_encoder` -> arguments of argparse
OPTIONS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "sentences": {  # replace the folder's settings
        "prompts": dict(action="append", metavar="NAME=TEXT", type=_named_prompt, help="a prompt that replaces the "
                        'model\'s, as in "query=query: "; may be repeated'),
        "default_prompt_name": dict(metavar="NAME", help="the prompt that is put before each text if none is named"),
        "truncate_dim": dict(type=int, metavar="N", help="keep the first N numbers of each vector"),
        "max_seq_length": dict(type=int, metavar="N", help="truncate a text after N tokens"),
    },
    "measure": {  # for the commands that compare vectors
        "similarity_fn_name": dict(metavar="MEASURE", help="how vectors are compared: cosine, dot, euclidean or "
                                   "manhattan"),
    },
    "hub": {
        "revision": dict(metavar="R", help="a branch, tag or commit on the Hub"),
        "local_files_only": dict(action="store_true", help="use the cache only; never ask the Hub"),
    },
    "threads": {
        "threads": dict(type=int, metavar="N", help="compute on at most N threads (default: MINIBERT_THREADS, or all "
                        "available cores)"),
    },
    "weights": {
        "mmap": dict(action="store_const", const=True, help="keep all weights mapped from their file, without "
                     "a second copy in memory for short texts: processes then share one copy"),
    },
    "bits": {
        "same_bits": dict(action="store_true", help="a text has the same vector, to the last bit, in any batch and on "
                          "any number of threads; some processors always do this, on the rest it takes longer: "
                          "see `minibert info`"),
    },
}  # fmt: skip


def add_options(parser: Any, *groups: str) -> None:
    """Add the options of some groups of `OPTIONS`."""
    for name, arguments in ((name, arguments) for group in groups for name, arguments in OPTIONS[group].items()):
        parser.add_argument("--" + name.replace("_", "-"), **arguments)


def sentence_options(arguments: Any) -> dict[str, Any]:
    """Return the options of sentence vectors that were passed, as keyword arguments of `load_encoder`."""
    names = (*OPTIONS["sentences"], *OPTIONS["measure"])
    options = {name: value for name in names if (value := getattr(arguments, name, None)) is not None}
    return options | ({"prompts": dict(options["prompts"])} if "prompts" in options else {})


@contextmanager
def model_named_by(option: str) -> Iterator[None]:
    """Begin each error about an option's model with the option; its advice names the same option."""
    try:
        yield
    except (MinibertError, ValueError) as error:
        parts = (part._replace(option=option) if isinstance(part, Load) else part for part in parts_of(error))
        first = () if option == "model" else (Option(option), ": ")
        raise error_of(type(error), *first, *parts) from None
