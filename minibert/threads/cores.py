"""How many cores this process may use, after every limit that is set for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache

OURS = "MINIBERT_THREADS"
DIGITS = 20  # of 2 ** 64
THEIRS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")  # OpenBLAS too looks at the first one first


def cores() -> int:
    """How many cores this process may use, the default of `threads`.

    The smallest of: the cores it may run on (affinity), a container's CPU quota (cgroup v1 and v2), rounded up, and
    OPENBLAS_NUM_THREADS, or without it OMP_NUM_THREADS. MINIBERT_THREADS, where it is set, says it instead.

    Raises ValueError where MINIBERT_THREADS is no integer >= 1.
    """
    set_outside = os.environ.get(OURS)
    if set_outside:
        if not (number := _number(set_outside)):
            found = repr(set_outside[:DIGITS]) + "..." * (len(set_outside) > DIGITS)
            raise ValueError(f"the variable {OURS} must be an integer >= 1, found {found}; or unset it")
        return number
    return min(blas_takes(), quota())


def blas_takes() -> int:
    """BLAS's own default thread count: affinity and variables. It ignores CPU quotas."""
    given = affinity()
    for name in THEIRS:
        # "4,2": one number for each level of nesting
        if number := _number(os.environ.get(name, "").partition(",")[0].strip()):
            return min(given, number)
    return given


def affinity() -> int:
    """How many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def running() -> int:
    """How many threads of the whole system want a core at this moment, this one among them; 0: it does not say."""
    _, _, _, tasks = (*_read("/proc/loadavg").split(), "", "", "", "")[:4]  # "0.20 0.18 0.12 2/80 11206"
    return _number(tasks.partition("/")[0])


@cache
def quota(root: str = "/") -> int:
    """A container's CPU quota in cores, rounded up, read once; sys.maxsize without one. `root`: where / is.

    A group has the quota of each group above it as well.
    """
    smallest = sys.maxsize
    for group in _groups(root):
        smallest = min((smallest, *_limits(group)))
    return smallest


def _groups(root: str) -> Iterator[str]:
    """The folders of this process's groups, from its own up to the first: v2, and the controller "cpu" of v1.

    In a container /proc may name a group of the host that is not seen from inside; the first one then is the container.
    """
    for line in _read(f"{root}/proc/self/cgroup").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            top = f"{root}/sys/fs/cgroup"
        elif "cpu" in controllers.split(","):
            top = f"{root}/sys/fs/cgroup/cpu"
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for length in range(len(parts), -1, -1):
            yield "/".join([top, *parts[:length]])


def _limits(group: str) -> Iterator[int]:
    texts = _read(f"{group}/cpu.max"), f"{_read(f'{group}/cpu.cfs_quota_us')} {_read(f'{group}/cpu.cfs_period_us')}"
    for text in texts:  # "150000 100000": microseconds of CPU, of each period; "max" and -1: no quota
        quota, period = map(_number, (*text.split(), "", "")[:2])
        if quota and period:
            yield -(-quota // period)


def _number(text: str) -> int:
    """A whole number from 1 on; 0 for anything else, and for one of more digits than any of these has."""
    return int(text) if text.isdecimal() and len(text) <= DIGITS else 0


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except (OSError, ValueError):  # another system, a container without it; a path that no file can have
        return ""
