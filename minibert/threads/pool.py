"""The threads that help: made once, kept, and never waited for when the process ends.

concurrent.futures would do, but for four things: after Ctrl-C while it starts a thread the process hangs; a thread that
is blocked, as in reading a pipe, keeps the process alive; it takes no more jobs once the main thread has ended, though
other threads still work; and a thread that cannot be started is an error. Here a caller that waits for a job without a
thread does it itself.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import islice
from threading import Lock, Semaphore, Thread
from typing import Any, Generic, TypeVar

import numpy as np

from .cores import cores

K = TypeVar("K")
T = TypeVar("T")

NUMBERS_A_THREAD = 512 * 768  # numbers; waking a thread for less costs more than it saves
MOST_THREADS = 64


class Job(Generic[T]):
    """Work that is done once, by a thread of the pool or by a caller that waits for it, or not at all."""

    alone = True  # until the pool has a thread for it

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._turn, self._ended = Lock(), Lock()  # the first is taken by the thread that does the work or cancels it
        self._ended.acquire()
        self._found: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do the work, unless it has begun."""
        if not self.cancel():
            return
        try:
            self._found.append(self._work())
        except BaseException as error:  # noqa: BLE001 - not swallowed: the caller that waits gets it
            self._error = error
        finally:
            del self._work  # and what it holds
            self._ended.release()

    def cancel(self) -> bool:
        """Cancel the work; False if it has begun."""
        return self._turn.acquire(blocking=False)

    def wait(self) -> None:
        """Wait until the work, which has begun, has ended."""
        with self._ended:
            pass

    def result(self) -> T:
        """Give what the work gives, or raise what it raises; do it here if there is no thread for it."""
        if self.alone:
            self.run()
        self.wait()
        if self._error is not None:
            raise self._error
        return self._found[0]


class _Pool:
    """Threads that take jobs: as many as there were jobs at once, at most MOST_THREADS."""

    def __init__(self) -> None:
        self._jobs: deque[Job[Any]] = deque()
        self._waiting, self._idle = Semaphore(0), Semaphore(0)  # jobs without a thread; threads without a job
        self._count = 0

    def start(self, job: Job[Any]) -> None:
        self._jobs.append(job)
        self._waiting.release()
        if self._idle.acquire(blocking=False):
            job.alone = False
            return
        if self._count == MOST_THREADS:
            return
        self._count += 1
        try:
            # a daemon: the process ends without it, whatever it waits for
            Thread(target=self._work, daemon=True, name=f"minibert_{self._count}").start()
        except RuntimeError:  # the system has no more
            self._count -= 1
        else:
            job.alone = False

    def _work(self) -> None:
        while True:
            self._waiting.acquire()
            self._jobs.popleft().run()
            self._idle.release()


@cache
def _pool() -> _Pool:
    """Make it once and keep it: starting a new thread takes longer than a tile."""
    return _Pool()


def _new_pool() -> None:
    """Make one before it is needed: two threads that come first would each make their own."""
    _pool.cache_clear()
    _pool()


_new_pool()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_pool)  # a forked child inherits no threads


def _started(work: Callable[[], T]) -> Job[T]:
    job = Job(work)
    _pool().start(job)
    return job


def checked_threads(threads: Any) -> int | None:
    """Give a caller's `threads`, None for all cores. Raises ValueError for anything but an integer from 1 on."""
    integer = isinstance(threads, int | np.integer) and not isinstance(threads, bool)
    if threads is not None and not (integer and threads >= 1):
        raise ValueError(f"threads must be an integer >= 1, found {threads!r}; 1 means no other thread")
    return threads if threads is None else int(threads)


def usable_threads(numbers: int, threads: int | None) -> int:
    """How many threads to use: at most what the caller says or the cores, and each with enough work to be worth it."""
    given = checked_threads(threads)
    worth = numbers // NUMBERS_A_THREAD
    return 1 if worth <= 1 else min(cores() if given is None else given, worth, MOST_THREADS)


def parallel_for(work: Callable[[K], object], blocks: Iterable[K], threads: int) -> None:
    """Do `work` for every block; the calling thread takes part, so 1 means no other thread at all.

    The caller works from the front, helpers from the back: threads that meet in one page of fresh memory would each
    fill it with zeros. After an error no further block is begun, and the error reaches the caller.
    """
    if threads == 1:
        for block in blocks:
            work(block)
        return
    waiting = deque(blocks)
    failed = False

    def take(next_block: Callable[[], K]) -> None:
        nonlocal failed
        while waiting and not failed:
            try:
                block = next_block()
            except IndexError:  # another thread was faster
                return
            try:
                work(block)
            except BaseException:
                failed = True
                raise

    helpers: list[Job[None]] = []
    patient = True
    try:
        helpers.extend(_started(partial(take, waiting.pop)) for _ in range(min(threads, len(waiting)) - 1))
        take(waiting.popleft)
    except BaseException as error:
        failed = True
        patient = not isinstance(error, KeyboardInterrupt)  # after Ctrl-C nothing is waited for
        raise
    finally:
        # a helper that has not begun is cancelled: the others have done its work
        begun = [helper for helper in helpers if not helper.cancel()]
        for helper in begun if patient else ():
            helper.wait()
    for helper in begun:
        helper.result()


def prefetch(make: Callable[[K], T], keys: Iterable[K], at_once: bool) -> Iterator[T]:
    """Give make(key) for each key in turn; `at_once`, the next key is read and made into something on another thread
    while this one is in use. An error comes after all that was made before it.

    A caller that stops early waits for what is being made, but not for a key that is being read: it may come from a
    silent pipe.
    """
    if not at_once:
        yield from map(make, keys)
        return
    keys, making, left = iter(keys), Lock(), False

    def one() -> list[T]:
        read = list(islice(keys, 1))
        with making:
            return [make(key) for key in read if not left]

    try:
        coming = _started(one)
        while found := coming.result():
            coming = _started(one)
            yield from found
    finally:
        left = True
        with making:
            pass


@contextmanager
def behind(work: Callable[[K], object]) -> Iterator[Callable[[K], None]]:
    """Give a function that runs `work` with its argument on another thread, one job after another.

    One job at a time, no queue. At the end of the context all are done, whatever else went wrong. An error
    of `work` is raised by the next call, or at the end.
    """
    under_way: list[Job[Any]] = []

    def submit(key: K) -> None:
        if under_way:
            under_way[0].result()  # and if Ctrl-C ends this waiting, the one below still waits
            under_way.clear()
        under_way.append(Job(partial(work, key)))  # before it starts: Ctrl-C may come while it begins
        _pool().start(under_way[0])

    try:
        yield submit
    finally:
        if under_way:
            under_way[0].result()
