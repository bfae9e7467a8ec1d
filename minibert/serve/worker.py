"""One thread that computes for all requests: what waits together is computed together.

A request's texts are a `Job`. The worker takes the texts of one step from the waiting jobs, computes them in one call,
and gives each job its results. A job with texts left goes to the end of the queue, so others wait for one step of it,
however large it is. A job whose client has left is dropped at its next step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition, Thread
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array

STEP = 16_384  # characters of a step, of English about 4,096 tokens: a third of a second for MiniLM on two cores
EACH = 8  # characters that a text costs in addition, for its special tokens


class Prepared(NamedTuple):
    """Items ready to be computed; how many tokens they have, and the numbers of those that were truncated."""

    items: Sequence[Any]
    tokens: int = 0
    truncated: Sequence[int] = ()


class Kind(NamedTuple):
    """Work that can be done together. Two are the same kind if they are the same object.

    prepare  some items of one job, and the number of the first for messages
    compute  prepared items, of several jobs -> an array, a row or a number for each
    size     characters of an item
    """

    prepare: Callable[[list[Any], int], Prepared]
    compute: Callable[[list[Any]], Array]
    size: Callable[[Any], int]


class Job:
    """The items of one request, at least one. `ended` is called once, on the worker's thread."""

    def __init__(self, kind: Kind, items: Sequence[Any], ended: Callable[[Job], object]) -> None:
        self.kind, self.items, self._ended = kind, items, ended
        self.left = False  # set when the client has left
        self.error: BaseException | None = None
        self.tokens, self.truncated = 0, list[int]()
        self.taken = 0
        self._parts: list[Array] = []

    @property
    def results(self) -> Array:
        """What was computed, in the order of the items."""
        return self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)

    def take(self, room: int) -> list[Any]:
        """Take the next items, at least one, up to `room` characters."""
        start = self.taken
        while self.taken < len(self.items) and (room > 0 or self.taken == start):
            room -= EACH + self.kind.size(self.items[self.taken])
            self.taken += 1
        return list(self.items[start : self.taken])

    def note(self, prepared: Prepared) -> None:
        self.tokens += prepared.tokens
        self.truncated.extend(prepared.truncated)

    def give(self, part: Array) -> None:
        """Take the results of some items, the next ones."""
        self._parts.append(part)
        if sum(map(len, self._parts)) == len(self.items):
            self._ended(self)

    def fail(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
            self._ended(self)


class Share(NamedTuple):
    """What a step takes of one job."""

    job: Job
    start: int
    items: list[Any]


class Worker:
    """The thread, and the jobs that wait for it."""

    def __init__(self) -> None:
        self._waiting: deque[Job] = deque()
        self._changed = Condition()
        self._closed = False
        self._thread = Thread(target=self._work, daemon=True, name="minibert_serve")
        self._thread.start()

    def take(self, job: Job) -> None:
        """Put a job at the end of the queue."""
        with self._changed:
            self._waiting.append(job)
            self._changed.notify()

    def close(self) -> None:
        """Do all that waits, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while shares := self._next():
            compute_shares(shares)

    def _next(self) -> list[Share]:
        """Wait for jobs and take a step's items of one kind; nothing at the end."""
        with self._changed:
            while True:
                self._waiting = deque(job for job in self._waiting if not job.left and job.error is None)
                if self._waiting or self._closed:
                    break
                self._changed.wait()
            shares: list[Share] = []
            room = STEP
            for job in list(self._waiting):
                if room > 0 and job.kind is self._waiting[0].kind:
                    start = job.taken
                    items = job.take(room)
                    room -= sum(EACH + job.kind.size(item) for item in items)
                    shares.append(Share(job, start, items))
            for job in [share.job for share in shares]:
                self._waiting.remove(job)
                if job.taken < len(job.items):
                    self._waiting.append(job)
            return shares


def compute_shares(shares: Sequence[Share]) -> None:
    """Compute shares of one kind together; one that cannot be computed fails alone."""
    ready: list[tuple[Share, Prepared]] = []
    for share in shares:
        try:
            prepared = share.job.kind.prepare(share.items, share.start)
            share.job.note(prepared)
        except Exception as error:  # noqa: BLE001  the client is told
            share.job.fail(error)
        else:
            ready.append((share, prepared))
    if ready:
        _compute(ready)


def _compute(ready: Sequence[tuple[Share, Prepared]]) -> None:
    try:
        results = ready[0][0].job.kind.compute([item for _, prepared in ready for item in prepared.items])
        start = 0
        for share, prepared in ready:
            stop = start + len(prepared.items)
            share.job.give(results[start:stop].copy())  # a view would keep the whole step alive
            start = stop
    except Exception as error:  # noqa: BLE001
        if len(ready) == 1:
            ready[0][0].job.fail(error)
            return
        for one in ready:
            _compute([one])
