"""Nearest vectors: what sorting all scores finds, by other names, of bits, and of a word's row in the layer's table.

The similarity of two texts split by tokens: the parts add up to it, and a model without such a sum is refused.
"""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import drawn
import numpy as np
import pytest
from checkpoints import BERT, change_json, write, write_wordpiece
from command_line import Printed, failure, ran
from hypothesis import given, settings
from hypothesis import strategies as st
from peaks import with_peak
from reference_files import REFERENCE, opened
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import minibert
from minibert.equations.input_layer import Array
from minibert.equations.quantization import hamming, quantized
from minibert.equations.sentences import cosine, dot, euclidean, manhattan
from minibert.equations.similarity import BLOCK
from minibert.equations.token_pairs import SUMS, maxsim_pairs, pooled_parts, similarity_pairs


def vectors(seed: int, count: int = 60, dim: int = 5) -> Array:
    """Some of them equal, one zero."""
    found = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    found[7] = found[3] = found[1]
    found[5] = 0
    return found


def test_other_names_of_a_search() -> None:
    with pytest.raises(ValueError, match=r"^top_k "):
        minibert.semantic_search([1.0], [[1.0]], top_k=0)
    some = vectors(3)
    found, (ids, scores) = minibert.semantic_search(some[:4], some, top_k=6), minibert.search(some[:4], some, 6)
    assert [[each["corpus_id"] for each in row] for row in found] == ids.tolist()
    assert [[each["score"] for each in row] for row in found] == scores.tolist()
    assert [len(row) for row in minibert.semantic_search(some[0], some)] == [10]
    (best, *_), *_ = minibert.semantic_search(2 * some[0], some, score_function=dot)
    assert type(best["corpus_id"]) is int and type(best["score"]) is float
    assert best["score"] == pytest.approx(float((2 * some @ some[0]).max()), abs=1e-6)
    assert minibert.semantic_search(some[:2], some[:0]) == [[], []]


@pytest.mark.parametrize("precision", ["binary", "ubinary"])
def test_a_search_of_bits_counts_them(precision: str) -> None:
    """Compared as numbers, 0b10000000 and 0b01111111 would be near, which differ in every bit."""
    small = quantized(vectors(1, dim=19), precision)
    ids, scores = minibert.search(small[:3], small, 4, precision=precision)
    assert np.array_equal(scores, -np.sort(-hamming(small[:3], small), axis=1)[:, :4]) and ids[1, 0] == 1
    (number,), _ = minibert.search(np.array([[128]], "u1"), np.array([[127], [0]], "u1"), 1, precision="ubinary")
    assert number == [1]
    with pytest.raises(ValueError, match=f"^precision='{precision}' "):
        minibert.search(small, small, precision=precision, compare=dot)
    for wrong in (small.astype(np.float32), small.view(np.uint8 if precision == "binary" else np.int8)):
        with pytest.raises(TypeError, match=f"='{precision}' .*queries: {wrong.dtype}"):
            minibert.search(wrong, small, precision=precision)
        with pytest.raises(TypeError, match=f"; vectors: {wrong.dtype}"):
            minibert.search(small, wrong, precision=precision)
    with pytest.raises(ValueError, match=r"^precision "):
        minibert.search(small, small, precision="bits")
    named = minibert.semantic_search(small[:3], small, top_k=4, precision=precision)
    assert [[each["corpus_id"] for each in row] for row in named] == ids.tolist()


def test_bytes_that_may_be_bits_are_not_compared_without_a_word() -> None:
    """int8 and uint8 vectors hold numbers or bits, and do not say which."""
    for bits, numbers in (("ubinary", "uint8"), ("binary", "int8")):
        vectors = np.array([[1, 255], [200, 3]], np.uint8).view(numbers)
        with pytest.warns(UserWarning, match=f"{numbers} .*precision='{bits}'"):
            found, _ = minibert.search(vectors, vectors, 1)
        assert found.ravel().tolist() == [0, 1]
        for queries in (vectors.tolist(), list(vectors)):
            with pytest.warns(UserWarning, match=numbers):
                minibert.search(queries, vectors, 1)
        assert np.array_equal(minibert.search(vectors, vectors, 1, precision=numbers)[0], found)


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
        with pytest.raises(ValueError, match=r"\(\d, 1\)"):
            minibert.search(odd, vectors)
    for odd in ("cat", np.array(["cat"]), queries[None]):
        with pytest.raises(TypeError):
            minibert.search(odd, vectors)
    with pytest.raises(TypeError, match=r"^compare .*'dot'"):
        minibert.search(queries, vectors, compare="dot")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64, np.float16])
