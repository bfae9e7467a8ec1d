"""Random numbers for tests, the same in every run and different for every shape; the cosine of two rows; and how far
vectors are from those that are wanted.
"""

from __future__ import annotations

import numpy as np

from minibert.equations.input_layer import Array


def normal(*shape: int, seed: int = 3) -> Array:
    """Normal numbers in float64."""
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


def cosine(x: Array, y: Array) -> float:
    """By its definition, in float64."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def away(found: Array, want: Array) -> float:
    """The largest difference of numbers, relative to each vector's length; a vector of zeros has to be one."""
    assert found.shape == want.shape and found.dtype == want.dtype
    lengths = np.linalg.norm(want.astype("f8"), axis=-1, keepdims=True)
    return float((np.abs(found.astype("f8") - want) / np.maximum(lengths, 1e-30)).max(initial=0))


def apart(found: Array, want: Array) -> float:
    """The largest length of a difference, relative to each vector's length."""
    lengths = np.linalg.norm(want.astype("f8"), axis=-1)
    return float((np.linalg.norm(found.astype("f8") - want, axis=-1) / lengths).max(initial=0))
