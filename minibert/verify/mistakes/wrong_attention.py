"""Makers of the mistakes of attention: other steps for what is looked at, split into heads, scored and gathered."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from minibert.equations.blocks import split_heads
from minibert.equations.input_layer import Array
from minibert.families.parts.bound_blocks import BoundAttention, scored
from minibert.families.parts.config import replace
from minibert.families.parts.plan import PositionTerm, RelativeTerm, Step

from .mistake import At, Wrong, by_part


def attention(kind: str, formula: Callable[..., Any], where: Callable[[BoundAttention], Any] = bool) -> Wrong:
    """Another formula in blocks with such an attention."""
    return by_part(kind, lambda own: formula if where(own) else None)


def again(change: Callable[[BoundAttention], BoundAttention | None], *kinds: str) -> Wrong:
    """Steps of these kinds of an attention that is bound with other numbers, as by another config.json."""

    def wrong(at: At) -> Iterable[Step]:
        other = change(at.block.attention) if at.block else None
        steps = other.plan("", at.i or 0, at.block.modules, at.stack) if at.block and other else ()
        return (step for step in steps if step.kind in kinds)

    return wrong


def several_heads(own: BoundAttention) -> bool:
    """With one head there is nothing to split."""
    return own.heads > 1


def scaled(scale: Callable[[BoundAttention], float], where: Callable[[BoundAttention], Any] = bool) -> Wrong:
    """Scores with another factor."""
    return again(lambda own: own._replace(scale=scale(own)) if where(own) else None, "scores")


def scale_of_one_term(own: BoundAttention) -> Callable[..., Array] | None:
    """Scores and their terms, which share a factor, divided by sqrt(head_dim) alone."""
    if not own.terms or by_root(own):
        return None
    more = 1 / (own.scale * math.sqrt(own.head_dim))
    return lambda q, k, *terms: scored(own.scale, q, k, *terms) * q.dtype.type(more)


def by_root(own: BoundAttention) -> bool:
    """GPT-2's config can say that it does not divide by sqrt(head_dim), Gemma has another number."""
    return math.isclose(own.scale, 1 / math.sqrt(own.head_dim))


def looks(exchanged: Mapping[str, str], at: At) -> Iterator[Step]:
    """Other projections taken for the query, the key, the value: {"q": "k"} takes the key for the query."""
    splits = {step.key[-1]: step for step in at.of("split")}
    for letter, other in exchanged.items() if splits else ():
        if splits["q"].part.key_heads == splits["q"].part.heads:
            yield splits[letter]._replace(of=splits[other].of)


def in_order(order: tuple[int, ...], at: At) -> Iterator[Step]:
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


def split_without_transposing(at: At) -> Iterator[Step]:
    """Rows (batch, seq, dim) read as (batch, heads, seq, head_dim)."""
    for step in at.of("split"):
        heads = step.part.heads if step.key[-1] == "q" else step.part.key_heads
        if step.part.heads > 1:
            yield step._replace(formula=lambda x, heads=heads: x.reshape(x.shape[0], heads, x.shape[1], -1))


def heads(change: Callable[[int], int]) -> Wrong:
    """Rows cut into another number of heads, which are then wider or narrower."""

    def other(own: BoundAttention) -> BoundAttention | None:
        many, dim = change(own.heads), own.heads * own.head_dim
        if own.rotated or own.terms or any(own.norms) or own.key_heads != own.heads or many < 1 or dim % many:
            return None
        scale = math.sqrt(many / dim) if by_root(own) else own.scale
        return own._replace(heads=many, key_heads=many, head_dim=dim // many, scale=scale)

    return again(other, "split", "scores")


# terms of the scores


def term(name: str, change: Callable[[Array], Array], at: At) -> Iterator[Step]:
    """A term of the scores, changed."""
    for step in at.of("term"):
        if step.part.name == name:
            yield step._replace(formula=lambda *given, right=step.formula: change(right(*given)))


def relative(change: Callable[[RelativeTerm], Mapping[str, Any]]) -> Wrong:
    """A relative bias by a scheme with other numbers; none where nothing changes."""

    def make(own: Any) -> Callable[..., Array] | None:
        changes = change(own) if isinstance(own, RelativeTerm) else {}
        return own._replace(scheme=replace(own.scheme, **changes)).plain if changes else None

    return by_part("term", make)


def distances(change: Callable[[PositionTerm], PositionTerm | None]) -> Wrong:
    """A term of DeBERTa by other distances."""

    def make(own: Any) -> Callable[..., Array] | None:
        other = change(own) if isinstance(own, PositionTerm) else None
        return other and other.plain

    return by_part("term", make)


def without_buckets(own: PositionTerm) -> PositionTerm | None:
    """Distances that are clipped, where far ones share a row by their logarithm."""
    many = own.scheme.buckets
    return own._replace(scheme=replace(own.scheme, buckets=-1, max_positions=many)) if many > 0 else None