@pytest.mark.parametrize("compare", [cosine, dot, euclidean, manhattan])
@pytest.mark.filterwarnings("ignore:vectors of u?int8")
def test_vectors_of_narrow_numbers_are_compared_in_float32(kind: type[np.generic], compare: Any) -> None:
    vectors = np.random.default_rng(0).integers(3, 120, (20, 16)).astype(kind)
    wide = vectors.astype(np.float32)
    want = minibert.search(wide[:3], wide, 20, compare)
    for queries, others in ((vectors[:3], vectors), (wide[:3], vectors), (vectors[:3], wide)):
        ids, scores = minibert.search(queries, others, 20, compare)
        assert np.array_equal(ids, want[0]) and np.array_equal(scores, want[1])
        assert scores.dtype == np.float32
    if kind in (np.int8, np.uint8) and compare is cosine:
        found = minibert.search(vectors[:3], vectors, 20, precision=np.dtype(kind).name)
        assert all(map(np.array_equal, found, want))
    assert compare is not cosine or ids[:, 0].tolist() == [0, 1, 2]
    ids, scores = minibert.search(vectors[:3].tolist(), vectors.tolist(), 20, compare)
    assert np.array_equal(ids, want[0]) and np.allclose(scores, want[1], rtol=1e-6)


@pytest.mark.parametrize("kind", [np.uint8, np.uint64, np.int8, np.int64, bool, float])
def test_scores_of_any_kind_are_in_their_order(kind: Any) -> None:
    """Sorted by their negatives, 0 of an unsigned type and the smallest of a signed one would be the nearest.

    Those that are no numbers come last. The caller's function scores blocks of any size.
    """
    least, most = (0, 1) if kind in (bool, float) else (int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    scores = np.array([least, most, most - 1, *np.random.default_rng(0).integers(0, 2, 60).tolist()], kind)
    if kind is float:
        scores = np.full(25, np.nan)
        scores[[3, 8, 6, 1, 10]] = 3, 3, 2, 1, 0
    want = sorted(range(len(scores)), key=lambda i: (bool(np.isnan(scores[i])), -int(np.nan_to_num(scores[i]))))
    places = np.arange(len(scores))[:, None]
    for k in (1, 4, 5, 7, len(scores)):
        for step in (1, 2, 3, 25, len(scores)):
            blocks = [places[i : i + step] for i in range(0, len(scores), step)]
            vectors = iter(blocks) if len(blocks) > 1 else places
            ids, found = minibert.search([0], vectors, k, lambda _, block: scores[block.T])
            assert ids[0].tolist() == want[:k] and found.dtype == kind, (k, step)


@pytest.mark.parametrize("compare", [cosine, dot, euclidean, manhattan])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_no_number_is_named(compare: Any, bad: float) -> None:
    vectors = np.ones((9, 2), np.float32)
    odd = vectors.copy()
    odd[5, 1] = bad
    with pytest.raises(ValueError, match=r"queries\[5\]"):
        minibert.search(odd, vectors, compare=compare)
    for blocks in (odd, iter([odd[:4], odd[4:]])):
        with pytest.raises(ValueError, match=r"vectors\[5\]"):
            minibert.search(vectors, blocks, 1, compare)
    wide = np.full((2, 2), 3e38, np.float32)  # whose product is infinite, and which are numbers
    assert minibert.search(wide, wide, 2, compare)[0].tolist() == [[0, 1]] * 2


TOLERANCE = 1e-14  # the same rows in float64 by another order of additions: measured 3e-16


@pytest.mark.parametrize(("word", "token"), [("king", "king"), ("Paris", "paris"), ("##ing", "##ing")])
def test_no_special_token_is_near_a_word(word: str, token: str, minilm: Path) -> None:
    """Of a real table, in the order of cosines, all others are."""
    left_out = re.compile(r"\[(unused\d+|PAD|UNK|CLS|SEP|MASK)\]")
    layer, tokens = minibert.load(minilm), (minilm / "vocab.txt").read_text("utf-8").splitlines()
    found = layer.nearest(word, 10**6)
    assert {name for name, _ in found} == {name for name in tokens if not left_out.fullmatch(name)} - {token}
    assert (np.diff([cosine for _, cosine in found]) <= 0).all()


def test_a_word_is_looked_up_as_it_stands_in_a_text(tmp_path: Path) -> None:
    """Of GPT-2's two rows, "dog" and "Ġdog", the second is the word's; either can be had by its own name."""
    words = ["dog", "Ġdog", "cat", "d", "o", "g", "Ġ", "c", "a", "t", "ca", "do", "Ġd"]
    merges = [("d", "o"), ("do", "g"), ("Ġ", "dog"), ("c", "a"), ("ca", "t"), ("Ġ", "d")]
    reader = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    reader.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    reader.decoder = decoders.ByteLevel()
    folder = write(tmp_path, BERT)
    reader.save(str(folder / "tokenizer.json"))
    layer = minibert.load(folder)
    row = {word: layer.word_embeddings(i) for i, word in enumerate(words)}
    for word, token in (("dog", "Ġdog"), ("Ġdog", "Ġdog"), ("cat", "cat"), ("Ġd", "Ġd")):
        found = layer.nearest(word, 100)
        assert {name for name, _ in found} == set(words) - {token}, "no row beyond the tokenizer's"
        assert all(abs(similarity - drawn.cosine(row[token], row[name])) <= TOLERANCE for name, similarity in found)


def test_memory_does_not_grow_with_the_table(tmp_path: Path) -> None:
    """Of a table of 20 MB some blocks of rows are held at a time, and a few numbers for each row."""
    rows, dim = 20_000, 256
    config = {**BERT, "vocab_size": rows, "hidden_size": dim}
    names = {"word": rows, "position": 16, "token_type": 2}
    tensors = {f"embeddings.{name}_embeddings.weight": np.ones((n, dim), np.float16) for name, n in names.items()}
    tensors |= {f"embeddings.LayerNorm.{part}": np.ones(dim, np.float16) for part in ("weight", "bias")}
    layer = minibert.load(write_wordpiece(write(tmp_path, config, tensors)))
    layer.nearest("we")
    found, peak = with_peak(lambda: layer.nearest("we"))
    assert found and peak < 5 * BLOCK * dim * 8 < rows * dim * 4


def test_the_command_prints_words_with_cosines_or_what_a_word_is(minilm: Path, capsys: Printed) -> None:
    said = "king\n  kings   0.6904\n  queen   0.6273\n\nParis\n  parisian   0.5689\n  france     0.5090\n"
    assert ran(capsys, "nearest", "king", "Paris", "-k", 2, "-m", minilm) == (said, "")
    for word, says in (
        ("embeddings", "'embeddings' .*4 pieces.*em ##bed ##ding ##s"), ("new york", "new york"),
        ("☃", r"'☃' .*\[UNK\]"), ("", "'' has no token in this vocabulary; give a word"),
    ):  # fmt: skip
        assert re.search(says, failure(capsys, "nearest", "king", word, "-m", minilm)), word


# -- a similarity split by tokens --------------------------------------------------------------------------------------

SUM = 1e-6  # of the lengths of both vectors; measured: 1.3e-7
IDENTITY = "torch.nn.modules.linear.Identity"
WORDS = st.lists(st.sampled_from(["we", "lived", "clouds", ",", "."]), min_size=1, max_size=14).map(" ".join)
DENSE = ["sentences-bare", "sentences-search", "sentences-t5", "sentences-two-dense", "static-half", "static-plain"]
LATE = ["late-bare", "late-fixed", "late-least", "late-pylate", "late-stanford"]
encoder_of = cache(opened)


def check_sum(encoder: minibert.Encoder, text: str, other: str, names: tuple[str | None, str | None]) -> None:
    split = encoder.similarity_pairs(text, other, names)
    first, second = (encoder.encode(each, name, task=name) for each, name in zip((text, other), names, strict=True))
    dots = encoder.sentence_config.measure == "dot"
    lengths = max(1.0, float(np.linalg.norm(first) * np.linalg.norm(second))) if dots else 1.0
    assert split.pairs.shape == (len(split.tokens), len(split.others))
    best = sorted(np.ndindex(split.pairs.shape), key=lambda place: -split.pairs[place])[:3]
    assert split.largest(3) == [(split.tokens[i], split.others[j], split.pairs[i, j]) for i, j in best]
    assert abs(split.pairs.sum() - encoder.similarity(first, second).item()) <= SUM * lengths


@pytest.mark.parametrize("name", DENSE)
@settings(max_examples=12)
@given(text=WORDS, other=WORDS)
def test_pairs_add_up_to_the_similarity(name: str, text: str, other: str) -> None:
    for names in ((None, None), ("query", "document")):
        check_sum(encoder_of(name), text, other, names)


@pytest.mark.parametrize("measure", ["cosine", "dot"])
@pytest.mark.parametrize("pooling", SUMS)
@pytest.mark.parametrize("include_prompt", [True, False])
def test_each_pooling_and_measure_is_a_sum(pooling: str, measure: str, include_prompt: bool, tmp_path: Path) -> None:
    folder = shutil.copytree(REFERENCE / "sentences-search", tmp_path / "model")
    change_json(folder / "1_Pooling/config.json", pooling_mode=pooling, include_prompt=include_prompt)
    change_json(folder / "config_sentence_transformers.json", prompts={"query": "we lived ", "document": "above "})
    with minibert.load_encoder(folder, similarity_fn_name=measure) as encoder:
        check_sum(encoder, "the clouds above we", "we lived", ("query", "document"))
        split = encoder.similarity_pairs("the clouds", "we lived", ("query", None))
        prompt = [token in ("[CLS]", "we", "lived") for token in split.tokens]
        assert not split.pairs[prompt].any() or include_prompt, "a prompt that is not pooled adds nothing"
        for dim in (1, 5):
            narrow = encoder.similarity_pairs("we lived", "the clouds", truncate_dim=dim).pairs.sum()
            vectors = encoder.encode(["we lived", "the clouds"], truncate_dim=dim)
            assert narrow == pytest.approx(encoder.similarity(*vectors).item(), abs=SUM * 20)


@pytest.mark.parametrize("name", ["sentences-dense", "sentences-residual", "static-dense"])
def test_a_linear_map_is_split_and_its_bias_has_a_row(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(REFERENCE / name, tmp_path / "model")
    for config in folder.glob("*_Dense/config.json"):
        change_json(config, activation_function=IDENTITY)
    with minibert.load_encoder(folder) as encoder:
        check_sum(encoder, "we lived above", "the clouds", (None, None))
        split = encoder.similarity_pairs("we lived above", "the clouds")
        assert "(bias)" in split.tokens and split.pairs[split.tokens.index("(bias)")].any()


@pytest.mark.parametrize("name", LATE)
@settings(max_examples=12)
@given(text=WORDS, other=WORDS)
def test_late_interaction_adds_each_query_token_s_best(name: str, text: str, other: str) -> None:
    encoder = encoder_of(name)
    document = encoder.encode_document(other)
    if not len(document):
        with pytest.raises(ValueError, match="no token"):
            encoder.similarity_pairs(text, other)
        return
    split = encoder.similarity_pairs(text, other)
    score = encoder.similarity(encoder.encode_query(text), document).item()
    assert abs(split.pairs.sum() - score) <= SUM * max(1, abs(score))
    assert ((split.pairs != 0).sum(axis=1) <= 1).all()


NO_SUM = {
    "sentences-cls": "the first token", "sentences-last-token": "the last token", "clip": "the end token",
    "sentences-causal": "weightedmean, lasttoken", "sentences-dense": "Dense", "sentences-modules": "LayerNorm",
    "sentences-flags": "manhattan", "sentences-prompts": "euclidean", "uses-sparse": "SparseEncoder",
    "uses-reranker": "CrossEncoder",
}  # fmt: skip


@pytest.mark.parametrize("name", NO_SUM)
def test_a_similarity_that_is_no_sum_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=NO_SUM[name]):
        opened(name).similarity_pairs("we lived", "above")


def test_formulas_of_equal_tokens_of_no_direction_and_of_what_is_no_sum() -> None:
    assert pooled_parts(np.ones((3, 2)), "max", skip=1).tolist() == [[0, 0], [1, 1], [0, 0]]  # the first that counts
    assert (similarity_pairs(np.array([[1.0, 0.0], [-1.0, 0.0]]), np.ones((3, 2))) == np.zeros((2, 3))).all()
    for call, named in (
        (lambda: pooled_parts(np.ones((2, 2)), "cls"), "cls"),
        (lambda: similarity_pairs(np.ones((1, 2)), np.ones((1, 2)), "euclidean"), "euclidean"),
        (lambda: maxsim_pairs(np.ones((1, 2)), np.ones((1, 2)), "cosine"), "cosine"),
    ):
        with pytest.raises(ValueError, match=named):
            call()
