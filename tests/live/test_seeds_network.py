"""The notebooks this project began from, cell by cell, on the real bert-base-uncased: pytest -m network

Rows come by byte range (lazy=True), so that this costs about a megabyte. The numbers are those the notebooks print.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import minibert
from minibert.equations.input_layer import Array
from minibert.verify.sides import printed
from minibert.verify.sides.printed import half_units

pytestmark = pytest.mark.network

STORED: dict[str, Any] = json.loads((printed.DATA / "bert-base-uncased.json").read_text(encoding="utf-8"))
WORD, TYPE, POSITION, NORM = (
    f"embeddings.{name}" for name in ("word_embeddings", "token_type_embeddings", "position_embeddings", "LayerNorm")
)
AFTER_NORM = 2e-6  # relative to max(1, |value|), beside half a printed unit
# cosine similarity in float32 of vectors of 768 numbers: a bound, not a measured error
COSINE_TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def layer() -> minibert.EmbeddingLayer:
    return minibert.load("bert-base-uncased", lazy=True)


def ids_of(text: str) -> list[int]:
    (ids,) = [entry["input_ids"] for entry in STORED["texts"] if entry["text"] == text]
    return list(ids)


def assert_printed(rows: Array, key: str, input_ids: list[int], tolerance: float = 0.0) -> None:
    """Hold (seq, dim) against what a notebook prints for these ids."""
    entries = [e for e in STORED["values"] if e["key"] == key and e["input_ids"] == input_ids]
    assert entries
    for entry in entries:
        got = rows[np.ix_(entry["tokens"], np.arange(768)[entry["columns"]])].astype(np.float64)
        want = np.array(entry["printed"], np.float64)
        assert (np.abs(got - want) <= half_units(entry["printed"]) + tolerance * np.maximum(1, np.abs(want))).all()


def test_model_embeddings(layer: minibert.EmbeddingLayer) -> None:
    """`model.embeddings`: the tree that both notebooks print, but for its dropout."""
    assert repr(layer) == STORED["tree"]
    assert repr(layer.position_embeddings) == "Embedding(512, 768)"
    assert repr(layer.token_type_embeddings) == "Embedding(2, 768)"


@pytest.mark.parametrize("text", ["We lived above the clouds", "I am a man", "I am Sinan", "She is Zoe"])
def test_tokenizer_encode_and_word_embeddings(layer: minibert.EmbeddingLayer, text: str) -> None:
    """`model.embeddings.word_embeddings(tokenizer.encode(text, return_tensors="pt"))`."""
    ids = layer.tokenize(text)["input_ids"]
    assert ids.tolist() == [ids_of(text)]
    rows = layer.word_embeddings(ids)
    assert rows.shape == (1, ids.size, 768)
    assert_printed(rows[0], WORD, ids_of(text))
    first, last = layer.word_embeddings([101, 102])  # "observe that the first and last row are the same"
    assert np.array_equal(rows[0, 0], first) and np.array_equal(rows[0, -1], last)


@pytest.mark.parametrize("text", ["We lived above the clouds", "I am Sinan"])
def test_the_layer_piece_by_piece(layer: minibert.EmbeddingLayer, text: str) -> None:
    """`LayerNorm(word + position + type)` as the notebooks write it, and `model.embeddings(ids)` in one call."""
    ids = layer.tokenize(text)["input_ids"]
    length = ids.shape[1]
    position = layer.position_embeddings(range(length))
    assert_printed(position, POSITION, ids_of(text))
    types = layer.token_type_embeddings([0] * length)
    assert_printed(types, TYPE, ids_of(text))
    by_hand = layer.LayerNorm(layer.word_embeddings(ids) + position + types)
    assert_printed(by_hand[0], NORM, ids_of(text), AFTER_NORM)
    output = layer(ids)
    assert output.shape == (1, length, 768)
    assert_printed(output[0], NORM, ids_of(text), AFTER_NORM)
    assert_printed(layer.trace(ids)["embeddings.LayerNorm"][0], NORM, ids_of(text), AFTER_NORM)


def test_config_and_the_table_of_positions(layer: minibert.EmbeddingLayer) -> None:
    """Seed `BERT step by step: positional embeddings`: config, a slice of the table, similarities."""
    assert (layer.config.hidden_size, layer.config.max_position_embeddings) == (768, 512)
    ids = layer.tokenize("let's tokenize something?")["input_ids"]
    words = layer.word_embeddings(ids)
    table = layer.position_embeddings.weight
    assert table.shape == (512, 768)
    positions = table[: ids.shape[1]].reshape(1, ids.shape[1], 768)
    assert (words + positions).shape == words.shape
    length = np.linalg.norm(table, axis=1, keepdims=True)
    similarity = (table / length) @ (table / length).T
    assert np.allclose(np.diag(similarity), 1, atol=COSINE_TOLERANCE)
    assert similarity[100, 101] > similarity[100, 300]  # neighbours are alike, as the picture shows
