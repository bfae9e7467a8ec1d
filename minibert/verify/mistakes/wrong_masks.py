"""Mistakes of masks and softmax: other masks and windows, and other ways to hide scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from minibert.equations.blocks import additive_mask, softmax
from minibert.equations.input_layer import Array
from minibert.families.parts.bound_blocks import visibility_mask
from minibert.families.parts.plan import IDS, REAL, Step

from . import wrong_formulas as wrong
from .mistake import At, Mistake, Wrong
from .wrong_attention import again, attention, several_heads


def causal(right: bool, wrong: bool, ahead: int, at: At) -> Iterator[Step]:
    """Another causal mask, in a model whose own is the right one; `ahead`: tokens after itself that each sees."""
    for step in at.of("keep"):
        if at.stack.causal == right:
            yield step._replace(formula=lambda real, own=step.part: visibility_mask(wrong, own.window, real, ahead))


def window(change: Callable[[int], int | None]) -> Wrong:
    """Another window, in the blocks that have one."""
    return again(lambda own: None if own.window is None else own._replace(window=change(own.window)), "keep")


def masked(formula: Callable[[Array, Any], Array]) -> Wrong:
    """Make another mask, from the visible keys and a dtype."""
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


def padding_seen(at: At) -> Iterator[Step]:
    """In causal models and those with a window, in their blocks without one too: else it is no mask at all."""
    if at.block and (at.stack.causal or any(block.attention.window is not None for block in at.stack.blocks)):
        for step in at.of("keep"):
            yield step._replace(formula=lambda real, right=step.formula: right(np.ones_like(real)))


def by_ids(at: At) -> Iterator[Step]:
    """Padding is where the ids are those of padding, 0 where config.json names none; without ids the mask stays."""
    named = at.model.config.get("pad_token_id")
    pad_id = named if type(named) is int else 0

    def kept(real: Array, ids: Array | None, right: Callable[[Array], Array]) -> Array:
        return right(real if ids is None else ids != pad_id)

    for step in at.of("keep"):
        yield step._replace(formula=partial(kept, right=step.formula), of=(REAL, IDS))


def hidden_as(formula: Callable[[Array, Array], Array]) -> Wrong:
    """Hide scores in another way, from the scores and the visible keys."""

    def wrong_steps(at: At) -> Iterator[Step]:
        kept = [step.key for step in at.of("keep")]
        for step in at.of("masked"):
            yield step._replace(of=(step.of[0], *kept), formula=formula)

    return wrong_steps


# -- the list ----------------------------------------------------------------------------------------------------

WINDOW = "A causal window of w tokens counts the token itself; ModernBERT's has w // 2 tokens on each side."
MASK = "A mask that is added is 0 for kept tokens, the most negative number for others."
SEES = "A token of a causal model sees itself and those before it."
ONE_SUM = "Each query's probabilities sum to 1: softmax is over the keys, the last axis."
PADDING_SEEN = "padding seen"
WINDOWS = ("sliding_window", "local_attention")

# fmt: off
OF_MASKS: tuple[Mistake, ...] = (
    # what a token sees
    Mistake("causal mask one token too far", SEES, partial(causal, True, True, 1)),
    Mistake("causal mask hides the token itself", SEES, partial(causal, True, True, -1)),
    Mistake("causal mask forgotten", "No token of this model sees a later one.", partial(causal, True, False, 0),
            on_vectors=True),
    Mistake("causal mask where there is none", "Every token of this model sees all others.",
            partial(causal, False, True, 0), on_vectors=True),
    Mistake("window one token too wide", WINDOW, window(lambda window: window + 1), keys=WINDOWS),
    Mistake("window one token too narrow", WINDOW, window(lambda window: window - 1), keys=WINDOWS),
    Mistake("window forgotten", "Some blocks of this model see near tokens alone.", window(lambda window: None),
            keys=WINDOWS),
    Mistake(PADDING_SEEN, "Padding is not seen, by tokens before it or after it.", padding_seen),
    Mistake("mask from the ids", "The attention mask says which tokens are padding, not the ids.", by_ids),
    # how the others are hidden
    Mistake("mask ignored", "Padding and hidden tokens get attention weights.", masked(no_mask)),
    Mistake("mask added as 0 and 1", MASK, masked(lambda kept, dtype: kept.astype(dtype))),
    *(Mistake("mask inverted", MASK, masked(made)) for made in (
        lambda kept, dtype: additive_mask(~kept, dtype), lambda kept, dtype: np.asarray(kept * dtype.type(-1e4)))),
    Mistake("scores times the mask", "A score of 0, or of 1e-9, hides nothing: softmax makes exp(0) = 1 of it.",
            hidden_as(lambda scores, kept: np.asarray(scores * kept))),
    Mistake("mask after softmax", "Hidden scores must not count in the sum by which softmax divides.",
            mask_after_softmax),
    # softmax
    Mistake("softmax over the queries", ONE_SUM, attention("softmax", partial(wrong.softmax_over, -2))),
    Mistake("softmax over the heads", ONE_SUM,
            attention("softmax", partial(wrong.softmax_over, -3), several_heads)),
)
# fmt: on
