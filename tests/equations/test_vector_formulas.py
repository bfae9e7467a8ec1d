"""Pooling, similarity, smaller vectors and the rows of a static model: against loops and definitions.

Smaller vectors beside sentence-transformers are in tests/live/test_formulas_live.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from checkpoints import same_bits
from drawn import normal
from hypothesis import given
from hypothesis import strategies as st

from minibert.equations import similarity, static
from minibert.equations.input_layer import Array
from minibert.equations.quantization import PRECISIONS, dequantized, hamming, quantized, ranges_of
from minibert.equations.sentences import POOLINGS, SIMILARITIES, normalized
from minibert.equations.similarity import BLOCK

FLOAT64 = 1e-14  # measured 1.8e-15
FLOAT32 = 2e-6  # measured 4.8e-7
DTYPES = [("float64", FLOAT64), ("float32", FLOAT32)]

LOOPS: dict[str, Callable[[list[float], int], float]] = {  # of one dimension of all tokens
    "cls": lambda x, skip: x[skip] if skip < len(x) else x[0],
    "max": lambda x, skip: max(x[skip:], default=-math.inf),
    "mean": lambda x, skip: sum(x[skip:]) / max(1, len(x) - skip),
    "mean_sqrt_len_tokens": lambda x, skip: sum(x[skip:]) / math.sqrt(max(1, len(x) - skip)),
    "weightedmean": lambda x, skip: (
        sum(place * x[place - 1] for place in range(skip + 1, len(x) + 1)) / max(1, sum(range(skip + 1, len(x) + 1)))
    ),
    "lasttoken": lambda x, skip: x[-1] if skip < len(x) else 0.0,
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
    assert name in LOOPS, f"write a loop for {name!r} in LOOPS"
    want = [[LOOPS[name](dimension, skip) for dimension in text.T.tolist()] for text in rows]
    np.testing.assert_allclose(found, want, rtol=0, atol=tolerance)
    before = rows.copy()
    found[:] = 7  # the vectors are their own: this changes no token's row
    np.testing.assert_array_equal(rows, before)
    none = POOLINGS[name](rows[:, :0], 0)  # of texts without tokens
    np.testing.assert_array_equal(none, np.full((2, 3), -np.inf if name == "max" else 0.0))


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


# -- similarity of rows ------------------------------------------------------------------------------------------------

DEFINITION_TOLERANCE = 3e-13  # float64 against a definition computed in another order: measured at most 2.7e-14


def test_cosine_similarity_is_its_definition() -> None:
    x, y = normal(5, 4), normal(3, 4)
    want = [[sum(a * b) / (sum(a**2) * sum(b**2)) ** 0.5 for b in y] for a in x]
    np.testing.assert_allclose(similarity.cosine_similarity(x, y), want, rtol=0, atol=DEFINITION_TOLERANCE)


def test_cosine_of_odd_rows() -> None:
    """For zeros, for NaN, and for rows whose squares overflow float64 while their angle does not."""
    assert np.array_equal(similarity.cosine_similarity([[0.0, 0.0], [1.0, 0.0]]), [[0, 0], [0, 1]])
    found = similarity.cosine_similarity([[np.nan, 1.0], [1.0, 0.0]])
    assert np.array_equal(found, [[np.nan, np.nan], [np.nan, 1.0]], equal_nan=True)
    found = similarity.cosine_similarity(np.array([[3e200, 4e200], [3e-200, 4e-200], [4.0, 3.0]]))
    assert np.abs(found - [[1, 1, 0.96], [1, 1, 0.96], [0.96, 0.96, 1]]).max() <= DEFINITION_TOLERANCE


@given(
    seed=st.integers(0, 2**16), vocab=st.sampled_from([1, 5, 40, BLOCK - 1, BLOCK, 2 * BLOCK + 3]), by_id=st.booleans()
)
def test_nearest_tokens_are_the_largest_similarities(seed: int, vocab: int, by_id: bool) -> None:
    table = np.random.default_rng(seed).standard_normal((vocab, 3)).astype(np.float32)
    token, k = seed % vocab, min(vocab, 7)
    query = table[token] if by_id else normal(3, seed=seed)
    ids, similarities = similarity.nearest_tokens(table, token if by_id else query, k)
    every = similarity.cosine_similarity(np.asarray(query)[None], table)[0]
    assert ids.dtype == np.int64 and ids.shape == similarities.shape == (k,)
    assert len(set(ids.tolist())) == k
    assert np.abs(similarities - every[ids]).max() <= DEFINITION_TOLERANCE
    assert np.all(np.diff(similarities) <= 0)
    assert np.delete(every, ids).max(initial=-1.0) <= similarities[-1] + DEFINITION_TOLERANCE


def test_equal_rows_tie_by_id_across_blocks() -> None:
    table = normal(2 * BLOCK + 3, 50)  # a matrix product treats the last rows of an odd number differently
    copies = [5, BLOCK - 1, BLOCK, 2 * BLOCK, 2 * BLOCK + 2]
    table[copies] = normal(50)
    for query in (copies[2], table[copies[2]] + 0.3):
        ids, similarities = similarity.nearest_tokens(table, query, k=6)
        assert ids[:5].tolist() == copies
        assert len(set(similarities[:5].tolist())) == 1
        assert similarities[5] < similarities[4]


# -- smaller vectors ---------------------------------------------------------------------------------------------------

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


def test_no_vectors_stay_none_and_what_lies_outside_the_ranges_is_clipped_without_a_warning() -> None:
    for precision, kind in PRECISIONS.items():
        found = quantized(np.empty((0, 9), np.float32), precision)
        assert found.dtype == kind and found.shape == (0, 2 if "binary" in precision else 9)
    vectors, ranges = np.array([[-3e38], [3e38]], np.float32), [[-2.0], [1e-30]]
    assert quantized(vectors, "uint8", ranges).tolist() == [[0], [255]]


# -- a static model's rows ---------------------------------------------------------------------------------------------

# float64 by the covariance beside a singular value decomposition: measured 4e-14
DECOMPOSITION_TOLERANCE = 4e-13


def test_what_is_rarer_weighs_more_and_at_most_1() -> None:
    p = static.zipf_probabilities(30_000)
    assert abs(p.sum() - 1) < 1e-12 and np.abs(2 * p[0] / p / (np.arange(30_000) + 2) - 1).max() < 2e-12
    w = static.sif_weights(p)
    assert (np.diff(w) > 0).all() and w.min() > 0 and w.max() < 1


@pytest.mark.parametrize(("rows", "dim"), [(9, 3), (3, 9), (2 * static.BLOCK + 5, 4)])
def test_components_are_those_of_the_decomposition_but_for_the_signs(rows: int, dim: int) -> None:
    x = (normal(rows, dim) * np.arange(1, dim + 1) + 5).astype(np.float32)
    count = min(rows - 1, dim)
    found = static.covariance_components(x, count)
    left, sizes, directions = np.linalg.svd(x - x.mean(axis=0, dtype=np.float64), full_matrices=False)
    coordinates, directions = left[:, :count] * sizes[:count], directions[:count]
    assert found.coordinates.dtype == np.float64
    turned = np.sign(np.vecdot(found.directions, directions))
    size = np.abs(coordinates).max()
    assert np.abs(found.coordinates - coordinates * turned).max() <= DECOMPOSITION_TOLERANCE * size
    assert np.abs(found.directions - directions * turned[:, None]).max() <= DECOMPOSITION_TOLERANCE * 10
    assert np.abs(found.shares - (sizes**2 / np.sum(sizes**2))[:count]).max() <= DECOMPOSITION_TOLERANCE
    largest = np.abs(found.coordinates).argmax(axis=0)
    assert (found.coordinates[largest, np.arange(count)] > 0).all()


def test_the_first_of_two_largest_coordinates_is_positive() -> None:
    for x in ([[-1.0], [1.0]], [[1.0], [-1.0]]):
        assert static.covariance_components(x, 1).coordinates.tolist() == [[1.0], [-1.0]]


NONSENSE: list[tuple[Any, ...]] = [
    (static.zipf_probabilities, 0), (static.sif_weights, [0.5], 0), (static.sif_weights, [1.5]),
    (static.sif_weights, [np.nan]), (static.covariance_components, np.ones((1, 3)), 1),
    *((static.covariance_components, np.ones((5, 3)), count) for count in (4, 0)),
    *((static.covariance_components, [[1.0, odd], [0.0, 1.0]], 1) for odd in (np.nan, np.inf)),
]  # fmt: skip


@pytest.mark.parametrize("call", NONSENSE)
def test_what_has_no_meaning_is_refused(call: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="found"):
        call[0](*call[1:])
