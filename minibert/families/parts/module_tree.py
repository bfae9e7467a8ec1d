"""Prints modules as the reference prints its module tree."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Tree = dict[str, Any]  # a module's name -> its own tree, or its printed line


def printed(modules: Mapping[str, Any], classes: Mapping[str, str], order: Sequence[str], root: str = "") -> str:
    """Print modules (path -> module, or its line) as the module at `root` that holds them all.

    classes: a path, its numbers written {i} -> the class that the reference prints. order: of names side by side, or of
    whole paths; others come last, as they are given.
    """
    tree: Tree = {}
    for path, module in modules.items():
        *parents, last = path.removeprefix(f"{root}.").split(".")
        inside = tree
        for parent in parents:
            inside = inside.setdefault(parent, {})
        inside[last] = module if isinstance(module, str) else repr(module)
    return "\n".join([f"{classes.get(root, 'Module')}(", *_lines(tree, root, classes, order), ")"])


def _lines(tree: Tree, above: str, classes: Mapping[str, str], order: Sequence[str]) -> list[str]:
    """One indented line or more for each child; equal numbered ones are counted, as in the reference."""
    lines: dict[str, list[str]] = {}
    for name in sorted(tree, key=lambda name: place(f"{above}.{name}".lstrip("."), order)):
        child, path = tree[name], f"{above}.{name}".lstrip(".")
        if isinstance(child, str):
            lines[name] = [_norm(child, classes.get("RMSNorm", "RMSNorm"))]
        else:
            numbered = all(key.isdigit() for key in child)
            # of T5's path "block.3.layer.0" the first number alone is a block's
            known = (re.sub(r"\.\d+(?=\.|$)", ".{i}", path, count=count) for count in (1, 0))
            holder = "ModuleList" if numbered else next((classes[each] for each in known if each in classes), "Module")
            lines[name] = [f"{holder}(", *_lines(child, path, classes, order), ")"]
    found: list[str] = []
    for name, count in _runs(lines).items():
        last = int(name) + count - 1 if name.isdigit() else 0
        label = f"({name}-{last}): {count} x " if count > 1 else f"({name}): "
        first, *more = lines[name]
        found += [f"  {label}{first}", *(f"  {line}" for line in more)]
    return found


def _norm(line: str, name: str) -> str:
    """A line with the reference's class of RMSNorm; one that ends in "()" prints no more than that."""
    if name.endswith("()") and line.startswith("RMSNorm("):
        return name
    return line.replace("RMSNorm(", f"{name}(")


def place(path: str, order: Sequence[str]) -> int:
    """Rank a module's place in the reference's printed tree; equal ranks keep their order."""
    name = path if path in order else path.rpartition(".")[2]
    return order.index(name) if name in order else len(order)


def _runs(lines: dict[str, list[str]]) -> dict[str, int]:
    """Count the numbered children, from each on, that print alike."""
    runs: dict[str, int] = {}
    first = ""
    for name, own in lines.items():
        if first and name.isdigit() and lines[first] == own:
            runs[first] += 1
        else:
            first, runs[name] = name, 1
    return runs
