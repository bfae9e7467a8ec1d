"""Makers of the mistakes of attention: other steps for what is looked at, split into heads, scored and gathered."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from minibert.equations.blocks import split_heads
from minibert.equations.input_layer import Array
from minibert.families.parts.bound_blocks import BoundAttention, BoundFeedForward, Dense, scored
from minibert.families.parts.plan import Step

from .mistake import At, Wrong, by_part, given_place, on

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


def cut_by_head(at: At) -> Iterator[Step]:
    """Each head's queries, keys and values side by side in a row, also where three maps give them."""
    own = at.block and at.block.attention
    if not own or not several_heads(own) or own.key_heads < own.heads or any(own.norms):
        return
    one = len(own.maps) == 1
    for number, step in enumerate(at.of("cut")[:3] if one else at.of("split")):
        formula = partial(_third_of_heads, own.heads, number)
        yield step._replace(formula=formula if one else partial(_split_again, formula, own.heads),
                            of=step.of if one else own.maps)  # fmt: skip


def _third_of_heads(heads: int, number: int, x: Array) -> Array:
    return x.reshape(*x.shape[:-1], heads, 3, -1)[..., number, :].reshape(*x.shape[:-1], -1)


def _split_again(cut: Callable[[Array], Array], heads: int, *looks: Array) -> Array:
    return split_heads(cut(np.concatenate(looks, -1)), heads)


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


def split(formula: Callable[[Array, int], Array], only: str = "qkv") -> Wrong:
    """Heads split in another way; `only`: of queries, keys or values."""

    def change(step: Step) -> Step | None:
        heads = step.formula.keywords["heads"]  # type: ignore[attr-defined]  # a partial
        wrong: Callable[..., Array] = formula
        there = step.part.heads > 1 and step.key[-1] in only
        return step._replace(formula=partial(wrong, heads=heads)) if there else None

    return on("split", change)


@given_place
def heads(at: At, change: Callable[[int], int]) -> Iterator[Step]:
    """Rows cut into another number of heads, which are then wider or narrower."""
    own = at.block and at.block.attention
    many = change(own.heads) if own else 0
    if not own or own.rotated or own.terms or any(own.norms) or own.key_heads != own.heads or many < 1:
        return
    if own.heads * own.head_dim % many == 0:
        for step in at.of("split"):
            yield step._replace(formula=partial(split_heads, heads=many))
        for step in at.of("scores") if by_root(own) else ():
            yield step._replace(formula=partial(scored, 1 / math.sqrt(own.heads * own.head_dim / many)))


@given_place
def term(at: At, name: str, change: Callable[[Array], Array]) -> Iterator[Step]:
    """A term of the scores, changed."""
    for step in at.of("term"):
        if step.part.name == name:
            right = step.formula
            yield step._replace(formula=lambda *given: change(right(*given)))  # noqa: B023


@given_place
def own_of_term(at: At, name: str) -> Iterator[Step]:
    """A term of the scores as its own kind can be wrong."""
    for step in at.of("term"):
        yield from (step._replace(formula=other.plain) for own, other in step.part.wrong() if own == name)
