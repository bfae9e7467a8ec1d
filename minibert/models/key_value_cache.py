"""The keys and values of a text's tokens, kept from one token to the next: what is written is not computed again."""

from __future__ import annotations

import numpy as np

from minibert.equations.input_layer import Array


class KeyValueCache:
    """Keys and values of the tokens of one text that were computed before, for each block.

    Where no token sees those after it, later tokens need nothing else of earlier ones, and earlier ones never change.
    So one more token costs one row in each map, not all rows again. `length`: how many tokens it has; `room`: how many
    it can have, in memory that is taken once.
    """

    def __init__(self, room: int) -> None:
        self.room, self.length = room, 0
        self._kept: dict[str, Array] = {}  # (2, room, width)

    def joined(self, block: str, keys: Array, values: Array) -> tuple[Array, Array]:
        """Keep keys and values of new tokens, (new, width) each; give those of all tokens, (length + new, width)."""
        if block not in self._kept:
            self._kept[block] = np.empty((2, self.room, keys.shape[1]), keys.dtype)
        both, end = self._kept[block], self.length + len(keys)
        both[0, self.length : end], both[1, self.length : end] = keys, values
        return both[0, :end], both[1, :end]
