#!/usr/bin/env python3
"""Print README's table of figures: size counted now, all else from the benchmark's last run.

python scripts/readme/figures.py        needs the extra `bench`, whose packages are counted
"""

from __future__ import annotations

import re
from collections import ChainMap
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from installed_size import NAME, closure

RESULTS = Path(__file__).resolve().parents[2] / "scripts" / "bench" / "results.md"
PEERS = {"sentence-transformers": ("sentence-transformers",), "ONNX Runtime": ("onnxruntime", "tokenizers")}
# README's row -> section of the benchmark, and the first cell of its row
ROWS = {
    "start, load the model, encode one sentence": ("cold", "import, load, encode one sentence"),
    "peak memory of that process": ("cold", "its peak memory"),
    "encode one text": ("sentences", "encode 1 text"),
    "encode one text, one core": ("one-core", "encode 1 text"),
    "encode 16 texts": ("sentences", "encode 16 texts"),
    "encode 600 texts": ("sentences", "encode 600 texts"),
}


def lines(section: str, row: str) -> dict[str, list[str]]:
    """Find the cells of a row of the benchmark beside each peer. Raises LookupError if the run has none."""
    text = RESULTS.read_text(encoding="utf-8").partition(f"\n### {section}")[2].partition("\n### ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    found = {peer: line for peer in PEERS for line in cells if line[0] == row and line[2].endswith(f" {peer}")}
    if found.keys() != PEERS.keys():
        raise LookupError(f"{RESULTS} has no row {row!r} beside {' and '.join(PEERS)} in its section {section}")
    return found


def figures(section: str, row: str) -> list[str]:
    """Find our figure in a row of the benchmark, and each peer's."""
    cells = lines(section, row)
    own = {line[1] for line in cells.values()}
    assert len(own) == 1, f"two figures of one contender: {own}"
    return [*own, *(line[2].removesuffix(f" {peer}") for peer, line in cells.items())]


def difference(peer: str) -> str:
    """Find the largest difference from a peer's vectors."""
    found = [
        number
        for section, row in ROWS.values()
        for number in re.findall(r"results differ by ([\de-]+)", lines(section, row)[peer][-1])
    ]
    return max(found, key=float)


def unmet() -> str:
    """Name the limits that these figures do not meet, by peer; "" if they meet all."""
    missed: dict[str, list[str]] = {}
    for what, row in ROWS.items():
        for peer, line in lines(*row).items():
            if line[6] == "**not met**":
                limit = re.findall(r"[0-9.]+", line[5])[0]
                missed.setdefault(peer, []).append(f"{what} {line[3].strip('* xasft')} ({limit})")
    said = "; ".join(f"{peer}: {', '.join(each)}" for peer, each in missed.items())
    return f"Ratios below the limits that we set, in brackets, beside {said}.\n\n" if missed else ""


def machine() -> str:
    """Name the machine and the kernel of these figures; the benchmark's head has the versions too."""
    text = RESULTS.read_text(encoding="utf-8")
    place, kernel = (re.findall(rf"(?m)^- {name}: (.+)$", text)[0] for name in ("machine", "kernel.*"))
    return f"{re.sub(r' L[0-9] [^,]+,', '', place)}; BLAS kernel {kernel}"


def measured() -> str:
    """Make the rows that the benchmark has, and the lines about limits and the machine."""
    rows = {what: figures(*row) for what, row in ROWS.items()}
    rows["vectors differ from minibert's by at most"] = ["-", *map(difference, PEERS)]
    table = "\n".join(f"| {what} | {' | '.join(cells)} |" for what, cells in rows.items())
    return f"{table}\n\n{unmet()}{machine()}."


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
