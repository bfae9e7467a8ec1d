#!/usr/bin/env python3
"""Print README's table of figures: size counted now, all else from the benchmark's last whole run.

python scripts/readme/figures.py        needs the extra `bench`, whose packages are counted
"""

from __future__ import annotations

import re
from collections import ChainMap
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from installed_size import NAME, closure

RESULTS = Path(__file__).resolve().parents[2] / "scripts" / "bench" / "results.md"
SECTION = "sentences"
PEERS = {"sentence-transformers": ("sentence-transformers",), "ONNX Runtime": ("onnxruntime", "tokenizers")}
# README's first cell, and the first cell of the benchmark's row
ROWS = {
    "start, load the model, encode one sentence": "import, load, encode one sentence",
    "peak memory of that process": "its peak memory",
    "encode one text": "encode 1 text",
    "encode 16 texts": "encode 16 texts",
    "encode 600 texts": "encode 600 texts",
}


def section() -> str:
    """Give the benchmark's section of sentences: its table, and the line about the machine below it."""
    _, text = re.split(rf"(?m)^### {SECTION}(?: \(.*\))?$", RESULTS.read_text(encoding="utf-8"))
    return text.partition("\n### ")[0]


def figures(row: str) -> list[str]:
    """Find our figure in a row of the benchmark, and each peer's. Raises LookupError where the run has none."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in section().splitlines()]
    cells = {peer: line for peer in PEERS for line in lines if line[0] == row and line[2].endswith(f" {peer}")}
    if cells.keys() != PEERS.keys():
        raise LookupError(f"{RESULTS} has no row {row!r} beside {' and '.join(PEERS)} in its section {SECTION}")
    own = {line[1] for line in cells.values()}
    assert len(own) == 1, f"two figures of one contender: {own}"
    return [*own, *(line[2].removesuffix(f" {peer}") for peer, line in cells.items())]


def difference(peer: str) -> str:
    """Give the largest difference from a peer's vectors that the benchmark found."""
    found = re.findall(rf"\| encode [^\n]* {peer} \|[^\n]* results differ by ([\de-]+)", section())
    return max(found, key=float)


def machine() -> str:
    """Name the machine and the versions that these figures are of."""
    (line,) = [line for line in section().splitlines() if re.search("[0-9] cores, ", line)]
    return re.sub(r" (?:L\d|tokenizers|safetensors|transformers|model2vec) [^,;]+[,;]", "", line.partition(". ")[0])


def measured() -> str:
    """Make the rows that the benchmark has, and the line about the machine."""
    rows = {what: figures(row) for what, row in ROWS.items()}
    rows["vectors differ from minibert's by at most"] = ["-", *map(difference, PEERS)]
    return "\n".join(f"| {what} | {' | '.join(cells)} |" for what, cells in rows.items()) + f"\n\n{machine()}."


def installed() -> list[int]:
    """Count the megabytes of minibert and of each peer, with all that they need."""
    sizes = []
    for packages in ((NAME,), *PEERS.values()):
        try:
            each = [closure(package) for package in packages]
        except PackageNotFoundError as error:
            told = f"figures.py counts the size of {error.name}, which is not here: pip install '.[bench]'"
            raise SystemExit(told) from None
        sizes.append(round(sum(dict(ChainMap(*each)).values()) / 1e6))
    return sizes


def main() -> None:
    """Print the table."""
    print(f"| | minibert | {' | '.join(PEERS)} |\n|---|---|---|---|")
    print(f"| installed, without Python's compiled files | {' | '.join(f'{size:,} MB' for size in installed())} |")
    print(measured())


if __name__ == "__main__":
    main()
