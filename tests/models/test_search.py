"""Searches by sentence-transformers' names and in their form, and of bits."""

from __future__ import annotations

import numpy as np
import pytest

import minibert
from minibert.equations.input_layer import Array
from minibert.equations.quantization import hamming, quantized
from minibert.equations.sentences import dot


def vectors(seed: int, count: int = 60, dim: int = 5) -> Array:
    """Some of them equal, one zero."""
    found = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    found[7] = found[3] = found[1]
    found[5] = 0
    return found


# -- search by other names and of bits ---------------------------------------------------------------------------


def test_top_k_is_another_name_of_k() -> None:
    some = vectors(0)
    for k in (1, 10, 70):
        for found, want in zip(minibert.search(some, some, top_k=k), minibert.search(some, some, k), strict=True):
            assert np.array_equal(found, want)
    with pytest.raises(ValueError, match="top_k is another name of k"):
        minibert.search(some, some, 3, top_k=4)
    with pytest.raises(ValueError, match="top_k must be an integer >= 1, found 0"):
        minibert.search(some, some, top_k=0)


@pytest.mark.parametrize("precision", ["binary", "ubinary"])
def test_a_search_of_bits_counts_them(precision: str) -> None:
    """Compared as numbers, 0b10000000 and 0b01111111 would be near, which differ in every bit."""
    small = quantized(vectors(1, dim=19), precision)
    ids, scores = minibert.search(small[:3], small, 4, precision=precision)
    assert np.array_equal(scores, -np.sort(-hamming(small[:3], small), axis=1)[:, :4]) and ids[1, 0] == 1
    (number,), _ = minibert.search(np.array([[128]], "u1"), np.array([[127], [0]], "u1"), 1, precision="ubinary")
    assert number == [1]
    for compare in (dict(compare=dot), dict(normalized=True)):
        with pytest.raises(ValueError, match=f"precision='{precision}' counts bits; leave it out, or compare and norm"):
            minibert.search(small, small, precision=precision, **compare)  # type: ignore[arg-type]
    for wrong in (small.astype(np.float32), small.view(np.uint8 if precision == "binary" else np.int8)):
        with pytest.raises(TypeError, match=f"='{precision}' compares vectors of u?int8, .*; queries: {wrong.dtype}"):
            minibert.search(wrong, small, precision=precision)
        with pytest.raises(TypeError, match=f"; vectors: {wrong.dtype}"):
            minibert.search(small, wrong, precision=precision)
    with pytest.raises(ValueError, match="precision must be one of"):
        minibert.search(small, small, precision="bits")


@pytest.mark.parametrize("precision", [None, "float32", "int8", "uint8"])
def test_other_precisions_compare_numbers(precision: str | None) -> None:
    small = quantized(vectors(2), precision or "float32")
    found, want = (
        minibert.search(small, small, precision=precision),
        minibert.search(small.astype(np.float32), small.astype(np.float32)),
    )
    assert all(map(np.array_equal, found, want))


# -- the nearest by its other name ----------------------------------------------------------------------------------


def test_semantic_search_is_search_in_another_form() -> None:
    some = vectors(3)
    found = minibert.semantic_search(some[:4], some, top_k=6)
    ids, scores = minibert.search(some[:4], some, 6)
    assert [[each["corpus_id"] for each in row] for row in found] == ids.tolist()
    assert [[each["score"] for each in row] for row in found] == scores.tolist()
    assert [len(row) for row in minibert.semantic_search(some[0], some)] == [10]
    (best, *_), *_ = minibert.semantic_search(some[0], some, score_function=dot)
    assert type(best["corpus_id"]) is int and type(best["score"]) is float
    assert minibert.semantic_search(some[:2], some[:0]) == [[], []]


@pytest.mark.parametrize("name", ["paraphrase_mining", "paraphrase_mining_embeddings", "community_detection"])
def test_pairs_and_groups_are_found_elsewhere(name: str) -> None:
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; sklearn"):
        getattr(minibert, name)


def test_bytes_that_may_be_bits_are_not_compared_without_a_word() -> None:
    """uint8 vectors hold numbers or bits, and do not say which."""
    vectors = np.array([[1, 255], [200, 3]], np.uint8)
    with pytest.warns(UserWarning, match="uint8 are compared by the cosine .* pass precision='ubinary'"):
        numbers, _ = minibert.search(vectors, vectors, 1)
    assert numbers.ravel().tolist() == [0, 1]
    assert np.array_equal(minibert.search(vectors, vectors, 1, precision="uint8")[0], numbers)
    minibert.search(vectors.view(np.int8), vectors.view(np.int8), 1)
