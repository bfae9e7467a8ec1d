"""Scores of pairs and documents in their order: what is passed, what is refused, where the activation is said."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import change_json
from head_files import damaged
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_files import REFERENCE, changed, opened

import minibert
from minibert.equations.input_layer import Array
from minibert.files.tokenizer import Encoded, Tokenizer
from minibert.models.sentences.sentences import CHUNK

RERANKER, BARE = "uses-reranker", "uses-reranker-bare"
PAIRS = [("we", "the clouds"), ("", "we lived above"), ("the", ""), ("a b c d e f g h i j k l", "we")]
NEIGHBOURS = 4e-6  # how far a score or a logit moves with the other pairs of a call; measured: 9.6e-7


def logits(encoder: minibert.Encoder, pairs: Any = PAIRS) -> Array:
    return np.asarray(encoder.predict(pairs, activation_fn=lambda x: x))


def test_pairs_of_every_kind_give_the_same_scores() -> None:
    encoder = opened(RERANKER)
    want = encoder.predict(PAIRS)
    assert want.shape == (4,) and want.dtype == np.float32
    for pairs in ([list(pair) for pair in PAIRS], np.array(PAIRS), iter(PAIRS), map(tuple, PAIRS)):
        assert np.array_equal(encoder.predict(pairs), want)
    for one in (PAIRS[0], list(PAIRS[0]), np.array(PAIRS[0])):
        score = encoder.predict(one)
        assert np.shape(score) == () and abs(score - want[0]) <= NEIGHBOURS
    assert encoder.predict([PAIRS[0]]).shape == (1,)
    assert encoder.predict([]).shape == (0,) and opened("uses-inference").predict([]).shape == (0, 3)
    assert opened("uses-inference").predict(PAIRS[0]).shape == (3,)


def test_a_table_is_refused_with_what_to_pass() -> None:
    class Table:
        columns = ("first", "second")

        def __iter__(self) -> Any:
            return iter(self.columns)

    with pytest.raises(TypeError, match=r"found Table, a table of named columns; pass zip\("):
        opened(RERANKER).predict(Table())


def test_a_lone_surrogate_is_named() -> None:
    for before in ([PAIRS[0]], [PAIRS[0]] * 3):  # equal pairs are computed once, and counted all the same
        with pytest.raises(ValueError, match=rf"text_pair\[{len(before)}\] has a lone surrogate"):
            opened(RERANKER).predict([*before, ("we", "\ud800")])


def test_a_pair_without_a_token_is_counted_with_its_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = opened(RERANKER)
    none = [Encoded([], None)]
    read = Tokenizer.encode
    monkeypatch.setattr(
        Tokenizer, "encode",
        lambda self, texts, pair, *rest: [
            *read(self, texts[:-1], pair[:-1], *rest), *none
        ] if pair[-1] == "" else read(self, texts, pair, *rest),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"^pairs\[4\] has no token, and classes needs one; leave it out$"):
        encoder.predict([*[("we", "a")] * 4, ("", "")])


def test_nothing_is_ranked_by_what_is_no_number(tmp_path: Path) -> None:
    broken = damaged(REFERENCE / "uses-reranker", tmp_path / "nan", "classifier.bias")
    encoder = minibert.load_encoder(broken)
    assert np.isnan(encoder.predict(PAIRS[0]))
    with pytest.raises(minibert.CheckpointError, match="the model gives NaN or infinity where a number was expected"):
        encoder.rank("we", ["the clouds"])
    assert encoder.rank("we", []) == []


def test_scores_do_not_depend_on_neighbours_or_chunks() -> None:
    encoder = opened(RERANKER)
    words = ["we", "lived", "above", "the", "clouds", *"abcde"]
    pairs = [(words[i % 9], " ".join(words[: i % 7])) for i in range(CHUNK + 100)]
    pairs = [(f"{first} {'ab'[i % 2]} {i % 31}", second) for i, (first, second) in enumerate(pairs)]
    found = encoder.predict(pairs)
    alone = np.array([encoder.predict(pair) for pair in pairs[::50]])
    assert np.abs(found[::50] - alone).max() <= NEIGHBOURS
    assert len(set(found.tolist())) > 100
    with ThreadPoolExecutor(4) as pool:
        for again in pool.map(encoder.predict, [pairs[:90]] * 8):
            assert np.abs(again - found[:90]).max() <= NEIGHBOURS


def test_equal_pairs_have_equal_scores_and_the_first_document_comes_first() -> None:
    encoder = opened("uses-reranker-logits")
    documents = ["we lived", "the clouds", "a b c"] * 40 + ["above the clouds we lived"]
    found = encoder.rank("the clouds", documents)
    assert sorted(each["corpus_id"] for each in found) == list(range(121))
    for before, after in pairwise(found):
        same = documents[before["corpus_id"]] == documents[after["corpus_id"]]
        assert before["score"] > after["score"] or (same and before["corpus_id"] < after["corpus_id"])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text("we the clouds", max_size=12), max_size=12), st.none() | st.integers(1, 15), st.booleans())
def test_rank_orders_what_predict_scores(documents: list[str], top_k: int | None, texts: bool) -> None:
    encoder = RANKER
    found = encoder.rank("the clouds", documents, top_k, texts)
    assert len(found) == len(documents if top_k is None else documents[:top_k])
    scores = [each["score"] for each in found]
    assert scores == sorted(scores, reverse=True)
    want = encoder.predict([("the clouds", text) for text in documents])
    for each in found:
        assert each["score"] == pytest.approx(want[each["corpus_id"]], abs=NEIGHBOURS)
        assert list(each) == (["corpus_id", "score", "text"] if texts else ["corpus_id", "score"])
        assert each.get("text", documents[each["corpus_id"]]) == documents[each["corpus_id"]]
    if found and len(found) < len(documents):
        assert min(scores) >= sorted(want.tolist(), reverse=True)[len(found) - 1] - NEIGHBOURS


RANKER = opened("uses-reranker-logits")


# -- arguments that people pass by habit -------------------------------------------------------------------------


def test_a_bar_is_drawn_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    opened(RERANKER).rank("we", ["a", "b"], show_progress_bar=True)
    assert "rank: 100%" in capsys.readouterr().err
    opened(RERANKER).rank("we", ["a", "b"])
    assert capsys.readouterr().err == ""


# -- the activation ----------------------------------------------------------------------------------------------


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x.astype("f8"))))


def test_a_caller_s_activation() -> None:
    encoder = opened(RERANKER)
    assert np.abs(sigmoid(logits(encoder)) - encoder.predict(PAIRS)).max() <= NEIGHBOURS
    assert np.allclose(encoder.predict(PAIRS, activation_fn=np.tanh), np.tanh(logits(encoder)), atol=NEIGHBOURS)
    seen: list[tuple[int, ...]] = []
    opened("uses-inference").predict(PAIRS, activation_fn=lambda x: (seen.append(x.shape), x)[1])
    assert seen == [(4, 3)]


def test_a_module_of_torch_is_known_by_its_name() -> None:
    names = ("Sigmoid", "Tanh", "ReLU", "Softplus")
    modules = {name: type(name, (), {"__module__": "torch.nn.modules.activation"}) for name in names}
    encoder = opened("uses-reranker-logits")
    assert np.abs(encoder.predict(PAIRS, activation_fn=modules["Sigmoid"]()) - sigmoid(logits(encoder))).max() <= 1e-6
    for name, formula in (("Tanh", np.tanh), ("ReLU", lambda x: np.maximum(x, 0))):
        assert np.abs(encoder.predict(PAIRS, activation_fn=modules[name]()) - formula(logits(encoder))).max() <= 1e-6
    with pytest.raises(
        TypeError, match="activation_fn is torch's Softplus, but known are Identity, Sigmoid, Tanh, ReLU"
    ):
        encoder.predict(PAIRS, activation_fn=modules["Softplus"]())


def test_the_activation_is_the_first_that_is_said(tmp_path: Path) -> None:
    identity, softly = "torch.nn.modules.linear.Identity", "torch.nn.Sigmoid"

    def raw(encoder: minibert.Encoder) -> bool:
        found = encoder.predict(PAIRS)
        assert np.array_equal(found, logits(encoder)) or np.abs(found - sigmoid(logits(encoder))).max() <= NEIGHBOURS
        return np.array_equal(found, logits(encoder))

    settings, older = "config_sentence_transformers.json", "sbert_ce_default_activation_function"
    assert raw(changed(tmp_path, RERANKER, settings, {"activation_fn": identity}))
    assert not raw(changed(tmp_path, RERANKER, settings, {"activation_fn": None}))
    own = {"sentence_transformers": {"activation_fn": identity}}
    assert raw(changed(tmp_path, BARE, "config.json", own))
    assert raw(changed(tmp_path, BARE, "config.json", {older: identity}))
    assert raw(changed(tmp_path, BARE, "config.json", own | {older: softly}))
    null = {"sentence_transformers": {"activation_fn": None}, older: identity}
    assert not raw(changed(tmp_path, BARE, "config.json", null))  # as the reference: null is said first
    # the folder's own settings go before config.json
    folder = shutil.copytree(REFERENCE / "uses-reranker", tmp_path / "both")
    change_json(folder / "config.json", **own)
    assert not raw(minibert.load_encoder(folder))


@pytest.mark.parametrize("path", ["os.system", "torch.nn.modules.activation.GELU", "my.Sigmoid", "Sigmoid", "", 3])
def test_another_activation_is_refused_by_name(tmp_path: Path, path: Any) -> None:
    encoder = changed(tmp_path, BARE, "config.json", {"sbert_ce_default_activation_function": path})
    known = "but known are torch.nn.Identity, torch.nn.Sigmoid, torch.nn.Tanh, torch.nn.ReLU; pass a function"
    with pytest.raises(minibert.CheckpointError, match=f"_function asks for the activation {path!r}, {known}"):
        encoder.predict(PAIRS)
    assert logits(encoder).shape == (4,)  # the way out that the error names


# -- lengths -----------------------------------------------------------------------------------------------------


def test_a_length_that_is_set_cuts_the_longer_text_first() -> None:
    encoder = opened(RERANKER)
    encoder.max_seq_length = 8
    long, short = "a b c d e f g h i j", "we the"
    cut = encoder.predict([(long, short), (short, long)])
    encoder.max_seq_length = 30
    want = encoder.predict([("a b c", short), (short, "a b c")])  # 3 special tokens, 2 of the short text
    assert np.abs(cut - want).max() <= NEIGHBOURS
    assert np.abs(encoder.predict([(long, short), (short, long)]) - want).max() > 1e-3


def test_float64() -> None:
    wide = minibert.load_encoder(REFERENCE / "uses-reranker", dtype="float64").predict(PAIRS)
    assert wide.dtype == np.float64 and np.abs(wide - opened(RERANKER).predict(PAIRS)).max() <= NEIGHBOURS
