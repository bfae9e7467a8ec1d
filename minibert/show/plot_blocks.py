"""Attention -> pictures, as in `plot`: one head with its tokens, or all heads of all blocks small.

>>> from matplotlib.figure import Figure
>>> ax = attention_heads(np.full((2, 3, 4, 4), 0.25), ax=Figure().subplots())
>>> ax.get_xlabel(), ax.get_ylabel(), ax.images[0].get_array().shape
('head', 'block', (9, 14))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from minibert.equations.input_layer import Array

from .plot import _axes, _image, _name_sides

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEW_TOKENS = 40  # whose names have room beside a grid


def attention_grid(probabilities: Array, tokens: Sequence[str], ax: Axes | None = None) -> Axes:
    """The attention weights of one head as a grid: a row for each query token, a column for each key token.

    probabilities (query, key), each row with the sum 1; tokens name both sides, if there are few. A weight of exactly
    0 is left blank: a mask hides that token. So GPT-2's grid is a triangle.
    """
    side = min(12.0, max(5.0, 0.3 * len(tokens) + 2))
    ax = _axes(ax, side + 1, side)
    _image(ax, np.ma.masked_equal(probabilities, 0), "attention weight", (0.0, float(probabilities.max())))
    ax.set(xlabel="key token", ylabel="query token")
    return _name_sides(ax, tokens) if len(tokens) <= FEW_TOKENS else ax


def attention_heads(attentions: Array, ax: Axes | None = None) -> Axes:
    """All heads of all blocks, small: a line of grids for each block, a grid for each head, all on one scale.

    attentions (blocks, heads, query, key). One blank line parts two grids. In each of them the first token's line is on
    top, as in `attention_grid`.
    """
    blocks, heads, query, key = attentions.shape
    ax = _axes(ax, min(16.0, 1.0 * heads + 2), min(16.0, 1.0 * blocks + 1))
    parted = np.zeros((blocks, query + 1, heads, key + 1), attentions.dtype)
    parted[:, :query, :, :key] = attentions.swapaxes(1, 2)
    image = parted.reshape(blocks * (query + 1), heads * (key + 1))[:-1, :-1]
    _image(ax, np.ma.masked_equal(image, 0), "attention weight", (0.0, 1.0))
    ax.set_xticks(np.arange(heads) * (key + 1) + (key - 1) / 2, [str(i) for i in range(heads)])
    ax.set_yticks(np.arange(blocks) * (query + 1) + (query - 1) / 2, [str(i) for i in range(blocks)])
    ax.tick_params(length=0)
    ax.set(xlabel="head", ylabel="block")
    return ax
