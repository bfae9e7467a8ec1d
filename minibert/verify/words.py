"""The lines and tables of a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from .compare import Difference, over_kinds


def not_compared(here: Sequence[str], there: Sequence[str], whose: str, ours: str) -> Iterator[str]:
    """Name the intermediates that only one side has; those that a file lacks are reported elsewhere."""
    if unknown := [key for key in there if key not in here]:
        yield f"not compared, since this {ours} has no such intermediate: {', '.join(unknown)}"
    if whose != "file" and (hidden := [key for key in here if key not in there]):
        yield f"not compared, since the {whose} does not show it: {', '.join(hidden)}"


def difference_table(
    differences: Sequence[Difference], whose: str, passes: Callable[[Difference], bool] = lambda d: d.passes
) -> Iterator[str]:
    """One line for each intermediate, over all batches."""
    rows = [["intermediate", "batches", "max difference", "equal", "rms error here", f"rms error {whose}", "verdict"]]
    for d in over_kinds(differences):
        exact = "equal" if d.largest == 0 else "within rounding"
        errors = [f"{error:.2g}" if np.isfinite(error) else "-" for error in (d.error_ours, d.error_theirs)]
        share = f"{int(d.equal * 1000) / 10:g} %"  # never rounded up to 100
        rows.append([d.key, str(len(d.kinds)), f"{d.largest:.2g}", share, *errors, exact if passes(d) else "DIFFERENT"])
    return table(rows)


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Write cells in columns: the first and the last aligned left, numbers aligned right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *numbers, last = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join([first, *(cell.rstrip().rjust(len(cell)) for cell in numbers), last]).rstrip()
