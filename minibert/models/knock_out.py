"""The classic ablations, each as a `change` of an encoder: see `models.run.changes`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from minibert.equations.blocks import attention_scores, softmax
from minibert.equations.input_layer import Array
from minibert.families.parts.bound_blocks import BoundAttention, BoundResidual
from minibert.families.parts.steps import Positions

if TYPE_CHECKING:
    from .encoder import Encoder

Function = Callable[[Array], Array]


def knock_out(
    encoder: Encoder,
    heads: Iterable[tuple[int, int]] = (),
    blocks: Iterable[int] = (),
    positions: bool = False,
    mask: bool = False,
) -> dict[str, Function]:
    """Make the change that removes parts of a model: `encoder(**ids, change=knock_out(encoder, heads=[(3, 1)]))`.

    heads      (block, head), from 0: its attention weights become 0, so its context is 0
    blocks     skip these blocks (identity)
    positions  the position rows become 0; queries and keys are not rotated, and scores have no terms of the distance
    mask       a token sees every token of its text, also after it and outside the window. (To see padding too, leave
               out attention_mask.)

    The result is a dict: `{**knock_out(...), name: function}` adds a name. Raises TypeError unless `heads` is pairs and
    `blocks` numbers; ValueError for an unknown head or block, for `positions` if the model has no positions, and for
    `mask` if its tokens see all tokens anyway.
    """
    stack, steps = encoder.stack, encoder.embeddings.steps
    changes: dict[str, list[Function]] = {}

    def add(name: str, function: Function) -> None:
        changes.setdefault(name, []).append(function)

    attentions = [block.attention for block in stack.blocks]
    if positions:
        rows = [step.key for step, _ in steps if isinstance(step, Positions)]
        if not rows and stack.rotary is None and not any(attention.terms for attention in attentions):
            raise ValueError("positions cannot be knocked out: this model has none; leave it out")
        for name in rows:
            add(name, np.zeros_like)
        for attention in attentions:
            if attention.rotated or attention.terms:
                _without_positions(attention, add)
    if mask:
        if not stack.causal and all(attention.window is None for attention in attentions):
            raise ValueError("mask cannot be knocked out: each token of this model sees all others; leave it out")
        for attention in attentions:
            kept = _Kept(attention.scores)
            add(attention.scores, kept.keep)
            add(attention.probabilities, partial(lambda kept, weights: softmax(kept.take()), kept))
    for block, head in _pairs(heads):
        check_there("block", block, len(attentions))
        check_there("head", head, stack.heads)
        add(attentions[block].probabilities, partial(_silence, head))
    if not isinstance(blocks, Iterable):
        raise TypeError(f"blocks must be a list of numbers, as blocks=[{blocks!r}], found {blocks!r}")
    for block in blocks:
        check_there("block", block, len(attentions))
        for part in stack.blocks[block].parts:
            _pass_by(part, add)
    return {name: partial(_in_turn, functions) for name, functions in changes.items()}


class _Kept(threading.local):
    """Stores an intermediate until a later change of the same run uses it; each thread has its own."""

    def __init__(self, name: str) -> None:
        self.name, self.values = name, list[Array]()

    def keep(self, values: Array) -> Array:
        self.values = [values]
        return values

    def take(self) -> Array:
        """Return the values and drop them, so that another run cannot use them."""
        if not self.values:
            advice = "{**knock_out(...), name: function} can add names, but not replace one"
            raise ValueError(f"change[{self.name!r}] of knock_out is missing, which a later change needs; {advice}")
        return self.values.pop()


def _pairs(heads: Any) -> list[tuple[int, int]]:
    try:
        return [(block, head) for block, head in heads]
    except (TypeError, ValueError):
        raise TypeError(f"heads must be a list of pairs (block, head), as heads=[(3, 1)], found {heads!r}") from None


def check_there(kind: str, number: int, count: int) -> None:
    """Raise ValueError for a block or head that a model does not have."""
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or not 0 <= number < count:
        there = f"{kind}s 0..{count - 1}; choose one of them" if count else f"no {kind}s"
        raise ValueError(f"{kind} {number!r} is not there: this model has {there}")


def _silence(head: int, weights: Array) -> Array:
    weights[:, head] = 0
    return weights


def _in_turn(functions: list[Function], values: Array) -> Array:
    for function in functions:
        values = function(values)
    return values


def _pass_by(part: BoundResidual, add: Callable[[str, Function], None]) -> None:
    """Skip a sublayer: it adds 0, and a norm after the sum returns the sum's input."""
    add(part.output_norm or part.work.output, np.zeros_like)
    if part.post_norm:
        entered = _Kept(part.sum)
        add(part.sum, entered.keep)
        add(part.post_norm, lambda values: entered.take())


def _without_positions(attention: BoundAttention, add: Callable[[str, Function], None]) -> None:
    """Compute scores of queries and keys before they are rotated: `scale * q @ k^T`."""
    joined = len(attention.maps) == 1
    sources = (attention.norms[0] or attention.maps[0], attention.norms[1] or attention.maps[0 if joined else 1])
    queries, keys = _Kept(sources[0]), _Kept(sources[1])
    add(sources[0], queries.keep)
    if sources[1] != sources[0]:
        add(sources[1], keys.keep)

    def scores(values: Array) -> Array:
        q = queries.take()
        k = keys.take() if sources[1] != sources[0] else q
        if joined and not attention.norms[0]:
            q = q[..., : attention.qkv_splits[0]]
        if joined and not attention.norms[1]:
            k = k[..., attention.qkv_splits[0] : attention.qkv_splits[1]]
        q, k = (x.reshape(*x.shape[:2], -1, attention.head_dim).swapaxes(1, 2) for x in (q, k))  # (texts, heads, ...)
        return attention_scores(q, np.repeat(k, attention.heads // attention.key_heads, axis=1), attention.scale)

    add(attention.scores, scores)
