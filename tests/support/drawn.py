"""Random numbers for tests: the same in every run, others for every shape."""

from __future__ import annotations

import numpy as np

from minibert.equations.input_layer import Array


def normal(*shape: int, seed: int = 3) -> Array:
    """Normal numbers in float64."""
    return np.random.default_rng((seed, *shape)).standard_normal(shape)
