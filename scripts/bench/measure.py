"""Figures taken in turn, rows of a table, and the machine they come from.

Only the standard library: a process that measures others must stay smaller than they are (see children.py).
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

from .kernels import cpuinfo, variables

T = TypeVar("T")

OURS = "minibert"
PAUSE = 0.01  # seconds between two measurements: the threads that torch leaves spinning have gone to sleep by then
WARM = 0.05  # seconds for which a call is repeated before it counts: threads that slept take a while to be quick again
BLOCK = 0.1  # seconds for which a short call is repeated in each round
MIB = 2**20
BUSY = 0.1  # of the processor in other hands: from there on figures say little


@dataclass(frozen=True)
class Limit:
    """The limit of a figure: of the ratio, or with a `unit` ("ms", "MiB") of our own figure."""

    sense: str
    bound: float
    unit: str = ""
    aim: float | None = None

    def __str__(self) -> str:
        aim = "" if self.aim is None else f", aim {self.aim:g}"
        return f"{'≥' if self.sense == '>=' else '≤'} {self.bound:g}{' ' + self.unit if self.unit else ''}{aim}"

    def met(self, figure: float) -> bool:
        return figure >= self.bound if self.sense == ">=" else figure <= self.bound


@dataclass(frozen=True)
class Row:
    """One line of the table: our figure, what it is measured against, and their ratio."""

    what: str
    ours: str = ""
    other: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    reading: str = ""
    limit: str = ""
    met: bool | None = None
    note: str = ""
    figures: tuple[float, float] | None = None  # ours and the other's, in seconds or bytes

    def cells(self) -> list[str]:
        ratio = "" if self.ratio is None else f"**{self.ratio:.2f}** {self.reading}"
        spread = "" if self.low is None or self.high is None else f"{self.low:.2f} to {self.high:.2f}"
        verdict = {None: "", True: "met", False: "**not met**"}[self.met]
        return [self.what, self.ours, self.other, ratio, spread, self.limit, verdict, self.note]


HEAD = ("what", "minibert", "against", "ratio", "middle half", "limit", "", "note")


@dataclass(frozen=True)
class Settings:
    """`models` is the folder where checkpoints are made, or found again; `beside`: that of an older state."""

    models: Path
    quick: bool = False
    beside: Path | None = None

    def rounds(self, many: int) -> int:
        return 3 if self.quick else many


# -- rows --------------------------------------------------------------------------------------------------------


def compare(
    what: str, ours: Sequence[float], other: Sequence[float], against: str, unit: str = "s", faster: bool = False,
    limit: Limit | None = None, note: str = "",
) -> Row:  # fmt: skip
    """Make a row of two figures measured in the same rounds: the median of the rounds' ratios and their middle half.

    `faster`: the ratio says how many times as fast we are, else how many times of the other's time or memory we take.
    A ratio is taken within each round, in which the machine was the same for both. It therefore need not be the ratio
    of the two medians.
    """
    ratios = [b / a if faster else a / b for a, b in zip(ours, other, strict=True)]
    median = statistics.median(ratios)
    quarters = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else None
    mine, theirs = statistics.median(ours), statistics.median(other)
    met = None if limit is None else limit.met(in_unit(mine, limit.unit) if limit.unit else median)
    return Row(
        what, written(mine, unit), f"{written(theirs, unit)} {against}", median,
        quarters[0] if quarters else None, quarters[2] if quarters else None,
        "x as fast" if faster else "x the time" if unit == "s" else "x the memory",
        str(limit) if limit else "", met, note, (mine, theirs),
    )  # fmt: skip


class Figures(dict[str, list[float]]):
    """Figures of several contenders, one a round, by their names. Those that are not installed have none."""

    def row(self, what: str, other: str, ours: str = OURS, against: str = "", **options: Any) -> Row:
        """Make the row of two of them, or the one that says that the other is absent; options: see `compare`."""
        if other in self:
            return compare(what, self[ours], self[other], against or other, **options)
        limit = options.get("limit")
        return Row(what, other=f"{other} is not installed", limit=str(limit) if limit else "", note="not measured")

    def fastest(self, *names: str) -> str:
        """Say which of some contenders is the fastest here; the first where none of them is."""
        return min((name for name in names if name in self), key=lambda name: statistics.median(self[name]),
                   default=names[0])  # fmt: skip


def in_unit(figure: float, unit: str) -> float:
    return figure * 1000 if unit == "ms" else figure / MIB


def written(figure: float, unit: str) -> str:
    if unit == "B":
        return f"{figure / MIB:.1f} MiB"
    if figure >= 1:
        return f"{figure:.2f} s"
    return f"{figure * 1e3:.3g} ms" if figure >= 1e-3 else f"{figure * 1e6:.3g} µs"


# -- figures -----------------------------------------------------------------------------------------------------


def in_turn(take: Mapping[str, Callable[[], T]], rounds: int, start: int = 0) -> dict[str, list[T]]:
    """Take each figure once a round, back to front in every second round. Those of the first `start` do not count."""
    found: dict[str, list[T]] = {name: [] for name in take}
    for number in range(start + rounds):
        for name in list(take)[:: 1 if number % 2 == 0 else -1]:
            time.sleep(PAUSE)
            found[name].append(take[name]())
    return {name: taken[start:] for name, taken in found.items()}


def timed(calls: Mapping[str, Callable[[], object]], rounds: int) -> Figures:
    """Time calls in turn: seconds, one median a round.

    In a round each call is repeated for `BLOCK` seconds, after `WARM` seconds that do not count: by then its own data
    is in the caches and its threads are awake.
    """
    return Figures(in_turn({name: partial(seconds_of, call) for name, call in calls.items()}, rounds))


def seconds_of(call: Callable[[], object]) -> float:
    """The median of many calls, those of the first moments left out."""
    started = time.perf_counter()
    call()
    while time.perf_counter() - started < WARM:
        call()
    taken: list[float] = []
    started = time.perf_counter()
    while not taken or (time.perf_counter() - started < BLOCK and len(taken) < 1000):
        before = time.perf_counter()
        call()
        taken.append(time.perf_counter() - before)
    return statistics.median(taken)


def installed(name: str) -> bool:
    """Whether a distribution is there, found out without importing it."""
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


# -- the machine and the table -----------------------------------------------------------------------------------


def machine(kernel: str) -> dict[str, Any]:
    """Where the figures come from. kernel: of NumPy's BLAS."""
    names = (
        "numpy", "tokenizers", "safetensors", "torch", "transformers", "sentence-transformers", "onnxruntime",
        "model2vec",
    )  # fmt: skip
    return {
        "processor": cpuinfo("model name") or platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "caches": _caches(),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "versions": {"Python": platform.python_version()}
        | {name: version(name) for name in names if installed(name)}
        | {"BLAS kernel": kernel},
        "variables": variables(),
    }


