"""Searches by sentence-transformers' names: their form, and groups and pairs found by comparing each with each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference_files import opened

import minibert
from minibert.equations.input_layer import Array
from minibert.equations.quantization import hamming, quantized
from minibert.equations.sentences import cosine, dot


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
    found, want = minibert.search(small, small, precision=precision), minibert.search(small, small)
    assert all(map(np.array_equal, found, want))


# -- the nearest, pairs, groups ----------------------------------------------------------------------------------


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


class Given:
    """Vectors in the place of a model that would compute them."""

    def __init__(self, embeddings: Array) -> None:
        self.embeddings = embeddings

    def encode(self, texts: list[str], *options: Any, truncate_dim: int | None = None) -> Array:
        assert len(texts) == len(self.embeddings)
        return self.embeddings[:, :truncate_dim]


def pairs_by_hand(some: Array, top_k: int) -> dict[tuple[int, int], float]:
    found = {}
    scores = cosine(some, some).astype(float)
    for i, row in enumerate(scores):
        others = [j for j in np.argsort(-row, kind="stable") if j != i][:top_k]
        found |= {(min(i, int(j)), max(i, int(j))): row[j] for j in others}
    return found


@pytest.mark.parametrize("top_k", [1, 4, 100])
@pytest.mark.parametrize("chunk", [7, 5000])
def test_pairs_are_those_of_each_with_each(top_k: int, chunk: int) -> None:
    """Equal vectors push a text out of its own nearest; a pair that is found from both ends is given once."""
    some = vectors(4)
    model: Any = Given(some)
    found = minibert.paraphrase_mining(model, ["a"] * len(some), top_k=top_k, query_chunk_size=chunk)
    want = pairs_by_hand(some, top_k)
    assert {(i, j) for _, i, j in found} == want.keys() and len(found) == len(want)
    assert all(i < j and abs(score - want[i, j]) <= 1e-6 for score, i, j in found)
    assert [score for score, *_ in found] == sorted((score for score, *_ in found), reverse=True)
    fewer = minibert.paraphrase_mining(
        model, ["a"] * len(some), top_k=top_k, query_chunk_size=chunk, max_pairs=9, truncate_dim=5
    )
    assert fewer == found[:9]


def test_pairs_of_texts() -> None:
    encoder = opened("sentences-prompts")
    texts = ["we lived", "above the clouds", "we lived", "man"]
    best, *others = minibert.paraphrase_mining(encoder, texts)
    assert best[1:] == [0, 2] and abs(best[0] - 1) <= 1e-6 and len(others) == 5
    assert minibert.paraphrase_mining(encoder, ["we"]) == [] == minibert.paraphrase_mining(encoder, [])
    with pytest.raises(TypeError, match="found one str; pass a list"):  # its letters would be the texts
        minibert.paraphrase_mining(encoder, "we lived")
    with pytest.raises(TypeError, match="found one for each token"):
        minibert.paraphrase_mining(opened("late-pylate"), texts)


def test_groups_by_hand() -> None:
    angles = np.radians([0, 4, 8, 90, 94, 180, 270, 2])
    some = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    near = float(np.cos(np.radians(5)))
    for batch in (1, 3, 1024):
        assert minibert.community_detection(some, near, 2, batch) == [[1, 7, 0, 2], [3, 4]]
        assert minibert.community_detection(some, near, 3, batch_size=batch) == [[1, 7, 0, 2]]
    assert minibert.community_detection(some, near, 5) == [] == minibert.community_detection(some[:0])
    for name in ("min_community_size", "batch_size"):
        with pytest.raises(ValueError, match=f"{name} must be an integer >= 1"):
            minibert.community_detection(some, **{name: 0})
    wrong: Any
    for wrong in (float("nan"), "0.5", None):  # no group at all, a number, and NumPy's own error
        with pytest.raises(ValueError, match="threshold must be a number"):
            minibert.community_detection(some, wrong)
