"""The threads that help: each call starts its own, and nothing depends on when they come, or whether.

A helper and its caller take work from the same place. The caller does what no helper has begun, and waits only for what
one has begun, so a helper that comes late finds nothing to do and ends. The process ends without waiting for helpers.

Not `Thread.start`: it waits in Python code until the thread runs, and a Ctrl-C meanwhile leaves a lock closed for ever.
For the same reason no Event, Semaphore or Condition stands here: a Lock opens and closes in one step.
"""

from __future__ import annotations

from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from itertools import islice
from queue import SimpleQueue
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from .cores import cores

K = TypeVar("K")
T = TypeVar("T")

NUMBERS_A_THREAD = 512 * 768  # numbers; starting a thread for less costs more than it saves
MOST_THREADS = 64


def _help(work: Callable[[], object]) -> bool:
    """Start `work` on another thread, with the caller's `np.errstate`; False if the system has no more threads."""
    try:
        start_new_thread(copy_context().run, (work,))
    except RuntimeError:
        return False
    return True


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
    return 1 if worth <= 1 else min(cores() if given is None else given, worth)


def parallel_for(work: Callable[[K], object], blocks: Iterable[K], threads: int) -> None:
    """Do `work` for every block; the calling thread takes part, so 1 means no other thread at all.

    The caller works from the front, helpers from the back: threads that meet in one page of fresh memory would each
    fill it with zeros. After an error no further block is begun, and the error reaches the caller.
    """
    waiting = deque(blocks)
    failed: list[BaseException] = []

    def take(next_block: Callable[[], K]) -> None:
        while waiting:
            try:
                block = next_block()
            except IndexError:  # another thread was faster
                return
            work(block)

    def helper(busy: Lock) -> None:
        with busy:
            try:
                take(waiting.pop)
            except BaseException as error:  # noqa: BLE001 - not swallowed: the caller raises it
                failed.append(error)
                waiting.clear()

    # a lock for each helper, closed while it works
    helpers = [Lock() for _ in range(min(threads, len(waiting), MOST_THREADS) - 1)]
    try:
        for busy in helpers:
            _help(partial(helper, busy))
        take(waiting.popleft)
    except KeyboardInterrupt:  # after Ctrl-C nothing is waited for
        helpers.clear()
        raise
    finally:
        waiting.clear()
        for busy in helpers:
            with busy:
                pass
    if failed:
        raise failed.pop(0)


def prefetch(make: Callable[[K], T], keys: Iterable[K], at_once: bool) -> Iterator[T]:
    """Give make(key) for each key in turn; `at_once`, the next key is read and made into something on another thread
    while this one is in use. An error comes after all that was made before it.

    A caller that stops early waits for nothing: a key that is being read may come from a silent pipe.
    """
    made = map(make, keys)
    if not at_once:
        yield from made
        return
    turn, ready, failed = Lock(), deque[list[T]](), list[BaseException]()

    def make_next() -> None:
        with turn:
            if not ready and not failed:
                try:
                    ready.append([*islice(made, 1)])
                except BaseException as error:  # noqa: BLE001 - not swallowed: the caller raises it
                    failed.append(error)

    while True:
        make_next()  # unless a helper has, or does it now
        if failed:
            raise failed.pop()
        if not (found := ready.pop()):
            return
        _help(make_next)
        yield from found


@contextmanager
def behind(work: Callable[[K], object]) -> Iterator[Callable[[K], None]]:
    """Give a function that runs `work` with its argument on another thread, one job after another.

    One job at a time, no queue, and no job is done by the thread that hears Ctrl-C, unless it comes while one begins.
    At the end of the context all are done, whatever else went wrong: only a second Ctrl-C leaves one that has begun.
    An error of `work` is raised by the next call, or at the end.
    """
    busy, waiting, failed = Lock(), deque[K](), list[BaseException]()
    begun: SimpleQueue[None] = SimpleQueue()

    def take() -> None:
        with busy:
            while waiting:
                key = waiting.popleft()
                begun.put(None)
                try:
                    work(key)
                except BaseException as error:  # noqa: BLE001 - not swallowed: the caller raises it
                    failed.append(error)

    def finish() -> None:
        take()  # unless a helper has, or does it now
        if failed:
            raise failed.pop()

    def submit(key: K) -> None:
        finish()
        waiting.append(key)
        if _help(take):
            begun.get()

    try:
        yield submit
    finally:
        try:
            take()
        finally:
            finish()  # all is done, unless Ctrl-C has ended the first
