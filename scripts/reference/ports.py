#!/usr/bin/env python3
"""Print the tables of tests/reference/GOLDEN.md: honest ports and the formats in which they pass; ports with planted
mistakes, where each is found, how it is named.

    python scripts/reference/ports.py          runs all; needs torch and transformers, some minutes
    python scripts/reference/ports.py --write  and puts the tables into the page

The ports of `tests/support` are made by transformers' modules (`honest_ports.py`, `planted_ports.py`,
`planted_blocks.py`, `planted_formulas.py`) and by plain loops (`planted_loops.py`).
"""

from __future__ import annotations

import re
import sys
import tempfile
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "tests" / "reference" / "GOLDEN.md"
PART = re.compile(r"(<!-- \$ python scripts/reference/ports.py -->\n).*?(<!-- end -->)", re.DOTALL)
sys.path[:0] = [str(ROOT / "tests" / "support")]

import honest_ports  # noqa: E402
import planted_blocks  # noqa: E402
import planted_formulas  # noqa: E402
import planted_loops  # noqa: E402  the tests' own modules
import planted_ports  # noqa: E402

from minibert.verify.verify import verify  # noqa: E402


def table() -> str:
    """Run all ports."""
    rows, right, wrong = [], 0, 0
    by_modules = {**planted_ports.PLANTED, **planted_blocks.PLANTED, **planted_formulas.PLANTED}
    every = {**by_modules, **planted_loops.PLANTED}
    for name, planted in every.items():
        with tempfile.TemporaryDirectory() as folder:
            judged = planted_ports.judged if name in by_modules else planted_loops.judged
            report = judged(planted, Path(folder))
        rows.append(planted_ports.row(name, report))
        fits = {each.key: each.fits for each in report.local}
        named = fits.keys() == planted.wrong.keys() and all(n in fits[key] for key, n in planted.wrong.items() if n)
        right += named and all(planted.wrong.values())
        wrong += any(found and planted.wrong.get(key) not in found for key, found in fits.items())
    head = f"{len(every)} ports with mistakes: {right} named rightly in every module that is wrong, {wrong} wrongly."
    return "\n".join([head, "", "| planted | found in | named |", "|---|---|---|", *rows, ""])


def honest() -> str:
    """Run the honest ports, each in every format."""
    rows = []
    for name, (port, _) in honest_ports.HONEST.items():
        with tempfile.TemporaryDirectory() as folder:
            where, path = honest_ports.write(port, Path(folder))
            passed = [
                form
                for form in honest_ports.FORMATS
                if verify(str(where), encoder=True, against=path, form=form).passed
            ]
        rows.append(f"| {name} | {', '.join(passed) or 'none'} |")
    return "\n".join([f"{len(rows)} honest ports:", "", "| port | passes as |", "|---|---|", *rows, "", ""])


def main(words: list[str]) -> None:
    """Print the table, or write it."""
    warnings.simplefilter("ignore")
    made = honest() + table()
    if "--write" in words:
        PAGE.write_text(PART.sub(lambda part: part[1] + made + part[2], PAGE.read_text("utf-8")), encoding="utf-8")
    else:
        print(made, end="")


if __name__ == "__main__":
    main(sys.argv[1:])
