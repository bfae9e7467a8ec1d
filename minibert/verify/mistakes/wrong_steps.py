"""What makes the mistakes of linear maps, norms, residuals and heads, and of all parameters that a file holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from functools import cache, partial
from typing import Any

import numpy as np

from minibert.equations import activations, fast
from minibert.equations.disentangled import token_windows
from minibert.equations.input_layer import Array
from minibert.families.parts.bound_blocks import (
    BoundBlock,
    BoundConvolution,
    BoundFeedForward,
    BoundResidual,
    Dense,
    rotated,
)
from minibert.families.parts.frozen import replace
from minibert.families.parts.heads import BoundHead, taken
from minibert.families.parts.layer_plan import looked_up, times
from minibert.families.parts.modules import Embedding, LayerNorm
from minibert.families.parts.plan import Step
from minibert.models.encoder import Encoder

from .mistake import At, Wrong, by_part, given_place
from .plain import UNNORMED
from .wrong_attention import further_on
from .wrong_formulas import Formula, one_after_another

# linear maps


def dense(change: Callable[[Dense], Dense], where: Callable[[Dense], Any] = bool) -> Wrong:
    """Another linear map, made when it is needed."""

    def make(own: Dense) -> Formula | None:
        made = cache(lambda: change(own))
        return (lambda x: made()(x)) if where(own) else None

    return by_part("dense", make)


def biases(change: Callable[[Array], Array | None]) -> Wrong:
    """Another bias of linear maps."""
    return dense(lambda own: Dense(own.weight, change(np.asarray(own.bias)), own.transposed), biased)


def biased(module: Any) -> bool:
    """Whether there is a bias."""
    return module.bias is not None


def is_square_and_biased(own: Dense) -> bool:
    """Whether it is a map without whose bias its weight can be transposed too."""
    return is_square(own) and biased(own)


def is_square(own: Dense) -> bool:
    """Whether its shape does not show that it is transposed."""
    return own.shape[0] == own.shape[1]


def rounded_weight(own: Dense, rounding: Formula) -> Dense:
    """The same map with its weight rounded, one row for each number that it gives."""
    weight = rounding(own.weight.T).T if own.transposed else rounding(own.weight)
    return Dense(np.ascontiguousarray(weight), own.bias, own.transposed)


# all that a file holds


@given_place
def rounded(at: At, rounding: Formula) -> Iterator[Step]:
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


@given_place
def rounded_frequencies(at: At, rounding: Formula) -> Iterator[Step]:
    """Rotations by rounded frequencies."""
    for step in at.of("rotation"):
        scheme: Any = at.stack.rotary
        rotations = {name: own._replace(frequencies=rounding(own.frequencies))
                     for name, own in scheme.rotations.items()}  # fmt: skip
        yield step._replace(formula=partial(rotated, replace(scheme, rotations=rotations), step.part.layer_type))


def with_frequencies(rounding: Formula) -> Wrong:
    """Every parameter and the frequencies of rotations rounded, in a model that has these."""
    numbers, frequencies = rounded(rounding), rounded_frequencies(rounding)
    return lambda at: [*numbers(at), *frequencies(at)] if isinstance(at.model, Encoder) and at.stack.rotary else []


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


@given_place
def parts(at: At, change: Callable[[BoundResidual], BoundResidual]) -> Iterator[Step]:
    """The block planned anew with other parts."""
    if at.block is not None:
        yield from _planned_anew(at, at.block._replace(parts=tuple(map(change, at.block.parts))))


def _planned_anew(at: At, other: BoundBlock) -> Iterator[Step]:
    """What another block in its place plans otherwise; what stays as it is stays the same step."""
    for key, step in other.plan(at.i or 0, at.stack).items():
        if at.plan[key].of != step.of:
            yield step


def normed_sum(kind: type, part: BoundResidual) -> BoundResidual:
    """The norm within of the sum, in attention or feed-forward."""
    return part._replace(within="", after=part.within) if part.within and isinstance(part.work, kind) else part


def residual_before_norm(at: At) -> Iterator[Step]:
    """What enters the norm is added to, not what it gives."""
    for step in at.of("sum"):
        if step.of[0] in at.plan and at.plan[step.of[0]].kind == "norm":
            yield step._replace(of=(at.plan[step.of[0]].of[0], step.of[1]))


def residual_of_block(at: At) -> Iterator[Step]:
    """What enters the block is added to once more, not the sum before."""
    for step in at.of("sum")[1:]:
        if at.block:
            yield step._replace(of=(f"hidden_states.{at.i}", step.of[1]))


@given_place
def side_by_side(at: At, one_norm: bool) -> Iterator[Step]:
    """The feed-forward of what enters the block, as attention is; `one_norm`: of what attention's norm gives."""
    first, second = at.block.parts[:2] if at.block and len(at.block.parts) > 1 else (None, None)
    if first is None or second is None or (one_norm and not (first.before and second.before)):
        return
    late = second.before if one_norm else first.after or first.sum
    early = first.before if one_norm else f"hidden_states.{at.i}"
    for step in at.plan.values():
        if late in step.of and step.kind != "sum":
            yield step._replace(of=tuple(early if name == late else name for name in step.of))


