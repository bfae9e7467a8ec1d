"""What makes mistakes: functions that put another step in the place of a bound model's own, and where that is done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from functools import cache, partial
from typing import Any, Concatenate, NamedTuple, ParamSpec

import numpy as np

from minibert.equations import fast
from minibert.equations.attention_positions import rotary_angles, rotary_frequencies, rotate
from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array
from minibert.families.parts.bound_blocks import (
    BoundAttention,
    BoundBlock,
    BoundResidual,
    Dense,
    keep,
    rotated,
    scored,
)
from minibert.families.parts.frozen import replace
from minibert.families.parts.heads import BoundHead, taken
from minibert.families.parts.layer_plan import looked_up, times
from minibert.families.parts.modules import Embedding, LayerNorm, RMSNorm
from minibert.families.parts.plan import IDS, REAL, Plan, Step
from minibert.models.encoder import Encoder
from minibert.models.input_layer import EmbeddingLayer
from minibert.models.run.blocks import Stack
from minibert.verify.sides.traces import INPUT_LAYER

from .wrong_formulas import Formula, NormFormula


class At(NamedTuple):
    """Where a mistake is made: the input layer of a model, block `i` of it, or its head; and the right steps there."""

    model: EmbeddingLayer | Encoder
    part: str
    plan: Plan
    i: int | None = None

    @property
    def layer(self) -> EmbeddingLayer:
        return self.model.embeddings if isinstance(self.model, Encoder) else self.model

    @property
    def stack(self) -> Stack:
        """Only an encoder has one."""
        assert isinstance(self.model, Encoder)
        return self.model.stack

    @property
    def block(self) -> BoundBlock | None:
        return None if self.i is None else self.stack.blocks[self.i]

    def of(self, kind: str) -> list[Step]:
        """The steps of one kind."""
        return [step for step in self.plan.values() if step.kind == kind]


Wrong = Callable[[At], Iterable[Step]]
P = ParamSpec("P")


def given_place(wrong: Callable[Concatenate[At, P], Iterable[Step]]) -> Callable[P, Wrong]:
    """Let a function's first argument come last: `given_place(f)(x)(at)` is `f(at, x)`."""

    def others(*args: P.args, **named: P.kwargs) -> Wrong:
        return lambda at: wrong(at, *args, **named)

    return others


class Mistake(NamedTuple):
    """One mistake.

    where       "local" ones are tried only on single modules, "whole" ones only on whole models
    on_vectors  tried where there are vectors alone: one word of config.json or one line makes it in a whole model
    rounding    the narrower format that it is in, float16, bfloat16 or int8
    """

    name: str
    why: str
    wrong: Wrong
    where: str = ""
    on_vectors: bool = False
    rounding: str = ""


def with_mistake(mistake: Mistake, at: At) -> Plan | None:
    """The steps with a mistake among them; None where it changes none of these."""
    changed = {step.key: step for step in mistake.wrong(at)}
    return {**at.plan, **changed} if changed else None


def on(kind: str, change: Callable[[Step], Step | None]) -> Wrong:
    """Other steps in the place of all of one kind for which there is another."""
    return lambda at: [made for step in at.of(kind) if (made := change(step)) is not None]


def by_part(kind: str, make: Callable[[Any], Callable[..., Any] | None]) -> Wrong:
    """Another formula, made of the bound part."""

    def change(step: Step) -> Step | None:
        formula = make(step.part)
        return None if formula is None else step._replace(formula=formula)

    return on(kind, change)


def attention(kind: str, formula: Callable[..., Any], where: Callable[[BoundAttention], Any] = bool) -> Wrong:
    """Another formula in blocks with such an attention."""
    return by_part(kind, lambda own: formula if where(own) else None)


def several_heads(own: BoundAttention) -> bool:
    """With one head there is nothing to split."""
    return own.heads > 1


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


def without_first_norm(at: At) -> list[Step]:
    """The input layer without its norm."""
    return [step._replace(formula=np.asarray) for step in at.of("norm")] if at.part == INPUT_LAYER else []


