"""Pooling and similarity: each formula against one written as loops, on numbers of both signs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from checkpoints import same_bits

from minibert.equations.input_layer import Array
from minibert.equations.sentences import POOLINGS, SIMILARITIES, normalized

FLOAT64 = 1e-14  # measured 1.8e-15
FLOAT32 = 2e-6  # measured 4.8e-7
DTYPES = [("float64", FLOAT64), ("float32", FLOAT32)]

LOOPS: dict[str, Callable[[list[list[float]], int], list[float]]] = {
    "cls": lambda rows, skip: rows[skip] if skip < len(rows) else rows[0],
    "max": lambda rows, skip: [max((row[d] for row in rows[skip:]), default=-math.inf) for d in range(3)],
    "mean": lambda rows, skip: [sum(row[d] for row in rows[skip:]) / max(1, len(rows) - skip) for d in range(3)],
    "mean_sqrt_len_tokens": lambda rows, skip: [
        sum(row[d] for row in rows[skip:]) / math.sqrt(max(1, len(rows) - skip)) for d in range(3)
    ],
    "weightedmean": lambda rows, skip: [
        sum((skip + t) * row[d] for t, row in enumerate(rows[skip:], 1))
        / max(1, sum(range(skip + 1, max(skip, len(rows)) + 1)))
        for d in range(3)
    ],
    "lasttoken": lambda rows, skip: rows[-1] if skip < len(rows) else [0.0] * 3,
}
PAIRS: dict[str, Callable[[list[float], list[float]], float]] = {
    "dot": lambda a, b: sum(map(lambda x, y: x * y, a, b)),
    "cosine": lambda a, b: sum(map(lambda x, y: x * y, a, b)) / math.hypot(*a) / math.hypot(*b),
    "euclidean": lambda a, b: -math.dist(a, b),
    "manhattan": lambda a, b: -sum(map(lambda x, y: abs(x - y), a, b)),
}


def numbers(*shape: int, seed: int = 0, dtype: str = "float64") -> Array:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape) * 3, dtype)


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("skip", [0, 1, 2, 4, 5, 6])
@pytest.mark.parametrize("name", POOLINGS)
def test_pooling(name: str, skip: int, dtype: str, tolerance: float) -> None:
    rows = numbers(2, 5, 3, dtype=dtype)
    rows[1] = -np.abs(rows[1])  # a largest number below zero
    found = POOLINGS[name](rows, skip)
    assert found.dtype == dtype
    want = np.array([LOOPS[name](text.tolist(), skip) for text in rows])
    np.testing.assert_allclose(found, want, rtol=0, atol=tolerance)
    before = rows.copy()
    found[:] = 7  # the vectors are their own: this changes no token's row
    np.testing.assert_array_equal(rows, before)


@pytest.mark.parametrize("name", POOLINGS)
def test_a_text_without_tokens(name: str) -> None:
    found = POOLINGS[name](np.zeros((2, 0, 3)), 0)
    np.testing.assert_array_equal(found, np.full((2, 3), -np.inf if name == "max" else 0.0))


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
@pytest.mark.parametrize("name", SIMILARITIES)
def test_similarity(name: str, dtype: str, tolerance: float) -> None:
    a, b = numbers(4, 3, seed=1, dtype=dtype), numbers(2, 3, seed=2, dtype=dtype)
    found = SIMILARITIES[name](a, b)
    assert found.dtype == dtype
    want = np.array([[PAIRS[name](x, y) for y in b.tolist()] for x in a.tolist()])
    np.testing.assert_allclose(found, want, rtol=0, atol=10 * tolerance)


def test_normalized_scales_by_the_largest_size() -> None:
    """For only negative numbers, and for a negative number far larger than the largest positive one."""
    found = normalized(np.array([[-3e-30, -4e-30], [-3e30, -4e30], [-1e30, 1e10]], np.float32))
    np.testing.assert_allclose(found, [[-0.6, -0.8], [-0.6, -0.8], [-1, 1e-20]], rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_power_of_two_changes_no_bit(dtype: str) -> None:
    """Also if it moves the squares so far that they are scaled first."""
    x = np.random.default_rng(0).standard_normal((40, 65)).astype(dtype) * np.geomspace(1e-12, 1, 65).astype(dtype)
    want = normalized(x)
    for power in (-70, 70):
        assert same_bits(normalized(np.ldexp(x, power)), want)
