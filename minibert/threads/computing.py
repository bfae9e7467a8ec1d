"""The cores of this process, and computing on them: each tile on one of our threads, with BLAS held to one thread.

BLAS's own threads help only with matrix products, and spin while they wait for each other: if other programs want the
cores too, a product waits for a thread that the system has paused. Our threads share tiles and never wait inside one.

A computing thread holds a slot, and there are no more slots than cores: with eight callers on two cores, two compute
at a time, and six sleep until a slot is free.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, wraps
from itertools import accumulate
from queue import SimpleQueue
from threading import RLock, get_ident
from time import monotonic, perf_counter, thread_time
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np

from .pool import MOST_THREADS, parallel_for

K = TypeVar("K")
T = TypeVar("T")
P = ParamSpec("P")
Blas = Literal["own", "held", "small"]
"""What a computing thread needs of BLAS.

own    BLAS keeps its threads while this thread computes alone; beside a second thread it is held to one thread for both
held   BLAS is held to one thread
small  BLAS is left alone: no product is large enough for its threads
"""

OURS = "MINIBERT_THREADS"
DIGITS = 20  # as many digits as 2 ** 64 has
THEIRS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")  # in OpenBLAS's order
NUMBERS_A_THREAD = 512 * 768  # numbers; for fewer, starting a thread costs more than it saves
SPIN = 0.25  # seconds; BLAS's threads spin a little less than this before they sleep
ENOUGH = 0.75  # share of its time that an undisturbed thread has its core; measured 0.98, beside two busy threads 0.5
SHORTEST, LONGEST = 1.0, 64.0  # seconds on one thread after BLAS's threads did not pay; doubled each time


# -- cores and memory, within every limit of this process --------------------------------------------------------


def cores() -> int:
    """Count the cores that this process may use, the default of `threads`.

    The smallest of: the cores it may run on (affinity), a container's CPU quota (cgroup v1 and v2), rounded up, and
    OPENBLAS_NUM_THREADS, or without it OMP_NUM_THREADS. MINIBERT_THREADS overrides all of them.

    Raises ValueError if MINIBERT_THREADS is not an integer >= 1.
    """
    set_outside = os.environ.get(OURS)
    if set_outside:
        if not (number := _number(set_outside)):
            shown = repr(set_outside[:DIGITS]) + "..." * (len(set_outside) > DIGITS)
            raise ValueError(f"the variable {OURS} must be an integer >= 1, found {shown}; or unset it")
        return number
    return min(blas_takes(), quota())


def checked_threads(threads: Any) -> int | None:
    """Return a caller's `threads`, None for all cores. Raises ValueError unless it is an integer >= 1."""
    integer = isinstance(threads, int | np.integer) and not isinstance(threads, bool)
    if threads is not None and not (integer and threads >= 1):
        raise ValueError(f"threads must be an integer >= 1, found {threads!r}; 1 means no other thread")
    return threads if threads is None else int(threads)


def usable_threads(numbers: int, threads: int | None) -> int:
    """Return the threads to use: at most `threads` or the number of cores, each with enough numbers to be worth it."""
    wanted = checked_threads(threads)
    worth = numbers // NUMBERS_A_THREAD
    return 1 if worth <= 1 else min(cores() if wanted is None else wanted, worth)


def blas_takes() -> int:
    """Return BLAS's own default thread count, by affinity and variables. It ignores CPU quotas."""
    usable = affinity()
    for name in THEIRS:
        # "4,2": one number for each level of nesting
        if number := _number(os.environ.get(name, "").partition(",")[0].strip()):
            return min(usable, number)
    return usable


