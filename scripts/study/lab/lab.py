"""What the notebooks of the lab share: `check` says of an answer whether it is right, and if not, why."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a notebook has a link to this file beside it

import study as study  # the lab's notebooks take it from here

CLOSE = 1e-4  # relative to max(1, the largest number); two right answers differ by 1e-5 at most


class NotRightError(Exception):
    """An answer that is not right yet; the message says what to look at."""


def check(name: str, found: Any, wanted: Any, used: Callable[[Any], Any] = lambda answer: answer) -> None:
    """Compare an answer, or what `used` makes of it, with what it has to be. Raises NotRightError, with words."""
    if found is ...:
        raise NotRightError(
            f"{name} is still open: write your answer in the place of `...`; the comment there is a hint"
        )
    try:
        found = used(found)
    except (TypeError, ValueError) as error:
        raise NotRightError(f"{name} cannot be used: {error}") from None
    if isinstance(wanted, str | list | tuple):
        if type(found) is not type(wanted) or found != wanted:
            raise NotRightError(f"{name} is {found!r:.80}, which is not the answer; read the hint once more")
    else:
        _check_numbers(name, found, np.asarray(wanted))
    print(f"{name}: right")


def _check_numbers(name: str, found: Any, wanted: np.ndarray[Any, Any]) -> None:
    try:
        numbers = np.asarray(found, np.float64)
    except (TypeError, ValueError):
        raise NotRightError(f"{name} must be numbers of shape {wanted.shape}, found {type(found).__name__}") from None
    if numbers.shape != wanted.shape:
        raise NotRightError(
            f"{name} must have shape {wanted.shape}, found {numbers.shape}: which axis is too many, or missing?"
        )
    off = np.abs(numbers - wanted).max(initial=0)
    if not off <= CLOSE * max(1, np.abs(wanted).max(initial=0)):
        raise NotRightError(
            f"{name} has the right shape, but its numbers are up to {off:.2g} off; read the formula once more"
        )
