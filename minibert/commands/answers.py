"""What a text is answered with: some names, each with a number, below the text."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from .common import coloured, harmless, print_lines

WIDEST = 40  # columns of the bar for a probability of 1


def print_answers(texts: Iterable[str], answers: Iterable[Iterable[str]]) -> None:
    """Print each text, bold where that may be, with its lines below it, and an empty line between two texts."""
    from minibert.show.text.text import styles

    bold, _ = styles(coloured())
    for i, (text, lines) in enumerate(zip(texts, answers, strict=True)):
        print_lines([*([""] if i else []), bold(harmless(text)), *lines])


def beside(names: Sequence[str], numbers: Iterable[str], quote: str = "") -> list[str]:
    """Write each name with its number, one a line, the numbers in one column. `quote` shows where a name begins."""
    from minibert.show.text.text import columns_of, fitting, padded

    names = [f"{quote}{fitting(name)}{quote}" for name in names]
    wide = max(map(columns_of, names), default=0)
    return [f"  {padded(name, wide)}  {number}".rstrip() for name, number in zip(names, numbers, strict=True)]


def bars(named: Sequence[tuple[str, float]], quote: str = "") -> list[str]:
    """Write each name with its probability, and that as a bar: of blocks where the terminal's encoding has them."""
    stroke = "█"
    try:
        stroke.encode(sys.stdout.encoding)
    except (AttributeError, LookupError, TypeError, UnicodeEncodeError):
        stroke = "#"
    return beside([name for name, _ in named], (f"{p:.4f}  {stroke * round(WIDEST * p)}" for _, p in named), quote)
