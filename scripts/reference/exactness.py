#!/usr/bin/env python3
"""Print the table of minibert/families/README.md: each recipe, its families, and its difference from transformers.

    python scripts/reference/exactness.py

Every number is measured now, against the reference values in tests/reference; torch is not needed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from functools import reduce
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import minibert
from minibert.families.parts.config import sqrt_width
from minibert.families.parts.steps import Add, Mask, Norm, Positions, Project, Scale, Step, Tokens, always

REFERENCE = Path(__file__).resolve().parents[2] / "tests" / "reference"
ADDENDS = {"token_type_ids": "type", "langs": "language", "task_type_ids": "task"}
COUNTS = {"padding": "position among real tokens", "mask": "position by the mask"}


def formula(family: minibert.Family) -> str:
    """Write a row's steps as one expression in order; [...] is computed only if configured or passed."""
    return reduce(grown, family.steps_for(family.sides[0]), "")


def grown(x: str, step: Step) -> str:
    """Write the expression of x after one more step."""
    sometimes = step.when is not always
    if isinstance(step, Tokens):
        return {None: "word", sqrt_width: "word * sqrt(dim)"}.get(step.scale, "word [* sqrt(dim)]")
    if isinstance(step, Add | Positions):
        name = ADDENDS[step.ids] if isinstance(step, Add) else COUNTS.get(step.rule, "position")
        name = "sines and cosines" if isinstance(step, Positions) and step.generate else name
        absent = sometimes or (isinstance(step, Add) and step.missing is None)
        inner = f"({x})" if " + " in x and not x.endswith(")") else x
        return f"{inner} [+ {name}]" if absent else f"{inner} + {name}"
    if isinstance(step, Scale):
        return f"{x} [* sqrt(dim)]" if sometimes else f"{x} * multiplier"
    if isinstance(step, Project):
        return f"[project]({x})" if sometimes else f"project({x})"
    if isinstance(step, Norm):
        return f"LayerNorm({x})"
    return f"{x} * mask" if isinstance(step, Mask) else x


def measured(folder: Path) -> tuple[str, float, float]:
    """Compare one case: its family, the largest difference before any norm or projection, and of the output."""
    case = json.loads((folder / "case.json").read_text())
    values = load_file(folder / "trace.safetensors")
    before = after = 0.0
    with minibert.load(folder, side=case["side"] or "encoder") as layer:
        rounds = any(isinstance(step, Norm | Project) for step, _ in layer.steps)
        for kind in case["kinds"]:
            inputs = {key.split("|")[2]: value for key, value in values.items() if key.startswith(f"{kind}|inputs|")}
            inputs |= {"past_length": case["past_length"].get(kind, 0)}
            ids, expected = inputs.pop("input_ids", None), values[f"{kind}|{case['order'][kind][-1]}"]
            off = np.abs(layer(ids, **inputs) - expected) / np.maximum(1, np.abs(expected))
            after = max(after, float(np.max(off)))
            projects = any(isinstance(step, Project) for step, _ in layer.steps)
            trace, first = layer.trace(ids, **inputs), layer.steps[0][0].path
            for key in (first,) if projects else (first, "sum"):
                if key in trace and f"{kind}|{key}" in values:
                    before = max(before, float(np.max(np.abs(trace[key] - values[f"{kind}|{key}"]))))
    return case["family"], before, after if rounds else max(before, after)


def main() -> None:
    """Print the table."""
    before, after = defaultdict[str, float](float), defaultdict[str, float](float)
    folders = sorted(path.parent for path in REFERENCE.glob("*/case.json"))
    batches = sum(len(json.loads((folder / "case.json").read_text())["kinds"]) for folder in folders)
    for folder in folders:
        family, first, last = measured(folder)
        before[family], after[family] = max(before[family], first), max(after[family], last)
    recipes = defaultdict[str, list[str]](list)
    for name, family in minibert.FAMILIES.items():
        recipes[formula(family)].append(name)
    counts = f"{len(minibert.FAMILIES)} model types, {len(recipes)} distinct recipes"
    print(f"{counts}, {batches} batches of {len(folders)} files.\n")
    print("| recipe | model types | before norm or projection | output |")
    print("|---|---|---|---|")
    for recipe, names in sorted(recipes.items(), key=lambda item: -len(item[1])):
        worst = [max(some[name] for name in names) for some in (before, after)]
        cells = ["0" if number == 0 else f"{number:.1e}" for number in worst]
        print(f"| `{recipe}` | {', '.join(names)} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
