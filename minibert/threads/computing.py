"""Computing on several threads: each tile on one of our threads, with BLAS held to one thread meanwhile.

BLAS's own threads help with matrix products only, and wait for each other by spinning: where others want the cores
too, a product waits for a thread that the system has put aside. Ours share tiles and never wait inside one.

A thread that computes has a slot, and there are no more slots than cores: with eight callers on two cores, two compute
at a time, and the others sleep until one is free.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, wraps
from queue import SimpleQueue
from threading import RLock, get_ident
from time import monotonic, perf_counter, thread_time
from typing import Any, ParamSpec, TypeVar

from .cores import affinity, blas_takes, cores, running
from .pool import MOST_THREADS, parallel_for

K = TypeVar("K")
T = TypeVar("T")
P = ParamSpec("P")

SPIN = 0.25  # seconds for which BLAS's threads look for the next product before they sleep, and some more
ENOUGH = 0.75  # of its time a thread has its core where no other wants it; measured 0.98, beside two others 0.5
SHORTEST, LONGEST = 1.0, 64.0  # seconds of one thread after BLAS's did not pay; each time twice as long


@cache
def libraries() -> tuple[Any, ...]:
    """NumPy's BLAS as threadpoolctl knows it, looked for once, when first needed. Empty: it cannot be held.

    That is so with Apple's, and with an OpenBLAS whose threads are OpenMP's: there each caller's thread has its own
    number, and sets it for itself alone.
    """
    from threadpoolctl import ThreadpoolController

    found = [each for each in ThreadpoolController().lib_controllers if each.user_api == "blas"]
    # NumPy's wheels bring their own; other libraries' are left alone
    own = [each for each in found if "numpy" in each.filepath] or found
    openmp = any(each.internal_api == "openblas" and each.threading_layer == "openmp" for each in own)
    return () if openmp else tuple(own)


class _Work:
    """All threads of this process that compute, and what they make of BLAS. A step may be done twice."""

    def __init__(self) -> None:
        # taken for a fork as well: threadpoolctl has a lock, which a child made meanwhile would find locked for ever
        self.lock = RLock()
        # by thread: whether it may leave BLAS its threads; None: it has no product that would take them
        self.taken: dict[int, bool | None] = {}
        self.waiting: list[SimpleQueue[None]] = []  # one for each thread that waits; no Condition: see pool.py
        self._before: list[int] | None = None  # on how many threads each BLAS was before it was held

    def enter(self, most: int, small: bool | None) -> None:
        """Take a slot for this thread, once fewer than `most` others compute.

        small: the only one at work may leave BLAS its threads; as soon as a second one comes, BLAS is held to one
        thread for both. None: BLAS is left alone.
        """
        while True:
            with self.lock:
                if len(self.taken) < most:
                    self.taken[get_ident()] = small
                    self._hold()
                    return
                turn: SimpleQueue[None] = SimpleQueue()
                self.waiting.append(turn)
            turn.get()

    def leave(self) -> None:
        """Give this thread's slot back, if it has one."""
        with self.lock:
            self.taken.pop(get_ident(), None)
            for turn in self.waiting:
                turn.put(None)
            self.waiting.clear()
            self._hold()

    def restore(self) -> None:
        """Restore BLAS's thread count, even while others compute."""
        if self._before is not None:
            _set(self._before)
            self._before = None

    def _hold(self) -> None:
        small = [each for each in self.taken.values() if each is not None]
        if not small:
            self.restore()
        elif self._before is None and (len(small) > 1 or not all(small)):
            self._before = [each.num_threads for each in libraries()]
            _set([1] * len(self._before))


_work = _Work()


def _set(numbers: list[int]) -> None:
    for each, number in zip(libraries(), numbers, strict=True):
        # threadpoolctl lets one thread set them: the first, while it lives. But the last of ours to end may be another,
        # and our caller may want to set them afterwards
        clear = getattr(each, "clear_controlling_thread", lambda force: None)
        clear(force=True)
        each.set_num_threads(number)
        clear(force=True)


