#!/usr/bin/env python3
"""Run the commands of the generated parts of README.md and its pages, and write their output there.

    python scripts/readme/tables.py            all of them
    python scripts/readme/tables.py exactness  those whose command holds this word

A part is between `<!-- $ command -->` and `<!-- end -->`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "minibert/families/README.md", "minibert/verify/README.md", "scripts/bench/README.md")
PART = re.compile(r"(<!-- \$ (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def main(words: list[str]) -> None:
    """Rewrite the pages."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "COLUMNS": "80"}

    def fill(part: re.Match[str]) -> str:
        head, command, tail = part.groups()
        if words and not any(word in command for word in words):
            return part.group(0)
        body = subprocess.check_output(command, shell=True, cwd=ROOT, env=environment, text=True).strip("\n")
        fenced = body if body.startswith("|") or "\n|" in body else f"```\n{body}\n```"
        return f"{head}{fenced}\n{tail}"

    for page in (ROOT / name for name in PAGES):
        page.write_text(PART.sub(fill, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
