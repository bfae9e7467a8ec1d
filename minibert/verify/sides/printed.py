"""Numbers of two well-known checkpoints that others have printed, and the check of a layer against them.

`data/*.json` ship with the package: a few hundred numbers of bert-base-uncased and gpt2, copied from notebooks that
run the reference. The digits are kept as printed. They say how far each number may be off: half a unit of its last
digit, or half a float32 step where that is more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.models.input_layer import EmbeddingLayer
from minibert.verify.judge.input_layer import Subject
from minibert.verify.report import Checked, Report, compare_ids, table

DATA = Path(__file__).parents[1] / "data"
SLACK = 1e-15  # a number printed with all its digits is read back into float64 with an error of its own


def names() -> list[str]:
    """The models whose numbers ship."""
    return [path.stem for path in sorted(DATA.glob("*.json"))]


def find(model: str, layer: EmbeddingLayer) -> dict[str, Any] | None:
    """Give the stored values for a model of this name (a Hub name, a folder, the Hub's cache) and these sizes."""
    parts = {part.rpartition("--")[2] for part in PurePath(model).parts}
    for path in sorted(DATA.glob("*.json")):
        if path.stem in parts:
            stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if all(layer.config.get(key) == size for key, size in stored["sizes"].items()):
                return stored
    return None


def compare(report: Report, subject: Subject, values: Mapping[str, Any], before: str) -> None:
    """Compare printed numbers and ids; `before` begins the first sentence."""
    report.say(
        f"{before}compared with numbers of {values['model']}, as this model's name and sizes say it is, that ship with "
        f"minibert: {values['source']}"
    )
    report.checked = check(subject, values)
    rows = [["intermediate", "numbers", "max difference", "allowed there", "verdict"]]
    for c in report.checked:
        verdict = "as printed" if c.passes else "DIFFERENT"
        rows.append([c.key, str(c.numbers), f"{c.largest:.2g}", f"{c.allowed:.2g}", verdict])
    report.say("", *table(rows), "")
    texts = [((text["text"],), {"input_ids": text["input_ids"]}) for text in values["texts"]]
    compare_ids(report, subject.model, texts, "as printed")
    if not all(c.passes for c in report.checked):
        report.fail()
    elif report.passed:
        report.say("every number is the one that was printed")


def check(subject: Subject, stored: Mapping[str, Any]) -> list[Checked]:
    """Compare every stored number with the layer's trace: half a printed unit, and a norm's rounding, are allowed."""
    # a remote table then fetches all rows at once
    subject.layer.steps[0].module.table.expect(entry["input_ids"] for entry in stored["values"])
    found: dict[str, list[tuple[float, float]]] = {}
    for entry in stored["values"]:
        key = entry["key"]
        rows = subject.trace({"input_ids": np.array([entry["input_ids"]])})[key][0]
        got = rows[np.ix_(entry["tokens"], np.arange(rows.shape[-1])[entry["columns"]])].astype(np.float64)
        printed = np.array(entry["printed"], np.float64)
        unit = np.maximum(half_units(entry["printed"]), half_steps(printed))
        limit = unit + SLACK + subject.allowed[key] * np.maximum(1, np.abs(printed))
        pairs = zip(np.abs(got - printed).flat, limit.flat, strict=True)
        found.setdefault(key, []).extend((float(off), float(most)) for off, most in pairs)
    return [_sum_up(key, pairs) for key, pairs in found.items()]


def _sum_up(key: str, pairs: list[tuple[float, float]]) -> Checked:
    off, most = max(pairs, key=lambda pair: pair[0] / pair[1])
    return Checked(key, len(pairs), off, most, all(off <= most for off, most in pairs))


def half_units(printed: Iterable[Iterable[str]]) -> Array:
    """Half a unit of each number's last printed digit.

    >>> half_units([["0.0136", "1.7505e-02"]])
    array([[5.e-05, 5.e-07]])
    """

    def half_unit(text: str) -> float:
        digits, _, power = text.lower().partition("e")
        return 0.5 * 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))

    return np.array([[half_unit(text) for text in row] for row in printed])


def half_steps(printed: Array) -> Array:
    """Half the distance to the next float32: where all digits are printed, they are the fewest that name a float32.

    >>> half_steps(np.array([0.05135201, 0.18410145]))
    array([1.86264515e-09, 7.45058060e-09])
    """
    return np.asarray(np.spacing(np.abs(printed).astype(np.float32)) / 2, np.float64)