@given_place
def without_block(at: At, which: int) -> Iterator[Step]:
    """One block hands on what enters it; -1 is the last one."""
    depth = len(at.stack.blocks)
    for step in at.of("state") if depth > 1 and at.i == which % depth else ():
        end = at.plan.get(step.of[0], step)
        last = end if end.key == at.stack.last_norm else step
        yield last._replace(of=(f"hidden_states.{at.i}",))


# norms


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


def plain(own: RMSNorm) -> RMSNorm:
    """Without 1 + where there is one, with one where there is none."""
    return RMSNorm(own.weight if own.plus else own.weight + 1, None, own.eps)


# attention


def scaled(scale: Callable[[BoundAttention], float], where: Callable[[BoundAttention], Any] = bool) -> Wrong:
    """Scores with another factor."""
    return by_part("scores", lambda own: partial(scored, scale(own)) if where(own) else None)


def by_root(own: BoundAttention) -> bool:
    """GPT-2's config can say that it does not divide by sqrt(head_dim), Gemma has another number."""
    return math.isclose(own.scale, 1 / math.sqrt(own.head_dim))


@given_place
def looks(at: At, /, **letters: str) -> Iterator[Step]:
    """Other projections taken for the query, the key, the value: looks(q="k") takes the key for the query."""
    splits = {step.key[-1]: step for step in at.of("split")}
    for letter, other in letters.items() if splits else ():
        if splits["q"].part.key_heads == splits["q"].part.heads:
            yield splits[letter]._replace(of=splits[other].of)


@given_place
def in_order(at: At, order: tuple[int, ...]) -> Iterator[Step]:
    """Queries that are as wide as keys can be taken for them. Of three maps it is the weights that are exchanged."""
    own = at.block and at.block.attention
    if own and (order[0] == 0 or own.key_heads == own.heads):
        looks = [at.plan[path] for path in own.maps] if len(own.maps) == 3 else at.of("cut")[:3]
        for look, i in zip(looks, order, strict=True):
            if looks[i] is not look:
                yield look._replace(formula=looks[i].formula)


def split(formula: Callable[[Array, int], Array]) -> Wrong:
    """Heads split in another way."""

    def change(step: Step) -> Step | None:
        heads = step.formula.keywords["heads"]  # type: ignore[attr-defined]  # a partial
        wrong: Callable[..., Array] = formula
        return step._replace(formula=partial(wrong, heads=heads)) if step.part.heads > 1 else None

    return on("split", change)


@given_place
def rotation(at: At, change: Callable[[Any, Array, Array, Array], Array], only: str = "qk") -> Iterator[Step]:
    """Another rotation: from the scheme, x, cos and sin. `only`: of queries or of keys."""
    for step in at.of("rotation"):

        def rotate_wrong(x: Array, step: Step = step) -> Array:
            rotary: Any = at.stack.rotary
            cos, sin = rotary.rotary(np.arange(x.shape[-2]), step.part.layer_type)
            return change(rotary, x, cos, sin)

        if step.of[0][-1] in only:
            yield step._replace(formula=rotate_wrong)


def neighbours(rotary: Any, x: Array, cos: Array, sin: Array) -> Array:
    """Rotate the other pairs."""
    return rotate(x, cos, sin, {"halves": "neighbours", "neighbours": "halves"}[rotary.pairing])


def by_theta(theta: float, rotary: Any, x: Array, cos: Array, sin: Array) -> Array:
    """By the angles of a plain rotation as wide as this model's."""
    angles = rotary_angles(np.arange(x.shape[-2]), rotary_frequencies(cos.shape[-1], theta))
    return rotate(x, *angles, rotary.pairing)


def other_layer_type(at: At) -> Iterator[Step]:
    """The rotation of the other type of blocks."""
    for step in at.of("rotation"):
        rotary = at.stack.rotary
        others = [name for name in rotary.rotations if name != step.part.layer_type] if rotary else []
        if others and step.part.layer_type:
            yield step._replace(formula=partial(rotated, rotary, others[0]))


def without_head_norms(at: At) -> Iterator[Step]:
    """Queries and keys as they are before the norm of each head."""
    for step in at.of("view"):
        if (before := at.plan[step.of[0]]).kind == "norm":
            yield step._replace(of=before.of)


