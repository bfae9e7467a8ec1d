"""Makers of the mistakes of norms: by another formula, at another place, once more, with other numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.parts.modules import RMSNorm
from minibert.families.parts.plan import Step

from .mistake import At, Wrong, by_part, given_place
from .wrong_formulas import Formula, NormFormula


def norm(formula: NormFormula, rms: bool) -> Wrong:
    """A norm by another formula, with its own weight and bias."""

    def make(own: Any) -> Formula | None:
        if isinstance(own, RMSNorm) != rms:
            return None
        weight = own.weight + own.weight.dtype.type(getattr(own, "plus", 0))
        return lambda x: np.asarray(formula(x, own.eps) * weight + (0 if own.bias is None else own.bias))

    return by_part("norm", make)


def rebound(change: Callable[[Any], tuple[Array, Array | None, float]], where: Callable[[Any], Any] = bool) -> Wrong:
    """A norm with another weight, bias or eps."""
    return by_part("norm", lambda own: type(own)(*change(own)) if where(own) else None)


def norm_of_one(where: Callable[[Any], Any]) -> Wrong:
    """A norm without its weight and bias."""
    return rebound(lambda own: (np.full_like(own.weight, 1 - getattr(own, "plus", 0)), None, own.eps), where)


def other_eps(eps: float, at: At) -> Iterable[Step]:
    """Norms by another eps."""
    return rebound(lambda own: (own.weight, own.bias, eps), lambda own: own.eps != eps)(at)


def exchanged(own: Any) -> tuple[Array, Array, float]:
    """Gamma for beta, and beta for gamma."""
    return own.bias, own.weight, own.eps


def without_plus(own: Any) -> RMSNorm | None:
    """The norm without 1 +, where there is one."""
    return RMSNorm(own.weight, None, own.eps) if getattr(own, "plus", 0) else None


# the last norm, and norms where there are none


def last_norm_twice(at: At) -> Iterator[Step]:
    """Norm the last norm's output again."""
    for step in at.of("norm"):
        if at.block and step.key == at.stack.last_norm:
            yield step._replace(formula=lambda x, own=step.part: own(own(x)))


def state_normed_again(at: At) -> Iterator[Step]:
    """The same where the trace has the last norm's own output."""
    for step in at.of("state"):
        if at.block and step.of == (at.stack.last_norm,):
            yield step._replace(formula=at.plan[at.stack.last_norm].part)


@given_place
def norm_where_there_is_none(at: At, plain: bool) -> Iterator[Step]:
    """Attention of what a norm gives, in a block that has none where others have one: theirs, or `plain` one's."""
    blocks = at.stack.blocks if at.block else ()
    norms = [block.modules[part.before] for block in blocks for part in block.parts[:1] if part.before]
    if at.block and norms and not at.block.parts[0].before:
        norm = norms[0]
        if plain:
            norm = type(norm)(np.full_like(norm.weight, 1 - getattr(norm, "plus", 0)), None, norm.eps)
        for step in at.of("dense"):
            if step.of == (f"hidden_states.{at.i}",):
                right = step.formula
                yield step._replace(formula=lambda x: right(norm(x)))  # noqa: B023


def without_last_norm(at: At) -> Iterator[Step]:
    """The last hidden state is what enters the last norm."""
    for step in at.of("state"):
        if at.block and step.of == (at.stack.last_norm,):
            yield step._replace(of=at.plan[step.of[0]].of)


# in attention


def without_head_norms(at: At) -> Iterator[Step]:
    """Queries and keys as they are before the norm of each head."""
    for step in at.of("view"):
        if (before := at.plan[step.of[0]]).kind == "norm":
            yield step._replace(of=before.of)
