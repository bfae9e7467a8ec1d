"""Helper threads: each call starts its own helpers, and works even if they start late or not at all.

A helper and its caller take blocks from the same queue. The caller computes all blocks that no helper has begun, and
waits only for blocks that a helper has begun: a late helper finds an empty queue and ends. The process ends without
waiting for helpers.

`Thread.start` is not used: it waits in Python code until the thread runs, and Ctrl-C at that moment leaves a lock
closed for ever. For the same reason there is no Event, Semaphore or Condition. Since Python 3.14 Ctrl-C may even come
between a lock's closing and its `with` block. So whoever may be interrupted there has an RLock, and opens it once more.
"""

from __future__ import annotations

from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import copy_context
from itertools import islice
from queue import SimpleQueue
from threading import RLock
from typing import TypeVar

K = TypeVar("K")
T = TypeVar("T")

MOST_THREADS = 64


def _help(work: Callable[[], object]) -> bool:
    """Start `work` on another thread, with the caller's `np.errstate`; False if the system has no more threads."""
    try:
        start_new_thread(copy_context().run, (work,))
    except RuntimeError:
        return False
    return True


def parallel_for(work: Callable[[K], object], blocks: Iterable[K], threads: int) -> None:
    """Call `work` for every block. The calling thread takes part, so 1 means no other thread at all.

    The caller takes blocks from the front, helpers from the back: two threads in one page of new memory would both
    fill it with zeros. After an error no further block is begun, and the caller raises the error.
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

    def helper() -> None:
        ended = SimpleQueue[None]()
        begun.append(ended)
        try:
            take(waiting.pop)
        except BaseException as error:  # noqa: BLE001 - not swallowed: the caller raises it
            failed.append(error)
            waiting.clear()
        finally:
            ended.put(None)

    begun = list[SimpleQueue[None]]()  # one for each helper, which puts None at its end
    try:
        for _ in range(min(threads, len(waiting), MOST_THREADS) - 1):
            _help(helper)
        take(waiting.popleft)
    except KeyboardInterrupt:  # after Ctrl-C do not wait
        begun.clear()
        raise
    finally:
        waiting.clear()  # a helper that begins from here on finds no block
        for ended in begun.copy():
            ended.get()
    if failed:
        raise failed.pop(0)


def prefetch(items: Iterable[T], at_once: bool) -> Iterator[T]:
    """Yield the items in turn; at_once: another thread makes the next one meanwhile.

    An error is raised after all earlier items. A caller that stops early does not wait: the next item may come from a
    silent pipe.
    """
    results = iter(items)
    if not at_once:
        yield from results
        return
    turn, ready, failed = RLock(), deque[list[T]](), list[BaseException]()

    def make_next() -> None:
        with turn:
            if not ready and not failed:
                try:
                    ready.append([*islice(results, 1)])
                except BaseException as error:  # noqa: BLE001 - not swallowed: the caller raises it
                    failed.append(error)

    try:
        while True:
            make_next()  # if no helper has made it
            if failed:
                raise failed.pop()
            if not (following := ready.pop()):
                return
            _help(make_next)
            yield from following
    finally:
        with suppress(RuntimeError):  # it is open
            turn.release()
