"""`minibert fill`: the words that a mask hides."""

from __future__ import annotations

from typing import Any

from .answers import bars, print_answers
from .common import Parser, add_k, add_model, load_model

ABOUT = """predict masked words, with their probabilities
Write the model's mask, [MASK] for BERT and <mask> for RoBERTa, in place of a
word. Several masks are predicted independently. The model needs its head for
masked words; models for sentence vectors do not have one."""
EXAMPLE = 'minibert fill "The capital of France is [MASK]."'


def declare(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="a text with at least one mask")
    add_k(parser, "words")
    add_model(parser, side=False, threads=True)


def run(arguments: Any) -> None:
    """Print each text, and below it for each of its masks the likeliest words."""
    with load_model(arguments) as encoder:
        found = encoder.fill(arguments.texts, arguments.k)
    answers = []
    for masks in found:
        lines: list[str] = []
        for number, words in enumerate(masks, 1):
            lines += [f"mask {number}"] if len(masks) > 1 else []
            lines += bars([(each["token_str"], each["score"]) for each in words])
        answers.append(lines)
    print_answers(arguments.texts, answers)