def affinity() -> int:
    """Count the cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def running() -> int:
    """Count the threads of the whole system that want a core now, including this one; 0: unknown."""
    _, _, _, tasks = (*_read("/proc/loadavg").split(), "", "", "", "")[:4]  # "0.20 0.18 0.12 2/80 11206"
    return _number(tasks.partition("/")[0])


@cache
def quota(root: str = "") -> int:
    """Return a container's CPU quota in cores, rounded up, read once; sys.maxsize without one. `root`: a prefix of /.

    The quotas of all parent groups apply to a group as well.
    """
    smallest = sys.maxsize
    for group in _groups(root, "cpu"):
        v1 = f"{root}/sys/fs/cgroup/cpu{group}"
        quota_of_v1 = f"{_read(f'{v1}/cpu.cfs_quota_us')} {_read(f'{v1}/cpu.cfs_period_us')}"
        for text in (_read(f"{root}/sys/fs/cgroup{group}/cpu.max"), quota_of_v1):
            # "150000 100000": microseconds of CPU in each period; "max" and -1: no quota
            allowed, period = map(_number, (*text.split(), "", "")[:2])
            if allowed and period:
                smallest = min(smallest, -(-allowed // period))
    return smallest


@cache
def memory(root: str = "") -> int:
    """Return the bytes of memory that this process may use: the machine's, or a container's limit, read once.

    The limits of all parent groups apply to a group as well.
    """
    smallest = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else sys.maxsize
    for group in _groups(root, "memory"):
        for name in (f"{group}/memory.max", f"/memory{group}/memory.limit_in_bytes"):  # cgroup v2 and v1
            smallest = min(smallest, _number(_read(f"{root}/sys/fs/cgroup{name}").strip()) or smallest)
    return smallest


def _groups(root: str, controller: str) -> set[str]:
    """Return the control groups of this process and their parents, as paths below the controller's folder."""
    groups = {""}  # /proc in a container may name a group of the host: then "" is the container's group
    for line in _read(f"{root}/proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if {"", controller} & {*controllers.split(",")}:
            groups.update(accumulate(path.split("/"), "{}/{}".format))
    return groups


def _number(text: str) -> int:
    """Return an integer >= 1; 0 for any other text, or for more than `DIGITS` digits."""
    return int(text) if text.isdecimal() and len(text) <= DIGITS else 0


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except (OSError, ValueError):  # another system, a container without the file, or an impossible path
        return ""


# -- computing ---------------------------------------------------------------------------------------------------


@cache
def libraries() -> tuple[Any, ...]:
    """Return NumPy's BLAS as threadpoolctl finds it, searched once, when first needed. Empty: it cannot be held.

    Apple's BLAS cannot be held, nor an OpenBLAS with OpenMP threads, which has a separate thread count for each caller.
    """
    from threadpoolctl import ThreadpoolController

    controllers = [library for library in ThreadpoolController().lib_controllers if library.user_api == "blas"]
    # NumPy's wheels bring their own BLAS; leave that of other libraries alone
    bundled = [library for library in controllers if "numpy" in library.filepath] or controllers
    openmp = any(library.internal_api == "openblas" and library.threading_layer == "openmp" for library in bundled)
    return () if openmp else tuple(bundled)


class _Work:
    """The computing threads of this process, and BLAS's thread count. Each step may be repeated."""

    def __init__(self) -> None:
        # also held during a fork: otherwise a child could find threadpoolctl's lock closed for ever
        self.lock = RLock()
        self.slots: dict[int, Blas] = {}  # computing threads
        self.waiting: list[SimpleQueue[None]] = []  # one for each waiting thread; no Condition: see pool.py
        self._before: list[int] | None = None  # the thread count of each BLAS before it was held

    def enter(self, most: int, blas: Blas) -> None:
        """Wait until fewer than `most` threads compute, then take a slot for this thread."""
        while True:
            with self.lock:
                if len(self.slots) < most:
                    self.slots[get_ident()] = blas
                    self._hold()
                    return
                turn: SimpleQueue[None] = SimpleQueue()
                self.waiting.append(turn)
            turn.get()

    def leave(self) -> None:
        """Return this thread's slot, if it has one."""
        with self.lock:
            self.slots.pop(get_ident(), None)
            for turn in self.waiting:
                turn.put(None)
            self.waiting.clear()
            self._hold()
        with suppress(RuntimeError):  # it is open, unless Ctrl-C came between its closing and a block: see pool.py
            self.lock.release()

    def _hold(self) -> None:
        """Hold BLAS to one thread for the threads that compute, or restore its thread count after the last one."""
        needs = [blas for blas in self.slots.values() if blas != "small"]
        held = self._before is not None
        if not held and (len(needs) > 1 or "held" in needs):
            self._before = [library.num_threads for library in libraries()]
            numbers = [1] * len(self._before)
        elif self._before is not None and not needs:
            numbers = self._before
        else:
            return
        for library, number in zip(libraries(), numbers, strict=True):
            # threadpoolctl lets only the first thread set the count, while it lives. But another thread may end last,
            # and our caller may want to set the count afterwards
            clear = getattr(library, "clear_controlling_thread", lambda force: None)
            clear(force=True)
            library.set_num_threads(number)
            clear(force=True)
        if held:
            self._before = None


_work = _Work()


class BlasPolicy:
    """Decides whether one small text may leave BLAS its threads: only while no other thread wants the cores.

    BLAS's threads make a short text faster on idle cores, but much slower beside busy processes (`python scripts/bench
    cores`). So before each text we count the threads that want a core, and afterwards check whether this thread had its
    core all the time. If it had not, we use one thread for a while.
    """

    def __init__(self) -> None:
        self._last = float("-inf")  # when BLAS's threads last computed: they spin for a moment afterwards
        self._not_before, self._pause = float("-inf"), SHORTEST

    def pays(self) -> bool:
        """Return whether there is a free core for each of BLAS's threads."""
        others = blas_takes() - 1
        if not others:
            return True
        wanting = running()
        spinning = monotonic() - self._last < SPIN  # then `running` counts them already
        free = wanting + others * (not spinning) <= affinity()
        return bool(wanting) and free and monotonic() >= self._not_before

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Check whether this thread has its core all the time."""
        began, busy = perf_counter(), thread_time()
        yield
        took, busy = perf_counter() - began, thread_time() - busy
        self._last = monotonic()
        if busy >= ENOUGH * took:
            self._pause = SHORTEST
        else:
            self._not_before, self._pause = self._last + self._pause, min(2 * self._pause, LONGEST)


_policy = BlasPolicy()


def _in_child() -> None:
    """In a forked child the other threads are gone: drop their slots, and restore BLAS's thread count for them."""
    global _work
    parent, _work = _work, _Work()
    parent.slots.clear()
    parent.leave()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _work.lock.acquire(), after_in_parent=lambda: _work.lock.release(), after_in_child=_in_child
    )


