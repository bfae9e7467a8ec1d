#!/usr/bin/env python3
"""Write the table of minibert/verify/MISTAKES.md: the name of every mistake of the list, with the reason."""

from __future__ import annotations

import re
from pathlib import Path

from minibert.verify.mistakes import MISTAKES

PAGE = Path(__file__).resolve().parents[2] / "minibert" / "verify" / "MISTAKES.md"
TABLE = re.compile(r"(\| name \| why it is one \|\n\|---\|---\|\n)(?:\|.*\n)+")


def filled(page: str) -> str:
    """Write the list into the page."""
    rows = {each.name: f"| {each.name} | {each.why} |\n" for each in MISTAKES[::-1]}
    return TABLE.sub(lambda part: part[1] + "".join(dict(reversed(rows.items())).values()), page)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text("utf-8")), "utf-8")
