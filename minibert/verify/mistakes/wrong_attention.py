"""What makes the mistakes of attention: other steps for what is looked at, split into heads, scored and gathered."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from minibert.equations.blocks import join_heads, split_heads
from minibert.equations.input_layer import Array
from minibert.families.parts.bound_blocks import BoundAttention, BoundFeedForward, Dense, scored
from minibert.families.parts.plan import Step

from .mistake import At, Wrong, by_part, given_place, on
from .wrong_formulas import one_after_another

SCALE = "Scores are divided by sqrt(head_dim), or by what config.json says, no more and no less."


def attention(kind: str, formula: Callable[..., Any], where: Callable[[BoundAttention], Any] = bool) -> Wrong:
    """Another formula in blocks with such an attention."""
    return by_part(kind, lambda own: formula if where(own) else None)


def several_heads(own: BoundAttention) -> bool:
    """With one head there is nothing to split."""
    return own.heads > 1


def scaled(scale: Callable[[BoundAttention], float], where: Callable[[BoundAttention], Any] = bool) -> Wrong:
    """Scores with another factor."""
    return by_part("scores", lambda own: partial(scored, scale(own)) if where(own) else None)


def scale_of_one_term(own: BoundAttention) -> Callable[..., Array] | None:
    """Scores and their terms, which share a factor, divided by sqrt(head_dim) alone."""
    if not own.terms or by_root(own):
        return None
    more = 1 / (own.scale * math.sqrt(own.head_dim))
    return lambda q, k, *terms: scored(own.scale, q, k, *terms) * q.dtype.type(more)


def by_root(own: BoundAttention) -> bool:
    """GPT-2's config can say that it does not divide by sqrt(head_dim), Gemma has another number."""
    return math.isclose(own.scale, 1 / math.sqrt(own.head_dim))


def by_share_of_width(at: At) -> Iterator[Step]:
    """Scores divided by the root of the width over the heads, where that is not head_dim."""
    for step in at.of("scores"):
        share = at.layer.dim / step.part.heads
        if by_root(step.part) and share != step.part.head_dim:
            yield step._replace(formula=partial(scored, share**-0.5))


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


@given_place
def cut_by(at: At, cut: Callable[[int, int, Array], Array]) -> Iterator[Step]:
    """Queries, keys and values in another order in a row, also where three maps give them."""
    own = at.block and at.block.attention
    if not own or not several_heads(own) or own.key_heads < own.heads or any(own.norms):
        return
    if len(own.maps) == 1:
        for number, step in enumerate(at.of("cut")[:3]):
            yield step._replace(formula=partial(cut, own.heads, number))
        return
    for number, step in enumerate(at.of("split")):
        yield step._replace(formula=partial(_split_again, cut, own.heads, number), of=own.maps)


def by_head(heads: int, number: int, x: Array) -> Array:
    """Each head's queries, keys and values side by side: (heads, 3, head_dim)."""
    return x.reshape(*x.shape[:-1], heads, 3, -1)[..., number, :].reshape(*x.shape[:-1], -1)


def by_turns(heads: int, number: int, x: Array) -> Array:
    """Every third number of a row: (dim, 3)."""
    return x[..., number::3]


def _split_again(cut: Callable[[int, int, Array], Array], heads: int, number: int, *looks: Array) -> Array:
    return split_heads(cut(heads, number, np.concatenate(looks, -1)), heads)


def gate_and_up_by_turns(step: Step) -> Step | None:
    """Every second number of the map that gives both."""
    if not isinstance(step.part, BoundFeedForward):
        return None
    (number,) = step.formula.args  # type: ignore[attr-defined]  # a partial
    return step._replace(formula=lambda x: x[..., number::2])


@given_place
def third_without_bias(at: At, letter: str) -> Iterator[Step]:
    """A third of the bias of the map that gives queries, keys and values."""
    own = at.block and at.block.attention
    step = at.plan[own.maps[0]] if own and len(own.maps) == 1 else None
    if own and step and step.part.bias is not None:
        bias = np.array(step.part.bias)
        np.split(bias, own.edges)["qkv".index(letter)][:] = 0
        yield step._replace(formula=Dense(step.part.weight, bias, step.part.transposed))