def norms_of_llama(at: At) -> Iterator[Step]:
    """Of four norms in a block two: what comes before a sum in attention is taken before the feed-forward."""
    if at.block and len(at.block.parts) == 2:
        first, second = at.block.parts
        if first.within and second.within and second.before:
            two = first._replace(within=""), second._replace(before=first.within, within="")
            yield from _planned_anew(at, at.block._replace(parts=two))


def residual_normed(at: At) -> Iterator[Step]:
    """What the norm before gives is added to."""
    for step in at.of("sum"):
        if step.part.before:
            yield step._replace(of=(step.part.before, step.of[1]))


def sums(x: int, added: int) -> Wrong:
    """So many times what is added to, and what is added."""
    return by_part("sum", lambda part: lambda a, b: x * a + added * b)


def convolution_of_what_leaves(at: At) -> Iterator[Step]:
    """It works on what the feed-forward's norm gives, at padding too, where that is not zero."""
    for step in at.of("real"):
        sums = [each for each in at.of("sum") if each.part.work is step.part]
        yield step._replace(of=sums[0].of[:1], formula=np.asarray)


def without_convolution(at: At) -> Iterator[Step]:
    """What enters its sum goes on, without its norm."""
    for step in at.of("state"):
        norm = at.plan.get(step.of[0])
        end = norm and at.plan.get(norm.of[0])
        if end and end.kind == "sum" and isinstance(end.part.work, BoundConvolution):
            yield step._replace(of=end.of[:1])


def windows_reversed(own: BoundConvolution) -> Formula:
    """The tokens after it come first."""
    return lambda x: np.asarray(token_windows(x[..., ::-1, :], own.size)[..., ::-1, :])


def gate_for_up(at: At) -> Iterator[Step]:
    """The activation of what multiplies."""
    for step in at.of("product"):
        activation, up = (at.plan[name] for name in step.of)
        yield activation._replace(of=(up.key,))
        yield step._replace(of=(activation.key, *activation.of))


def activated_product(at: At) -> Iterator[Step]:
    """The activation of gate times up."""
    for step in at.of("product"):
        activation, up = (at.plan[name] for name in step.of)
        right = activation.formula
        yield activation._replace(of=(*activation.of, up.key), formula=lambda a, b: right(a * b))  # noqa: B023
        yield step._replace(formula=lambda made, _: made)


@given_place
def activated_after(at: At, left_out: bool, in_sum: bool) -> Iterator[Step]:
    """The activation of what the second map gives; `left_out`: and not before it; `in_sum`: as it is added."""
    for sum_of in at.of("sum"):
        work = sum_of.part.work
        if isinstance(work, BoundFeedForward):
            output = at.plan[work.output]
            if left_out:
                yield at.plan[work.activation]._replace(formula=np.asarray)
            if in_sum:
                yield sum_of._replace(formula=partial(_added_activated, work.activate))
            else:
                yield output._replace(formula=partial(one_after_another, output.part, work.activate))


def _added_activated(activate: Formula, x: Array, added: Array) -> Array:
    return np.asarray(x + activate(added))


@given_place
def bias_after_activation(at: At, later: bool) -> Iterator[Step]:
    """The first map's bias is added to what the activation gives; `later`: as it enters the second map."""
    for step in at.of("activation"):
        first = at.plan.get(step.of[0])
        if first and first.kind == "dense" and biased(first.part):
            own = first.part
            yield first._replace(formula=Dense(own.weight, None, own.transposed))
            plus = partial(np.add, np.asarray(own.bias))
            for other in at.plan.values() if later else ():
                if other.of == (step.key,):
                    yield other._replace(formula=partial(one_after_another, plus, other.formula))
            if not later:
                yield step._replace(formula=partial(one_after_another, step.formula, plus))


