"""Reads tests/reference/heads: a `HeadCase` for each tiny model with a head that the reference has written and run."""

from __future__ import annotations

from encoder_files import EncoderCase, kept, off
from reference_files import REFERENCE

import minibert
from minibert.equations.input_layer import Array

HEADS = REFERENCE / "heads"


class HeadCase(EncoderCase):
    root = HEADS

    @property
    def head(self) -> str:
        return str(self.facts["head"])


HEAD_CASES = tuple(HeadCase(path.parent.name) for path in sorted(HEADS.glob("*/case.json")))
HEAD_CASE = {case.name: case for case in HEAD_CASES}


def seen(x: Array, inputs: dict[str, Array]) -> Array:
    """Rows that are no padding, of numbers for each token; else all."""
    keep = kept(inputs)
    return x[keep] if x.shape[: keep.ndim] == keep.shape else x


def distance(case: HeadCase, encoder: minibert.Encoder) -> float:
    """How far an encoder's logits are from the reference's."""
    inputs, traces = case.read
    made = {kind: encoder.logits(**given, head=case.head) for kind, given in inputs.items()}
    return max(off(seen(made[kind], given), seen(traces[kind]["logits"], given)) for kind, given in inputs.items())
