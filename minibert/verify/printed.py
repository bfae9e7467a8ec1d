"""Numbers of two well-known checkpoints that public notebooks have printed, and the comparison of a layer with them.

`data/*.json` ship with the package: a few hundred numbers of bert-base-uncased and gpt2, copied from notebooks that
run the reference. The digits are kept as printed. Each number may be off by half a unit of its last digit, or by half
a float32 step if that is more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import HubError
from minibert.models.input_layer import EmbeddingLayer
from minibert.models.open.load import load

from .report import Checked, Comparison, compare_ids, table
from .subjects import Subject

DATA = Path(__file__).parent / "data"
SLACK = 1e-15  # the rounding of a printed number that is read into float64


def names() -> list[str]:
    """List the models whose numbers ship."""
    return [path.stem for path in sorted(DATA.glob("*.json"))]


def find(model: str, layer: EmbeddingLayer) -> dict[str, Any] | None:
    """Return the printed values for a model of this name (a Hub name, a folder, the Hub's cache) and these sizes."""
    parts = {part.rpartition("--")[2] for part in PurePath(model).parts}
    for path in sorted(DATA.glob("*.json")):
        if path.stem in parts:
            stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if all(layer.config.get(key) == size for key, size in stored["sizes"].items()):
                return stored
    return None


def compare(report: Comparison, subject: Subject, values: Mapping[str, Any], before: str) -> None:
    """Compare printed numbers and ids; `before` begins the first sentence."""
    report.say(
        f"{before}compared with printed numbers of {values['model']}, whose name and sizes this model has; they ship "
        f"with minibert: {values['source']}"
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
    """Compare every printed number with the layer's trace: half a printed unit, and a norm's rounding, are allowed."""
    # so that a remote table fetches all rows at once
    subject.layer.steps[0].module.table.expect(entry["input_ids"] for entry in stored["values"])
    found: dict[str, list[tuple[float, float]]] = {}
    for entry in stored["values"]:
        key = entry["key"]
        rows = subject.trace({"input_ids": np.array([entry["input_ids"]])})[key][0]
        got = rows[np.ix_(entry["tokens"], np.arange(rows.shape[-1])[entry["columns"]])].astype(np.float64)
        printed = np.array(entry["printed"], np.float64)
        unit = np.maximum(half_units(entry["printed"]), half_steps(printed))
        limit = unit + SLACK + subject.allowed[key] * np.maximum(1, np.abs(printed))
        found.setdefault(key, []).extend(zip(np.abs(got - printed).flat, limit.flat, strict=True))
    checked = []
    for key, pairs in found.items():
        off, allowed = max(pairs, key=lambda pair: pair[0] / pair[1])
        passes = all(off <= most for off, most in pairs)
        checked.append(Checked(key, len(pairs), float(off), float(allowed), passes))
    return checked


def half_units(printed: Iterable[Iterable[str]]) -> Array:
    """Return half a unit of each number's last printed digit.

    >>> half_units([["0.0136", "1.7505e-02"]])
    array([[5.e-05, 5.e-07]])
    """

    def half_unit(text: str) -> float:
        digits, _, power = text.lower().partition("e")
        return 0.5 * 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))

    return np.array([[half_unit(text) for text in row] for row in printed])


def half_steps(printed: Array) -> Array:
    """Return half the distance to the next float32: a number in full has just enough digits to identify a float32.

    >>> half_steps(np.array([0.05135201, 0.18410145]))
    array([1.86264515e-09, 7.45058060e-09])
    """
    return np.asarray(np.spacing(np.abs(printed).astype(np.float32)) / 2, np.float64)


# -- both checkpoints from the Hub: `minibert verify --seeds` ----------------------------------------------------


class Seed(NamedTuple):
    """A model's name on the Hub, and the commit whose numbers were printed."""

    model: str
    commit: str


# Independent public repositories name these as the commit of `main`; for gpt2 the documentation of huggingface_hub is
# one of them. `verify MODEL` takes today's main
SEEDS = (
    Seed("bert-base-uncased", "86b5e0934494bd15c9632b12f734a8a67f723594"),
    Seed("gpt2", "607a30d783dfa663caf39e06633721c8d4cfcd7e"),
)


def verify_seed(seed: Seed, local_files_only: bool = False) -> Comparison:
    """Compare one model with its printed numbers; `ran` is False if the Hub did not answer.

    Only the header, the small tensors, the printed rows (about 150 kB) and the tokenizer are fetched.
    """
    report = Comparison(f"{seed.model} at {seed.commit}")
    open_model = partial(load, seed.model, revision=seed.commit, local_files_only=local_files_only, lazy=True)
    try:
        with open_model() as layer:
            known = find(seed.model, layer)
            if known is None:
                report.fail(f"DIFFERENT: its sizes are not those of {seed.model}; is HF_ENDPOINT a right mirror?")
            else:
                compare(report, Subject(layer, open_model), known, "")
    except HubError as error:
        report.ran = report.passed = False
        report.lines = [f"not run here: {error}"]
    return report