def spreads(threads: int | None) -> bool:
    """Return whether a single tile leaves BLAS its own threads: see `BlasPolicy`."""
    count = cores() if threads is None else threads
    return threads != 1 and blas_takes() <= count and not _work.slots and _policy.pays()


def compute(
    work: Callable[[K], object], tiles: Iterable[K], threads: int | None = None, blas: Blas | None = None
) -> None:
    """Call `work`, which computes matrix products, for every tile, on `threads` threads (None: one for each core).

    blas: None asks `spreads` for a single tile; several tiles hold BLAS. If BLAS cannot be held (Apple's, or OpenMP),
    all tiles are computed on the calling thread, and BLAS uses its own threads.

    A call inside a tile computes everything on the thread of that tile, which has a slot: if every tile waited for
    another slot, none would ever be free.

    Raises the errors of `work` and of `cores`.
    """
    all_tiles = list(tiles)
    count = cores() if threads is None else threads
    if get_ident() in _work.slots:
        for tile in all_tiles:
            work(tile)
        return
    need = blas or ("own" if len(all_tiles) == 1 and spreads(threads) else "held")
    most = max(count, cores()) if _work.slots else count  # no other call: no need to count the cores

    def compute_tile(tile: K) -> None:
        try:
            try:
                _work.enter(most, need)
                with _policy.watched() if need == "own" else nullcontext():
                    work(tile)
            finally:
                _work.leave()
        finally:
            _work.leave()  # once more: Ctrl-C may have interrupted the first call

    # with many callers, start no more threads once enough of them wait
    helpers = min(count, len(all_tiles), MOST_THREADS - len(_work.waiting))
    if helpers > 1 and libraries():
        parallel_for(compute_tile, all_tiles, helpers)
        return
    for tile in all_tiles:
        compute_tile(tile)


def on_one_thread(work: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function so that it computes only on its caller's thread, with BLAS held to one thread."""

    @wraps(work)
    def single_threaded(*arguments: P.args, **options: P.kwargs) -> T:
        results: list[T] = []
        compute(lambda _: results.append(work(*arguments, **options)), [None], 1, "held")
        return results[0]

    return single_threaded
