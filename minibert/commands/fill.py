"""`minibert fill`: the words that a mask hides."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .common import Parser, add_model, add_threads, coloured, harmless, load_model, print_lines

if TYPE_CHECKING:
    from minibert.models.prediction import Prediction

ABOUT = """guess the words that masks hide, with their probabilities
Write the model's mask, [MASK] for BERT and <mask> for RoBERTa, in the place of
a word. Of several masks each is guessed by itself. The model needs its head
for masked words, which models for sentence vectors do not have."""
EXAMPLE = 'minibert fill "The capital of France is [MASK]."'
WIDEST = 40  # columns of the bar for a probability of 1


def declare(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="with one mask or more")
    add_k(parser)
    add_threads(parser)
    add_model(parser, side=False)


def run(arguments: Any) -> None:
    """Print each text, and below it for each of its masks the likeliest words."""
    with load_model(arguments) as encoder:
        found = encoder.fill(arguments.texts, arguments.k)
    for i, (text, masks) in enumerate(zip(arguments.texts, found, strict=True)):
        lines = [*([""] if i else []), heading(text)]
        for number, predictions in enumerate(masks, 1):
            lines += [*([f"mask {number}"] if len(masks) > 1 else []), *bars(predictions)]
        print_lines(lines)


def add_k(parser: Parser) -> None:
    """Add -k."""
    parser.add_argument("-k", type=int, default=5, metavar="K", help="how many words to show (default: 5)")


def heading(text: str) -> str:
    """Give a text as a line above what belongs to it."""
    return f"\x1b[1m{harmless(text)}\x1b[0m" if coloured() else text


def bars(predictions: list[Prediction], quote: str = "") -> Iterator[str]:
    """Give a line for each word: the word, its probability, and that as a bar. `quote` shows where a word begins."""
    return drawn([(each["token_str"], each["score"]) for each in predictions], quote)


def drawn(named: Sequence[tuple[str, float]], quote: str = "") -> Iterator[str]:
    """Give a line for each name and its probability, with that as a bar."""
    from minibert.show.text import columns_of, fitting, padded

    names = [f"{quote}{fitting(name)}{quote}" for name, _ in named]
    wide, stroke = max(map(columns_of, names)), _stroke()
    for name, (_, score) in zip(names, named, strict=True):
        yield f"  {padded(name, wide)}  {score:.4f}  {stroke * round(WIDEST * score)}".rstrip()


def _stroke() -> str:
    """Give what a bar is drawn with: a block where the terminal's encoding has it."""
    try:
        "█".encode(sys.stdout.encoding)
    except (AttributeError, LookupError, TypeError, UnicodeEncodeError):
        return "#"
    return "█"
