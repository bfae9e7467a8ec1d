"""Many texts as a stream: the vectors of `embed`, a chunk as soon as it is there, no text read before its turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from checkpoints import same_bits

import minibert
from minibert.models.texts import chunked, stream

TEXTS = ["We lived above the clouds", "", "a", "I am Sinan", "one two cat dog", "a cat sleeps"]
CHUNKS = [TEXTS[:1], TEXTS[1:4], TEXTS[4:]]


@pytest.fixture(scope="module")
def layer(minilm: Path) -> Iterator[minibert.EmbeddingLayer]:
    with minibert.load(minilm) as layer:
        yield layer


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "max", None])
def test_chunks_give_the_bits_of_embed(layer: minibert.EmbeddingLayer, pooling: str | None, normalize: bool) -> None:
    whole = layer.embed(TEXTS, pooling, normalize=normalize)
    chunks = list(layer.embed_stream(CHUNKS, pooling, normalize=normalize))
    assert [len(chunk) for chunk in chunks] == [1, 3, 2]
    assert all(map(same_bits, [vector for chunk in chunks for vector in chunk], whole))


def test_a_chunk_is_asked_for_when_the_vectors_before_it_are_taken(layer: minibert.EmbeddingLayer) -> None:
    asked: list[int] = []

    def waiting() -> Iterator[list[str]]:
        for i, chunk in enumerate(CHUNKS):
            asked.append(i)
            yield chunk

    vectors = layer.embed_stream(waiting())
    for i in range(3):
        next(vectors)
        assert asked == list(range(i + 1))
    assert list(vectors) == []


def test_an_error_names_the_text_by_its_number_in_all(layer: minibert.EmbeddingLayer) -> None:
    vectors = layer.embed_stream([["a", "b"], ["c", 4]])  # type: ignore[list-item]
    next(vectors)
    with pytest.raises(TypeError, match=r"texts\[3\] must be a str, found int"):
        next(vectors)
    with pytest.raises(ValueError, match="text 2 has 1002 tokens"):
        list(layer.embed_stream([["a", "b"], ["a " * 1000]]))
    with pytest.raises(ValueError, match="pooling must be"):
        layer.embed_stream([], "median")


def test_a_pair_is_no_text(layer: minibert.EmbeddingLayer) -> None:
    with pytest.raises(TypeError, match=r"texts\[0\] must be a str, found tuple"):
        layer.embed([("a", "b")])  # type: ignore[list-item]


@pytest.mark.parametrize("at_once", [False, True])
def test_a_stream_reads_at_most_one_chunk_ahead(at_once: bool) -> None:
    read: list[int] = []

    def numbers() -> Iterator[int]:
        for i in range(20):
            read.append(i)
            yield i

    def encode(chunk: list[int], start: int) -> list[tuple[int, int]]:
        return [(number, start + i) for i, number in enumerate(chunk)]

    found = []
    for vectors in stream(chunked(numbers(), 3), encode, list, at_once):  # type: ignore[arg-type]
        found += vectors
        assert len(read) <= len(found) + 3 * at_once
    assert found == [(i, i) for i in range(20)]


def test_an_error_while_splitting_ahead_reaches_the_caller() -> None:
    def encode(chunk: list[int], start: int) -> list[int]:
        if start:
            raise ValueError(f"at {start}")
        return chunk

    vectors = stream(iter([[1, 2], [3]]), encode, np.array, at_once=True)  # type: ignore[arg-type]
    assert next(vectors).tolist() == [1, 2]
    with pytest.raises(ValueError, match="at 2"):
        next(vectors)