def normed_before_sum(at: At) -> Iterator[Step]:
    """A norm that comes after a sum is of what is added alone; then what entered is added."""
    for step in at.of("sum"):
        if step.part.after:
            both = f"{step.key} after the norm"
            yield step._replace(formula=lambda x, added: np.asarray(added))
            yield Step(f".{both}", "sum", np.add, (step.of[0], step.part.after), step.part)
            for other in at.plan.values():
                if step.part.after in other.of:
                    yield other._replace(of=tuple(f".{both}" if x == step.part.after else x for x in other.of))


def other_than(formula: Formula, own: Formula) -> Formula | None:
    """Another activation; textbook and fast form are one."""
    return None if own in (formula, fast.faster(formula)) else formula


def gelu_without_root(own: Formula) -> Formula | None:
    """`x * (1 + erf(x)) / 2` in the place of a gelu."""
    gelu = fast.faster(activations.gelu)
    if own not in (activations.gelu, gelu, activations.gelu_tanh):
        return None
    return lambda x: gelu(x * x.dtype.type(math.sqrt(2))) / x.dtype.type(math.sqrt(2))


# heads


@given_place
def works(at: At, change: Callable[[BoundHead], Iterable[tuple[str, Any]]]) -> Iterator[Step]:
    """The head planned anew with other steps before the last map."""
    for take in at.of("take"):
        works = tuple(change(take.part))
        for key, step in take.part._replace(works=works).plan(take.of[0]).items() if works != take.part.works else ():
            if at.plan[key].of != step.of:
                yield step


def _is_activation(work: Any) -> bool:
    return not hasattr(work, "weight")


def without_pooler(head: BoundHead) -> Iterable[tuple[str, Any]]:
    """No map and activation before the classes, where the last map can take what enters the first one."""
    first = next((work for _, work in head.works if isinstance(work, Dense)), head.last)
    return () if head.takes != "every" and head.last.shape[1] == first.shape[1] else head.works


def norm_first(head: BoundHead) -> Iterable[tuple[str, Any]]:
    """The norm between the map and the activation."""
    return sorted(head.works, key=lambda work: (not isinstance(work[1], Dense), _is_activation(work[1])))


def takes(right: tuple[str, ...], wrong: str) -> Wrong:
    """Another token, or the mean of all."""
    return by_part("take", lambda head: partial(taken, wrong, head.pad_id) if head.takes in right else None)


def first_logits(at: At) -> Iterator[Step]:
    """The first token's logits, not the mean of all."""
    yield from by_part("logits", lambda head: (lambda x, real: x[:, 0]) if head.takes == "late" else None)(at)


@given_place
def last(at: At, change: Callable[[Any, Dense], Dense | None]) -> Iterator[Step]:
    """Another last map of a head, from the input layer's word module and its own."""
    for take in at.of("take"):
        last = change(at.layer.steps[0].module, take.part.last)
        if last is not None:
            yield at.plan[take.part.path]._replace(formula=last)


def by_the_word_table(words: Any, last: Dense) -> Dense | None:
    """The word table in the place of a head's own."""
    table = words.table.array()
    own = table.shape == last.weight.shape and not np.array_equal(table, last.weight)
    return Dense(table, last.bias) if own else None


def by_scaled_words(words: Any, last: Dense) -> Dense | None:
    """A tied head with the input layer's factor."""
    return None if words.scale == 1 else Dense(last.weight * last.weight.dtype.type(words.scale), last.bias)


def of_un_normed(at: At) -> Iterator[Step]:
    """A head of the rows before the last norm."""
    for take in at.of("take"):  # an input layer has no blocks
        if at.stack.last_norm:
            yield take._replace(of=(UNNORMED, *take.of[1:]))


@given_place
def logits(at: At, change: Callable[[BoundHead, Array], Array], whole: bool = True) -> Iterator[Step]:
    """Other logits; not `whole`: the output of the last map itself is right."""
    for take in at.of("take"):
        step = at.plan[take.part.path if whole else "logits"]
        right: Callable[..., Any] = step.formula
        yield step._replace(formula=lambda *x: change(take.part, right(*x)))  # noqa: B023


def shifted(by: int, ends: str, head: BoundHead, x: Array) -> Array:
    """Each token's numbers at one further on, or before; `ends`: what stands where there is none."""
    return further_on(x, 1, by, ends) if head.takes == "every" else x


def by_root_of_width(power: float, head: BoundHead, x: Array) -> Array:
    """Times a power of the root of the width from which logits are computed."""
    return np.asarray(x * x.dtype.type(math.sqrt(head.last.shape[1]) ** power))
