"""What makes the mistakes of norms: by another formula, at another place, once more, with other numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.parts.modules import RMSNorm
from minibert.families.parts.plan import Step

from .mistake import At, Wrong, by_part, given_place
from .wrong_attention import several_heads
from .wrong_formulas import Formula, NormFormula


def norm(formula: NormFormula, rms: bool) -> Wrong:
    """A norm by another formula, with its own weight and bias."""

    def make(own: Any) -> Formula | None:
        if isinstance(own, RMSNorm) != rms:
            return None
        weight = own.weight + own.weight.dtype.type(getattr(own, "plus", 0))
        return lambda x: np.asarray(formula(x, own.eps) * weight + (0 if own.bias is None else own.bias))

    return by_part("norm", make)


def weight_first(plus: bool) -> Wrong:
    """RMSNorm of rows times the weight; `plus`: of Gemma's 1 + weight, as it should be, or of the weight alone."""

    def make(own: Any) -> Formula | None:
        if not isinstance(own, RMSNorm) or (not plus and not own.plus):
            return None
        weight = own.weight + own.weight.dtype.type(own.plus * plus)
        bare = RMSNorm(np.ones_like(weight), None, own.eps)
        return lambda x: np.asarray(bare(x * weight))

    return by_part("norm", make)


def rebound(change: Callable[[Any], tuple[Array, Array | None, float]], where: Callable[[Any], Any] = bool) -> Wrong:
    """A norm with another weight, bias or eps."""
    return by_part("norm", lambda own: type(own)(*change(own)) if where(own) else None)


def norm_of_one(where: Callable[[Any], Any]) -> Wrong:
    """A norm without its weight and bias."""
    return rebound(lambda own: (np.full_like(own.weight, 1 - getattr(own, "plus", 0)), None, own.eps), where)


def twice(own: Formula) -> Formula:
    """A formula of what it gives."""
    return lambda x: own(own(x))


def other_eps(eps: float, at: At) -> Iterable[Step]:
    """Norms by another eps."""
    return rebound(lambda own: (own.weight, own.bias, eps), lambda own: own.eps != eps)(at)


def plain(own: RMSNorm) -> RMSNorm:
    """Without 1 + where there is one, with one where there is none."""
    return RMSNorm(own.weight if own.plus else own.weight + 1, None, own.eps)


def once_more(own: RMSNorm) -> RMSNorm | None:
    """With 1 + once more, where there is one."""
    return type(own)(own.weight + 1, None, own.eps) if getattr(own, "plus", 0) else None


def norms_exchanged(at: At) -> Iterator[Step]:
    """The two norms of each block, each in the other's place."""
    own = [] if at.block is None else [x for part in at.block.parts for x in (part.before, part.after) if x]
    if len(own) == 2 and at.plan[own[0]].kind == at.plan[own[1]].kind == "norm":
        one, other = (at.plan[key] for key in own)
        yield one._replace(formula=other.formula)
        yield other._replace(formula=one.formula)


# the last norm, and norms where there are none


def last_norm_twice(at: At) -> Iterator[Step]:
    """What the last norm gives is normed again, there or where it becomes the last hidden state."""
    for step in at.of("state"):
        if at.block and step.of == (at.stack.last_norm,):
            norm = at.plan[at.stack.last_norm]
            yield norm._replace(formula=twice(norm.part))


def state_normed_again(at: At) -> Iterator[Step]:
    """The same where the trace has the last norm's own output."""
    for step in at.of("state"):
        if at.block and step.of == (at.stack.last_norm,):
            yield step._replace(formula=at.plan[at.stack.last_norm].part)


@given_place
def last_norm_of_each_block(at: At, in_sum: bool, every: bool = False) -> Iterator[Step]:
    """What leaves each block before the last one passes the last norm; `in_sum`: the trace has no sum without it;
    `every`: so does what leaves the last block, which then is normed again.
    """
    for step in at.of("state"):
        if at.block and at.stack.last_norm and (every or step.of != (at.stack.last_norm,)):
            before = at.plan[at.stack.last_norm].of[0] if step.of == (at.stack.last_norm,) else step.of[0]
            last, end = at.stack.others[at.stack.last_norm], at.plan[before]
            if not in_sum:
                yield step._replace(formula=last)
            elif end.kind == "sum":
                yield end._replace(formula=lambda x, y: last(x + y))  # noqa: B023


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


def norm_over_heads(at: At) -> Iterator[Step]:
    """Queries and keys divided by the root of the mean square of all their heads."""
    own = at.block and at.block.attention
    for path in filter(None, own.norms) if own and several_heads(own) else ():
        yield at.plan[path]._replace(formula=partial(_over_heads, at.plan[path].part))


def _over_heads(norm: Any, x: Array) -> Array:
    square = np.mean(x * x, axis=-1, keepdims=True)
    every = square.mean(-2, keepdims=True)
    return np.asarray(norm(x) * np.sqrt((square + norm.eps) / (every + norm.eps)))


def without_head_norms(at: At) -> Iterator[Step]:
    """Queries and keys as they are before the norm of each head."""
    for step in at.of("view"):
        if (before := at.plan[step.of[0]]).kind == "norm":
            yield step._replace(of=before.of)
