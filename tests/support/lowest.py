"""Print pip constraints that hold each dependency to the lowest version that pyproject.toml allows.

python tests/support/lowest.py >lowest.txt && pip install -c lowest.txt '.[test]'
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
EXTRAS = ("plot", "bulk", "serve", "metrics", "completion", "test")  # what the core suite needs


def lowest(requirement: str) -> str:
    """Make "numpy==2.0" of "numpy>=2.0,<3"."""
    found = re.match(r"([\w.-]+) *[>=]=([\w.]+)", requirement)
    if found is None:
        sys.exit(f"{PYPROJECT.name}: {requirement!r} names no lowest version; write it as name>=version")
    return f"{found[1]}=={found[2]}"


def main() -> None:
    project = tomllib.loads(PYPROJECT.read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *(one for extra in EXTRAS for one in extras[extra])]
    for requirement in requirements:
        if not requirement.startswith(f"{project['name']}["):
            print(lowest(requirement))


if __name__ == "__main__":
    main()