class Alone:
    """Whether one small text may leave BLAS its threads: only while no other thread wants the cores.

    With BLAS's two threads one text of 5 to 32 tokens is 1.4 times as fast on two idle cores. Beside two busy processes
    it would take twice the time, and now and then twenty times. So before each text we look how many threads want a
    core, and after it whether this one had its core all the time. If not, we use one thread for a while: that leaves
    0.98 to 1.01 of the speed of one thread there, and 1.04 with eight callers (`python scripts/bench bits`).
    """

    def __init__(self) -> None:
        self._last = float("-inf")  # when BLAS's threads last worked: they spin for a moment afterwards
        self._not_before, self._pause = float("-inf"), SHORTEST

    def pays(self) -> bool:
        """Whether there is a core for each of BLAS's threads."""
        others = blas_takes() - 1
        if not others:
            return True
        wanting = running()
        spinning = monotonic() - self._last < SPIN  # then they are among those that want a core
        room = wanting + others * (not spinning) <= affinity()
        return bool(wanting) and room and monotonic() >= self._not_before

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look whether this thread has its core all the time."""
        began, own = perf_counter(), thread_time()
        yield
        took, own = perf_counter() - began, thread_time() - own
        self._last = monotonic()
        if own >= ENOUGH * took:
            self._pause = SHORTEST
        else:
            self._not_before, self._pause = self._last + self._pause, min(2 * self._pause, LONGEST)


_alone = Alone()


def _in_child() -> None:
    """A forked child has none of the other threads: neither their slots, nor what they would have set back."""
    global _work
    left, _work = _work, _Work()
    left.restore()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _work.lock.acquire(),
        after_in_parent=lambda: _work.lock.release(),
        after_in_child=_in_child,
    )


def spreads(threads: int | None) -> bool:
    """Whether a single tile leaves BLAS its own threads: see `Alone`."""
    count = cores() if threads is None else threads
    return threads != 1 and blas_takes() <= count and not _work.taken and _alone.pays()


def compute(
    work: Callable[[K], object], tiles: Iterable[K], threads: int | None = None, held: bool | None = False
) -> None:
    """Do `work`, matrix products in it, for every tile: on `threads` threads, or on as many as there are cores.

    A single tile may leave BLAS its own threads, which then take part in its products: see `Alone`.
    `held`: never, where a product's bits depend on BLAS's threads; None: no product is large enough for them.
    Where BLAS cannot be held (Apple's; one on OpenMP)
    several tiles too are computed on one thread of ours and as many as BLAS takes.

    Called inside a tile, it does all on the thread of that tile, which has its slot: waiting for another one, while
    every tile does, would never end.

    Raises what `work` raises, and as `cores`.
    """
    waiting = list(tiles)
    count = cores() if threads is None else threads
    if get_ident() in _work.taken:
        for tile in waiting:
            work(tile)
        return
    small = None if held is None else len(waiting) == 1 and not held and spreads(threads)
    most = max(count, cores()) if _work.taken else count  # alone, there is no need to look at the cores

    def one(tile: K) -> None:
        try:
            try:
                _work.enter(most, small)
                with _alone.watched() if small else nullcontext():
                    work(tile)
            finally:
                _work.leave()
        finally:
            _work.leave()  # Ctrl-C may have ended the first

    # many callers at once start no more threads when enough of them wait
    helpers = min(count, len(waiting), MOST_THREADS - len(_work.waiting))
    if helpers > 1 and libraries():
        parallel_for(one, waiting, helpers)
        return
    for tile in waiting:
        one(tile)


def on_one_thread(work: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function: it computes on its caller's thread alone, with BLAS held to one thread."""

    @wraps(work)
    def held(*given: P.args, **options: P.kwargs) -> T:
        found: list[T] = []
        compute(lambda _: found.append(work(*given, **options)), [None], 1, held=True)
        return found[0]

    return held
