"""Random numbers for tests, the same in every run and different for every shape; and the cosine of two rows."""

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
