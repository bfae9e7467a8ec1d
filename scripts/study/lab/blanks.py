"""Makes the blanks of a lab file, which has the answers in it: so the two cannot disagree.

A line

    rows = table[ids]  # blank: one row of the table for each id

becomes `rows = ...  # one row of the table for each id`. In a function the lines from `# blank: ...` to `# end` become
`return ...  # ...`.
"""

from __future__ import annotations

import re

LINE = re.compile(r"^( *)(\w+) = .+  # blank: (.+)$", re.MULTILINE)
BODY = re.compile(r"^( *)# blank: (.+)\n(?:.*\n)*?\1# end\n", re.MULTILINE)


def found(source: str) -> list[re.Match[str]]:
    """Find the blanks of a lab file, in their order."""
    return sorted([*LINE.finditer(source), *BODY.finditer(source)], key=re.Match.start)


def opened(source: str, only: int | None = None) -> str:
    """Give a lab file with all blanks open, or with one alone, counted from 0; the others keep their answer.

    >>> opened("y = x + 1  # blank: one more\\n")
    'y = ...  # one more\\n'
    """
    parts, last = list[str](), 0
    for number, blank in enumerate(found(source)):
        if only is None or number == only:
            indent, hint = blank[1], blank[blank.lastindex or 0]
            line = f"{indent}{blank[2]} = ...  # {hint}" if blank.re is LINE else f"{indent}return ...  # {hint}\n"
            parts += [source[last : blank.start()], line]
            last = blank.end()
    return "".join([*parts, source[last:]])
