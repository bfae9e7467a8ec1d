"""Texts through the layer: pooling, normalization, packed tiles, and what an id is called."""

from __future__ import annotations

from fractions import Fraction
from typing import Any
from unittest import mock

import numpy as np
import pytest
from checkpoints import VOCAB, same_bits
from hypothesis import given
from hypothesis import strategies as st
from layers import CONFIGS, Make
from reference_files import CASES, Case, opened

from minibert.equations import sentences as pooling
from minibert.files.tokenizer import Encoded
from minibert.models import input_layer as layer_module
from minibert.models.run import packing
from minibert.models.run.packing import SLACK, cuts
from minibert.models.run.pipeline import TextPipeline, chunked

# pooled float32 rows against their mean in float64: measured at most 2.4e-7
MEAN_TOLERANCE = 2e-6
# a normalized vector against exact arithmetic: measured at most 3.2e-8 and 8.4e-17
NORMALIZED_TOLERANCE = {"float32": 2e-7, "float64": 1e-15}
TEXTS = ["we lived above the clouds", "a", "", "the clouds!", "we", "zz zz zz"]


@pytest.mark.parametrize("name", CONFIGS)
def test_embed_pools_the_rows_of_each_text_of_none_too_and_keeps_nothing_else_alive(load: Make, name: str) -> None:
    layer = load(name)
    rows = layer.embed(TEXTS, pooling=None)
    assert [row.shape for row in rows] == [(int(layer.tokenize(text)["attention_mask"].sum()), 8) for text in TEXTS]
    for text, row in zip(TEXTS, rows, strict=True):
        assert row.base is None and row.flags.owndata and row.flags.writeable, "it keeps nothing else alive"
        if len(row):
            assert same_bits(row, layer(**layer.tokenize(text))[0])
    means, maxima = layer.embed(TEXTS), layer.embed(TEXTS, "max")
    assert means.shape == maxima.shape == (6, 8) and means.dtype == maxima.dtype == np.float32
    for row, mean, largest in zip(rows, means, maxima, strict=True):
        if not len(row):  # gpt2 gives an empty text no token at all
            assert not mean.any() and not largest.any()
            continue
        assert np.abs(row.astype(np.float64).mean(axis=0) - mean).max() <= MEAN_TOLERANCE
        assert same_bits(row.max(axis=0), largest)
    assert same_bits(layer.embed(iter(TEXTS)), means) and same_bits(layer.embed([]), means[:0])
    assert layer.embed([], "max").shape == (0, 8) and layer.embed([], None) == []
    assert layer.pack([]).tiles(4) == layer.pack([]).groups() == []


@given(
    name=st.sampled_from(["bert", "gpt2", "roberta"]),
    texts=st.lists(st.text("abc we.", max_size=14), max_size=12),
    options=st.fixed_dictionaries({"pooling": st.sampled_from(["mean", "max", None]), "normalize": st.booleans()}),
    threads=st.sampled_from([None, 1, 3]),
    tile=st.integers(8, 400),
)
def test_embed_of_a_text_does_not_depend_on_the_texts_around_it(
    load: Make, name: str, texts: list[str], options: Any, threads: int | None, tile: int
) -> None:
    layer = load(name)
    alone = [layer.embed(text, truncation=True, **options)[0] for text in texts]
    with (
        mock.patch.object(packing, "TILE_NUMBERS", tile),
        mock.patch("minibert.threads.computing.NUMBERS_A_THREAD", 1),
        mock.patch.object(layer_module, "CHUNK", 5),
    ):
        together = layer.embed(texts, truncation=True, threads=threads, **options)
    assert len(together) == len(texts)
    assert all(map(same_bits, together, alone))


def test_normalized_vectors_of_any_kind(load: Make) -> None:
    gpt2 = load("gpt2")
    vectors = gpt2.embed(TEXTS, normalize=True)
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1)
    assert np.abs(lengths - [1, 1, 0, 1, 1, 1]).max() <= 1e-6  # the empty text stays zero; measured 6e-8
    rows = gpt2.embed(TEXTS, None, normalize=True)
    assert [row.shape for row in rows] == [row.shape for row in gpt2.embed(TEXTS, None)]
    assert np.abs(np.linalg.norm(rows[0], axis=1) - 1).max() <= 1e-6
    assert all(row.base is None for row in rows), "they keep nothing else alive"
    vectors = np.array([[0, 0, 0], [np.inf, 1, 0], [-np.inf, np.inf, 1], [np.nan, 1, 0], [0, 3, 4]], np.float32)
    expected = np.array([[0, 0, 0], [np.nan, 0, 0], [np.nan, np.nan, 0], [np.nan] * 3, [0, 0.6, 0.8]], np.float32)
    assert np.array_equal(pooling.normalized(vectors), expected, equal_nan=True)


SIZES = {"float32": [1e-44, 1e-40, 1e-25, 1.0, 1e25, 1e38], "float64": [1e-320, 1e-300, 1e-40, 1.0, 1e25, 1e300]}


