#!/usr/bin/env python3
"""Print the disk space of minibert and of its dependencies, package by package, as `du` counts it.

python scripts/readme/installed_size.py [PACKAGE]        another package in place of minibert

Python's compiled files are not counted: pip writes them, other installers do not. They add 30 MB to minibert's.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "minibert"
NAME = "minibert-numpy"


def needed(name: str, found: dict[str, Distribution]) -> None:
    """Follow the requirements of an installed package that apply here, without extras."""
    for line in distribution(name).requires or ():
        requirement, _, marker = line.partition(";")
        required = re.match(r"[A-Za-z0-9._-]+", requirement)
        if required is None or "extra" in marker or required.group().lower() in found:
            continue
        try:
            found[required.group().lower()] = distribution(required.group())
        except PackageNotFoundError:  # the requirement is for another system or Python
            continue
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
    hidden = ("__pycache__", ".mypy_cache", ".ruff_cache")
    return on_disk(path for path in [PACKAGE, *PACKAGE.rglob("*")] if not set(hidden) & set(path.parts))


def closure(package: str) -> dict[str, int]:
    """Compute the space of a package and of each of its dependencies. Raises PackageNotFoundError."""
    own = package == NAME
    found = {} if own else {package: distribution(package)}
    needed(package, found)
    return {name: size_of(one) for name, one in found.items()} | ({"minibert itself": own_size()} if own else {})


def main(package: str = NAME) -> None:
    """Print the list, largest first."""
    sizes = closure(package)
    large = {name: count for name, count in sizes.items() if count >= 2_000_000 or name == "minibert itself"}
    print("| package | installed |")
    print("|---|---|")
    for name, count in sorted(large.items(), key=lambda item: -item[1]):
        print(f"| {name} | {count / 1e6:.1f} MB |")
    print(f"| {len(sizes) - len(large)} smaller ones | {(sum(sizes.values()) - sum(large.values())) / 1e6:.1f} MB |")
    print(f"| **in all** | **{sum(sizes.values()) / 1e6:.0f} MB** |")


if __name__ == "__main__":
    main(*sys.argv[1:])
