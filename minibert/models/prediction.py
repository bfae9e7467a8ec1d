"""Words: what a mask hides, what comes next, and a text written on, word by word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from minibert.equations.input_layer import Array

from .blocks import run_blocks
from .key_value_cache import KeyValueCache
from .packing import Group, Tile

if TYPE_CHECKING:
    from .encoder import Encoder


def go_on(encoder: Encoder, ids: Sequence[int], cache: KeyValueCache) -> Array:
    """Take the next tokens of one text through the model: their last hidden states (tokens, dim).

    The tokens before them are in the cache; afterwards these are too.
    """
    x = encoder.embeddings(np.array([ids], np.int64), past_length=cache.length)[0]
    text, places = np.zeros(len(ids), np.int64), np.arange(cache.length, cache.length + len(ids))
    return run_blocks(encoder.stack, x, Tile(text, places, [Group(0, text[:1], len(ids), None)]), cache=cache)
