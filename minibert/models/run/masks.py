"""Masks of the keys that a token does not see: the keys of some queries, and the numbers that hide others."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from minibert.equations.blocks import additive_mask, visible
from minibert.equations.input_layer import Array

# (first and last query, first and last key, a block's window) -> what is added to its scores, and for which of the keys
Masks = Callable[[int, int, int, int, "int | None"], "list[tuple[slice, Array]]"]


def keys_of(queries: slice, past: int, length: int, causal: bool, window: int | None) -> slice:
    """The keys among which are all that these queries see; padding between tokens only makes them fewer."""
    first, last = past + queries.start, past + queries.stop
    stop = min(length, last) if causal else length if window is None else min(length, last + window)
    return slice(0 if window is None else max(0, min(first - window, stop)), stop)


def masks_of(positions: Array, past: int, causal: bool, dtype: np.dtype[Any], kept: int) -> Masks:
    """Give the numbers that are added to the scores of some queries; the last are kept for later heads and blocks.

    Keys that all of these queries see need no mask: of a long text those are nearly all, and a pass over their scores
    would take as long as the exponentials.
    """

    @lru_cache(maxsize=max(1, kept))
    def mask(first: int, last: int, start: int, stop: int, window: int | None) -> list[tuple[slice, Array]]:
        queries, keys = positions[past + first : past + last], positions[start:stop]
        left, right = 0, len(keys)  # between the two nothing is hidden
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
