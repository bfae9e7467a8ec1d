"""Numbers and tokens as plain text: as torch prints a tensor, and in the columns of a terminal.

Numbers look as in torch, so that a reader can compare them with a notebook that runs the reference.
"""

from __future__ import annotations

import math
import textwrap
import unicodedata
from collections.abc import Callable

import numpy as np

from minibert.equations.input_layer import Array

WIDTH = 80  # columns of a page, and torch's own line width
EDGE = 3  # numbers or rows shown at each end of an axis
WIDEST_TOKEN = 40  # columns; a longer token is shortened
BOLD, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
Style = Callable[[str], str]  # a line -> the same line in bold, or dim


def torch_text(x: Array, indent: int = 0) -> str:
    """Write an array of floats as torch prints a large tensor, without the word `tensor` and its parentheses.

    x has at least one axis; `indent` is the column of the first bracket. An axis longer than six shows its first and
    last three numbers. All printed numbers share one format: `1.` if all are whole, else four decimals. Powers of ten
    replace both if the largest is over 1000 times the smallest, if the smallest is below 1e-4 or the largest above 1e8
    (zeros do not count).

    The trap: torch itself shortens only tensors of more than 1000 numbers.

    >>> print(torch_text(np.array([[1.0, 0.5, -0.25, 9.0, 9.0, 0.125, 1.0, 2.0], [0.0] * 8])))
    [[ 1.0000,  0.5000, -0.2500,  ...,  0.1250,  1.0000,  2.0000],
     [ 0.0000,  0.0000,  0.0000,  ...,  0.0000,  0.0000,  0.0000]]
    >>> print(torch_text(np.array([0.5, 0.00005])))
    [5.0000e-01, 5.0000e-05]
    """
    if x.size == 0:
        return "[]"
    ends = [range(n) if n <= 2 * EDGE else [*range(EDGE), *range(n - EDGE, n)] for n in x.shape]
    shown = x[np.ix_(*ends)].astype(np.float64)
    nonzero = shown[np.isfinite(shown) & (shown != 0)]
    sizes = np.abs(nonzero)
    powers = nonzero.size > 0 and bool(sizes.max() / sizes.min() > 1000 or sizes.max() > 1e8 or sizes.min() < 1e-4)
    integers = bool(np.all(nonzero == np.ceil(nonzero)))

    def write(number: float) -> str:
        if powers:
            return f"{number:.4e}"
        if integers:
            return f"{number:.0f}." if math.isfinite(number) else f"{number:.0f}"
        return f"{number:.4f}"

    width = max((len(write(number)) for number in nonzero.tolist()), default=1)
    fit = max(1, (WIDTH - indent - x.ndim + 1) // (width + 2))  # numbers in a line, without the brackets at its end
    text = np.array2string(
        x, separator=", ", threshold=0, edgeitems=EDGE, prefix=" " * indent,
        max_line_width=indent + 2 * x.ndim + fit * (width + 2),
        formatter={"float_kind": lambda number: write(float(number)).rjust(width)},
    )  # fmt: skip
    return text.replace(", ...", ",  ...")


def beginning(row: Array) -> str:
    """Write a row's first six numbers."""
    numbers = torch_text(row[: 2 * EDGE], indent=2)
    return f"{numbers[:-1]}, ...]" if len(row) > 2 * EDGE else numbers


def size(count: int) -> str:
    """Write a number of bytes in a readable unit.

    >>> size(0), size(999), size(46881792), size(9950000000)
    ('0 bytes', '999 bytes', '46.9 MB', '9.9 GB')
    """
    for unit, power in (("GB", 9), ("MB", 6), ("kB", 3)):
        if count >= 10**power:
            return f"{count / 10**power:.1f} {unit}"
    return f"{count} bytes"


def counted(number: int, noun: str) -> str:
    """Write a count with its noun, in the plural unless the count is 1.

    >>> counted(1, "row"), counted(2000, "row")
    ('1 row', '2,000 rows')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


# -- lines of a terminal ----------------------------------------------------------------------------------------


def styles(colour: bool) -> tuple[Style, Style]:
    """Return two functions that make a line bold and dim; without colour both leave it unchanged."""

    def style(code: str) -> Style:
        return lambda line: f"{code}{line}{PLAIN}" if colour else line

    return style(BOLD), style(DIM)


def wrap(text: str, indent: int) -> list[str]:
    """Break a sentence into indented lines of the page's width."""
    space = " " * indent
    return textwrap.wrap(
        text, WIDTH, initial_indent=space, subsequent_indent=space, break_long_words=False, break_on_hyphens=False
    )


def visible(text: str | None, kept: str = "") -> str:
    """Escape characters that a terminal or a browser would hide or interpret: control characters, direction marks."""
    if text is None:
        return "?"
    return "".join(letter if letter.isprintable() or letter in kept else repr(letter)[1:-1] for letter in text)


def fitting(token: str | None, width: int = WIDEST_TOKEN) -> str:
    """Shorten a token to at most `width` columns of a terminal."""
    token = visible(token)
    while columns_of(token) > width:
        token = token.removesuffix("…")[:-1] + "…"
    return token


def columns_of(text: str) -> int:
    """Count the columns of a terminal that a text takes: Chinese characters take two, combining marks none.

    >>> columns_of("vector"), columns_of("向量"), columns_of("e" + chr(0x301))
    (6, 4, 1)
    """
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def padded(text: str, width: int) -> str:
    """Pad a text with spaces to `width` columns of a terminal."""
    return text + " " * (width - columns_of(text))
