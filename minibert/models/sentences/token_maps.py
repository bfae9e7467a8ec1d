"""Two linear maps of each token that a folder may hold beside its sentence vectors, as bge-m3's.

`sparse_linear.pt` gives each token a weight, `colbert_linear.pt` a vector. No other file names them; a call that needs
one looks for it. Source: Chen et al. 2024, "BGE M3-Embedding" (arXiv:2402.03216), sections 3.2 and 3.3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.activations import relu
from minibert.equations.input_layer import Array
from minibert.equations.sentences import normalized
from minibert.families.parts.bound_blocks import Dense
from minibert.files.tokenizer import Tokenizer
from minibert.files.tokenizer_files import Find
from minibert.models.run.packing import Packed

from .comparing import SparseVector

WEIGHTS, VECTORS = "sparse_linear.pt", "colbert_linear.pt"
UNWEIGHTED = ("cls", "eos", "pad", "unk")  # named tokens without a weight; in bge-m3 they are the ids 0 to 3


class TokenMaps(NamedTuple):
    """The maps of one folder. Each gives None where the folder has no such file."""

    weights: Callable[[], Dense | None] = lambda: None
    vectors: Callable[[], Dense | None] = lambda: None


def token_maps_of(find: Find, dim: int, dtype: np.dtype[Any]) -> TokenMaps:
    """Give the maps of a folder, of vectors (dim,); a file is read when its map is asked for."""
    read = partial(_read, find, dim, dtype)
    return TokenMaps(cache(partial(read, WEIGHTS, 1)), cache(partial(read, VECTORS, None)))


def _read(find: Find, dim: int, dtype: np.dtype[Any], file: str, width: int | None) -> Dense | None:
    """Read a map of vectors (dim,) onto `width` numbers; None: as many. Raises CheckpointError."""
    path = find(file)
    if path is None:
        return None
    from minibert.files.torch_file import read_torch_file  # here, since it brings zipfile, and with it pathlib

    out = dim if width is None else width
    weight, bias = read_torch_file(path, {"weight": (out, dim), "bias": (out,)}, dtype)
    return Dense(weight, bias)


def token_weights(dense: Dense, tokenizer: Tokenizer) -> Callable[[Packed, Array], list[SparseVector]]:
    """Make the `results` of a pipeline: of each text `max over its tokens of one id (relu(w . x + b))`."""
    named = tokenizer.named
    left_out = [tokenizer.id_of(named[name]) for name in UNWEIGHTED if name in named]

    def results(tile: Packed, x: Array) -> list[SparseVector]:
        weights = relu(dense(x))
        found = []
        for group in tile.groups():
            for ids, own in zip(group.of(tile.ids), group.of(weights)[..., 0], strict=True):
                found.append(largest_of_each(ids, own, left_out))
        return found

    return results


def largest_of_each(ids: Array, weights: Array, left_out: list[int | None]) -> SparseVector:
    """Give each id its largest weight; ids without one, and those that are left out, are not there.

    >>> largest_of_each(np.array([0, 7, 5, 7, 6]), np.array([9.0, 1, 2, 3, 0]), left_out=[0])
    SparseVector(ids=array([5, 7]), weights=array([2., 3.]))
    """
    own, places = np.unique(ids, return_inverse=True)
    best = np.zeros(len(own), weights.dtype)
    np.maximum.at(best, places.reshape(-1), weights)
    kept = (best > 0) & ~np.isin(own, [i for i in left_out if i is not None])
    return SparseVector(own[kept], best[kept])


def token_vectors(dense: Dense) -> Callable[[Packed, Array], list[Array]]:
    """Make the `results` of a pipeline: each text's tokens after the first, mapped and normalized: (tokens, dim)."""

    def results(tile: Packed, x: Array) -> list[Array]:
        y = normalized(dense(x))
        return [rows[1:].copy() for group in tile.groups() for rows in group.of(y)]

    return results
