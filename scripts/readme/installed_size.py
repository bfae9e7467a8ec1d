#!/usr/bin/env python3
"""Print how large minibert and what it needs are once installed, package by package.

python scripts/readme/installed_size.py
"""

from __future__ import annotations

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "minibert"


def needed(name: str, found: dict[str, Distribution]) -> None:
    """Follow the requirements of an installed package that apply here, extras left out."""
    for line in distribution(name).requires or ():
        requirement, _, marker = line.partition(";")
        required = re.match(r"[A-Za-z0-9._-]+", requirement)
        if required is None or "extra" in marker or required.group().lower() in found:
            continue
        try:
            found[required.group().lower()] = distribution(required.group())
        except PackageNotFoundError:  # its marker names another system or Python
            continue
        needed(required.group(), found)


def size(files: list[Path]) -> int:
    """Add up what exists; compiled Python is made on first use and not counted."""
    return sum(path.stat().st_size for path in files if path.suffix != ".pyc" and path.is_file())


def closure(package: str) -> dict[str, int]:
    """Give the installed bytes of a package and of each that it needs. Raises PackageNotFoundError."""
    found = {} if package == "minibert" else {package: distribution(package)}
    needed(package, found)
    sizes = {name: size([Path(str(one.locate_file(file))) for file in one.files or ()]) for name, one in found.items()}
    return sizes | ({"minibert itself": size(list(PACKAGE.rglob("*")))} if package == "minibert" else {})


def main() -> None:
    """Print the list, largest first."""
    sizes = closure("minibert")
    large = {name: count for name, count in sizes.items() if count >= 2_000_000 or name == "minibert itself"}
    print("| package | installed |")
    print("|---|---|")
    for name, count in sorted(large.items(), key=lambda item: -item[1]):
        print(f"| {name} | {count / 1e6:.1f} MB |")
    print(f"| {len(sizes) - len(large)} smaller ones | {(sum(sizes.values()) - sum(large.values())) / 1e6:.1f} MB |")
    print(f"| **in all** | **{sum(sizes.values()) / 1e6:.0f} MB** |")


if __name__ == "__main__":
    main()
