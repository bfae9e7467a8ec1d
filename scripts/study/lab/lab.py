"""The notebooks of the lab share `check`, which prints whether an answer is right, or names its mistake."""

from __future__ import annotations

import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a notebook has a link to this file beside it
sys.path.insert(0, str(Path(__file__).resolve().parent))

import study as study  # the lab's notebooks import it from here
from judge import NamedMistakeError, NotRightError, WrongNumbersError, judge
from stops import from_outside, line_of, why
from switched_off import OFF, switched_off
from trials import TRIALS, Trial

import minibert

LINES, WIDTH = 3, 112  # the most lines and columns of a message
SEEDS = (4, 23, 57)  # for the random inputs
SECONDS = 5  # to compute on the small random inputs; ten times as many on a model's own
ONLY_HERE = (
    "is right for this notebook's inputs and wrong in general: the random inputs here have other sizes. Is a number in "
    "it one of this model's sizes, such as 32 for head_dim? Read each size from the arguments, as in q.shape[-1]"
)
SHOWN = 1e-4  # tolerance for the model's own numbers, relative to max(1, the largest): six blocks of float32


def check(
    answer: Any, arguments: tuple[Any, ...] = (), wanted: Any = None, then: Callable[[], None] = lambda: None
) -> None:
    """Try a function on random inputs, then on a model's own; print whether it is right, or why not.

    arguments, wanted: the notebook's own inputs, and the model's value for them. `then` is called after a right answer.
    """
    name = getattr(answer, "__name__", "")
    try:
        if not isinstance(answer, FunctionType) or name not in TRIALS:
            raise NotRightError(
                f"check takes a function of this lab by its own name, as in check({sorted(TRIALS)[0]}); "
                f"found {name or type(answer).__name__}"
            )
        trials = [trial for seed in SEEDS for trial in TRIALS[name](seed)]
        own = trials[0]._replace(arguments=arguments, wanted=wanted, wrong=lambda: iter(()), close=SHOWN)
        for trial in trials:
            try:
                judge(name, run(answer, trial), trial)
            except WrongNumbersError as error:
                if outside := from_outside(answer):
                    raise NotRightError(f"{name} {outside}") from None
                if arguments and not isinstance(error, NamedMistakeError) and is_right(answer, own):
                    raise NotRightError(f"{name} {ONLY_HERE}") from None
                raise
        if arguments:
            judge(name, run(answer, own, 10 * SECONDS), own)
    except NotRightError as error:
        print("\n".join(textwrap.wrap(str(error), WIDTH, max_lines=LINES, placeholder=" ...")))
        return
    print(f"{name}: right")
    then()


def is_right(answer: FunctionType, own: Trial) -> bool:
    """Check whether an answer is right for the notebook's own inputs."""
    try:
        judge(answer.__name__, run(answer, own, 10 * SECONDS), own)
    except NotRightError:
        return False
    return True


class EndlessError(BaseException):
    """An answer computes too long; its `except Exception` does not catch this."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Stop code that computes longer, if the system can (Windows cannot). Time spent waiting does not count."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> None:
        raise EndlessError

    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def run(answer: FunctionType, trial: Trial, seconds: float | None = None) -> Any:
    """Call an answer with copies of its arguments, while the library's own formulas raise."""
    name = answer.__name__
    arguments = [x if isinstance(x, minibert.Encoder) else deepcopy(x) for x in trial.arguments]
    try:
        with np.errstate(all="ignore"), switched_off(trial.may), within(seconds or SECONDS):
            found = answer(*arguments)
    except EndlessError as error:
        said = f"{name} has not ended after {seconds or SECONDS} seconds: does its loop come to an end?"
        raise NotRightError(f"{said}{line_of(answer, error)}") from None
    except RecursionError:
        raise NotRightError(f"{name} calls itself without end: write the formula in place of the call") from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 any error of a student's line becomes one line
        if OFF in str(error):
            raise NotRightError(f"{name}: {error}") from None
        raise WrongNumbersError(f"{name} {why(answer, error, trial)}") from None
    after, before = list(_arrays(arguments)), list(_arrays(trial.arguments))
    kept = len(after) == len(before) and all(map(np.array_equal, after, before))
    if not (trial.writes or kept):
        raise NotRightError(f"{name} changes its arguments: write into a copy, such as x.copy(), or make a new array")
    return found


def _arrays(x: Any) -> Iterator[np.ndarray]:
    """List all arrays in nested arguments."""
    if isinstance(x, np.ndarray):
        yield x
    elif isinstance(x, tuple | list):
        for each in x:
            yield from _arrays(each)
    elif isinstance(x, dict):
        yield from _arrays(list(x.values()))
