"""The names that people type who come from sentence-transformers, and vectors that are normalized already."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import same_bits
from reference_files import changed, opened

import minibert


@pytest.mark.parametrize("method", ["encode", "encode_query", "encode_document"])
def test_texts_by_each_of_their_names(method: str) -> None:
    encode = getattr(opened("sentences-prompts"), method)
    want = encode(["we", "clouds"])
    for name in ("texts", "inputs", "sentences"):
        assert same_bits(encode(**{name: ["we", "clouds"]}), want)
        assert same_bits(encode(**{name: "we"}, normalize_embeddings=True), encode("we", normalize_embeddings=True))


def test_prompts_are_those_of_sentence_transformers() -> None:
    """What it gave as `prompts` for the same folders, in its order."""
    for name, want in (
        ("sentences-bare", {"query": "", "document": ""}),
        ("sentences-prompts", {"query": "the clouds: ", "document": "", "passage": "above! "}),
        ("sentences-last-token", {"query": "Instruct: find\nQuery:", "document": ""}),
    ):
        encoder = opened(name)
        assert encoder.prompts == want and list(encoder.prompts) == list(want)
    with pytest.raises(TypeError):
        encoder.prompts["query"] = "else"  # type: ignore[index]  # else it would be without effect, and without a word


@pytest.mark.parametrize("pairs", [("we", "clouds"), [("we", "clouds"), ("a", "the")]])
def test_pairs_by_each_of_their_names(pairs: Any) -> None:
    predict = opened("uses-reranker").predict
    for name in ("pairs", "inputs", "sentences"):
        assert same_bits(np.asarray(predict(**{name: pairs})), np.asarray(predict(pairs)))
    for passed in ({}, {"pairs": pairs, "inputs": pairs}):
        with pytest.raises(TypeError, match="pairs must be one pair of texts or a list of pairs, passed once, as pai"):
            predict(**passed)


SETTINGS = "config_sentence_transformers.json"
# by hand
PAIRS = {"cosine": [0.6, -1], "dot": [15, -2], "euclidean": [-(20**0.5), -3], "manhattan": [-6, -3]}


@pytest.mark.parametrize("measure", PAIRS)
def test_similarity_of_pairs(measure: str, tmp_path: Path) -> None:
    encoder = changed(tmp_path, "sentences-dense", SETTINGS, {"similarity_fn_name": measure})
    first, second = np.array([[3, 4], [1, 0]]), np.array([[5, 0], [-2, 0]])
    found = encoder.similarity_pairwise(first, second)
    assert found.dtype == np.float32 and np.allclose(found, PAIRS[measure])
    assert np.allclose(found, np.diag(encoder.similarity(first, second)))
    one = encoder.similarity_pairwise(first[0], second[0])
    assert np.ndim(one) == 0 and one == found[0]
    beside = encoder.similarity_pairwise(first[0], second)
    assert np.allclose(beside, encoder.similarity(first[0], second)[0]) and beside.shape == (2,)
    assert encoder.similarity_pairwise(first[:1], second[0]).shape == (1,)
    assert encoder.similarity_pairwise(first[:0], second[:0]).shape == (0,)


# -- vectors that are normalized already -------------------------------------------------------------------------


def test_normalized_vectors_are_not_normalized_again() -> None:
    encoder = opened("sentences-dense")
    texts = ["we", "we lived", "the clouds", "above"]
    vectors = encoder.encode(texts, normalize_embeddings=True)
    want = encoder.similarity(vectors[:2], vectors)
    assert np.abs(encoder.similarity(vectors[:2], vectors, normalized=True) - want).max() <= 1e-6
    given = (vectors[:2], vectors, 3)
    found = minibert.search(*given, normalized=True)
    assert all(map(partial(np.allclose, atol=1e-6), found, minibert.search(*given)))
    # a length that is not 1 shows that nothing is divided: only the first vector is looked at
    first, second = np.array([[1.0, 0.0]]), np.array([[0.6, 0.8], [3.0, 4.0]])
    assert encoder.similarity(first, second, normalized=True).tolist() == [[0.6, 3]]
    ids, scores = minibert.search(first, second, 2, normalized=True)
    assert (ids.tolist(), scores.tolist()) == ([[1, 0]], [[3.0, 0.6]])


@pytest.mark.parametrize("measure", ["dot", "euclidean", "manhattan"])
def test_measures_that_do_not_normalize_stay(measure: str, tmp_path: Path) -> None:
    encoder = changed(tmp_path, "sentences-dense", SETTINGS, {"similarity_fn_name": measure})
    first, second = np.array([[3.0, 4]]), np.array([[5.0, 0]])
    assert encoder.similarity(first, second, normalized=True) == encoder.similarity(first, second)


def test_normalized_vectors_of_float16_and_zeros_pass_and_others_do_not() -> None:
    encoder = opened("sentences-dense")
    unit = np.random.default_rng(0).standard_normal((200, 384))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    for vector in unit.astype(np.float16):
        encoder.similarity(vector, vector, normalized=True)
    assert encoder.similarity([0.0, 0.0], [[1.0, 0.0]], normalized=True).tolist() == [[0]]
    assert encoder.similarity(np.ones((0, 2)), np.ones((0, 2)), normalized=True).shape == (0, 0)
    for first, second in (([2.0, 0], [1.0, 0]), ([1.0, 0], [0.99, 0]), ([1.0, 0], [np.nan, 0])):
        with pytest.raises(ValueError, match="normalized=True is for vectors of length 1, found one of length"):
            encoder.similarity(first, second, normalized=True)
        with pytest.raises(ValueError, match="normalized=True is for vectors of length 1"):
            minibert.search([first], np.array([second]), normalized=True)
    with pytest.raises(ValueError, match="leave compare out, or normalized"):
        minibert.search([[1.0]], np.array([[1.0]]), compare=encoder.similarity, normalized=True)