@pytest.mark.parametrize(("dtype", "size"), [(dtype, size) for dtype in SIZES for size in SIZES[dtype]])
def test_a_vector_of_any_size_is_normalized(dtype: str, size: float) -> None:
    vectors = (np.random.default_rng(0).uniform(-1, 1, (6, 40)) * size).astype(dtype)
    assert np.isfinite(vectors).all() and vectors.any(axis=1).all()
    exact = np.array([[Fraction(float(number)) for number in row] for row in vectors])
    scaled = (exact / np.abs(exact).max(1, keepdims=True)).astype(np.float64)
    found = pooling.normalized(vectors)
    assert found.dtype == dtype
    off = np.abs(found - scaled / np.sqrt((scaled * scaled).sum(1, keepdims=True)))
    assert off.max() <= NORMALIZED_TOLERANCE[dtype]
    for row, vector in zip(found, vectors, strict=True):
        assert same_bits(pooling.normalized(vector), row) and same_bits(pooling.normalized(vector[None])[0], row)


def test_embed_shows_its_progress(load: Make, capfd: pytest.CaptureFixture[str]) -> None:
    quiet = load("bert").embed(TEXTS)
    assert capfd.readouterr() == ("", "")
    assert same_bits(load("bert").embed(TEXTS, progress=True), quiet)
    out, err = capfd.readouterr()
    assert out == "" and "embed" in err
    opened("sentences-bare").encode(["we"] * 600, show_progress_bar=True)
    opened("uses-reranker").rank("we", ["a", "b"], show_progress_bar=True)
    out, err = capfd.readouterr()
    assert out == "" and "encode" in err and "600/600" in err and "rank: 100%" in err


def test_tokens_follow_the_shape_of_the_ids(load: Make) -> None:
    layer = load("bert")
    batch = layer.tokenize(["we lived", "a"])
    assert layer.tokens(batch["input_ids"]) == [["[CLS]", "we", "lived", "[SEP]"], ["[CLS]", "a", "[SEP]", "[PAD]"]]
    assert layer.tokens(batch["input_ids"][0]) == ["[CLS]", "we", "lived", "[SEP]"]
    assert layer.tokens(2) == "[CLS]"
    assert layer.tokens([]) == []
    assert load("gpt2").tokens(load("gpt2").tokenize("he w")["input_ids"]) == [["he", "Ġw"]]
    for wrong in (-1, VOCAB):
        with pytest.raises(IndexError, match=f"rows 0..{VOCAB - 1}"):
            layer.tokens([wrong])
    with pytest.raises(TypeError, match="integers"):
        layer.tokens(["we"])


@pytest.mark.parametrize("at_once", [False, True])
def test_a_stream_reads_at_most_one_chunk_ahead(at_once: bool) -> None:
    read: list[int] = []
    numbers = (read.append(i) or i for i in range(20))  # type: ignore[func-returns-value]
    unused: Any = None
    pipeline = TextPipeline(unused, unused, chunk=3, threads=2)
    vars(pipeline).update(tokenize=lambda chunk, start: [*enumerate(chunk, start)], vectors=lambda x, start: x)
    found: list[tuple[int, int]] = []
    for vectors in pipeline.stream(chunked(numbers, 3), at_once):
        found += vectors
        assert len(read) <= len(found) + 3 * at_once
    assert found == [(i, i) for i in range(20)]


@pytest.mark.parametrize("lengths", [None, [5], [4, 4, 4], [0, 0]], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_packed_texts_have_the_rows_of_each_alone(case: Case, lengths: list[int] | None) -> None:
    """For every family and its rule of positions, with ids of padding inside a text and texts of no tokens."""
    with case.layer() as layer:
        longest = min(layer.max_length or 9, 9)
        sizes = lengths or [longest, 3, 0, 1, 3, 0, longest - 1]
        generator, vocab = np.random.default_rng(0), layer.steps[0].module.table.shape[0]
        texts = [generator.integers(0, vocab, length).tolist() for length in sizes]
        pad_id = layer.config.get("pad_token_id")
        if isinstance(pad_id, int) and 0 <= pad_id < vocab and max(sizes):
            texts[0][1] = texts[-1][-1] = pad_id
        typed = layer.adds_types and layer.config.get("type_vocab_size", 2) > 1
        types = [[i % 2 for i in range(length)] if typed else None for length in sizes]
        packed = layer.pack([Encoded(*each) for each in zip(texts, types, strict=True)])
        assert packed.texts.tolist() == sorted(range(len(sizes)), key=lambda i: sizes[i])
        found = layer.rows(packed)
        assert same_bits(np.concatenate([layer.rows(tile) for tile in packed.tiles(4)]), found)
        for group in packed.groups():
            for i, rows in zip(group.texts, group.select(found), strict=True):
                given = {"token_type_ids": np.array(types[i], np.int64)} if typed else {}
                assert same_bits(rows, layer(np.array(texts[i], np.int64), **given)), sizes[i]


@given(lengths=st.lists(st.integers(0, 300)), tokens=st.integers(0, 600))
def test_cuts_are_whole_sequences_and_none_is_far_too_long(lengths: list[int], tokens: int) -> None:
    parts = list(cuts(np.array(lengths, int), tokens))
    assert [i for part in parts for i in range(len(lengths))[part]] == list(range(len(lengths)))
    assert all(part.stop - part.start == 1 or sum(lengths[part]) <= SLACK * tokens for part in parts)
    # a rest of a few tokens would leave all threads but one without work
    assert [sum([20, 20, 20, 25, 27, 27][part]) for part in cuts(np.array([20, 20, 20, 25, 27, 27]), 70)] == [60, 79]
    assert [part.stop - part.start for part in cuts(np.full(100, 10), 252)] == [25] * 4
