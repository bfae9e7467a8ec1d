"""The two models whose numbers public notebooks print, checked from the Hub: `minibert verify --seeds`.

Of each model the header, the small tensors, the printed rows (about 150 kB) and the tokenizer are fetched.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from minibert.errors import HubError
from minibert.models.open.load import load
from minibert.verify.judge.input_layer import Subject
from minibert.verify.sides import printed

from .report import Report


class Seed(NamedTuple):
    """A model's name on the Hub, and the commit whose numbers were printed."""

    model: str
    commit: str


# Independent public repositories name these as the commit of `main`; for gpt2 the documentation of huggingface_hub is
# one of them. `verify MODEL` takes today's main.
SEEDS = (
    Seed("bert-base-uncased", "86b5e0934494bd15c9632b12f734a8a67f723594"),
    Seed("gpt2", "607a30d783dfa663caf39e06633721c8d4cfcd7e"),
)


def verify_seed(seed: Seed, local_files_only: bool = False) -> Report:
    """Compare one model with its printed numbers; the report's `ran` is False where the Hub did not give it."""
    report = Report(f"{seed.model} at {seed.commit}")
    opened = partial(load, seed.model, revision=seed.commit, local_files_only=local_files_only, lazy=True)
    try:
        with opened() as layer:
            known = printed.find(seed.model, layer)
            if known is None:
                report.fail(f"DIFFERENT: its sizes are not those of {seed.model}; is HF_ENDPOINT a right mirror?")
            else:
                printed.compare(report, Subject(layer, opened), known, "")
    except HubError as error:
        report.ran = report.passed = False
        report.lines = [f"not run here: {error}"]
    return report
