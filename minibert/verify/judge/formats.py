"""The narrower formats in which a port may compute: each is the model's own computation, rounded, which acquits a port.

Parameters and every intermediate are rounded. A port is right in a format where each module's rms error, from the
port's own input of it, is at most `ROUNDS` times that computation's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from minibert.families.parts.plan import Plan, Step
from minibert.verify.mistakes.mistake import At
from minibert.verify.mistakes.wrong_modules import ROUNDINGS, Formula, rounded

from .compare import Difference, over_kinds

ROUNDS = 3.0  # a port's rms error, by that of our own computation; measured at most 1.8
MASKS = ("mask", "masked", "keep")  # steps that no format rounds

FORMS: Mapping[str, Formula] = ROUNDINGS


def narrowed(rounding: Formula, at: At) -> Plan:
    """The steps with every parameter and every output rounded."""
    plan = {**at.plan, **{step.key: step for step in rounded(rounding, at)}}
    return {key: rounded_step(rounding, step) for key, step in plan.items()}


def rounded_step(rounding: Formula, step: Step) -> Step:
    """A step whose output is rounded."""
    right = step.formula
    return step if step.kind in MASKS else step._replace(formula=lambda *x: _on_floats(rounding, right(*x)))


def _on_floats(change: Formula, x: Any) -> Any:
    return change(x) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x


def weighed(compared: Iterable[Difference]) -> list[Difference]:
    """The same, where beyond the tolerance the rms errors decide; of a small batch by the error in all batches."""
    several = list(compared)
    pooled = {d.key: d.error_ours for d in over_kinds(several)}
    return [
        d._replace(weighed=True, share=ROUNDS, error_ours=max(d.error_ours, pooled[d.key]))
        if np.isfinite(d.error_ours) else d for d in several
    ]  # fmt: skip
