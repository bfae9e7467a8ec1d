#!/usr/bin/env python3
"""Print the table of minibert/verify/README.md: the four models that everyone asks for, and the differences.

    MINIBERT_MODEL=folder python scripts/readme/four_models.py

What can be run is run now; what cannot (no Hub, no torch) is "not run here". MINIBERT_MODEL names all-MiniLM-L6-v2.
MINIBERT_REFERENCE may name a folder with the position table of bert-base-uncased. Then the printed numbers are first
compared with that table, and the script stops where they differ; the table gets nothing from it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

import minibert
from minibert.verify import printed, shipped
from minibert.verify.printed import SEEDS, Seed, verify_seed
from minibert.verify.reference import installed
from minibert.verify.report import Comparison, compare, compare_ids, over_kinds
from minibert.verify.subjects import tolerances
from minibert.verify.traces import trace
from minibert.verify.verify import verify

NOT_RUN = "not run here"
POSITIONS = "bert_base_uncased_position_embeddings.npy"
T5 = "t5-small"


def seed_row(seed: Seed) -> list[str]:
    """Compare with what is printed of a model, by the rows needed."""
    values = printed_of(seed.model)
    count = sum(len(row) for entry in values["values"] for row in entry["printed"])
    keys = dict.fromkeys(entry["key"].rpartition(".")[2] for entry in values["values"])
    report = verify_seed(seed)
    found = "every number as printed" if report.passed else "DIFFERENT"
    return [
        seed.model,
        f"{count} numbers that public notebooks print",
        f"{', '.join(keys)}; ids of {len(values['texts'])} text{'s' * (len(values['texts']) > 1)}; "
        f"at commit `{seed.commit[:8]}`",
        found if report.ran else NOT_RUN,
        "`minibert verify --seeds`",
    ]


def t5_row() -> list[str]:
    """Compare with transformers, where that is installed and the Hub gives the model."""
    found = NOT_RUN
    if installed():
        try:
            report = verify(T5)
            largest = max(d.largest for d in report.compared)
            found = f"{largest:.2g}" if report.passed else "DIFFERENT"
        except (minibert.HubError, OSError):
            pass  # no Hub: not run
    where = "every intermediate of every kind of batch"
    command = f"`minibert verify {T5}`, where torch and transformers are installed"
    return [T5, "transformers, run beside it", where, found, command]


def minilm_row(folder: str) -> list[str]:
    """Compare with the values that ship with the package."""
    with minibert.load(folder) as layer:
        values, report = shipped.find(layer), Comparison()
        if values is not None:
            compare_ids(report, layer, values.texts, "the reference's")
        if values is None or not report.passed:
            raise SystemExit(f"{folder} does not have the numbers or the ids of {shipped.MODEL}")
        ours = {kind: trace(layer, batch) for kind, batch in values.inputs.items()}
        found = over_kinds(compare(ours, values.traces, {}, tolerances(layer)))
    if set.union(*map(set, ours.values())) != {d.key for d in found} or not all(d.passes for d in found):
        raise SystemExit(f"{folder} differs from what {values.reference} computes")
    *before, norm = found
    return [
        shipped.MODEL.rpartition("/")[2],
        f"what {values.reference} computes, shipped with minibert",
        f"every intermediate and the ids of {len(values.texts)} texts",
        f"{max(d.largest for d in before):.2g}; after LayerNorm {norm.largest:.2g}",
        '`minibert verify "$MINIBERT_MODEL"`',
    ]


def check_positions(folder: Path) -> None:
    """Stop unless the printed position rows of bert-base-uncased are those of its table."""
    table = np.load(folder / POSITIONS)
    for entry in printed_of("bert-base-uncased")["values"]:
        if not entry["key"].endswith("position_embeddings"):
            continue
        got = table[np.ix_(entry["tokens"], np.arange(table.shape[1])[entry["columns"]])].astype(np.float64)
        off = np.abs(got - np.array(entry["printed"], np.float64))
        if not (off <= printed.half_units(entry["printed"])).all():
            raise SystemExit(f"{POSITIONS} differs from what is printed, by up to {off.max():.2g}: {entry}")


def printed_of(model: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((printed.DATA / f"{model}.json").read_text(encoding="utf-8"))
    return values


def main() -> None:
    """Print the table."""
    folder = os.environ.get("MINIBERT_REFERENCE")
    if folder and (Path(folder) / POSITIONS).is_file():
        check_positions(Path(folder))
    rows = [["model", "compared with", "where", "difference", "the command"], ["---"] * 5]
    rows += [*map(seed_row, SEEDS), t5_row(), minilm_row(os.environ["MINIBERT_MODEL"])]
    for row in rows:
        print(f"| {' | '.join(row)} |".replace(" --- ", "---"))


if __name__ == "__main__":
    main()
