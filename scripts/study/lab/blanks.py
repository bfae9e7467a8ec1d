"""Blanks of a lab file are made from its answers, so that the two cannot disagree.

A line

    return table[ids]  # blank: one row of the table for each id

becomes `return ... # one row of the table for each id`. The lines from `# blank: ...` to `# end` become the same.
"""

from __future__ import annotations

import re

LINE = re.compile(r"^( *)return .+  # blank: (.+)\n", re.MULTILINE)
BODY = re.compile(r"^( *)# blank: (.+)\n(?:.*\n)*?\1# end\n", re.MULTILINE)


def found(source: str) -> list[re.Match[str]]:
    """List the blanks of a lab file, in order."""
    return sorted([*LINE.finditer(source), *BODY.finditer(source)], key=re.Match.start)


def opened(source: str, only: int | None = None) -> str:
    """Open all blanks of a lab file, or only one, counted from 0; the rest keep their answers.

    >>> opened("    return x + 1  # blank: one more\\n")
    '    return ...  # one more\\n'
    """
    parts, last = list[str](), 0
    for number, blank in enumerate(found(source)):
        if only is None or number == only:
            parts += [source[last : blank.start()], f"{blank[1]}return ...  # {blank[2]}\n"]
            last = blank.end()
    return "".join([*parts, source[last:]])
