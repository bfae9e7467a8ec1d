"""Searches and small vectors beside sentence-transformers, on MiniLM's vectors of real sentences."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from many_texts import many_texts
from needed import need_sentence_transformers

import minibert
from minibert.equations.input_layer import Array

pytestmark = pytest.mark.reference

SCORE = 2e-6  # of cosines; measured: 4.2e-7
SUBJECTS, VERBS = ("the cat", "a dog", "my old friend", "the bank", "this river"), ("sleeps", "is near", "was sold")
PLACES = ("at home", "in the garden", "by the sea", "in winter", "today", "for a song")
TEXTS = [f"{subject} {verb} {place}" for subject in SUBJECTS for verb in VERBS for place in PLACES]


@pytest.fixture(scope="module")
def both(minilm: Path) -> tuple[Any, minibert.Encoder]:
    need_sentence_transformers()
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(minilm), device="cpu"), minibert.load_encoder(minilm)


@pytest.fixture(scope="module")
def vectors(both: tuple[Any, minibert.Encoder]) -> Array:
    found: Array = both[1].encode(TEXTS)
    return found


@pytest.mark.parametrize("top_k", [1, 2, 3, 5, 7, 10, 20, 50, 89, 200])
def test_ten_semantic_searches(top_k: int, vectors: Array) -> None:
    need_sentence_transformers()
    from sentence_transformers.util import semantic_search

    queries = vectors[top_k % 60 :][:9]
    ours = minibert.semantic_search(queries, vectors, top_k=top_k)
    theirs = semantic_search(queries, vectors, top_k=top_k)
    assert [len(row) for row in ours] == [len(row) for row in theirs]
    for found, want in zip(ours, theirs, strict=True):
        assert found[0].keys() == want[0].keys() and found[0]["corpus_id"] == want[0]["corpus_id"]
        assert np.abs([a["score"] - b["score"] for a, b in zip(found, want, strict=True)]).max() <= SCORE


@pytest.mark.parametrize("count", [0, 2, 3, 4, 5, 10, 50, 99, 100, 101])
def test_ten_numbers_of_vectors_that_are_warned_of(
    count: int, both: tuple[Any, minibert.Encoder], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They log a warning in the same calls in which ours is one of Python's."""
    texts = (TEXTS * 4)[:count]
    monkeypatch.setattr(logging.getLogger("sentence_transformers"), "propagate", True)
    for precision in ("int8", "uint8", "ubinary"):
        caplog.clear()
        both[0].encode(texts, precision=precision)
        theirs = [record for record in caplog.records if "quantization buckets" in record.getMessage()]
        with warnings.catch_warnings(record=True) as ours:
            warnings.simplefilter("always")
            both[1].encode(texts, precision=precision)
        assert len(ours) == len(theirs) == (precision != "ubinary" and 1 < count < 100)


@pytest.mark.parametrize("precision", ["int8", "uint8"])
def test_small_vectors_with_given_ranges(precision: str, both: tuple[Any, minibert.Encoder]) -> None:
    """Ten texts and their vectors: at most a step apart, since a number may lie at a step's edge."""
    from sentence_transformers.util import quantize_embeddings

    from minibert.equations.quantization import ranges_of

    ranges = ranges_of(both[0].encode([text for text in many_texts(150) if len(text) < 300]))
    want = quantize_embeddings(both[0].encode(TEXTS[:10]), precision, ranges=ranges)
    found = both[1].encode(TEXTS[:10], precision=precision, ranges=ranges)
    assert found.dtype == want.dtype and np.abs(found.astype(int) - want).max() <= 1
    assert (found == want).mean() > 0.999


def test_ten_pairs_by_their_names(both: tuple[Any, minibert.Encoder]) -> None:
    from reference_files import REFERENCE
    from sentence_transformers import CrossEncoder

    folder = REFERENCE / "uses-reranker"
    theirs, ours = CrossEncoder(str(folder), device="cpu"), minibert.load_encoder(folder)
    pairs = [("we lived above", " ".join(["the clouds"] * n)) for n in range(10)]
    for name in ("inputs", "sentences"):
        assert np.abs(ours.predict(**{name: pairs}) - theirs.predict(**{name: pairs})).max() <= SCORE
