"""Measure figures in turn, and make rows of a table. Only the standard library: see children.process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

PAUSE = 0.01  # seconds between two measurements, until torch's threads stop spinning
WARM = 0.05  # seconds of warm-up: threads that slept are slow at first
BLOCK = 0.1  # seconds in which a short call is repeated in each round
LONG = 1.0  # seconds of a call that needs no warm-up
ENOUGH = 10.0  # seconds of a row after which no further round begins, if FEWEST rounds are done
FEWEST, QUICK = 5, 3  # rounds
MIB = 2**20


AVX512 = ("SkylakeX", "Cooperlake")  # kernels of BLAS


@dataclass(frozen=True)
class Settings:
    """The settings of a run.

    models: the folder of made-up checkpoints. kernel: the name of the kernel of NumPy's BLAS. before: a folder of an
    older state.
    """

    models: Path
    kernel: str
    quick: bool = False
    before: Path | None = None

    def rounds(self, many: int) -> int:
        return min(many, QUICK) if self.quick else many


@dataclass(frozen=True)
class Limit:
    """The limit of a ratio, or with a `unit` ("ms", "MiB") of minibert's own figure.

    wide    this limit holds with BLAS's kernels for AVX-512; with another kernel the limit is `other`
    """

    sense: str
    bound: float
    unit: str = ""
    aim: float | None = None
    wide: bool = False
    other: float | None = None

    def on(self, kernel: str) -> Limit | None:
        """Return the limit with this kernel, or None if there is none."""
        if not self.wide or kernel in AVX512:
            return self
        return None if self.other is None else Limit(self.sense, self.other, self.unit)

    def __str__(self) -> str:
        aim = "" if self.aim is None else f", aim {self.aim:g}"
        return f"{'≥' if self.sense == '>=' else '≤'} {self.bound:g}{' ' + self.unit if self.unit else ''}{aim}"

    def met(self, figure: float) -> bool:
        return figure >= self.bound if self.sense == ">=" else figure <= self.bound


def least(bound: float, aim: float | None = None) -> Limit:
    """Return the least speed of minibert as a multiple of the peer's."""
    return Limit(">=", bound, aim=aim)


def wide(bound: float, aim: float | None = None, other: float | None = None) -> Limit:
    """Return `least` for kernels with AVX-512, and for other kernels."""
    return Limit(">=", bound, aim=aim, wide=True, other=other)


def most(bound: float, unit: str = "") -> Limit:
    """Return the most time or memory of minibert as a multiple of the peer's, or the most of its own figure."""
    return Limit("<=", bound, unit)


@dataclass(frozen=True)
class Row:
    """One line of the table: minibert's figure, the peer's, and their ratio."""

    what: str
    ours: str = ""
    other: str = ""
    ratio: str = ""
    spread: str = ""
    limit: str = ""
    met: bool | None = None
    note: str = ""

    def cells(self) -> list[str]:
        verdict = {None: "", True: "met", False: "**not met**"}[self.met]
        return [self.what, self.ours, self.other, self.ratio, self.spread, self.limit, verdict, self.note]


HEAD = ("what", "minibert", "against", "ratio", "middle half", "limit", "", "note")


def markdown(rows: Sequence[Row]) -> str:
    """Return the rows as a table."""
    lines = ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row.cells()) + " |" for row in rows])


def compare(
    what: str, ours: Sequence[float], other: Sequence[float], against: str, limit: Limit | None = None,
    unit: str = "s", note: str = "",
) -> Row:  # fmt: skip
    """Make a row of two figures measured in the same rounds: the median of the rounds' ratios and their middle half.

    The ratio is the peer's time over minibert's; with unit="B", or a limit from above, it is minibert's memory or time
    over the peer's. The ratio is computed within each round, since the machine was the same for both there. So it need
    not be the ratio of the two medians.
    """
    faster = unit == "s" and (limit is None or limit.sense == ">=")
    ratios = [b / a if faster else a / b for a, b in zip(ours, other, strict=True)]
    median, mine, theirs = map(statistics.median, (ratios, ours, other))
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    figure = median if limit is None or not limit.unit else mine / MIB if unit == "B" else mine * 1000
    reading = "x as fast" if faster else "x the time" if unit == "s" else "x the memory"
    return Row(
        what, written(mine, unit), f"{written(theirs, unit)} {against}", f"**{median:.2f}** {reading}",
        f"{low:.2f} to {high:.2f}", str(limit or ""), limit and limit.met(figure), note,
    )  # fmt: skip


def absent(what: str, other: str, limit: Limit | None = None) -> Row:
    return Row(what, other=f"{other} is not installed", limit=str(limit or ""), note="not measured")


def written(figure: float, unit: str) -> str:
    if unit == "B":
        return f"{figure / MIB:.1f} MiB"
    if figure >= 1:
        return f"{figure:.2f} s"
    return f"{figure * 1e3:.3g} ms" if figure >= 1e-3 else f"{figure * 1e6:.3g} µs"


def in_turn(take: Mapping[str, Callable[[], T]], rounds: int, start: int = 0) -> dict[str, list[T]]:
    """Measure each figure once a round, back to front in every second round. The first `start` rounds do not count.

    If the rounds need more than `ENOUGH` seconds, there are fewer rounds, but at least `FEWEST`.
    """
    found: dict[str, list[T]] = {name: [] for name in take}
    began = time.perf_counter()
    for number in range(start + rounds):
        if number >= start + FEWEST and time.perf_counter() - began > ENOUGH:
            break
        for name in list(take)[:: 1 if number % 2 == 0 else -1]:
            time.sleep(PAUSE)
            found[name].append(take[name]())
    return {name: taken[start:] for name, taken in found.items()}


def seconds_of(call: Callable[[], Any]) -> float:
    """Return the median of the calls of `BLOCK` seconds, after `WARM` seconds of calls that do not count.

    After the warm-up the call's own data is in the caches and its threads are awake. A call of `LONG` seconds counts at
    once.
    """
    began = time.perf_counter()
    call()
    if (first := time.perf_counter() - began) > LONG:
        return first
    while time.perf_counter() - began < WARM:
        call()
    taken: list[float] = []
    began = time.perf_counter()
    while not taken or (time.perf_counter() - began < BLOCK and len(taken) < 1000):
        before = time.perf_counter()
        call()
        taken.append(time.perf_counter() - before)
    return statistics.median(taken)
