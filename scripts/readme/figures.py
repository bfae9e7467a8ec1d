#!/usr/bin/env python3
"""Print README's table of figures: size counted now, all else from the benchmark's last run.

python scripts/readme/figures.py        needs the extra `bench`, whose packages are counted

A size is disk space as `du` counts it, without Python's compiled files: pip writes them, other installers do not. They
add 30 MB to minibert's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PACKAGE, NAME = ROOT / "scripts" / "bench" / "results.md", ROOT / "minibert", "minibert-numpy"
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
    notes = "".join(lines(*row)[peer][-1] for row in ROWS.values())
    return max(re.findall(r"results differ by (\de-\d+)", notes), key=float)


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


def needed(name: str, found: dict[str, Distribution]) -> None:
    """Follow the requirements of an installed package that apply here, without extras."""
    for line in distribution(name).requires or ():
        requirement, _, marker = line.partition(";")
        required = re.match(r"[A-Za-z0-9._-]+", requirement)
        if required is None or "extra" in marker or required.group().lower() in found:
            continue
        with suppress(PackageNotFoundError):  # the requirement is for another system or Python
            found[required.group().lower()] = distribution(required.group())
            needed(required.group(), found)


def on_disk(paths: Iterable[Path]) -> int:
    """Add up the disk blocks of the paths that exist, each once."""
    found = {path.lstat().st_ino: 512 * path.lstat().st_blocks for path in paths if path.exists()}
    return sum(found.values())


def size_of(package: Distribution) -> int:
    """Compute the space of a package: its files, and their folders."""
    top = Path(str(package.locate_file(""))).resolve()
    files = [Path(str(package.locate_file(file))).resolve() for file in package.files or () if file.suffix != ".pyc"]
    folders = {folder for file in files for folder in file.parents if top in folder.parents}
    return on_disk([*files, *folders])


def own_size() -> int:
    """Compute the space of an installed minibert, even if this minibert runs from a clone."""
    hidden = {"__pycache__", ".mypy_cache", ".ruff_cache"}
    return on_disk(path for path in [PACKAGE, *PACKAGE.rglob("*")] if not hidden & set(path.parts))


def megabytes(*packages: str) -> float:
    """Compute the space of packages and of all that they need. Raises PackageNotFoundError."""
    found = {name: distribution(name) for name in packages if name != NAME}
    for name in packages:
        needed(name, found)
    return (sum(map(size_of, found.values())) + own_size() * (NAME in packages)) / 1e6


def main() -> None:
    """Print the table."""
    try:
        sizes = [f"{megabytes(*packages):,.0f} MB" for packages in ((NAME,), *PEERS.values())]
    except PackageNotFoundError as error:
        raise SystemExit(f"the size of {error.name} is counted, which is not here: pip install '.[bench]'") from None
    print(f"| | minibert | {' | '.join(PEERS)} |\n|---|---|---|---|")
    print(f"| installed, without Python's compiled files | {' | '.join(sizes)} |")
    print(measured())


if __name__ == "__main__":
    main()
