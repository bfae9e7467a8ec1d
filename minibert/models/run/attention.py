"""Masks of the keys that a token does not see, and the cache of the keys and values of earlier tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array

# (first and last query, first and last key, a block's window) -> some of the keys, and the mask for their scores
Masks = Callable[[int, int, int, int, "int | None"], "list[tuple[slice, Array]]"]


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
    from minibert.equations.blocks import additive_mask, visible  # here: an input layer does not need them

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
            (some, additive_mask(visible(queries, keys[some], causal, window), dtype))
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
