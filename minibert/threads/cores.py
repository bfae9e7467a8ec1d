"""Count the cores and the memory that this process may use, within every limit set for it."""

from __future__ import annotations

import os
import sys
from functools import cache
from itertools import accumulate

OURS = "MINIBERT_THREADS"
DIGITS = 20  # as many digits as 2 ** 64 has
THEIRS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")  # in OpenBLAS's order


def cores() -> int:
    """Count the cores that this process may use, the default of `threads`.

    The smallest of: the cores it may run on (affinity), a container's CPU quota (cgroup v1 and v2), rounded up, and
    OPENBLAS_NUM_THREADS, or without it OMP_NUM_THREADS. MINIBERT_THREADS overrides all of them.

    Raises ValueError if MINIBERT_THREADS is not an integer >= 1.
    """
    set_outside = os.environ.get(OURS)
    if set_outside:
        if not (number := _number(set_outside)):
            found = repr(set_outside[:DIGITS]) + "..." * (len(set_outside) > DIGITS)
            raise ValueError(f"the variable {OURS} must be an integer >= 1, found {found}; or unset it")
        return number
    return min(blas_takes(), quota())


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
