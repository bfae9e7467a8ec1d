#!/usr/bin/env python3
"""Print the table of figures of scripts/bench/README.md: from the benchmark's last whole run; the size counted now.

python scripts/readme/figures.py
"""

from __future__ import annotations

import re
from pathlib import Path

from installed_size import NAME, closure

RESULTS = Path(__file__).resolve().parents[2] / "scripts" / "bench" / "results.md"
ST = "sentence-transformers"
START = "import, load, encode one sentence"
# what it is, section of the benchmark, first cell of its row, what stands in the third, the sentence
ROWS = (
    ("start, model loaded, one sentence", "sentences", START, "import numpy", "{ratio} of a bare `import numpy`"),
    ("the same", "sentences", START, ST, "{ratio} as sentence-transformers"),
    ("its peak memory", "sentences", "its peak memory", ST, "{own}, theirs {other}"),
    ("speed, 600 texts", "sentences", "encode 600 texts", ST, "{ratio} as sentence-transformers"),
    ("speed, input layer 32 x 128", "forward", "bert 32 x 128", "transformers", "{ratio} as the reference's module"),
)
FETCHED = "sh scripts/test tests/hub/test_layers.py -k seven_tokens"


def cells(section: str) -> list[list[str]]:
    """Give the table of one section of the results, row by row."""
    text = RESULTS.read_text(encoding="utf-8").partition(f"### {section}\n")[2].partition("\n### ")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def figure(section: str, what: str, peer: str) -> dict[str, str]:
    """Find one row: our figure, the other's, and the ratio in words."""
    for row in cells(section):
        if len(row) > 3 and row[0] == what and peer in row[2]:
            other = re.match(r"[\d.]+ \S+", row[2])
            return {"own": row[1], "other": other[0] if other else "", "ratio": row[3].replace("**", "")}
    return {"own": "not measured", "other": "", "ratio": "not measured:"}


def main() -> None:
    """Print the table."""
    print("| what | minibert | the command |")
    print("|---|---|---|")
    for what, section, row, peer, sentence in ROWS:
        print(f"| {what} | {sentence.format(**figure(section, row, peer))} | `python scripts/bench {section}` |")
    size = sum(closure(NAME).values())
    print(f"| bytes fetched, one sentence through BERT's layer | under 1 MB of 440 MB; a test holds it | `{FETCHED}` |")
    print(f"| installed | {size / 1e6:.0f} MB with all that it needs | `python scripts/readme/installed_size.py` |")


if __name__ == "__main__":
    main()