def seen(change: Callable[[bool, float | None], tuple[bool, float | None, int] | None]) -> Wrong:
    """Other tokens that a token sees: causal and window -> causal, window, how many after itself."""

    def made(step: Step) -> Step | None:
        causal, window = step.formula.args  # type: ignore[attr-defined]  # a partial
        found = change(causal, window)
        return None if found is None else step._replace(formula=lambda real: keep(*found[:2], real, found[2]))

    return on("keep", made)


def causal(right: bool, wrong: bool, ahead: int = 0) -> Wrong:
    """Another causal mask, in a model whose own is the right one."""
    return seen(lambda causal, window: (wrong, window, ahead) if causal == right else None)


def window_of(other: int) -> Wrong:
    """This window in the blocks that have another or none."""
    return seen(lambda causal, window: None if window == other else (causal, other, 0))


def window(change: Callable[[float], float | None]) -> Wrong:
    """Another window, in the blocks that have one."""
    return seen(lambda causal, window: None if window is None else (causal, change(window), 0))


def masked(formula: Callable[[Array, Any], Array]) -> Wrong:
    """Another mask, from what is kept and a dtype."""
    return attention("mask", lambda kept, scores: formula(kept, scores.dtype))


def no_mask(kept: Array, dtype: Any) -> Array:
    """Nothing is hidden."""
    return np.zeros((), dtype)


def mask_after_softmax(at: At) -> Iterator[Step]:
    """Probabilities times the mask."""
    yield from masked(no_mask)(at)
    kept = [step.key for step in at.of("keep")]
    for step in at.of("softmax"):
        yield step._replace(of=(*step.of, *kept), formula=lambda scores, kept: np.asarray(softmax(scores) * kept))


def padding_seen(step: Step) -> Step | None:
    """In causal models and those with a window this is another thing than no mask at all."""
    right: Any = step.formula
    plain = right.args == (False, None)
    return None if plain else step._replace(formula=lambda real: right(np.ones_like(real)))


@given_place
def term(at: At, name: str, change: Callable[[Array, BoundAttention], Array]) -> Iterator[Step]:
    """A term of the scores, changed."""
    for step in at.of("term"):
        if step.part.name == name and at.block:
            right, own = step.formula, at.block.attention
            yield step._replace(formula=lambda q, k: change(right(q, k), own))  # noqa: B023


# residuals and norms around them


@given_place
def parts(at: At, change: Callable[[BoundResidual], BoundResidual]) -> Iterator[Step]:
    """The block planned anew with other parts; what stays as it is stays the same step."""
    if at.block is not None and at.i is not None:
        other = at.block._replace(parts=tuple(map(change, at.block.parts)))
        for key, step in other.plan(at.i, at.stack).items():
            if at.plan[key].of != step.of:
                yield step


def residual_before_norm(at: At) -> Iterator[Step]:
    """What enters the norm is added to, not what it gives."""
    for step in at.of("sum"):
        if step.of[0] in at.plan and at.plan[step.of[0]].kind == "norm":
            yield step._replace(of=(at.plan[step.of[0]].of[0], step.of[1]))


def residual_normed(at: At) -> Iterator[Step]:
    """What the norm before gives is added to."""
    for step in at.of("sum"):
        if step.part.before:
            yield step._replace(of=(step.part.before, step.of[1]))


def sums(x: int, added: int) -> Wrong:
    """So many times what is added to, and what is added."""
    return by_part("sum", lambda part: lambda a, b: x * a + added * b)


def without_last_norm(at: At) -> Iterator[Step]:
    """The last hidden state is what enters the last norm."""
    for step in at.of("state"):
        if at.block and step.of == (at.stack.last_norm,):
            yield step._replace(of=at.plan[step.of[0]].of)


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


def by_ids(at: At) -> Iterator[Step]:
    """Padding is where the ids are those of padding."""
    pad_id = at.model.config.get("pad_token_id")
    for step in at.of("keep") if type(pad_id) is int else ():
        right = step.formula
        yield step._replace(formula=lambda real, ids: right(ids != pad_id), of=(REAL, IDS))  # noqa: B023
