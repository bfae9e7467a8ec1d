"""Late interaction: queries, documents, their similarity, what is refused; the library's own numbers: test_calls.py."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import encoders
import numpy as np
import pytest
from checkpoints import same_bits
from hypothesis import given
from hypothesis import strategies as st
from reference_files import REFERENCE, changed, opened
from safetensors.numpy import load_file, save_file
from tokenizer_folders import finder, write_tokenizer

import minibert
from minibert.equations.sentences import EMPTY, maxsim, mean_maxsim
from minibert.files.tokenizer import Encoded
from minibert.files.tokenizer_files import open_tokenizer
from minibert.models.run import packing
from minibert.models.run.pipeline import TextPipeline
from minibert.models.sentences import comparing
from minibert.models.sentences.comparing import TokenVectors, by_tokens
from minibert.models.sentences.late import Expansion, LateInteraction

SCORES = 3e-6  # relative to max(1, |score|); measured: 5.0e-7
NEIGHBOURS = 5e-6  # how far a number moves with the other texts of a call; measured: 1.4e-6
FORMULA = 1e-5  # of float32 beside float64, of sums of 20 products; measured: 1.1e-6
TRANSFORMER = "sentence_bert_config.json"
QUERIES = ["the clouds", "", "we lived above the clouds we lived above the clouds"]
TEXTS = ["we", "We lived above the clouds!", "", "a b c d e"]
EXPANSION = {"strategy": "fixed", "length": 12}
rows = st.lists(st.lists(st.floats(-3, 3, width=32), min_size=3, max_size=3), max_size=5)


@pytest.mark.parametrize("name", ["late-fixed", "late-least", "late-pylate"])
def test_no_texts_and_many(name: str) -> None:
    encoder = opened(name)
    assert encoder.encode_query([]) == [] and encoder.get_embedding_dimension() == encoder.encode("we").shape[1]
    for found in encoder.encode_document([f"{text} {i % 3}" for text in TEXTS for i in range(150)]):
        assert found.flags.owndata or found.base.size == found.size  # else a whole tile would stay in memory


def test_documents_in_the_order_of_their_scores() -> None:
    encoder = opened("late-fixed")
    documents = ["we lived", "above the clouds", "!", "above the clouds", "we lived above!"]
    want = encoder.similarity(encoder.encode_query("the clouds"), encoder.encode_document(documents))[0]
    ranked = encoder.rank("the clouds", documents, 4, return_documents=True)
    assert [each["corpus_id"] for each in ranked] == np.argsort(-want, kind="stable")[:4].tolist()
    for each in ranked:
        assert abs(each["score"] - want[each["corpus_id"]]) <= SCORES * 12
        assert each["text"] == documents[each["corpus_id"]]
    other = encoder.rank("the clouds", documents, prompt="above ")
    assert [each["score"] for each in other] != [each["score"] for each in encoder.rank("the clouds", documents)]
    assert encoder.rank("we", []) == []
    with pytest.raises(ValueError, match=r"^activation_fn "):
        encoder.rank("we", documents, activation_fn=lambda x: x)
    with mock.patch.object(type(encoder), "pipeline", autospec=True, side_effect=type(encoder).pipeline) as asked:
        encoder.rank("we", documents, threads=3)
    used = [(each.kwargs["task"], each.kwargs["threads"]) for each in asked.call_args_list]
    assert used == [("query", 3), ("document", 3)]


class Unseen(TextPipeline):
    def tokenize(self, texts: list[Any], start: int) -> list[Encoded]:
        return [Encoded(ids, None, unseen=n) for ids, n in texts]


@pytest.mark.parametrize("name", ["bert", "mistral", "modernbert", "mpnet"])
def test_unseen_tokens_in_pieces(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The live tests compare all families, in one piece."""
    encoder = minibert.load_encoder(encoders.write(tmp_path, name))
    pipeline = encoder.pipeline_of(Unseen, tokenizer=None)
    own = [2, 9, 7, 11, 13, 3]
    texts = [(own[: 3 + i % 4] + [5] * (i % 5), i % 5) for i in range(20)]
    whole = pipeline.all(texts)
    monkeypatch.setattr(packing, "LONG", 2)
    monkeypatch.setattr(packing, "QUERIES", 3)
    monkeypatch.setattr(packing, "TILE_TOKENS", 20)  # of two or three texts
    assert all(np.allclose(*each, atol=NEIGHBOURS) for each in zip(pipeline.all(texts), whole, strict=True))
    (seen,) = pipeline.all([(own + [5] * 8, 0)])
    (unseen,) = pipeline.all([(own + [5] * 8, 8)])
    assert np.allclose(unseen[:6], pipeline.all([(own, 0)])[0], atol=NEIGHBOURS) and not np.allclose(unseen, seen)


