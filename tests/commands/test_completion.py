"""TAB in bash, by the line of the site's page: a command, an option, a value and a file are completed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from limits import CHILD_SECONDS

PAGE = Path(__file__).parents[2] / "scripts/site/pages/api/commands.md"
(LINE,) = re.findall("^eval .*", PAGE.read_text("utf-8"), re.MULTILINE)
# bash calls the function that `complete` names, with these variables, and takes what it puts into COMPREPLY
TAB = f"""
{LINE}
COMP_LINE=$1 COMP_POINT=${{#1}} COMP_TYPE=9
$(complete -p minibert | sed 's/.*-F \\([^ ]*\\).*/\\1/') minibert
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(sys.platform == "win32", reason="bash's completion is of POSIX")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("minibert sea", ["search"]),
        ("minibert e", ["embed", "encode", "explain", "extract"]),
        ("minibert help sim", ["similar"]),
        ("minibert encode --prec", ["--precision"]),
        ("minibert encode we --precision ", ["binary", "float16", "float32", "int8", "ubinary", "uint8"]),
        ("minibert plot rot", ["rotary"]),
        ("minibert rank we --file lin", ["lines.txt"]),
        ("minibert fly --prec", [""]),
    ],
)
def test_tab(line: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "lines.txt").touch()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    result = subprocess.run(
        ["bash", "--norc", "-c", TAB, "bash", line],
        cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=CHILD_SECONDS,
    )  # fmt: skip
    assert (sorted(word.strip() for word in result.stdout.splitlines()), result.stderr) == (words, "")
