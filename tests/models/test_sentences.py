"""Sentence vectors against what sentence-transformers gave for the same folders, and what `encode` promises besides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from many_texts import many_texts
from needed import absent, missing
from peaks import peak
from reference_files import REFERENCE, opened
from safetensors.numpy import load_file

import minibert
from minibert.equations.input_layer import Array
from minibert.models.sentences.sentences import CHUNK

FOLDERS = sorted(folder.name for kind in ("sentences", "static") for folder in REFERENCE.glob(f"{kind}-*"))
# largest difference of a vector's numbers, relative to the vector's length; measured: 3.1e-7, and 1.3e-6 in the causal
# folder, whose vectors nothing normalizes, with the kernel SkylakeX of OpenBLAS
EXACT = 2e-6
HALF = 1e-3  # a static model stored in float16, in which sentence-transformers adds and divides; measured: 4.9e-4
# how far a text's numbers move with its neighbours, as a share of its vector's length; measured on MiniLM: 2.6e-7
NEIGHBOURS = 1e-6
# and the whole vector; measured on MiniLM, over texts of two tokens and more: 1.2e-6, which is as far as it is from
# its value in float64
WHOLE = 2.5e-6


def away(found: Array, want: Array) -> float:
    """How far vectors lie apart: the largest of all their numbers' differences, relative to their lengths."""
    assert found.shape == want.shape and found.dtype == want.dtype
    lengths = np.linalg.norm(want.astype("f8"), axis=-1, keepdims=True)
    return float((np.abs(found.astype("f8") - want) / np.maximum(lengths, 1e-30)).max(initial=0))


def apart(found: Array, want: Array) -> float:
    """The length of the differences, relative to the vectors' lengths."""
    found, want = np.atleast_2d(found), np.atleast_2d(want)
    lengths = np.linalg.norm(want.astype("f8"), axis=1)
    return float((np.linalg.norm(found.astype("f8") - want, axis=1) / lengths).max(initial=0))


def calls(name: str) -> Iterator[tuple[str, dict[str, Any], Array]]:
    stored = load_file(REFERENCE / name / "vectors.safetensors")
    for key, call in json.loads((REFERENCE / name / "calls.json").read_text(encoding="utf-8")).items():
        yield key, call, stored[key]


@pytest.mark.parametrize("name", FOLDERS)
def test_vectors_are_those_of_sentence_transformers(name: str) -> None:
    encoder = opened(name)
    for key, call, want in calls(name):
        method, texts = call["method"], call["texts"]
        if method == "similarity":
            vectors = encoder.encode(texts)
            found = encoder.similarity(vectors[:3], vectors)
            # a distance of nearly equal vectors has the rounding of the vectors
            exact = 1e-5 if name != "static-half" else HALF
            assert np.abs(found - want).max() <= exact * max(1, np.abs(want).max()), key
        else:
            found = getattr(encoder, method)(texts, **call["options"])
            assert away(found, want) <= (EXACT if name != "static-half" else HALF), key


def test_shapes() -> None:
    encoder = opened("sentences-dense")
    one, many, none, empty = (encoder.encode(texts) for texts in ("we", ["we", "clouds"], [], ""))
    assert one.shape == (6,) and many.shape == (2, 6) and none.shape == (0, 6) and empty.shape == (6,)
    assert {vectors.dtype for vectors in (one, many, none, empty)} == {np.dtype("float32")}
    assert encoder.encode([], truncate_dim=2).shape == (0, 2)
    assert encoder.encode([], truncate_dim=20).shape == (0, 6)
    assert encoder.encode(("we",)).shape == encoder.encode(np.array(["we"])).shape == (1, 6)
    assert encoder.encode(text for text in ("we", "a")).shape == (2, 6)
    tokens = encoder.encode(["we", "we lived"], output_value="token_embeddings")
    assert [rows.shape for rows in tokens] == [(3, 8), (4, 8)]
    assert encoder.encode([], output_value="token_embeddings") == []
    assert np.allclose(tokens[1], encoder(**encoder.tokenize("we lived"))[0], atol=1e-6)


def test_a_text_without_a_token_is_zeros() -> None:
    """GPT-2 puts no special token around a text; where sentence-transformers fails, the mean of nothing is zero."""
    encoder = opened("sentences-causal")
    assert not encoder.encode("").any()
    found = encoder.encode(["we", "", "clouds"])
    assert not found[1].any() and away(found[::2], encoder.encode(["we", "clouds"])) <= NEIGHBOURS
    assert encoder.encode([""], output_value="token_embeddings")[0].shape == (0, 8)


def test_float64_comes_through() -> None:
    encoder = minibert.load_encoder(REFERENCE / "sentences-dense", dtype="float64")
    found = encoder.encode(["we lived"])
    assert found.dtype == np.float64
    assert apart(found.astype("f4"), opened("sentences-dense").encode(["we lived"])) < 1e-6


# -- arguments ---------------------------------------------------------------------------------------------------


def test_arguments_of_habit_are_accepted() -> None:
    encoder = opened("sentences-dense")
    want = encoder.encode(["we"])
    habit = dict(convert_to_numpy=True, convert_to_tensor=False, device="cpu", precision="float32", batch_size=7)
    assert same_bits(encoder.encode(["we"], show_progress_bar=False, **habit), want)


def test_a_prompt_wins_over_a_name_and_the_default() -> None:
    encoder = opened("sentences-prompts")
    assert same_bits(encoder.encode("we", "query", "a "), encoder.encode("we", prompt="a "))
    assert apart(encoder.encode("we"), encoder.encode("we", "passage")) == 0
    assert apart(encoder.encode("we"), encoder.encode("we", prompt="")) > 0.01
    assert same_bits(encoder.encode_query("we", prompt="a "), encoder.encode("we", prompt="a "))
    assert same_bits(encoder.encode_document("we", "query"), encoder.encode("we", "query"))


