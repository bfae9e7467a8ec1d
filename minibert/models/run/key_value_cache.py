"""The keys and values of a text's tokens, kept from one token to the next: what is written is not computed again."""

from __future__ import annotations

import numpy as np

from minibert.equations.input_layer import Array


class KeyValueCache:
    """Keys and values of the tokens of one text that were computed before, for each block.

    Where no token sees those after it, later tokens need nothing else of earlier ones, and earlier ones never change.
    So one more token costs one row in each map, not all rows again. `length`: how many tokens it has.
    """

    def __init__(self) -> None:
        self.length = 0
        self._kept: dict[str, Array] = {}  # (2, room, width); room is doubled where it is used up

    def joined(self, block: str, keys: Array, values: Array) -> tuple[Array, Array]:
        """Keep keys and values of new tokens, (new, width) each; give those of all tokens, (length + new, width)."""
        end = self.length + len(keys)
        both = self._kept.get(block, np.empty((2, 0, keys.shape[1]), keys.dtype))
        if both.shape[1] < end:
            earlier, both = both[:, : self.length], np.empty((2, 2 * end, keys.shape[1]), keys.dtype)
            both[:, : self.length] = earlier
            self._kept[block] = both
        both[0, self.length : end], both[1, self.length : end] = keys, values
        return both[0, :end], both[1, :end]
