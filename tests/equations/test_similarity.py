"""Similarity and nearest rows against their definitions."""

from __future__ import annotations

import numpy as np
from drawn import normal
from hypothesis import given
from hypothesis import strategies as st

from minibert.equations import similarity
from minibert.equations.similarity import BLOCK

# float64 against a definition computed in another order: measured at most 2.7e-14
DEFINITION_TOLERANCE = 3e-13


# cosine similarity


def test_cosine_similarity_is_its_definition() -> None:
    x, y = normal(5, 4), normal(3, 4)
    found = similarity.cosine_similarity(x, y)
    assert found.shape == (5, 3)
    for i, j in np.ndindex(5, 3):
        expected = sum(x[i] * y[j]) / (sum(x[i] ** 2) * sum(y[j] ** 2)) ** 0.5
        assert abs(found[i, j] - expected) <= DEFINITION_TOLERANCE


def test_cosine_of_odd_rows() -> None:
    """For zeros, for NaN, and for rows whose squares overflow float64 while their angle does not."""
    assert np.array_equal(similarity.cosine_similarity([[0.0, 0.0], [1.0, 0.0]]), [[0, 0], [0, 1]])
    found = similarity.cosine_similarity([[np.nan, 1.0], [1.0, 0.0]])
    assert np.array_equal(found, [[np.nan, np.nan], [np.nan, 1.0]], equal_nan=True)
    found = similarity.cosine_similarity(np.array([[3e200, 4e200], [3e-200, 4e-200], [4.0, 3.0]]))
    assert np.abs(found - [[1, 1, 0.96], [1, 1, 0.96], [0.96, 0.96, 1]]).max() <= DEFINITION_TOLERANCE


# nearest tokens


@given(
    seed=st.integers(0, 2**16),
    vocab=st.sampled_from([1, 5, 40, BLOCK - 1, BLOCK, 2 * BLOCK + 3]),
    by_id=st.booleans(),
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
