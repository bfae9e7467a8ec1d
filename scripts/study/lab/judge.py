"""Judge an answer's value: is it right, and if not, which mistake leads to it?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

CLOSE = 3e-5  # relative to max(1, the largest number); on drawn inputs two right answers differ by 3e-6 at most
Wrong = Iterator[tuple[str, str, Any]]


class NotRightError(Exception):
    """An answer that is not right yet; the message says what to look at."""


class WrongNumbersError(NotRightError):
    """An answer has wrong numbers, a wrong shape, or raises an error: a name from outside may be the reason."""


class NamedMistakeError(WrongNumbersError):
    """An answer makes a known mistake."""


class Trial(NamedTuple):
    """One input of an exercise, its right value, and the values of known mistakes.

    wrong   each mistake's name, the reason, and its value
    may     formulas of the library that an answer may call
    used    turns an answer of the right shape into the numbers that are compared
    writes  whether an answer may write into its arguments
    """

    arguments: tuple[Any, ...]
    wanted: Any
    wrong: Callable[[], Wrong] = lambda: iter(())
    may: tuple[Any, ...] = ()
    used: Callable[[np.ndarray], np.ndarray] = lambda x: x
    writes: bool = False
    close: float = CLOSE


def judge(name: str, found: Any, trial: Trial) -> None:
    """Raise NotRightError with the mistake's name if an answer differs from the trial's value."""
    if found is ...:
        raise NotRightError(f"{name} is still open: write your answer in place of `...`; the comment is a hint")
    if found is None:
        raise NotRightError(f"{name} returns None: is there a `return` before the result?")
    if isinstance(found, Iterator):
        raise NotRightError(f"{name} returns a {type(found).__name__}, which can be read only once: make a list of it")
    if callable(found):
        raise NotRightError(f"{name} returns a function: call it, and return its result")
    wanted = np.asarray(trial.wanted)
    numbers = _numbers(name, found, wanted)
    if _same(numbers, wanted, trial):
        return
    with np.errstate(all="ignore"):
        for mistake, why, value in trial.wrong():
            if not _same(value, wanted, trial) and _same(numbers, value, trial):
                raise NamedMistakeError(f"{name}: {mistake}. {why}")
    if numbers.shape != wanted.shape:
        raise WrongNumbersError(f"{name}: {_of_shape(numbers, wanted)}")
    if wanted.dtype.kind != "U":
        numbers, wanted = trial.used(numbers), trial.used(wanted)
    raise WrongNumbersError(f"{name}: {_of_numbers(numbers, wanted, trial.close)}")


def _same(a: Any, b: Any, trial: Trial) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        return False
    if b.dtype.kind in "Uiu":
        return np.array_equal(a, b)
    with np.errstate(all="ignore"):
        a, b = (np.asarray(trial.used(x.astype(np.float64))) for x in (a, b))
        return bool(np.abs(a - b).max(initial=0) <= trial.close * max(1, np.abs(b).max(initial=0)))


def _numbers(name: str, found: Any, wanted: np.ndarray) -> np.ndarray:
    """Convert an answer to an array of numbers, or of words if words are wanted."""
    try:
        numbers = np.asarray(found)
    except Exception as error:  # noqa: BLE001  a tensor of another library may raise whatever it likes
        if isinstance(found, list | tuple):
            raise NotRightError(f"{name} returns rows of different lengths; {_shape(wanted)} is wanted") from None
        said = f"{name} returns a {type(found).__name__}, which NumPy cannot read: {error}"
        raise NotRightError(said) from None
    kind = {"U": "words", "i": "whole numbers", "u": "whole numbers"}.get(wanted.dtype.kind, "numbers")
    if not numbers.size and wanted.size and kind != "words":
        raise NotRightError(f"{name} returns nothing: {_shape(wanted)} of {kind} is wanted")
    fits = {"words": "U", "whole numbers": "iu", "numbers": "iuf"}[kind]
    if numbers.dtype.kind not in fits and numbers.size:
        found_kind = {"f": "numbers with decimals", "b": "True and False", "U": "words"}
        one = found_kind.get(numbers.dtype.kind, type(found).__name__ if numbers.ndim == 0 else numbers.dtype.name)
        raise NotRightError(f"{name} has to return {kind}, found {one}")
    return numbers


def _shape(x: np.ndarray) -> str:
    return f"shape {x.shape}" if x.ndim else "one value"


def _of_shape(found: np.ndarray, wanted: np.ndarray) -> str:
    """Describe the likely error if the shape differs."""
    said = f"{_shape(wanted)} is wanted here, found {_shape(found)}"
    if wanted.dtype.kind == "U":
        return f"{wanted.tolist()} is wanted here, found {found.tolist()}"
    for what, changed in (("exchange the axes", found.T), ("one axis too many", found.squeeze())):
        if changed.shape == wanted.shape:
            return f"{said}: {what}"
    if wanted.ndim and found.ndim == wanted.ndim and found.shape[1:] == wanted.shape[1:]:
        less = len(wanted) - len(found)
        for row, where in (("last", slice(None, -1)), ("first", slice(1, None))):
            if less == 1 and np.allclose(found, wanted[where], atol=CLOSE):
                return f"a forgotten row: the {row} one. {said}"
        return f"{abs(less)} row{'s' * (abs(less) > 1)} too {'few' if less > 0 else 'many'}: {said}"
    return f"{said}: which axis is superfluous, or missing?"


def _of_numbers(found: np.ndarray, wanted: np.ndarray, close: float) -> str:
    """Describe the difference if no known mistake leads to these numbers."""
    if wanted.dtype.kind == "U":
        return f"{wanted.tolist()} is wanted here, found {found.tolist()}"
    if not np.isfinite(found).all():
        return "some numbers are nan or infinite: is there a division by 0, or an exp or a log out of range?"
    if found.dtype.kind in "iu" and wanted.dtype.kind == "f" and np.abs(found - wanted).max() <= 1:
        return "these are whole numbers, the decimals are cut off: do you write into an array of ints?"
    if found.dtype == np.float16:
        return "float16 is too coarse: use float32, or float64"
    wrong = np.abs(found - wanted) > close * max(1, np.abs(wanted).max())
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    if not place:
        return f"it is {found:.6g}, it has to be {wanted:.6g}. Read the formula again"
    at = f"The first wrong number, at {place}, is {found[place]:.6g}; it has to be {wanted[place]:.6g}."
    share = "all" if wrong.all() else f"{wrong.sum()} of {wrong.size}"
    return f"the shape is right, but {share} numbers are wrong. {at} {_factor(found, wanted)}Read the formula again"


def _factor(found: np.ndarray, wanted: np.ndarray) -> str:
    some = np.abs(wanted) > 1e-3
    ratio = found[some] / wanted[some]
    if ratio.size > 1 and np.ptp(ratio) < 1e-3 * np.abs(ratio).max() and abs(ratio[0] - 1) > 1e-3:
        return f"All are {ratio.mean():.4g} times the right number. "
    off = found - wanted
    if off.size > 1 and np.ptp(off) < 1e-4 * np.abs(off).max():
        return f"All are off by {off.mean():+.4g}. "
    return ""