def test_similarity_takes_vectors_alone() -> None:
    encoder = opened("sentences-dense")
    assert encoder.similarity([1.0, 0], [[2, 0], [0, 3]]).tolist() == [[1, 0]]
    close = np.array([[1.0, 0.0], [1.0, 1e-9]])  # float64 stays, and so does what only float64 tells apart
    flags = opened("sentences-flags")  # manhattan
    assert flags.similarity(close[:1], close).tolist() == [[0, -1e-9]]


# -- neighbours, threads, streams --------------------------------------------------------------------------------


@settings(max_examples=5)
@given(data=st.data())
def test_what_stands_beside_a_text_hardly_moves_its_vector(minilm: Path, data: st.DataObject) -> None:
    encoder, texts, alone = neighbours(minilm)
    chosen = data.draw(st.lists(st.integers(0, len(texts) - 1), min_size=1, max_size=10))
    found = encoder.encode([texts[i] for i in chosen])
    assert away(found, alone[chosen]) <= NEIGHBOURS and apart(found, alone[chosen]) <= WHOLE


KEPT: list[Any] = []


def neighbours(folder: Path) -> tuple[minibert.Encoder, list[str], Array]:
    """MiniLM, some texts, and the vector of each alone; made once."""
    if not KEPT:
        encoder = minibert.load_encoder(folder)
        texts = [text for text in many_texts(40) if len(text) < 100]
        KEPT.extend((encoder, texts, np.stack([encoder.encode(text) for text in texts])))
    encoder, texts, alone = KEPT
    return encoder, texts, alone


def test_many_calls_at_once_on_one_encoder(minilm: Path) -> None:
    """Other lengths, batch sizes and prompts at the same time: no call sees another's."""
    encoder, texts, alone = neighbours(minilm)

    def call(i: int) -> float:
        part = slice(i, None, 1 + i % 5)
        if i % 3 == 0:
            return away(np.stack(list(encoder.encode_stream(texts[part], batch_size=1 + i))), alone[part])
        return away(encoder.encode(texts[part], batch_size=1 + i), alone[part])

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(call, range(1, 6))) <= NEIGHBOURS


def test_a_first_use_from_many_threads() -> None:
    want = opened("sentences-flags").encode("THE CLOUDS")
    for _ in range(10):
        encoder = opened("sentences-flags")
        with ThreadPoolExecutor(8) as pool:
            assert all(same_bits(found, want) for found in pool.map(encoder.encode, ["THE CLOUDS"] * 8))


def test_a_stream_reads_no_more_than_a_chunk_ahead() -> None:
    encoder = opened("sentences-dense")
    read: list[str] = []

    def texts() -> Iterator[str]:
        for i in range(20):
            read.append("we lived above the clouds"[: 2 + i])
            yield read[-1]

    stream = encoder.encode_stream(texts(), batch_size=4)
    assert read == []
    found = []
    for i, vector in enumerate(stream):
        assert len(read) == 4 * (i // 4 + 1)
        found.append(vector)
    assert all(vector.base is None for vector in found)  # a view would keep its chunk alive
    assert away(np.stack(found), encoder.encode(read)) <= NEIGHBOURS
    (only,) = encoder.encode_stream(["we"], "query", normalize_embeddings=True, truncate_dim=3)
    assert same_bits(only, encoder.encode("we", "query", normalize_embeddings=True, truncate_dim=3))
    with pytest.raises(TypeError, match="found one str"):
        encoder.encode_stream("we")
    with pytest.raises(TypeError, match=r"texts\[5\] must be a str"):
        list(encoder.encode_stream([*"abcde", 7], batch_size=2))  # type: ignore[list-item]


def test_work_at_once_is_bounded_whatever_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = opened("sentences-dense")
    tiles: list[int] = []
    run = minibert.models.run.blocks.run_blocks  # type: ignore[attr-defined]

    def counted(stack: Any, xs: list[Array], *asked: Any) -> Any:
        tiles.extend(map(len, xs))
        return run(stack, xs, *asked)

    monkeypatch.setattr("minibert.models.run.blocks.run_blocks", counted)
    found = encoder.encode(["we lived above the clouds"] * 3000, batch_size=100_000)
    assert sum(tiles) == 7 * 3000 and max(tiles) <= 1024
    assert away(found, found[:1].repeat(3000, 0)) <= NEIGHBOURS
    tiles.clear()
    next(encoder.encode_stream(iter(["we"] * 3000), batch_size=100_000))
    assert sum(tiles) == 3 * CHUNK


def test_memory_does_not_grow_with_the_stream() -> None:
    encoder = opened("sentences-bare")
    texts = [text[:60] for text in many_texts(500)]

    def read(count: int) -> None:
        # on one thread: how much two hold at once depends on which of their tiles meet
        for _ in encoder.encode_stream((texts[i % 500] for i in range(count)), threads=1):
            pass

    read(600)
    few, many = peak(lambda: read(1_500)), peak(lambda: read(6_000))
    assert many < 1.2 * few  # measured: 1.02; kept vectors alone would be 1.4 times as much


def test_a_bar_counts_texts(capsys: pytest.CaptureFixture[str]) -> None:
    if absent("tqdm"):
        missing("tqdm not installed, which huggingface-hub brings")
    encoder = opened("sentences-bare")
    encoder.encode(["we"] * 600, show_progress_bar=True)
    captured = capsys.readouterr()
    assert captured.out == "" and "encode" in captured.err and "600/600" in captured.err
    encoder.encode(["we"] * 600)
    assert capsys.readouterr().err == ""
