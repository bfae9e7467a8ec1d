"""Smaller vectors number by number; beside sentence-transformers they are in tests/live/test_formulas_live.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibert.equations.quantization import PRECISIONS, dequantized, hamming, quantized, ranges_of

CONVERTED = 1e-6  # of a range's width: float32 against float64; measured: 1.3e-7


def drawn(dim: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    """150 vectors with a dimension that is always the same; exact in float32, on every machine."""
    vectors = np.random.default_rng(seed).integers(-4000, 4001, (150, dim)) / 4096
    vectors[:, dim // 2] = 0.25
    return vectors.astype(dtype)


@pytest.mark.parametrize("precision", ["int8", "uint8"])
def test_a_byte_is_the_step_that_a_number_is_in(precision: str) -> None:
    vectors, others = drawn(5), drawn(5, 1)
    ranges = ranges_of(others)
    assert np.array_equal(ranges, [others.min(axis=0), others.max(axis=0)])
    assert np.array_equal(quantized(others, precision), quantized(others, precision, ranges))
    found = quantized(vectors, precision, ranges)
    for (row, at), x in np.ndenumerate(vectors):
        low, high = map(np.float32, ranges[:, at])
        step = (high - low) / np.float32(255)
        y = min(max(math.floor((x - low) / (step or np.float32(1))), 0), 255)
        assert found[row, at] == (y if precision == "uint8" else y - 128)
        if low < x < high:  # a step's beginning stands for all of it
            converted = dequantized(found, precision, ranges)[row, at]
            assert -CONVERTED <= x - converted <= step + CONVERTED


@pytest.mark.parametrize("dim", [1, 7, 8, 9, 64])
def test_a_bit_says_which_numbers_are_positive(dim: int) -> None:
    vectors = drawn(dim)
    bits = quantized(vectors, "ubinary")
    assert bits.shape == (150, -(-dim // 8)) and bits.dtype == np.uint8
    for row, vector in zip(bits.tolist(), vectors, strict=True):
        signs = "".join("1" if x > 0 else "0" for x in vector).ljust(8 * len(row), "0")
        assert row == [int(signs[i : i + 8], 2) for i in range(0, len(signs), 8)]
    signed = quantized(vectors, "binary")
    assert signed.dtype == np.int8 and np.array_equal(signed.astype(int) + 128, bits)


@given(st.lists(st.binary(min_size=16, max_size=16), min_size=2, max_size=6), st.integers(1, 16))
def test_hamming_counts_the_bits_that_differ(rows: list[bytes], width: int) -> None:
    vectors = np.array([list(row[:width]) for row in rows], np.uint8)
    found = hamming(vectors[:2], vectors)
    for i, j in np.ndindex(*found.shape):
        pairs = zip(rows[i][:width], rows[j][:width], strict=True)
        assert found[i, j] == -sum((a ^ b).bit_count() for a, b in pairs)
    signed = (vectors - np.uint8(128)).view(np.int8)
    assert np.array_equal(hamming(signed[:2], signed), found)
    assert np.array_equal(hamming(vectors[:2], np.repeat(vectors, 2, axis=1)[:, ::2]), found)  # not one after another


def test_float16_and_float32() -> None:
    vectors = drawn(6, dtype=np.float64)
    assert quantized(vectors, "float32").dtype == np.float32
    half = quantized(vectors, "float16")
    assert half.dtype == np.float16 and np.abs(half - vectors).max() <= 2**-12
    assert np.array_equal(dequantized(half, "float16"), half.astype(np.float32))


def test_no_vectors_stay_none() -> None:
    for precision, kind in PRECISIONS.items():
        found = quantized(np.empty((0, 9), np.float32), precision)
        assert found.dtype == kind and found.shape == (0, 2 if "binary" in precision else 9)


def test_what_lies_outside_the_ranges_is_clipped_without_a_warning() -> None:
    vectors, ranges = np.array([[-3e38], [3e38]], np.float32), [[-2.0], [1e-30]]
    assert quantized(vectors, "uint8", ranges).tolist() == [[0], [255]]