def one_key_head(at: At) -> Iterator[Step]:
    """The first head's keys and values for all queries."""
    for step in at.of("share"):
        if step.part.key_heads > 1:
            yield step._replace(formula=partial(_first_of, step.formula))
    for step in () if at.of("share") else at.of("split"):
        if several_heads(step.part) and not step.key.endswith(".q"):
            yield step._replace(formula=partial(_first_of, step.formula))


def _first_of(heads: Callable[[Array], Array], x: Array) -> Array:
    made = heads(x)
    return np.repeat(made[:, :1], made.shape[1], axis=1)


def joined(change: Callable[[Array], Array]) -> Wrong:
    """Heads changed before they are joined."""
    return attention("join", lambda x: join_heads(change(x)), several_heads)


def split(formula: Callable[[Array, int], Array], only: str = "qkv") -> Wrong:
    """Heads split in another way; `only`: of queries, keys or values."""

    def change(step: Step) -> Step | None:
        heads = step.formula.keywords["heads"]  # type: ignore[attr-defined]  # a partial
        wrong: Callable[..., Array] = formula
        there = step.part.heads > 1 and step.key[-1] in only
        return step._replace(formula=partial(wrong, heads=heads)) if there else None

    return on("split", change)


def of_near_token(kind: str, letter: str, by: int, ends: str) -> Wrong:
    """Each token's keys or values at one further on, or before, as they are split or rotated; `ends`: what stands where
    there is none.
    """

    def change(step: Step) -> Step | None:
        right = step.formula
        there = step.key.rpartition(".")[2][0] == letter
        return step._replace(formula=lambda x: further_on(right(x), 2, by, ends)) if there else None

    return on(kind, change)


def further_on(x: Array, axis: int, by: int, ends: str) -> Array:
    """x moved by one along an axis; at the end stands "of the other end", "repeated" or "zeros"."""
    made = np.roll(x, by, axis)
    end = (slice(None),) * axis + (0 if by > 0 else -1,)
    if ends != "of the other end":
        made[end] = x[end] if ends == "repeated" else 0
    return made


def keys_reshaped(step: Step) -> Step:
    """The axes of keys are not exchanged: what lies in memory is read as (head_dim, seq)."""
    right = step.formula

    def formula(q: Array, k: Array, *terms: Array) -> Array:
        seq, size = k.shape[-2:]
        return np.asarray(right(q, k.reshape(*k.shape[:-2], size, seq).swapaxes(-1, -2), *terms))

    return step._replace(formula=formula)


@given_place
def values_normed(at: At, plain: bool) -> Iterator[Step]:
    """Values normed in each head as keys are, or without a weight."""
    own = at.block and at.block.attention
    norm: Any = at.plan[own.norms[1]].part if own and own.norms[1] else None
    if norm is not None and plain:
        norm = type(norm)(np.full_like(norm.weight, 1 - getattr(norm, "plus", 0)), None, norm.eps)
    for step in at.of("split") if norm is not None else ():
        if step.key[-1] == "v":
            yield step._replace(formula=partial(one_after_another, step.formula, norm))


def divided_by_place(at: At) -> Iterator[Step]:
    """Scores divided by the number of their block, counted from 1."""
    for step in at.of("scores"):
        if at.i and by_root(step.part):
            yield step._replace(formula=partial(scored, step.part.scale / (at.i + 1)))


@given_place
def term(at: At, name: str, change: Callable[[Array, BoundAttention], Array]) -> Iterator[Step]:
    """A term of the scores, changed."""
    for step in at.of("term"):
        if step.part.name == name and at.block:
            right, own = step.formula, at.block.attention
            yield step._replace(formula=lambda *given: change(right(*given), own))  # noqa: B023
