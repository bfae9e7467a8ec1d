"""The progress of a long command on stderr."""

from __future__ import annotations

import time
from datetime import timedelta

from .common import tell

EVERY = 5.0  # seconds between two lines


class Progress:
    """Tells every few seconds how far a run is, at which rate, and how much time it needs still."""

    def __init__(self) -> None:
        self._began = self._told = 0.0
        self._before: int | None = None

    def __call__(self, done: int, expected: int | None) -> None:
        if self._before is None:
            self._before, self._began = done, time.monotonic()
            self._told = self._began
        elif (now := time.monotonic()) - self._told >= EVERY:
            self._told = now
            tell(_line(done, done - self._before, now - self._began, expected))


def _line(done: int, here: int, seconds: float, expected: int | None) -> str:
    """One line about the progress of a run.

    >>> _line(3000, 1000, 10.0, 9000)
    '3,000 of about 9,000 rows, 100 rows/s, 0:01:00 left'
    >>> _line(3000, 1000, 10.0, None)
    '3,000 rows, 100 rows/s'
    """
    rate = here / seconds
    if expected is None or not here:
        return f"{done:,} rows, {rate:,.0f} rows/s"
    left = timedelta(seconds=round(max(0, expected - done) / rate))
    return f"{done:,} of about {expected:,} rows, {rate:,.0f} rows/s, {left} left"
