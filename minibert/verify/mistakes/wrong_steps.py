"""Makers of the mistakes of linear maps, norms, residuals and heads, and of all parameters in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from functools import cache, partial
from typing import Any

import numpy as np

from minibert.equations import fast
from minibert.equations.input_layer import Array
from minibert.families.parts.bound_blocks import BoundResidual, Dense
from minibert.families.parts.config import replace
from minibert.families.parts.heads import taken
from minibert.families.parts.modules import Embedding, LayerNorm
from minibert.families.parts.plan import Plan, Step, looked_up, times

from .mistake import At, Wrong, by_part
from .wrong_formulas import Formula

# linear maps


def dense(change: Callable[[Dense], Dense], where: Callable[[Dense], Any] = bool) -> Wrong:
    """Another linear map, made when it is needed."""

    def make(own: Dense) -> Formula | None:
        made = cache(lambda: change(own))
        return (lambda x: made()(x)) if where(own) else None

    return by_part("dense", make)


def biased(module: Any) -> bool:
    """Whether there is a bias."""
    return module.bias is not None


def is_square(own: Dense) -> bool:
    """Whether its shape does not show that it is transposed."""
    return own.shape[0] == own.shape[1]


def rounded_weight(own: Dense, rounding: Formula) -> Dense:
    """The same map with its weight rounded, one row for each number that it gives."""
    weight = rounding(own.weight.T).T if own.transposed else rounding(own.weight)
    return Dense(np.ascontiguousarray(weight), own.bias, own.transposed)


# all that a file holds


def rounded(rounding: Formula, at: At) -> Iterator[Step]:
    """Every parameter rounded: of maps, norms, tables, of terms of the scores and of what comes after pooling."""
    maps = dense(lambda own: _with_numbers(own, rounding))
    yield from maps(at)
    for step in at.plan.values():
        if isinstance(step.part, LayerNorm):
            yield step._replace(formula=_with_numbers(step.part, rounding))
        elif step.kind == "rows":
            yield step._replace(formula=partial(_rounded_rows, step.part.module, step.part.step.extra, rounding))
        elif step.kind == "term":
            scheme = replace(step.part.scheme, **_rounded(vars(step.part.scheme), rounding))
            yield step._replace(formula=step.part._replace(scheme=scheme).plain)
        elif step.kind == "table":
            yield step._replace(formula=partial(rounding, step.part.scheme.table))
        elif step.kind == "after" and isinstance(step.part, partial):
            yield step._replace(formula=partial(step.part, **_rounded(step.part.keywords, rounding)))


def _rounded_rows(module: Embedding, extra: int, rounding: Formula, ids: Array | None) -> Array | None:
    rows = looked_up(Embedding(module.table), extra, ids)
    return None if rows is None else times(module.scale, rounding(rows))


def _rounded(values: Mapping[str, Any], rounding: Formula) -> dict[str, Array]:
    return {name: rounding(x) for name, x in values.items() if isinstance(x, np.ndarray)}


def _with_numbers(own: Any, rounding: Formula) -> Any:
    if isinstance(own, Dense):
        return Dense(rounding(own.weight), None if own.bias is None else rounding(own.bias), own.transposed)
    made = copy(own)
    vars(made).update(_rounded(vars(own), rounding))
    return made


# residuals and norms around them


def replanned(at: At, plan: Plan) -> Iterable[Step]:
    """The steps of another plan of the place that are computed from something else."""
    return (step for key, step in plan.items() if at.plan[key].of != step.of)


def parts(change: Callable[[BoundResidual], BoundResidual], at: At) -> Iterable[Step]:
    """The block planned anew with other parts."""
    if not at.block:
        return ()
    other = at.block._replace(parts=tuple(map(change, at.block.parts)))
    return replanned(at, other.plan(at.i or 0, at.stack))


def residual_before_norm(at: At) -> Iterator[Step]:
    """Add the work to the norm's input, not to its output."""
    for step in at.of("sum"):
        if step.of[0] in at.plan and at.plan[step.of[0]].kind == "norm":
            yield step._replace(of=(at.plan[step.of[0]].of[0], step.of[1]))


def side_by_side(at: At) -> Iterator[Step]:
    """The feed-forward of what enters the block, as attention is."""
    if at.block and len(at.block.parts) > 1:
        late = at.block.parts[0].after or at.block.parts[0].sum
        for step in at.plan.values():
            if late in step.of and step.kind != "sum":
                yield step._replace(of=tuple(f"hidden_states.{at.i}" if name == late else name for name in step.of))


def residual_normed(at: At) -> Iterator[Step]:
    """Add the work to the output of the norm before it."""
    for step in at.of("sum"):
        if step.part.before:
            yield step._replace(of=(step.part.before, step.of[1]))


def without_last_block(at: At) -> Iterator[Step]:
    """The last block hands on what enters it."""
    depth = len(at.stack.blocks) if at.block else 0
    for step in at.of("state") if depth > 1 and at.i == depth - 1 else ():
        norm = at.plan.get(at.stack.last_norm)
        yield (norm or step)._replace(of=(f"hidden_states.{at.i}",))


def gate_for_up(at: At) -> Iterator[Step]:
    """The activation of what multiplies."""
    for step in at.of("product"):
        activation, up = (at.plan[name] for name in step.of)
        yield activation._replace(of=(up.key,))
        yield step._replace(of=(activation.key, *activation.of))


def other_than(formula: Formula, own: Formula) -> Formula | None:
    """Another activation; textbook and fast form are one."""
    return None if own in (formula, fast.faster(formula)) else formula


# heads


def without_pooler(at: At) -> Iterator[Step]:
    """No map and activation before the classes, where the last map can take what enters the first one."""
    for take in at.of("take"):
        head = take.part
        first = next((work for _, work in head.works if isinstance(work, Dense)), head.last)
        if head.takes != "every" and head.last.shape[1] == first.shape[1]:
            yield from replanned(at, head._replace(works=()).plan(take.of[0]))


def takes(right: tuple[str, ...], wrong: str) -> Wrong:
    """Another token, or the mean of all."""
    return by_part("take", lambda head: partial(taken, wrong, head.pad_id) if head.takes in right else None)


def by_the_word_table(at: At) -> Iterator[Step]:
    """The word table in the place of a head's own."""
    for take in at.of("take"):
        table, last = at.layer.steps[0].module.table.array(), take.part.last
        if table.shape == last.weight.shape and not np.array_equal(table, last.weight):
            yield at.plan[take.part.path]._replace(formula=Dense(table, last.bias))
