"""Prints an encoder as the reference prints its module tree."""

from __future__ import annotations

import re
from typing import Any

from minibert.families.parts.block_names import module_path
from minibert.families.parts.block_parts import Blocks
from minibert.models.input_layer import EmbeddingLayer
from minibert.models.run.blocks import Stack

Tree = dict[str, Any]  # a module's name -> its own tree, or its printed line
ROTARY = "rotary_emb"  # a module of the reference's without weights, printed where a row names its class


def print_encoder(embeddings: EmbeddingLayer, blocks: Blocks, stack: Stack) -> str:
    """Print input layer and blocks as the reference's base model, without dropout and pooler."""
    family, classes = embeddings.family, {**embeddings.family.tree, **blocks.tree}
    tree: Tree = {}
    inside = embeddings.modules
    for path in sorted(inside, key=family.place):
        _put(tree, path, inside[path])
    for block in stack.blocks:
        for key, module in block.modules.items():
            _put(tree, module_path(key), module)
    for path, module in stack.others.items():
        _put(tree, path, module)
    if ROTARY in classes:
        tree[ROTARY] = f"{classes[ROTARY]}()"
    return "\n".join([f"{classes['']}(", *_lines(tree, "", classes, blocks.order), ")"])


def _put(tree: Tree, path: str, module: Any) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
    tree[last] = module if isinstance(module, str) else repr(module)


def _lines(tree: Tree, above: str, classes: dict[str, str], order: tuple[str, ...]) -> list[str]:
    """One indented line or more for each child; equal numbered ones are counted, as in the reference."""
    printed = {}
    for name in sorted(tree, key=lambda name: order.index(name) if name in order else len(order)):
        child, path = tree[name], f"{above}.{name}".lstrip(".")
        if isinstance(child, str):
            printed[name] = [child.replace("RMSNorm(", f"{classes.get('RMSNorm', 'RMSNorm')}(")]
        else:
            numbered = all(key.isdigit() for key in child)
            holder = "ModuleList" if numbered else classes[re.sub(r"\.\d+(?=\.|$)", ".{i}", path)]
            printed[name] = [f"{holder}(", *_lines(child, path, classes, order), ")"]
    lines: list[str] = []
    for name, count in _runs(printed).items():
        last = int(name) + count - 1 if name.isdigit() else 0
        label = f"({name}-{last}): {count} x " if count > 1 else f"({name}): "
        lines += _indented(label, printed[name])
    return lines


def _runs(printed: dict[str, list[str]]) -> dict[str, int]:
    runs: dict[str, int] = {}
    first = ""
    for name, lines in printed.items():
        if first and name.isdigit() and printed[first] == lines:
            runs[first] += 1
        else:
            first, runs[name] = name, 1
    return runs


def _indented(label: str, lines: list[str]) -> list[str]:
    return [f"  {label}{lines[0]}", *(f"  {line}" for line in lines[1:])]
