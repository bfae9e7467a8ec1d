"""What makes the mistakes of attention: other steps for what is looked at, scored, rotated, masked and gathered."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array
from minibert.equations.rotary import rotary_angles, rotary_frequencies, rotate
from minibert.families.parts.attention_schemes import Rotary
from minibert.families.parts.bound_blocks import (
    BoundAttention,
    keep,
    rotated,
    scored,
)
from minibert.families.parts.plan import IDS, REAL, Step
from minibert.families.parts.rotations import Rotation

from .mistake import At, Wrong, by_part, given_place, on


def attention(kind: str, formula: Callable[..., Any], where: Callable[[BoundAttention], Any] = bool) -> Wrong:
    """Another formula in blocks with such an attention."""
    return by_part(kind, lambda own: formula if where(own) else None)


def several_heads(own: BoundAttention) -> bool:
    """With one head there is nothing to split."""
    return own.heads > 1


def scaled(scale: Callable[[BoundAttention], float], where: Callable[[BoundAttention], Any] = bool) -> Wrong:
    """Scores with another factor."""
    return by_part("scores", lambda own: partial(scored, scale(own)) if where(own) else None)


def softmax_scaled(by: Callable[[BoundAttention], float]) -> Wrong:
    """Scores with a factor that comes once more, where there is one."""
    return by_part("softmax", lambda own: None if own.scale == 1 else lambda x: softmax(x * x.dtype.type(by(own))))


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


def unscaled(at: At) -> Iterator[Step]:
    """The rotation before its frequencies are scaled."""
    for step in at.of("rotation"):
        rotary: Any = at.stack.rotary
        own = rotary.rotations[step.part.layer_type]
        if own.unscaled is not None:
            plain = Rotary(rotations={None: Rotation(own.unscaled)}, pairing=rotary.pairing)
            yield step._replace(formula=partial(rotated, plain, None))


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
            yield step._replace(formula=lambda *given: change(right(*given), own))  # noqa: B023


def by_ids(at: At) -> Iterator[Step]:
    """Padding is where the ids are those of padding."""
    pad_id = at.model.config.get("pad_token_id")
    for step in at.of("keep") if type(pad_id) is int else ():
        right = step.formula
        yield step._replace(formula=lambda real, ids: right(ids != pad_id), of=(REAL, IDS))  # noqa: B023
