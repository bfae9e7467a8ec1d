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
from .mistake import At, Mistake, Wrong, on
from .wrong_attention import attention, several_heads


def seen(change: Callable[[bool, float | None], tuple[bool, float | None, int] | None]) -> Wrong:
    """Other tokens that a token sees: causal and window -> causal, window, how many after itself."""

    def made(step: Step) -> Step | None:
        causal, window = step.formula.args  # type: ignore[attr-defined]  # a partial
        found = change(causal, window)
        return (
            None if found is None else step._replace(formula=lambda real: visibility_mask(*found[:2], real, found[2]))
        )

    return on("keep", made)


def causal(right: bool, wrong: bool, ahead: int = 0) -> Wrong:
    """Another causal mask, in a model whose own is the right one."""
    return seen(lambda causal, window: (wrong, window, ahead) if causal == right else None)


def window(change: Callable[[float], float | None]) -> Wrong:
    """Another window, in the blocks that have one."""
    return seen(lambda causal, window: None if window is None else (causal, change(window), 0))


def masked(formula: Callable[[Array, Any], Array]) -> Wrong:
    """Make another mask, from the visible keys and a dtype."""
    return attention("mask", lambda kept, scores: formula(kept, scores.dtype))


def no_mask(kept: Array, dtype: Any) -> Array:
    """Nothing is hidden."""
    return np.zeros((), dtype)


def capped_when_masked(most: float) -> Wrong:
    """The same between scores as a trace shows them and their mask."""
    return on("masked", lambda step: step._replace(formula=lambda scores, mask: wrong.capped(most, scores) + mask))


def capped_scores(most: float) -> Wrong:
    """`most * tanh(scores / most)`."""
    return on("scores", lambda step: step._replace(formula=lambda *x: wrong.capped(most, step.formula(*x))))


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
            yield step._replace(formula=partial(_all_real, step.formula))


def _all_real(right: Any, real: Array) -> Array:
    return np.asarray(right(np.ones_like(real)))


def by_ids(at: At) -> Iterator[Step]:
    """Padding is where the ids are those of padding: 0 where config.json names none."""
    named = at.model.config.get("pad_token_id")
    pad_id = named if type(named) is int else 0
    for step in at.of("keep"):
        right = step.formula
        yield step._replace(formula=lambda real, ids: right(ids != pad_id), of=(REAL, IDS))  # noqa: B023


def by_texts(at: At) -> Iterator[Step]:
    """Masks repeated text by text, where texts and heads are one axis, in which a text's heads stand together."""
    for step in at.of("mask"):
        heads, right = step.part.heads, step.formula

        def formula(kept: Array, scores: Array, heads: int = heads, right: Any = right) -> Array:
            batch = len(scores)
            kept = np.broadcast_to(kept, (batch, *kept.shape[1:]))[:, 0]
            return np.asarray(right(np.tile(kept, (heads, 1, 1)).reshape(batch, heads, *kept.shape[1:]), scores))

        if heads > 1:
            yield step._replace(formula=formula)


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
    Mistake("causal mask one token too far", SEES, causal(True, True, 1)),
    Mistake("causal mask hides the token itself", SEES, causal(True, True, -1)),
    Mistake("causal mask forgotten", "No token of this model sees those after it.", causal(True, False),
            on_vectors=True),
    Mistake("causal mask where there is none", "Every token of this model sees all others.", causal(False, True),
            on_vectors=True),
    Mistake("window one token too wide", WINDOW, window(lambda window: window + 1), keys=WINDOWS),
    Mistake("window one token too narrow", WINDOW, window(lambda window: window - 1), keys=WINDOWS),
    Mistake("window forgotten", "Some blocks of this model see near tokens alone.", window(lambda window: None),
            keys=WINDOWS),
    Mistake("window twice as wide", WINDOW, window(lambda window: 2 * window), keys=WINDOWS),
    Mistake(PADDING_SEEN, "Padding is not seen, by tokens before it or after it.", padding_seen),
    Mistake("mask from the ids", "What is padding is what the attention mask says, not what the ids are.", by_ids),
    # how the others are hidden
    Mistake("mask ignored", "Padding and what a token does not see get attention weights.", masked(no_mask)),
    Mistake("mask added as 0 and 1", MASK, masked(lambda kept, dtype: kept.astype(dtype))),
    *(Mistake("mask inverted", MASK, masked(made)) for made in (
        lambda kept, dtype: additive_mask(~kept, dtype), lambda kept, dtype: np.asarray(kept * dtype.type(-1e4)))),
    Mistake("scores times the mask", "A score of 0, or of 1e-9, hides nothing: softmax makes exp(0) = 1 of it.",
            hidden_as(lambda scores, kept: np.asarray(scores * kept))),
    Mistake("mask after softmax", "Hidden scores must not count in the sum by which softmax divides.",
            mask_after_softmax),
    Mistake("another text's mask in some heads", "Where texts and heads are one axis, a text's heads stand together.",
            by_texts),
    # softmax
    Mistake("softmax over the queries", ONE_SUM, attention("softmax", partial(wrong.softmax_over, -2))),
    Mistake("softmax over the heads", ONE_SUM,
            attention("softmax", partial(wrong.softmax_over, -3), several_heads)),
    Mistake("softmax over queries and keys", ONE_SUM, attention("softmax", wrong.softmax_over_both)),
    Mistake("sigmoid for softmax", ONE_SUM, attention("softmax", wrong.sigmoid)),
    *(Mistake("scores capped at 50", "Gemma 2 caps its scores; this model does not.", capped(50))
      for capped in (capped_scores, capped_when_masked)),
)
# fmt: on