@pytest.mark.parametrize("name", ["LlamaTokenizer", "GemmaTokenizer", "CohereTokenizer", "XLNetTokenizer"])
def test_queries_that_a_class_fills_up_before_a_text_are_refused(tmp_path: Path, name: str) -> None:
    """No file says so: it is the class's default, which the file can change."""
    late = LateInteraction(expansion=Expansion(12, False, "e"))
    own, right = (
        open_tokenizer(finder(write_tokenizer(tmp_path / str(i), name, files)), None, 0, "")
        for i, files in enumerate([{}, {"tokenizer_config.json": {"padding_side": "right"}}])
    )
    assert "expansion" not in late.steps_of(own, "document") | late.steps_of(right, "document")
    assert late.steps_of(right, "query")["expansion"].length == 12
    with pytest.raises(ValueError, match="encode_document"):
        late.steps_of(own, "query")


def test_how_a_query_is_filled_up(tmp_path: Path) -> None:
    encoder = changed(tmp_path, "late-fixed", "tokenizer_config.json", {"padding_side": "left"})
    assert same_bits(encoder.encode_document("we lived"), opened("late-fixed").encode_document("we lived"))
    with pytest.raises(ValueError, match="padding_side"):
        encoder.encode_query("we")
    expansion = {"strategy": "min", "length": 9, "token": "nowhere"}
    encoder = changed(tmp_path, "late-fixed", TRANSFORMER, {"query_expansion": expansion})
    assert len(encoder.encode_document("we lived")) == 5
    with pytest.raises(ValueError, match="'nowhere'"):
        encoder.encode_query("we")
    # as of a causal model
    encoder, of_causal = opened("late-fixed"), {"mask_token": None, "eos_token": "[SEP]"}
    plain = encoder.encode_query("we lived")
    found = changed(tmp_path, "late-fixed", "tokenizer_config.json", of_causal).encode_query("we lived")
    said = {"query_expansion": {**EXPANSION, "token": "[SEP]"}}
    assert np.array_equal(found, changed(tmp_path, "late-fixed", TRANSFORMER, said).encode_query("we lived"))
    assert found.shape == plain.shape and not np.allclose(found[5:], plain[5:], atol=1e-3)
    assert encoder.tokens_cut("we lived " * 9, "query", task="query") == 9
    late, tokenizer = encoder.sentence_config.late, encoder.embeddings.tokenizer
    assert late and late.expansion == Expansion(12, False)
    filled = late.expansion.filled(Encoded([2, 9, 7, 3], [0, 0, 1, 1]), late.steps_of(tokenizer, "query")["mask_id"])
    assert filled == Encoded([2, 9, 7, 3] + [tokenizer.id_of("[MASK]")] * 8, [0, 0, 1, 1] + [0] * 8, unseen=8)
    # of 12 tokens, and of the table's 32: one more is refused
    for length in (12, 32):
        said = {"query_expansion": {**EXPANSION, "length": length}, "query_length": length}
        assert len(changed(tmp_path, "late-fixed", TRANSFORMER, said).encode_query("we lived")) == length
        with pytest.raises(minibert.errors.CheckpointError, match="'query_expansion'"):
            changed(tmp_path, "late-fixed", TRANSFORMER, {**said, "query_length": length - 1})


def test_stanfords_settings_and_map(tmp_path: Path) -> None:
    said = {"attend_to_mask_tokens": True, "doc_token_id": "we", "query_maxlen": 8, "doc_maxlen": 7}
    own = changed(tmp_path, "late-stanford", "artifact.metadata", said).sentence_config
    assert own.late and own.late.expansion == Expansion(8, True) and own.prompts["document"] == "we "
    assert own.lengths == {"query": 8, "document": 7}
    path = tmp_path / "model" / "model.safetensors"
    save_file(load_file(path) | {"linear.weight": np.ones((6, 9), "f4")}, path)
    with pytest.raises(minibert.CheckpointError, match=r"'linear.weight'"):
        minibert.load_encoder(tmp_path / "model")


@given(queries=st.lists(rows, min_size=1, max_size=3), documents=st.lists(rows, max_size=6))
def test_scores_are_those_of_loops(queries: list[Any], documents: list[Any]) -> None:
    arrays = ([np.array(each, "f4").reshape(-1, 3) for each in some] for some in (queries, documents))
    made = [TokenVectors.of(some, "x") for some in arrays]
    for measure in ("maxsim", "meanmaxsim"):
        found = by_tokens(measure, *made)
        for (i, query), (j, document) in product(enumerate(queries), enumerate(documents)):
            want = sum(max(float(np.dot(q, d)) for d in document) for q in query) if document else EMPTY
            want /= max(1, len(query)) if measure == "meanmaxsim" else 1
            assert abs(found[i, j] - want) <= FORMULA * max(1, abs(want))