class OtherWork:
    """How much of the processor other work takes meanwhile: 0.25 is a quarter of all cores' time.

    Two threads that wait for each other suffer most from it, so a busy machine flatters whoever works with one.
    """

    def __init__(self) -> None:
        self._before = self._now()

    def share(self) -> float | None:
        """The share since this object was made; None where the system does not tell."""
        if self._before is None or (now := self._now()) is None:
            return None
        everyone, own, total = (after - before for after, before in zip(now, self._before, strict=True))
        return max(0.0, round((everyone - own) / total, 2))

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        """Seconds of all cores: busy with anything, busy with this process and its children, in all."""
        try:
            first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
        except OSError:
            return None
        spent = [int(number) / os.sysconf("SC_CLK_TCK") for number in first.split()[1:9]]
        idle = spent[3] + spent[4]  # nothing to do, and waiting for the disk
        return sum(spent) - idle, sum(os.times()[:4]), sum(spent)


def _caches() -> str:
    """Caches of the first core, as Linux names them: "L1 32K, L2 512K, L3 32768K"."""
    found = {}
    for cache in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if (cache / "type").read_text().strip() != "Instruction":
            found["L" + (cache / "level").read_text().strip()] = (cache / "size").read_text().strip()
    return ", ".join(f"{level} {size}" for level, size in found.items()) or "unknown"


def markdown(section: str, rows: Sequence[Row], where: Mapping[str, Any]) -> str:
    """The table of a section, and under it the machine. With a kernel that is not its own, that is in the heading."""
    chosen = where["variables"].get("OPENBLAS_CORETYPE")
    heading = f"### {section}" + (f", kernel {chosen}" if chosen else "")
    lines = [heading, "", "| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    lines += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    versions = ", ".join(f"{name} {number}" for name, number in where["versions"].items())
    about = (
        f"{where['processor']}, {where['cores']} cores, {where['caches']}, {where['memory']}, {where['system']}; "
        f"{versions}. "
    )
    about += ", ".join(f"{name}={text}" for name, text in where["variables"].items()) or "No variable"
    about += " set: figures of users are those without." if where["variables"] else " that changes timings is set."
    other = where.get("other_work")
    if other is not None:
        about += f" Other work took {other:.0%} of the processor meanwhile."
        if other > BUSY:
            about += " **The machine was busy: do not quote these figures.**"
    return "\n".join([*lines, "", about, ""])
