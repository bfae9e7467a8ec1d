"""What is asked for once, beside the same arguments of sentence-transformers' constructors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from many_texts import many_texts
from needed import need_sentence_transformers
from reference_files import REFERENCE

import minibert

pytestmark = pytest.mark.reference

SAME = 1e-5  # of vectors, similarities and scores up to 20; measured: 5.2e-6
OPTIONS: list[dict[str, Any]] = [
    {"prompts": {"query": "we lived "}},
    {"prompts": {"query": "we ", "own": "above "}, "default_prompt_name": "own"},
    {"prompts": {"query": "", "document": ""}},
    {"prompts": {"document": "the clouds: "}, "default_prompt_name": "document"},
    {"default_prompt_name": "query"},
    {"truncate_dim": 3},
    {"truncate_dim": 300},
    {"similarity_fn_name": "dot"},
    {"similarity_fn_name": "euclidean", "truncate_dim": 5},
    {"similarity_fn_name": "manhattan", "prompts": {"query": "clouds! "}},
    {"similarity_fn_name": "cosine"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["sentences-prompts", "sentences-dense", "sentences-bare"])
def test_ten_ways_to_ask(name: str, options: dict[str, Any]) -> None:
    need_sentence_transformers()
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(REFERENCE / name), device="cpu", **options)
    ours = minibert.load_encoder(REFERENCE / name, **options)
    assert ours.prompts == theirs.prompts
    texts = ["we lived above the clouds", "", "clouds!", *[text for text in many_texts(30) if len(text) < 100]]
    for method in ("encode", "encode_query", "encode_document"):
        found, want = getattr(ours, method)(texts), getattr(theirs, method)(texts)
        assert found.shape == want.shape and np.abs(found - want).max() <= SAME
    first, second = np.random.default_rng(0).standard_normal((2, 20, 7)).astype("f4")
    assert np.abs(ours.similarity(first, second) - theirs.similarity(first, second).numpy()).max() <= SAME


@pytest.mark.parametrize("length", [5, 6, 7, 8, 9, 10, 12, 16, 20, 30])
def test_ten_lengths_of_pairs(length: int) -> None:
    need_sentence_transformers()
    from sentence_transformers import CrossEncoder

    folder = REFERENCE / "uses-reranker"
    theirs = CrossEncoder(str(folder), device="cpu", max_length=length)
    ours = minibert.load_encoder(folder, max_length=length)
    assert ours.max_seq_length == theirs.max_seq_length
    pairs = [("we lived above the clouds", "the clouds " * n) for n in range(10)]
    assert np.abs(ours.predict(pairs) - theirs.predict(pairs)).max() <= SAME


def test_old_names_are_theirs() -> None:
    """The list of names without an owner, of which there are 78, and what becomes of others."""
    need_sentence_transformers()
    from sentence_transformers.util.misc import ORIGINAL_TRANSFORMER_MODELS

    from minibert.hub.names import WITHOUT_OWNER

    assert frozenset(ORIGINAL_TRANSFORMER_MODELS) == WITHOUT_OWNER
