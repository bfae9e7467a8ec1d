"""How many tests there are of each combination of marks, beside the numbers in tests/counts.txt: a lost file is seen.

python tests/support/counts.py            compares
python tests/support/counts.py --write    after tests have come or gone on purpose
"""

from __future__ import annotations

import io
import sys
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
COUNTS = TESTS / "counts.txt"
MARKS = {"reference", "network", "browser", "slow", "release", "study", "ray", "adapters", "clients", "port"}


class Collected:
    """What pytest finds, before any option leaves something out."""

    items: list[pytest.Item]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = session.items


def collected() -> list[pytest.Item]:
    plugin, said = Collected(), io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        code = pytest.main(["--collect-only", "-qq", "-m", "", "-p", "no:cacheprovider", str(TESTS)], [plugin])
    if code != pytest.ExitCode.OK:
        sys.exit(f"{said.getvalue()}\npytest could not collect the tests: exit code {code}, its words are above")
    return plugin.items


def counted(items: list[pytest.Item]) -> str:
    marks = {item: " ".join(sorted(MARKS & {mark.name for mark in item.iter_markers()})) or "plain" for item in items}
    if lost := [item.nodeid for item, own in marks.items() if own == "plain" and item.path.parent == TESTS / "live"]:
        sys.exit(f"a plain run does not look into tests/live: give a mark to, or move, {', '.join(lost)}")
    numbers = Counter(marks.values())
    lines = [f"{name} {numbers[name]}" for name in sorted(numbers, key=lambda name: (name != "plain", name))]
    return "\n".join([*lines, f"files {len({item.path for item in items})}", ""])


def main() -> None:
    found = counted(collected())
    print(found, end="")
    if sys.argv[1:] == ["--write"]:
        COUNTS.write_text(found, encoding="utf-8")
    elif found != (expected := COUNTS.read_text(encoding="utf-8")):
        sys.exit(
            f"found these numbers of tests by marks, expected those of {COUNTS}:\n{expected}"
            f"Where tests have come or gone on purpose: python {Path(__file__).relative_to(TESTS.parent)} --write"
        )


if __name__ == "__main__":
    main()
