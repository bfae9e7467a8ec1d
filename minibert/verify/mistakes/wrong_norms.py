"""Makers of the mistakes of norms: by another formula, at another place, once more, with other numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.parts.modules import RMSNorm
from minibert.families.parts.plan import Step

from .mistake import At, Wrong, by_part
from .wrong_formulas import Formula, NormFormula


def norm(formula: NormFormula, rms: bool) -> Wrong:
    """A norm by another formula, with its own weight and bias."""

    def make(own: Any) -> Formula | None:
        if isinstance(own, RMSNorm) != rms:
            return None
        weight = own.weight + own.weight.dtype.type(getattr(own, "plus", 0))
        return lambda x: np.asarray(formula(x, own.eps) * weight + (0 if own.bias is None else own.bias))

    return by_part("norm", make)


def rebound(change: Callable[[Any], tuple[Array, Array | None, float]], where: Callable[[Any], Any]) -> Wrong:
    """A norm with another weight, bias or eps."""
    return by_part("norm", lambda own: type(own)(*change(own)) if where(own) else None)


def with_eps(eps: float, own: Any) -> Formula | None:
    """The norm by another eps."""
    return type(own)(own.weight, own.bias, eps) if own.eps != eps else None


def without_plus(own: Any) -> RMSNorm | None:
    """The norm without 1 +, where there is one."""
    return RMSNorm(own.weight, None, own.eps) if getattr(own, "plus", 0) else None


def without_last_norm(at: At) -> Iterator[Step]:
    """The last hidden state is what enters the last norm."""
    for step in at.of("state"):
        if at.block and step.of == (at.stack.last_norm,):
            yield step._replace(of=at.plan[step.of[0]].of)


def without_head_norms(at: At) -> Iterator[Step]:
    """Queries and keys as they are before the norm of each head."""
    for step in at.of("view"):
        if (before := at.plan[step.of[0]]).kind == "norm":
            yield step._replace(of=before.of)
