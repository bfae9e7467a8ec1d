"""The threads that help: made once, kept, and never waited for when the process ends.

Not concurrent.futures: its threads keep the process alive while one of them reads a silent pipe, it takes no job once
the main thread has ended, and a command that starts in a tenth of a second would import its logging.

No Event, Semaphore or `with` of a Condition: their code is Python's own, and a Ctrl-C between two of its steps leaves
their lock closed for ever. A Lock opens and closes in one step.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from itertools import islice
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

import numpy as np

from .cores import cores

K = TypeVar("K")
T = TypeVar("T")

NUMBERS_A_THREAD = 512 * 768  # numbers; waking a thread for less costs more than it saves
MOST_THREADS = 64


class Job(Generic[T]):
    """Work that is done once: by a thread of the pool, or by a caller that wants the result before one has begun."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work, self._turn, self._running = work, Lock(), Lock()
        self._running.acquire()  # until it has ended
        self._found: list[T] = []
        self._error: BaseException | None = None

    def begins(self) -> bool:
        """Whether the work is this caller's to do, or to leave undone; False if it has begun."""
        return self._turn.acquire(blocking=False)

    def run(self) -> None:
        """Do the work, unless it has begun."""
        if self.begins():
            try:
                self._found.append(self._work())
            except BaseException as error:  # noqa: BLE001 - not swallowed: the caller that waits gets it
                self._error = error
            finally:
                del self._work  # and what it holds
                self._running.release()

    def finish(self) -> T:
        """Do the work unless it has begun; give what it gives, or raise what it raises."""
        self.run()
        return self.wait()

    def wait(self) -> T:
        """Give what the work gives, or raise what it raises, once another thread has done it."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._found[0]

    def join(self) -> None:
        """Wait until the work has ended."""
        with self._running:
            pass


class _Pool:
    """Threads that take jobs: as many as there were jobs at once, at most MOST_THREADS."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job[Any]] = SimpleQueue()
        self._idle, self._count = deque[None](), 0  # one for each thread without a job; how many threads there are

    def start(self, job: Job[Any]) -> bool:
        """Whether a thread takes the job; else it is done by the caller that finishes it."""
        self._jobs.put(job)
        with suppress(IndexError):
            self._idle.pop()
            return True
        if self._count == MOST_THREADS:
            return False
        self._count += 1
        try:
            # a daemon: the process ends without it, whatever it waits for
            Thread(target=self._work, daemon=True, name=f"minibert_{self._count}").start()
        except RuntimeError:  # the system has no more: a caller that waits does the job
            self._count -= 1
            return False
        return True

    def _work(self) -> None:
        while True:
            self._jobs.get().run()
            self._idle.append(None)


_pool = _Pool()


def _in_child() -> None:
    """A forked child has none of its parent's threads."""
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _started(work: Callable[[], T]) -> Job[T]:
    job = Job(partial(copy_context().run, work))  # with the caller's `np.errstate`
    _pool.start(job)
    return job


def checked_threads(threads: Any) -> int | None:
    """Give a caller's `threads`, None for all cores. Raises ValueError for anything but an integer from 1 on."""
    integer = isinstance(threads, int | np.integer) and not isinstance(threads, bool)
    if threads is not None and not (integer and threads >= 1):
        raise ValueError(f"threads must be an integer >= 1, found {threads!r}; 1 means no other thread")
    return threads if threads is None else int(threads)


def usable_threads(numbers: int, threads: int | None) -> int:
    """Count the threads to use: at most what the caller says or the cores, and each with enough work to be worth it."""
    given = checked_threads(threads)
    worth = numbers // NUMBERS_A_THREAD
    return 1 if worth <= 1 else min(cores() if given is None else given, worth, MOST_THREADS)


def parallel_for(work: Callable[[K], object], blocks: Iterable[K], threads: int) -> None:
    """Do `work` for every block; the calling thread takes part, so 1 means no other thread at all.

    The caller works from the front, helpers from the back: threads that meet in one page of fresh memory would each
    fill it with zeros. After an error no further block is begun, and the error reaches the caller.
    """
    waiting = deque(blocks)
    failed: list[BaseException] = []

    def take(next_block: Callable[[], K]) -> None:
        while waiting and not failed:
            try:
                block = next_block()
            except IndexError:  # another thread was faster
                return
            try:
                work(block)
            except BaseException as error:
                failed.append(error)
                raise

    helpers: list[Job[None]] = []
    try:
        helpers.extend(_started(partial(take, waiting.pop)) for _ in range(min(threads, len(waiting)) - 1))
        take(waiting.popleft)
    except BaseException as error:
        failed.append(error)
        raise
    finally:
        # the work of a helper that has not begun is done
        begun = [helper for helper in helpers if not helper.begins()]
        if not any(isinstance(error, KeyboardInterrupt) for error in failed):  # after Ctrl-C nothing is waited for
            for helper in begun:
                helper.join()
    for helper in begun:
        helper.finish()


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
        while found := coming.finish():
            coming = _started(one)
            yield from found
    finally:
        left = True
        with making:
            pass


@contextmanager
def behind(work: Callable[[K], object]) -> Iterator[Callable[[K], None]]:
    """Give a function that runs `work` with its argument on another thread, one job after another.

    One job at a time, no queue. At the end of the context all are done, whatever else went wrong: only a second Ctrl-C
    leaves one that has begun. An error of `work` is raised by the next call, or at the end.
    """
    under_way: list[Job[Any]] = []

    def submit(key: K) -> None:
        if under_way:
            under_way[0].wait()  # and if Ctrl-C ends this waiting, the one below still waits
            under_way.clear()
        under_way.append(Job(partial(work, key)))  # before it starts: Ctrl-C may come while it begins
        if not _pool.start(under_way[0]):
            under_way[0].run()

    try:
        yield submit
    finally:
        for job in under_way:
            try:
                job.finish()
            except KeyboardInterrupt:
                job.join()
                raise
