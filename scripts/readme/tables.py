#!/usr/bin/env python3
"""Fill README.md's generated parts with what their commands print now.

    python scripts/readme/tables.py            all of them
    python scripts/readme/tables.py exactness  those whose command holds this word

A part stands between `<!-- $ command -->` and `<!-- end -->`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PART = re.compile(r"(<!-- \$ (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def main(words: list[str]) -> None:
    """Rewrite README.md."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "80",
    }

    def fill(part: re.Match[str]) -> str:
        head, command, tail = part.groups()
        if words and not any(word in command for word in words):
            return part.group(0)
        printed = subprocess.run(
            command, shell=True, cwd=ROOT, env=environment, check=True, capture_output=True, text=True
        )
        body = printed.stdout.strip("\n")
        fenced = body if body.startswith("|") or "\n|" in body else f"```\n{body}\n```"
        return f"{head}{fenced}\n{tail}"

    readme = ROOT / "README.md"
    readme.write_text(PART.sub(fill, readme.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
