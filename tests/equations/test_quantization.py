"""Smaller vectors: their definitions number by number, what sentence-transformers gave, and what is refused."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibert.equations.quantization import PRECISIONS, dequantized, hamming, quantized, ranges_of

CONVERTED = 1e-6  # of a range's width: float32 against float64; measured: 1.3e-7

# sha256 of what quantize_embeddings of sentence-transformers 6.2.0 gives for `drawn(dim)`: of the bytes with the ranges
# of the vectors themselves, and with those of `drawn(dim, 1)`; tests/live/test_formulas_live.py runs it
GIVEN = {
    ("int8", 7): ("1a1b6e0c1d45f20e", "cf6d83520f5a3a00"),
    ("int8", 13): ("ff728887a8f1ca97", "7d78ed15d04bcab1"),
    ("int8", 64): ("20c357c0086c4ca8", "6775aeca86476f72"),
    ("uint8", 7): ("dab27ec09bbe1660", "db1c2da9c254886e"),
    ("uint8", 13): ("543d799e7bc0f944", "7948b09fd7b71965"),
    ("uint8", 64): ("54cfd22eb980cddb", "94b749eb472deb5a"),
    ("binary", 7): ("7a1421afc0c1e47e", "7a1421afc0c1e47e"),
    ("binary", 13): ("8c480072d8f16f78", "8c480072d8f16f78"),
    ("binary", 64): ("0e4ebaf9691d95e1", "0e4ebaf9691d95e1"),
    ("ubinary", 7): ("db03e0c31f3c91e7", "db03e0c31f3c91e7"),
    ("ubinary", 13): ("186562ed1315d1b9", "186562ed1315d1b9"),
    ("ubinary", 64): ("7844d07a4d2cfdc5", "7844d07a4d2cfdc5"),
}


def drawn(dim: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    """150 vectors with a dimension that is always the same; exact in float32, on every machine."""
    vectors = np.random.default_rng(seed).integers(-4000, 4001, (150, dim)) / 4096
    vectors[:, dim // 2] = 0.25
    return vectors.astype(dtype)


def digest(array: Any) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]


@pytest.mark.parametrize(("precision", "dim"), GIVEN)
def test_the_bytes_are_those_of_sentence_transformers(precision: str, dim: int) -> None:
    own, others = GIVEN[precision, dim]
    found = quantized(drawn(dim), precision)
    assert (digest(found), found.dtype) == (own, PRECISIONS[precision])
    assert digest(quantized(drawn(dim), precision, ranges_of(drawn(dim, 1)))) == others


@pytest.mark.parametrize("precision", ["int8", "uint8"])
def test_a_byte_is_the_step_that_a_number_is_in(precision: str) -> None:
    vectors, ranges = drawn(5), ranges_of(drawn(5, 1))
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