def test_pieces_slices_and_narrow_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    query, tokens, counts = np.array([[100, 100]], np.int8), np.array([[100, 27]], np.int8), np.array([1])
    assert maxsim(query, tokens, counts)[0] == 12700 and mean_maxsim(query[:0], tokens, counts)[0] == 0
    drawn = np.random.default_rng(0)
    texts = [drawn.standard_normal((int(n), 4)).astype("f4") for n in drawn.integers(0, 9, 40)]
    queries, documents = TokenVectors.of(texts[:3], "x"), TokenVectors.of(texts, "x")
    want = by_tokens("maxsim", queries, documents)
    for piece in (1, 7, 30):
        monkeypatch.setattr(comparing, "PIECE", piece)
        assert np.allclose(by_tokens("maxsim", queries, documents), want, atol=FORMULA)
        assert np.allclose(by_tokens("maxsim", queries, documents[5:21]), want[:, 5:21], atol=FORMULA)
    assert len(documents[9:2]) == 0 and np.array_equal(documents[-1], texts[-1]) and documents[3:].width == 4
    with pytest.raises(IndexError):
        documents[40]
    with pytest.raises(ValueError):
        documents[::2]


def test_similarity_of_token_vectors_and_options_of_the_loader() -> None:
    encoder = opened("late-fixed")
    queries, documents = encoder.encode_query(QUERIES), encoder.encode_document(["we", "above the clouds", ""])
    want = encoder.similarity(queries, documents)
    assert np.allclose(encoder.similarity(queries[1], documents)[0], want[1], atol=FORMULA)
    assert np.allclose(encoder.similarity_pairwise(queries, documents), np.diag(want), atol=FORMULA)
    assert np.allclose(encoder.similarity_pairwise(queries[2], documents), want[2], atol=FORMULA)
    assert np.ndim(encoder.similarity_pairwise(queries[0], documents[0])) == 0
    assert encoder.similarity([], documents).shape == encoder.similarity(documents, []).T.shape == (0, 3)
    padded = np.zeros((3, 12, 6), "f4")
    for row, each in zip(padded, documents, strict=True):
        row[: len(each)] = each
    assert np.allclose(encoder.similarity(queries, padded), want, atol=FORMULA)
    opposite = [-each for each in queries]  # to which a row of zeros would be nearer than a token
    assert np.allclose(encoder.similarity(opposite, padded), encoder.similarity(opposite, documents), atol=FORMULA)
    asked = minibert.load_encoder(REFERENCE / "late-fixed", similarity_fn_name="meanmaxsim", prompts={"query": ""})
    assert np.allclose(asked.similarity(queries, documents), want / len(queries[0]), atol=FORMULA)
    assert asked.prompts["query"] == "" != encoder.prompts["query"]
    bare = opened("sentences-bare")  # a folder that says nothing
    assert np.allclose(bare.similarity(queries, documents), want, atol=FORMULA)
    for second, kind, said in (
        ([np.ones((2, 5))], ValueError, "vectors must have one width"),
        ([np.ones((2, 5)), np.ones((2, 4))], ValueError, "embeddings2 .*5 .*4"),
        ([np.ones((2, 6)), np.ones(6)], TypeError, r"embeddings2\[1\]"),
        ("we", TypeError, "embeddings2 must be vectors of tokens, found str"),
        ([documents[0], documents[1] * np.nan], ValueError, r"embeddings2\[1\]"),
    ):
        with pytest.raises(kind, match=said):
            encoder.similarity(queries, second)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\b3 .*2\b"):
        encoder.similarity_pairwise(queries, documents[:2])


def test_search_over_token_vectors() -> None:
    """Lists of arrays, one flat array with offsets, and blocks of either; by MaxSim where nothing else is said."""
    encoder = opened("late-fixed")
    texts = [f"{text} {letter}" for text in TEXTS for letter in "abcdefg"]
    queries, documents = encoder.encode_query(QUERIES), encoder.encode_document(texts)
    scores = encoder.similarity(queries, documents)
    want = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    stored = TokenVectors.of(documents, "documents")
    for vectors in (documents, stored, iter([documents[:9], documents[9:10], stored[10:]]), tuple(documents)):
        ids, found = minibert.search(queries, vectors, 5)
        assert np.array_equal(ids, want)
        assert np.allclose(found, np.take_along_axis(scores, want, 1), atol=FORMULA * 12)
    assert np.array_equal(minibert.search(TokenVectors.of(queries, "queries"), stored, 5, encoder.similarity)[0], want)
    single = np.eye(6, dtype="f4")
    assert minibert.search(single[:2], iter([single, single]), 9)[0].shape == (2, 9)
    one = r"pass \[queries\], to compare single vectors pass iter\(vectors\)"  # its tokens would be taken for queries
    for passed, kind, said in (
        ((queries[0], documents), ValueError, one),
        ((queries[0], documents, 10, encoder.similarity), ValueError, one),
        ((queries, documents[0]), TypeError, "compare them with a list of arrays"),
        ((queries, [np.ones((2, 5), "f4")]), ValueError, r"\(36, 6\).*\(2, 5\)"),
        ((queries, [documents[0], documents[1] * np.nan]), ValueError, r"vectors\[1\]"),
    ):
        with pytest.raises(kind, match=said):
            minibert.search(*passed)  # type: ignore[arg-type]
