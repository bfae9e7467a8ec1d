"""Attention of one tile: the pieces in which it is computed, the masks of each, and the keys of earlier tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minibert.equations import blocks as formulas
from minibert.equations.input_layer import Array

from .packing import Group, Packed

if TYPE_CHECKING:
    from .blocks import Stack

# Attention of a longer sequence is cut by queries: memory then grows with the length, not with the square. Each query
# has all its keys at once, so softmax needs no running sum, which would be faster by a tenth to a quarter only.
LONG = 1024  # tokens
QUERIES = 128  # queries of one piece; 64 and fewer are slower
SCORES = 1 << 17  # scores of one piece: they stay in the L2 cache

# (first and last query, first and last key, a block's window) -> some of the keys, and the mask for their scores
Masks = Callable[[int, int, int, int, "int | None"], "list[tuple[slice, Array]]"]


class Piece(NamedTuple):
    """One piece of attention, computed at once: some sequences of one length, some heads, some queries."""

    group: Group
    keys: Group  # the same sequences, with the earlier tokens of a cache
    heads: slice
    queries: slice
    visible: Mapping[int | None, slice]  # a block's window -> the keys that these queries see
    masks: Masks | None  # None: every query sees every key


def pieces_of(stack: Stack, tile: Packed, dtype: np.dtype[Any], whole: bool, past: int, multiple: int) -> list[Piece]:
    """Cut attention into pieces of few scores: by texts and heads, and a long sequence by queries too.

    whole: compute all scores of a group together, even if a group has no tokens.
    """
    found = []
    groups = [group for group in tile.groups(stack.by_distance, multiple) if group.length or whole]
    groups = groups or [Group(0, tile.texts, 0, None, 0)] * whole
    for group in groups:
        length = past + group.length - group.unseen  # the number of keys
        positions = np.arange(past + group.length) if group.positions is None else group.positions
        step = QUERIES if length > LONG and not whole else max(1, group.length)
        masks = masks_of(positions, past, stack.causal, dtype, len(stack.windows)) if stack.masked else None
        texts = max(1, len(group.texts))
        together = texts if whole else max(1, SCORES // (stack.heads * group.length**2))
        for some in range(0, texts, together):
            own = group if together >= texts else group.part(some, some + together)
            keys = own._replace(length=length, rows=own.rows + past)
            numbers = len(own.texts) * stack.heads * min(step, group.length) * length
            heads_step = stack.heads if whole else -(-stack.heads // -(-numbers // SCORES))
            for start in range(0, max(1, group.length), step):
                queries = slice(start, min(start + step, group.length))
                visible: dict[int | None, slice] = {None: slice(0, length)}
                if stack.masked:
                    visible = {window: keys_of(queries, past, length, stack.causal, window) for window in stack.windows}
                for first in range(0, stack.heads, heads_step):
                    heads = slice(first, first + heads_step)
                    found.append(Piece(own, keys, heads, queries, visible, masks))
    return found


def shared_terms(stack: Stack, pieces: Sequence[Piece]) -> dict[Any, Any]:
    """Return for each position scheme the values that the terms of all blocks share, for the longest text."""
    gaps = ((piece.keys.length + piece.group.unseen, piece.group.positions) for piece in pieces)
    longest = max((length if gap is None else int(gap[-1]) + 1 for length, gap in gaps), default=1)
    return {scheme: term.shared(longest) for scheme, term in stack.schemes.items()}


def keys_of(queries: slice, past: int, length: int, causal: bool, window: int | None) -> slice:
    """Return the range of keys that these queries can see; padding between tokens hides more of them."""
    first, last = past + queries.start, past + queries.stop
    stop = min(length, last) if causal else length if window is None else min(length, last + window)
    return slice(0 if window is None else max(0, min(first - window, stop)), stop)


def masks_of(positions: Array, past: int, causal: bool, dtype: np.dtype[Any], kept: int) -> Masks:
    """Return a function that computes masks of some queries; `kept` masks are cached for later heads and blocks.

    Keys that all of these queries see need no mask. In a long text these are nearly all keys, and adding a mask to
    their scores would take as long as the exponentials.
    """

    @lru_cache(maxsize=max(1, kept))
    def mask(first: int, last: int, start: int, stop: int, window: int | None) -> list[tuple[slice, Array]]:
        queries, keys = positions[past + first : past + last], positions[start:stop]
        left, right = 0, len(keys)  # nothing is hidden between the two
        if window is not None:
            left = int(np.searchsorted(keys, queries[-1] - window))
        if causal or window is not None:
            right = int(np.searchsorted(keys, queries[0] + (0 if causal else window), "right"))
        parts = [slice(0, left), slice(right, len(keys))] if left < right else [slice(0, len(keys))]
        return [
            (some, formulas.additive_mask(formulas.visible(queries, keys[some], causal, window), dtype))
            for some in parts
            if some.start < some.stop
        ]

    return mask


class KeyValueCache:
    """The keys and values of one text's earlier tokens, for each block.

    In a causal model, a new token needs only the keys and values of earlier tokens, and they never change. So one more
    token costs one row in each linear layer, not all rows again. `length`: the number of tokens in the cache.
    """

    def __init__(self) -> None:
        self.length = 0
        self._kept: dict[str, Array] = {}  # (2, capacity, width); the capacity is doubled when it is used up

    def joined(self, block: str, keys: Array, values: Array) -> tuple[Array, Array]:
        """Add keys and values of new tokens, (new, width); return them for all tokens, (length + new, width)."""
        end = self.length + len(keys)
        both = self._kept.get(block, np.empty((2, 0, keys.shape[1]), keys.dtype))
        if both.shape[1] < end:
            earlier, both = both[:, : self.length], np.empty((2, 2 * end, keys.shape[1]), keys.dtype)
            both[:, : self.length] = earlier
            self._kept[block] = both
        both[0, self.length : end], both[1, self.length : end] = keys, values
        return both[0, :end], both[1, :end]
