"""Runs a layer's steps over tiles, on one thread or several.

Each row of the result depends on its own ids alone, and no equation looks across rows. Therefore the bits are the
same for every tile size, thread count and batch. Tiles make it faster: the nine passes of a BERT layer find their
rows in a cache instead of in memory.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.steps import Inputs, Norm, Project, Record, Step

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

K = TypeVar("K")
T = TypeVar("T")

# Numbers in a tile: 1024 rows of BERT's, the fastest of the sizes from 32 to 4096 rows. Smaller tiles fit into a faster
# cache, but need more calls, and threads then wait more often for the interpreter's lock.
TILE_NUMBERS = 1024 * 768
NUMBERS_A_THREAD = 512 * 768  # numbers; waking a thread for less costs more than it saves
MOST_THREADS = 64
NORM_TO_SUM_WORK = 4  # a layer of sums alone has a quarter of the work for each number that one with a norm has


class Bound(NamedTuple):
    """A step and what it found in the checkpoint: a module, a factor, or nothing."""

    step: Step
    module: Any


def run_steps(steps: tuple[Bound, ...], inputs: Inputs, out: Array, width: int, record: Record = None) -> Array:
    """Take one tile through all steps. `out` (batch, seq, dim) receives the result; `width` is the words' width."""
    x = out if width == out.shape[-1] else np.empty((*out.shape[:-1], width), out.dtype)
    for step, module in steps:
        # a user's own step may give rows of another dtype, or in a memory order in which sums have other bits
        x = np.asarray(step.apply(module, inputs, x, record), out.dtype, order="C")
    if x is not out:
        out[...] = x
    return out


def cut(batch: int, seq: int, rows: int) -> Iterator[tuple[slice, slice]]:
    """Cut (batch, seq) into blocks of about `rows` tokens: whole sequences, or parts of one where it is long.

    >>> [(batch.start, batch.stop, seq.start, seq.stop) for batch, seq in cut(1, 5, 2)]
    [(0, 1, 0, 2), (0, 1, 2, 4), (0, 1, 4, 5)]
    >>> [(batch.start, batch.stop, seq.start, seq.stop) for batch, seq in cut(3, 2, 4)]
    [(0, 2, 0, 2), (2, 3, 0, 2)]
    """
    tall = max(1, rows // seq) if seq else 1
    for top in range(0, batch, tall):
        for left in range(0, seq, rows):
            yield slice(top, min(top + tall, batch)), slice(left, min(left + rows, seq))


def run(
    steps: tuple[Bound, ...], inputs: Inputs, out: Array, width: int, threads: int | None = None, rows: int = 0
) -> Array:
    """Fill `out` (batch, seq, dim) tile by tile. `rows`: tokens a tile, 0 for as many as is fast."""
    count = usable_threads(out.size, threads)
    if count > 1 and not any(isinstance(step, (Norm, Project)) for step, _ in steps):
        count = usable_threads(out.size // NORM_TO_SUM_WORK, threads)
    tokens = inputs.batch * inputs.seq
    rows = rows or max(1, min(TILE_NUMBERS // max(width, out.shape[-1]), -(-tokens // count)))
    if tokens <= rows:
        return run_steps(steps, inputs, out, width)

    def work(block: tuple[slice, slice]) -> None:
        run_steps(steps, inputs.tile(*block), out[block], width)

    spread(work, cut(inputs.batch, inputs.seq, rows), count)
    return out


def usable_threads(numbers: int, threads: int | None) -> int:
    """How many threads to use: at most what the caller says or the cores, and each with enough work to be worth it."""
    integer = isinstance(threads, int | np.integer) and not isinstance(threads, bool)
    if threads is not None and not (integer and threads >= 1):
        raise ValueError(f"threads must be an integer >= 1, found {threads!r}; 1 means no other thread")
    worth = numbers // NUMBERS_A_THREAD
    return 1 if worth <= 1 else min(cores() if threads is None else int(threads), worth, MOST_THREADS)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def spread(work: Callable[[K], object], blocks: Iterable[K], threads: int) -> None:
    """Do `work` for every block; the calling thread takes part, so 1 means no other thread at all.

    It begins at the first block, the others at the last: threads that meet in one page of fresh memory would each fill
    it with zeros. After an error no further block is begun, and the error reaches the caller.
    """
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

    if threads == 1:
        take(waiting.popleft)
        return
    helpers = [_pool().submit(take, waiting.pop) for _ in range(threads - 1)]
    try:
        take(waiting.popleft)
    finally:
        for helper in helpers:
            # a helper that has not begun is cancelled: the others have done its work
            if not helper.cancel():
                helper.exception()
    for helper in helpers:
        if not helper.cancelled():
            helper.result()


def ahead(make: Callable[[K], T], keys: Iterable[K], at_once: bool) -> Iterator[T]:
    """Give make(key) for each key in turn; `at_once`, the next key is read and made into something on another thread
    while this one is in use. An error comes after all that was made before it."""
    made = map(make, keys)
    if not at_once:
        yield from made
        return
    coming: Future[list[T]] = _pool().submit(_one, made)
    try:
        while found := coming.result():
            coming = _pool().submit(_one, made)
            yield from found
    finally:
        coming.exception()  # whoever stops early waits for what has been begun


def _one(made: Iterator[T]) -> list[T]:
    return list(islice(made, 1))


@contextmanager
def behind(work: Callable[[K], object]) -> Iterator[Callable[[K], None]]:
    """Give a function that lets `work` be done with its argument on another thread, one after another.

    At most one is under way and none waits. At the end of the context all are done, whatever else went wrong. An error
    of `work` is raised by the next call, or at the end.
    """
    under_way: list[Future[object]] = []

    def submit(key: K) -> None:
        if under_way:
            under_way[0].result()  # and if Ctrl-C ends this waiting, the one below still waits
            under_way.clear()
        under_way.append(_pool().submit(work, key))

    try:
        yield submit
    finally:
        if under_way:
            under_way[0].result()


@cache
def _pool() -> ThreadPoolExecutor:
    """Make the threads once and keep them: starting a new one takes longer than a tile."""
    from concurrent.futures import ThreadPoolExecutor  # here, since a short text never needs it

    return ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="minibert")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked child inherits no threads
