"""Sparse vectors: pooled some words at a time, kept by weight, or looked up in a table where a Router says so."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Patch
from fake_hub import FakeHub, use
from reference_files import REFERENCE, changed, opened
from safetensors.numpy import save_file

import minibert
from minibert.equations.fast import Panels
from minibert.equations.input_layer import Array
from minibert.equations.sentences import SIMILARITIES, splade
from minibert.families.parts.bound_blocks import lay_out, panel_numbers
from minibert.families.parts.modules import Linear
from minibert.models.heads import heads
from minibert.models.heads.sparse import SparseVector, keep_largest
from minibert.models.open import load_encoder
from minibert.models.run.pipeline import CHUNK
from minibert.threads.kernels import Kernel, Rows

SETTINGS = "config_sentence_transformers.json"
TEXTS = ["", "we", "We lived above the clouds!", "a b c d e f g h i j k l m n o p"]
NEIGHBOURS = 5e-6  # how far a weight moves with the other texts of a call; measured: 8.8e-7, of sums
ALIKE = 2e-5  # of a dot product of size 60; measured: 3.8e-6
NAME, FILE = "uses-sparse-router", "router_config.json"
QUERY, MODEL = "query_0_SparseStaticEmbedding", "document_0_Transformer"
ROUTED = ["", "we", "We lived above the clouds, we lived!", "a b c d e f g h i j k l m n"]


def same(found: SparseVector, want: SparseVector) -> bool:
    return np.array_equal(found.ids, want.ids) and np.allclose(found.weights, want.weights, 0, NEIGHBOURS)


def alike(found: Any, want: Any) -> bool:
    return len(found) == len(want) and all(map(same, found, want))


def test_one_text_many_and_none(monkeypatch: Patch) -> None:
    encoder = opened("uses-sparse")
    one, many = encoder.encode_sparse("we"), encoder.encode_sparse(["we", "the"])
    assert isinstance(one, SparseVector) and same(one, many[0]) and not same(one, many[1])
    assert one.ids.dtype == np.int64 and one.weights.dtype == np.float32 and (one.weights > 0).all()
    assert (np.diff(one.ids) > 0).all() and encoder.encode_sparse([]) == []
    assert len(encoder.tokens(one.ids)) == len(one.ids)
    first, _, again = encoder.encode_sparse(["we", "clouds", "we"])  # equal texts share no array
    for ours, other in zip(first, again, strict=True):
        assert np.array_equal(ours, other) and not np.shares_memory(ours, other)
    monkeypatch.setattr(heads, "PIECE", 200)  # no more logits are kept than a piece
    assert same(encoder.encode_sparse("we"), one)
    texts = [f"{TEXTS[2]} {'abcdefg'[i % 7]}" for i in range(CHUNK + 20)]  # more than one chunk
    found = encoder.encode_sparse(texts)
    assert all(same(found[i], encoder.encode_sparse(texts[i])) for i in (0, 1, CHUNK - 1, CHUNK, CHUNK + 19))


def test_the_map_to_words_has_panels(monkeypatch: Patch) -> None:
    """With any kernel their layout is right; if memory has no room for them, or for mapped weights, there are none."""
    want = opened("uses-sparse").encode_sparse(TEXTS)
    monkeypatch.setattr(load_encoder, "kernel", lambda: Kernel("of any name", Rows(), Rows(), small=True))
    monkeypatch.setattr(load_encoder, "cut_of_blas", lambda: 448)
    with minibert.load_encoder(REFERENCE / "uses-sparse", mmap=True) as mapped:
        assert not mapped.head("masked_word").last.panels
    encoder = opened("uses-sparse")
    assert encoder.head("masked_word").last.panels
    assert alike(encoder.encode_sparse(TEXTS), want) and same(encoder.encode_sparse(TEXTS[1]), want[1])
    assert not opened("uses-topics").head().last.panels  # its vectors are not sparse
    monkeypatch.setattr(load_encoder, "memory", lambda: 1000)  # bytes
    assert not opened("uses-sparse").head("masked_word").last.panels


@pytest.mark.parametrize("count", [0, 1, 2, 33])
def test_a_vocabulary_with_a_rest(count: int, monkeypatch: Patch) -> None:
    """150 words are two panels and 22 more, which are multiplied as usual. Panels never multiply a single row."""
    linear_of, counts = Panels.linear, set[int]()
    monkeypatch.setattr(Panels, "linear", lambda panels, x, *args: counts.add(len(x)) or linear_of(panels, x, *args))
    random = np.random.default_rng(0)
    weight, bias, x = (random.standard_normal(shape).astype("f4") for shape in [(150, 40), 150, (count, 40)])
    linear = Linear(weight, bias)
    lay_out([linear], np.empty(panel_numbers(linear), np.float32))
    monkeypatch.setattr(heads, "WEIGHTS", 40 * 60)  # pieces of 60 words, rounded up to a panel
    words, pieces = zip(*heads._pieces(linear, x), strict=True)
    assert [each.start for each in words] == [0, 64, 128]
    assert np.allclose(np.concatenate(pieces, axis=1), x @ weight.T + bias, 0, 1e-5)
    assert counts == {count + count % 2}


def written(vectors: list[SparseVector]) -> Array:
    found = np.zeros((len(vectors), 64), np.float32)
    for row, vector in zip(found, vectors, strict=True):
        row[vector.ids] = vector.weights
    return found


@pytest.mark.parametrize("measure", [None, *SIMILARITIES])
def test_comparing_is_that_of_dense_vectors(tmp_path: Path, measure: str | None, monkeypatch: Patch) -> None:
    """Where the folder says nothing by dot product, as SparseEncoder does; some at a time, each alone, and in pairs."""
    encoder = changed(tmp_path, "uses-sparse", SETTINGS, {"similarity_fn_name": measure})
    dense = written(vectors := encoder.encode_sparse(TEXTS * 3))
    want = SIMILARITIES[measure or "dot"](dense, dense)
    assert np.allclose(encoder.similarity(dense, dense), want, atol=ALIKE)
    for some in (256, 5):
        monkeypatch.setattr("minibert.models.sentences.comparing.SOME", some)
        for second in (vectors, tuple(vectors), dense):
            assert np.allclose(encoder.similarity(vectors, second), want, atol=ALIKE)
            assert np.allclose(encoder.similarity_pairwise(vectors, second[::-1]), np.diag(want[:, ::-1]), atol=ALIKE)
            assert np.allclose(encoder.similarity_pairwise(vectors[2], second), want[2], atol=ALIKE)
            ids, scores = minibert.search(vectors[:3], second, 5, encoder.similarity)
            assert np.allclose(scores, -np.sort(-want[:3])[:, :5], atol=ALIKE) and ids.shape == (3, 5)
    assert np.ndim(encoder.similarity_pairwise(vectors[1], vectors[2])) == 0
    assert encoder.similarity(vectors[1], vectors[2]).shape == (1, 1)
    none = encoder.encode_sparse([])
    assert encoder.similarity(none, vectors).shape == encoder.similarity(vectors, none).T.shape == (0, len(vectors))
    cosines = minibert.search(vectors[2], vectors, 12)
    assert np.allclose(np.sort(cosines[1]), np.sort(SIMILARITIES["cosine"](dense[2:3], dense)), atol=ALIKE)


def test_a_folder_of_no_use_compares_sparse_vectors_by_dot_product_and_others_by_cosine(tmp_path: Path) -> None:
    folder = shutil.copytree(REFERENCE / "uses-sparse", tmp_path / "model")
    (folder / "modules.json").unlink()
    encoder = minibert.load_encoder(folder)
    dense = written(vectors := encoder.encode_sparse(TEXTS))
    assert np.allclose(encoder.similarity(vectors, vectors), dense @ dense.T, atol=ALIKE)
    assert np.allclose(encoder.similarity(dense, dense), SIMILARITIES["cosine"](dense, dense), atol=ALIKE)


def test_words_of_sparse_vectors_and_the_largest_weights() -> None:
    encoder = opened("uses-sparse")
    vectors = encoder.encode_sparse(TEXTS)
    for vector, words in zip(vectors, encoder.decode(vectors), strict=True):
        order = np.lexsort([vector.ids, -vector.weights])
        assert words == [(encoder.tokens(vector.ids[i]), vector.weights[i]) for i in order]
        assert encoder.decode(vector, 3) == words[:3] and encoder.decode(vector, k=10_000) == words
    equal = SparseVector(np.array([7, 5, 6]), np.ones(3, np.float32))
    assert [word for word, _ in encoder.decode(equal)] == encoder.tokens([7, 5, 6])
    assert encoder.decode([]) == []
    large = SparseVector(np.array([2, 5, 7, 9]), np.array([1.0, -3.0, 2.0, -2.0], np.float32))
    assert [keep_largest(large, most).ids.tolist() for most in (2, 9, None)] == [[5, 7], [2, 5, 7, 9], [2, 5, 7, 9]]


def test_what_is_no_sparse_vector_is_refused() -> None:
    encoder = opened("uses-sparse")
    one = encoder.encode_sparse("we")
    for method, *odd in (("decode", np.ones((1, 64))), ("decode", "we"), ("similarity", one, [one, [1.0]])):
        with pytest.raises(TypeError):
            getattr(encoder, method)(*odd)
    with pytest.raises(ValueError, match=r"^k "):
        encoder.decode(one, 0)
    for ids, width in (([-1, 2], 64), ([63, 64], 64), ([-1], 9)):
        odd = SparseVector(np.array(ids), np.ones(len(ids), np.float32))
        with pytest.raises(ValueError, match=f"{width - 1}.*(-1|64)"):
            encoder.similarity(odd, np.ones((1, width)))
    for call in (encoder.similarity, encoder.similarity_pairwise):
        with pytest.raises(ValueError, match=r"embeddings2\[1\]"):
            call([one, one], [one, one._replace(weights=one.weights * np.nan)])


def test_each_pooling_with_each_activation() -> None:
    logits = np.random.default_rng(0).standard_normal((6, 3))
    before, once = logits.copy(), np.log1p(np.maximum(logits, 0))
    for activation, terms in (("relu", once), ("log1p_relu", np.log1p(once))):
        for pooling, pool in (("max", np.max), ("sum", np.sum)):
            want = [pool(text, axis=0) for text in np.split(terms, [2, 3])]
            assert np.allclose(splade(logits, np.array([0, 2, 3]), pooling, activation), want, rtol=1e-12)
    assert np.array_equal(logits, before)


def test_queries_are_looked_up() -> None:
    """Their weights, each token's once, are the library's: test_calls.py."""
    encoder = opened(NAME)
    many, one = encoder.encode_query(ROUTED * 400, prompt="", show_progress_bar=False), encoder.encode_query("we")
    assert alike(many[-4:], encoder.encode_sparse(ROUTED, task="query")) and encoder.encode_query([]) == []
    assert not many[0].ids.size and alike([one], encoder.encode_query(["we"]))
    assert encoder.decode(encoder.encode_query("we lived"), 1)[0][0] == "the"
    with pytest.raises(ValueError, match=r"^task .*'passage'"):
        encoder.encode_sparse("we", task="passage")
    encoder = opened("uses-sparse")  # without routes: one for every task; its prompt "query" is "the clouds: "
    assert alike(encoder.encode_document(ROUTED), encoder.encode_sparse(ROUTED))
    assert alike(encoder.encode_query(ROUTED), encoder.encode_sparse(ROUTED, "query"))


def is_routed_too(encoder: minibert.Encoder) -> bool:
    routed, methods = opened(NAME), ("encode_query", "encode_document")
    return all(alike(getattr(encoder, each)(ROUTED), getattr(routed, each)(ROUTED)) for each in methods)


def test_a_model_at_the_top(tmp_path: Path) -> None:
    folder = shutil.copytree(REFERENCE / NAME, tmp_path / "model")
    for path in (folder / MODEL).iterdir():
        path.rename(folder / path.name)
    (folder / FILE).write_text((folder / FILE).read_text(encoding="utf-8").replace(f'"{MODEL}"', '""'), "utf-8")
    assert is_routed_too(minibert.load_encoder(folder))


def test_a_table_that_does_not_fit(tmp_path: Path) -> None:
    folder = shutil.copytree(REFERENCE / NAME, tmp_path / "model")
    path = folder / QUERY / "model.safetensors"
    save_file({"weight": np.ones(60, np.float32)}, path)
    with pytest.raises(IndexError, match=r"input_ids\[0\]"):
        minibert.load_encoder(folder).encode_query("clouds", prompt="")
    row = np.ones(64, np.float32)
    odd = ("'weight'", {"weight": row[None]}), ("'weight'", {"bias": row}), ("bias", {"weight": row, "bias": row})
    for says, tensors in odd:
        save_file(tensors, path)
        with pytest.raises(minibert.CheckpointError, match=says):
            minibert.load_encoder(folder)


def test_from_the_hub(tmp_path: Path, monkeypatch: Patch) -> None:
    folder = REFERENCE / NAME
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    with FakeHub() as hub:
        hub.add("org/router", files)
        use(monkeypatch, hub.endpoint, tmp_path / "home")
        assert is_routed_too(minibert.load_encoder("org/router"))
        with pytest.raises(minibert.CheckpointError, match=MODEL):
            minibert.load("org/router")
