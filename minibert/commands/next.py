"""`minibert next`: the words that come next in a text."""

from __future__ import annotations

from typing import Any

from .answers import bars, print_answers
from .common import Parser, add_k, add_model, load_model

ABOUT = """predict the next word, with probabilities
For causal models such as GPT-2. A token that begins with a space starts a new
word; otherwise it continues the previous word."""
EXAMPLE = 'minibert next "The meaning of life is"'


def declare(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="the beginning of a text")
    add_k(parser, "words")
    add_model(parser, side=False, usual="gpt2", threads=True)


def run(arguments: Any) -> None:
    """Print each text, and below it the likeliest next words."""
    with load_model(arguments) as encoder:
        found = encoder.next_words(arguments.texts, arguments.k)
    answers = (bars([(each["token_str"], each["score"]) for each in words], quote='"') for words in found)
    print_answers(arguments.texts, answers)
