"""Mypy and an editor know the types of these calls: never run, mypy reads it (tests/project/test_package.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import minibert

if TYPE_CHECKING:
    from typing_extensions import assert_type

    from minibert import Entity, Label, Prediction, SparseVector
    from minibert.equations.input_layer import Array
    from minibert.equations.sentences import Matrix, Vector

    encoder = minibert.load_encoder("all-MiniLM-L6-v2", prompts={"query": "query: "})
    texts = ["a", "b"]
    assert_type(encoder, minibert.Encoder)
    assert_type(encoder.encode("a"), Vector)
    assert_type(encoder.encode("a", "query", normalize_embeddings=True, precision="int8").shape, tuple[int])
    assert_type(encoder.encode(texts, truncate_dim=3), Matrix)
    assert_type(encoder.encode(word for word in texts).shape, tuple[int, int])
    assert_type(encoder.encode("a", output_value="token_embeddings"), Matrix)
    assert_type(encoder.encode(texts, output_value="token_embeddings"), list[Matrix])
    assert_type(encoder.encode(inputs="a"), Any)
    assert_type(encoder.encode(texts, None, None, 32, True), Any)
    assert_type(encoder.encode_query("a"), Vector)
    assert_type(encoder.encode_query(texts, "query", normalize_embeddings=True), Matrix)
    assert_type(encoder.encode_document(texts, prompt="a "), Matrix)
    assert_type(encoder.encode_document("a", output_value="token_embeddings"), Matrix)
    assert_type(encoder.encode_query(texts, output_value="token_embeddings"), list[Matrix])
    assert_type(encoder.encode_query(inputs="a"), Any)
    # each option by its name
    encoder.encode("a", prompt_name="query", batch_size=8, show_progress_bar=True)
    encoder.encode(texts, prompt="a ", device="cpu", convert_to_numpy=True, convert_to_tensor=False)
    encoder.encode(texts, precision="int8", ranges=np.zeros((2, 384)), threads=2)
    encoder.encode(sentences=texts, normalize_embeddings=True, truncate_dim=None)
    encoder.encode_query("a", task="query", output_value="token_embeddings")
    encoder.predict([("a", "b")], prompt="a ", activation_fn=lambda x: x, threads=1)
    assert_type(encoder.similarity_fn_name, str)
    assert_type(encoder.tokens_cut("a"), int)
    assert_type(encoder.tokens_cut(texts), Vector)
    assert_type(encoder.fill("a [MASK]", 3), list[list[Prediction]])
    assert_type(encoder.fill(texts), list[list[list[Prediction]]])
    assert_type(encoder.fill("a [MASK]")[0][0]["token_str"], str)
    assert_type(encoder.next_words("a"), list[Prediction])
    assert_type(encoder.next_words(texts, k=2), list[list[Prediction]])
    assert_type(encoder.classify("a"), list[Label])
    assert_type(encoder.classify(texts, 1)[0][0].probability, float)
    assert_type(encoder.entities("a"), list[Entity])
    assert_type(encoder.entities(texts), list[list[Entity]])
    assert_type(encoder.encode_sparse("a"), SparseVector)
    assert_type(encoder.encode_sparse(texts, max_active_dims=3), list[SparseVector])
    assert_type(encoder.encode_sparse(inputs="a"), Any)
    assert_type(encoder.decode(encoder.encode_sparse("a")), list[tuple[str, float]])
    assert_type(encoder.predict(("a", "b")), np.float32 | Vector)
    assert_type(encoder.predict([("a", "b")], apply_softmax=True), Array)
    assert_type(encoder.predict(inputs=[("a", "b")]), Any)
    assert_type(minibert.search(encoder.encode(texts), encoder.encode(texts)), tuple[Matrix, Matrix])
    assert_type(minibert.semantic_search(encoder.encode("a"), encoder.encode(texts)), list[list[dict[str, Any]]])
    found = minibert.compare("model", against={"plain|sum": encoder.encode(texts)}, only=["sum"])
    assert_type(found.passed, bool)
    assert_type(found.differences, dict[str, float])
    assert_type(found.mistakes, list[str])
    assert_type(minibert.compare("model", against=encoder.encode(texts), texts=texts).passed, bool)
