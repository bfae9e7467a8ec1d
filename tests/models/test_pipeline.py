"""Many texts as a stream: the vectors of `embed`, a chunk as soon as it is there, no text read before its turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import same_bits
from hypothesis import given
from hypothesis import strategies as st
from reference_files import CASES, Case

import minibert
from minibert.equations.sentences import cosine, dot, euclidean, manhattan
from minibert.files.tokenizer import Encoded
from minibert.models.run.packing import SLACK, cuts
from minibert.models.run.pipeline import Pipeline, chunked

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
    with pytest.raises(TypeError, match=r"texts\[0\] must be a str, found tuple"):
        layer.embed([("a", "b")])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="text 2 has 1002 tokens"):
        list(layer.embed_stream([["a", "b"], ["a " * 1000]]))
    with pytest.raises(ValueError, match="pooling must be"):
        layer.embed_stream([], "median")


class Plain(Pipeline):
    """Gives ids in the place of vectors."""

    def vectors(self, encoded: Any) -> Any:
        return encoded


def plain(tokenize: Any) -> Plain:
    unused: Any = None
    return Plain(tokenize, unused, unused, None, np.dtype(int), chunk=3, prefetching=True)


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
    for vectors in plain(encode).stream(chunked(numbers(), 3), at_once):
        found += vectors
        assert len(read) <= len(found) + 3 * at_once
    assert found == [(i, i) for i in range(20)]


def test_an_error_while_splitting_ahead_reaches_the_caller() -> None:
    def encode(chunk: list[int], start: int) -> list[int]:
        if start:
            raise ValueError(f"at {start}")
        return chunk

    vectors = plain(encode).stream(iter([[1, 2], [3]]), prefetching=True)
    assert next(vectors) == [1, 2]
    with pytest.raises(ValueError, match="at 2"):
        next(vectors)


# -- packed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_packed_texts_have_the_rows_of_each_alone(case: Case) -> None:
    """For every family and its rule of positions, with ids of padding inside a text and texts of no tokens."""
    with case.layer() as layer:
        longest = min(layer.max_length or 9, 9)
        for lengths in ([longest, 3, 0, 1, 3, 0, longest - 1], [5], [4, 4, 4], [0, 0]):
            compare_packed(layer, lengths)


def compare_packed(layer: minibert.EmbeddingLayer, lengths: list[int]) -> None:
    generator, vocab = np.random.default_rng(0), layer.steps[0].module.table.shape[0]
    pad_id = layer.config.get("pad_token_id")
    texts = [generator.integers(0, vocab, length).tolist() for length in lengths]
    if isinstance(pad_id, int) and 0 <= pad_id < vocab and max(lengths):
        texts[0][1] = texts[-1][-1] = pad_id
    types = [[i % 2 for i in range(length)] for length in lengths] if layer.adds_types else [None] * len(lengths)
    if layer.adds_types and layer.config.get("type_vocab_size", 2) < 2:
        types = [None] * len(lengths)
    packed = layer.pack([Encoded(*each) for each in zip(texts, types, strict=True)])
    assert packed.texts.tolist() == sorted(range(len(lengths)), key=lambda i: lengths[i])
    found = layer.rows(packed)
    for group in packed.groups():
        for i, rows in zip(group.texts, group.of(found), strict=True):
            given = {} if types[i] is None else {"token_type_ids": np.array(types[i], np.int64)}
            assert same_bits(rows, layer(np.array(texts[i], np.int64), **given)), (i, lengths[i])


def test_tiles_hold_whole_texts_and_each_once(layer: minibert.EmbeddingLayer) -> None:
    packed = layer.pack([Encoded(list(range(length)), [1] * length) for length in (5, 0, 2, 9, 2, 0, 3)])
    rows = layer.rows(packed)
    for tokens in (1, 4, 7, 100):
        tiles = packed.tiles(tokens)
        assert same_bits(np.concatenate([layer.rows(tile) for tile in tiles]), rows)  # types and positions too
        assert np.concatenate([tile.texts for tile in tiles]).tolist() == packed.texts.tolist()
        assert all(len(tile.ids) == tile.lengths.sum() for tile in tiles)
        assert all(len(tile.ids) <= SLACK * tokens or len(tile.texts) == 1 for tile in tiles)
    assert layer.pack([]).tiles(4) == layer.pack([]).groups() == []


@given(lengths=st.lists(st.integers(0, 300)), tokens=st.integers(0, 600))
def test_cuts_are_whole_sequences_and_none_is_far_too_long(lengths: list[int], tokens: int) -> None:
    parts = list(cuts(np.array(lengths, int), tokens))
    assert [i for part in parts for i in range(len(lengths))[part]] == list(range(len(lengths)))
    assert all(part.stop - part.start == 1 or sum(lengths[part]) <= SLACK * tokens for part in parts)


def test_cuts_leave_no_small_rest() -> None:
    """A rest of a few tokens would leave all threads but one without work."""
    assert [sum([20, 20, 20, 25, 27, 27][part]) for part in cuts(np.array([20, 20, 20, 25, 27, 27]), 70)] == [60, 79]
    assert [part.stop - part.start for part in cuts(np.full(100, 10), 252)] == [25] * 4


def test_ids_that_the_table_lacks_are_refused(layer: minibert.EmbeddingLayer) -> None:
    for texts, where in (([[1, 30522]], "0, 1"), ([[4, 4, 30522], [7], [3, 3]], "0, 2")):
        with pytest.raises(IndexError, match=rf"input_ids\[{where}\] is 30522, but the table has rows 0\.\.30521"):
            layer.pack([Encoded(ids, None) for ids in texts])


# -- search ------------------------------------------------------------------------------------------------------


def test_search_finds_what_sorting_all_scores_finds() -> None:
    generator = np.random.default_rng(0)
    vectors = generator.integers(-2, 3, (300, 3)).astype(np.float32)  # many are equally near
    queries = vectors[:4] + 0.25
    for compare in (dot, euclidean):
        scores = compare(queries, vectors)
        for k in (1, 7, 300, 1000):
            order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
            for held in (vectors, iter([vectors[:100], vectors[100:100], vectors[100:]])):
                ids, found = minibert.search(queries, held, k, compare)
                assert ids.dtype == np.int64 and np.array_equal(ids, order)
                assert np.array_equal(found, np.take_along_axis(scores, order, 1))
    (ids,), _ = minibert.search(queries[0], vectors, 3)
    assert set(ids) <= set(np.argsort(-cosine(queries[:1], vectors)[0], kind="stable")[:3])
    assert minibert.search(queries, vectors[:0])[0].shape == (4, 0)
    for odd in (queries[:, :1], queries[:0, :1]):
        with pytest.raises(ValueError, match=r"vectors must have one width, found queries \(\d, 1\) and vectors"):
            minibert.search(odd, vectors)
    for odd in ("cat", np.array(["cat"]), queries[None]):
        with pytest.raises(TypeError, match=r"must be vectors \(n, dim\) of numbers, found"):
            minibert.search(odd, vectors)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64, np.float16])
@pytest.mark.parametrize("compare", [cosine, dot, euclidean, manhattan])
@pytest.mark.filterwarnings("ignore:vectors of uint8")
def test_vectors_of_narrow_numbers_are_compared_in_float32(kind: type[np.generic], compare: Any) -> None:
    vectors = np.random.default_rng(0).integers(3, 120, (20, 16)).astype(kind)
    wide = vectors.astype(np.float32)
    want = minibert.search(wide[:3], wide, 20, compare)
    for queries, others in ((vectors[:3], vectors), (wide[:3], vectors), (vectors[:3], wide)):
        ids, scores = minibert.search(queries, others, 20, compare)
        assert np.array_equal(ids, want[0]) and np.array_equal(scores, want[1])
    assert scores.dtype == np.float32 and (compare is not cosine or ids[:, 0].tolist() == [0, 1, 2])
    ids, scores = minibert.search(vectors[:3].tolist(), vectors.tolist(), 20, compare)
    assert np.array_equal(ids, want[0]) and np.allclose(scores, want[1], rtol=1e-6)


@pytest.mark.parametrize("kind", [np.uint8, np.uint64, np.int8, np.int64, bool])
def test_scores_of_whole_numbers_are_in_their_order(kind: Any) -> None:
    """Sorted by their negatives, 0 of an unsigned type and the smallest of a signed one would be the nearest."""
    random, limits = np.random.default_rng(0), (0, 1) if kind is bool else (np.iinfo(kind).min, np.iinfo(kind).max)
    scores = np.array([int(limits[0]), int(limits[1]), int(limits[1]) - 1, *random.integers(0, 2, 60).tolist()], kind)
    want = sorted(range(len(scores)), key=lambda i: -int(scores[i]))
    places = np.arange(len(scores))[:, None]
    for k in (1, 5, 63):
        for blocks in (places, iter([places[:1], places[1:4], places[4:]])):
            ids, found = minibert.search([0], blocks, k, lambda _, block: scores[block.T])
            assert ids[0].tolist() == want[:k] and found.dtype == kind


@pytest.mark.parametrize("compare", [cosine, dot, euclidean, manhattan])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_no_number_is_named(compare: Any, bad: float) -> None:
    vectors = np.ones((9, 2), np.float32)
    odd = vectors.copy()
    odd[5, 1] = bad
    with pytest.raises(ValueError, match=r"queries\[5\] has NaN or an infinite number"):
        minibert.search(odd, vectors, compare=compare)
    for blocks in (odd, iter([odd[:4], odd[4:]])):
        with pytest.raises(ValueError, match=r"vectors\[5\] has NaN or an infinite number"):
            minibert.search(vectors, blocks, 1, compare)
    wide = np.full((2, 2), 3e38, np.float32)  # whose product is infinite, and which are numbers
    assert minibert.search(wide, wide, 2, compare)[0].tolist() == [[0, 1]] * 2


def test_scores_that_are_no_numbers_come_last() -> None:
    """Those of a function of the caller's, in blocks of any size."""
    scores = np.full(25, np.nan)
    scores[[3, 8, 6, 1, 10]] = 3, 3, 2, 1, 0
    places = np.arange(25)[:, None]
    for k in (1, 4, 5, 7, 25):
        for step in (1, 2, 3, 25):
            blocks = iter([places[i : i + step] for i in range(0, 25, step)])
            ids, _ = minibert.search([0], blocks, k, lambda _, block: scores[block.T])
            assert ids[0].tolist() == [3, 8, 6, 1, 10, 0, 2, 4, 5, 7, 9, *range(11, 25)][:k]
