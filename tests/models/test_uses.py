"""Scores, labels, entities and answers: what is passed, and what is refused; the libraries' own: test_calls.py."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import checkpoints
import encoders
import numpy as np
import pytest
import word_models
from command_line import error_of
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_files import REFERENCE, changed, opened

import minibert
from minibert.equations.input_layer import Array
from minibert.files.tokenizer import Encoded, Tokenizer
from minibert.models.heads.labels import LONGEST, Answer, Entity, Label, best_labels, best_span, grouped
from minibert.models.run.pipeline import CHUNK

METHODS: dict[str, tuple[Any, ...]] = {
    "encode": ("we",), "encode_query": ("we",), "encode_document": ("we",), "encode_sparse": ("we",),
    "predict": (("we", "a"),), "rank": ("we", ["a"]),
}  # fmt: skip
RERANKER, BARE = "uses-reranker", "uses-reranker-bare"
PAIRS = [("we", "the clouds"), ("", "we lived above"), ("the", ""), ("a b c d e f g h i j k l", "we")]
NEIGHBOURS = 4e-6  # how far a score or a logit moves with the other pairs of a call; measured: 9.6e-7
TEXT = "we lived above the clouds, we lived  "


@pytest.mark.parametrize("name", ["sentences-dense", "uses-reranker", "uses-sparse", "uses-sparse-router", "late-kept"])
def test_a_wrong_method_names_those_that_work_and_no_other(name: str) -> None:
    said = {method: error_of(partial(getattr(opened(name), method), *passed)) for method, passed in METHODS.items()}
    works = {method for method, message in said.items() if message is None}
    assert works
    for message in filter(None, said.values()):
        before, named, after = re.split("whose methods here are |;", message, maxsplit=2)
        assert {word for word in re.findall(r"\w+", named) if word in METHODS} == works
        assert not set(re.findall(r"\w+", before + after)) & METHODS.keys()


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
    for made, shapes in ((encoder, [(1,), (0,), ()]), (opened("uses-inference"), [(1, 3), (0, 3), (3,)])):
        assert [np.shape(made.predict(pairs)) for pairs in ([PAIRS[0]], [], PAIRS[0])] == shapes


def test_pairs_that_are_refused_are_counted_with_their_equals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal pairs are computed once."""
    encoder, read = opened(RERANKER), Tokenizer.encode
    with pytest.raises(TypeError):
        encoder.predict(type("Table", (), {"columns": ("a", "b"), "__iter__": lambda own: iter(own.columns)})())
    for before in ([PAIRS[0]], [PAIRS[0]] * 3):
        with pytest.raises(ValueError, match=rf"text_pair\[{len(before)}\]"):
            encoder.predict([*before, ("we", "\ud800")])

    def encode(own: Tokenizer, texts: list[str], pair: list[str], *rest: Any) -> list[Encoded]:
        found = zip(read(own, texts, pair, *rest), pair, strict=True)
        return [encoded if second else Encoded([], None) for encoded, second in found]

    monkeypatch.setattr(Tokenizer, "encode", encode)
    with pytest.raises(ValueError, match=r"pairs\[4\]"):
        encoder.predict([*[("we", "a")] * 4, ("", "")])


def test_scores_do_not_depend_on_neighbours_or_chunks() -> None:
    encoder, words = opened(RERANKER), ["we", "lived", "above", "the", "clouds", *"abcde"]
    pairs = [(f"{words[i % 9]} {'ab'[i % 2]} {i % 31}", " ".join(words[: i % 7])) for i in range(CHUNK + 100)]
    found = encoder.predict(pairs)
    assert np.abs(found[::50] - [encoder.predict(pair) for pair in pairs[::50]]).max() <= NEIGHBOURS
    assert len(set(found.tolist())) > 100
    with ThreadPoolExecutor(4) as pool:
        for again in pool.map(encoder.predict, [pairs[:90]] * 8):
            assert np.abs(again - found[:90]).max() <= NEIGHBOURS
    wide = minibert.load_encoder(REFERENCE / RERANKER, dtype="float64").predict(PAIRS)
    assert wide.dtype == np.float64 and np.abs(wide - encoder.predict(PAIRS)).max() <= NEIGHBOURS


@pytest.mark.parametrize("top_k", [2, 9, None])
def test_of_equal_documents_the_first_is_first(top_k: int | None) -> None:
    """Scores, texts and the order of others are the library's: test_calls.py."""
    encoder, documents = opened("uses-reranker-logits"), ["we", "the clouds", "we", "a b c d e", "we", "the clouds"]
    found = encoder.rank("the clouds", documents, top_k)
    order = [(-each["score"], each["corpus_id"]) for each in found]
    assert order == sorted(order) and len(order) == len(documents[:top_k]) and [*found[0]] == ["corpus_id", "score"]
    assert len({score for score, _ in order}) == len({documents[i] for _, i in order}), "equal pairs have equal scores"
    assert encoder.rank("the clouds", [], top_k) == []


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x.astype("f8"))))


def test_an_activation_that_is_passed() -> None:
    """A function, or a module of torch, which is known by its name."""
    encoder, seen = opened(RERANKER), list[tuple[int, ...]]()
    raw = logits(encoder)
    assert np.abs(sigmoid(raw) - encoder.predict(PAIRS)).max() <= NEIGHBOURS
    opened("uses-inference").predict(PAIRS, activation_fn=lambda x: (seen.append(x.shape), x)[1])
    assert seen == [(4, 3)]

    def module(name: str) -> Any:
        return type(name, (), {"__module__": "torch.nn.modules.activation"})()

    relu = module("ReLU"), lambda x: np.maximum(x, 0)
    for passed, formula in ((np.tanh, np.tanh), (module("Sigmoid"), sigmoid), (module("Tanh"), np.tanh), relu):
        assert np.abs(encoder.predict(PAIRS, activation_fn=passed) - formula(raw)).max() <= NEIGHBOURS
    with pytest.raises(TypeError, match="Softplus"):
        encoder.predict(PAIRS, activation_fn=module("Softplus"))


def test_the_activation_is_the_first_that_is_said_and_one_of_three(tmp_path: Path) -> None:
    identity, softly = "torch.nn.modules.linear.Identity", "torch.nn.Sigmoid"

    def raw(encoder: minibert.Encoder) -> bool:
        found, numbers = encoder.predict(PAIRS), logits(encoder)
        assert np.array_equal(found, numbers) or np.abs(found - sigmoid(numbers)).max() <= NEIGHBOURS
        return np.array_equal(found, numbers)

    settings, older = "config_sentence_transformers.json", "sbert_ce_default_activation_function"
    own = {"sentence_transformers": {"activation_fn": identity}}
    assert raw(changed(tmp_path, RERANKER, settings, {"activation_fn": identity}))
    assert not raw(changed(tmp_path, RERANKER, settings, {"activation_fn": None}))
    assert not raw(changed(tmp_path, RERANKER, "config.json", own))  # the folder's own settings go before it
    assert raw(changed(tmp_path, BARE, "config.json", own))
    assert raw(changed(tmp_path, BARE, "config.json", {older: identity}))
    assert raw(changed(tmp_path, BARE, "config.json", own | {older: softly}))
    null = {"sentence_transformers": {"activation_fn": None}, older: identity}
    assert not raw(changed(tmp_path, BARE, "config.json", null))  # as the reference: null is said first
    for path in ("os.system", "torch.nn.modules.activation.GELU", "my.Sigmoid", "Sigmoid", "", 3):
        encoder = changed(tmp_path, BARE, "config.json", {older: path})
        with pytest.raises(minibert.CheckpointError, match=f"{path!r}"):
            encoder.predict(PAIRS)
        assert logits(encoder).shape == (4,)  # the way out that the error names


def test_labels_of_one_text_and_of_many_by_the_kind_of_problem(tmp_path: Path) -> None:
    encoder = opened("uses-inference")
    one, many = encoder.classify("we"), encoder.classify(["we", "the clouds"])
    assert [type(each) for each in one] == [Label] * 3 and len(many) == 2
    assert sum(each.probability for each in one) == pytest.approx(1, abs=1e-6)
    assert encoder.classify([]) == [] and encoder.classify("we", 1) == one[:1] and len(encoder.classify("we", 9)) == 3
    equal = best_labels(np.array([0.2, 0.4, 0.2, 0.2]), {2: "c", 1: "b", 0: "a", 3: "d"})
    assert [label for label, _ in equal] == ["b", "a", "c", "d"]  # by their numbers
    topics = opened("uses-topics").classify("we")
    assert sum(each.probability for each in topics) != pytest.approx(1, abs=0.01)  # each by itself
    for kind in ("single_label_classification", None):
        found = changed(tmp_path, "uses-topics", "config.json", {"problem_type": kind}).classify("we")
        assert sum(each.probability for each in found) == pytest.approx(1, abs=1e-6)
    encoder = changed(tmp_path, "uses-one-label", "config.json", {"problem_type": "regression"})
    with pytest.raises(ValueError, match="problem_type"):
        encoder.classify("we")
    assert encoder.logits(**encoder.tokenize("we"), head="classes").shape == (1, 1)  # what the error says


def test_entities_of_one_text_and_of_many() -> None:
    encoder = opened("uses-entities")
    text, words = "  the\n clouds we  lived. above, THE clouds", ["we", "lived", "above", "the", "clouds"]
    one, many = encoder.entities(text), encoder.entities([text, "", "we"])
    assert [type(each) for each in one] == [Entity] * len(one) and one[0].text == "the\n clouds we  lived"
    assert [each[:4] for each in many[0]] == [each[:4] for each in one] and many[1] == encoder.entities([]) == []
    found = encoder.entities(texts := [" ".join(words[: i % 6]) for i in range(CHUNK + 40)])  # more than one chunk
    for i in (*range(6), CHUNK - 1, CHUNK, CHUNK + 39):
        assert [each[:4] for each in found[i]] == [each[:4] for each in encoder.entities(texts[i])]


def test_a_special_token_that_a_text_holds_has_a_place_in_it() -> None:
    tokenizer = opened("uses-entities").sentence_tokenizer
    ((encoded, spans),) = tokenizer.encode_with_spans(["we [MASK] the"])
    assert len(encoded.input_ids) == 5 and spans == [None, (0, 2), (3, 9), (10, 13), None]
    ((truncated, positions),) = tokenizer.encode_with_spans(["we [MASK] the"], 4)
    assert truncated.input_ids == [*encoded.input_ids[:3], encoded.input_ids[4]] and positions == [*spans[:3], None]
    assert truncated.truncated == 1 and tokenizer.encode_with_spans([]) == []
    with pytest.raises(TypeError, match=r"texts\[7\] must be a str, found int"):
        tokenizer.encode_with_spans([3], None, 7)


def test_spans_are_grouped_as_the_reference_s_simple() -> None:
    """A "B-" begins another span, a special token ends none; a name may stand without "B-" or "I-", or have a dash."""
    labels = ["B-PER", "I-PER", "[SEP]", "I-PER", "B-PER", "PER", "O", "I-PER", "I-LOC", "B-LOC", "MISC", "MISC", "B-O",
              "X-Y", "I-X-Y", "B-X-Y", "[SEP]"]  # fmt: skip
    # with first and last token; what comes before the first dash is no part of a span's name
    want = [("PER", 0, 3), ("PER", 4, 5), ("PER", 7, 7), ("LOC", 8, 8), ("LOC", 9, 9), ("MISC", 10, 11), ("Y", 13, 14),
            ("X-Y", 15, 15)]  # fmt: skip
    names, likely = sorted({*labels}), np.linspace(0.5, 0.9, len(labels))
    rows = np.full((len(labels), len(names)), 0.01, np.float32)
    rows[np.arange(len(labels)), [*map(names.index, labels)]] = likely
    text = "ab " * len(labels)
    spans = [None if label == "[SEP]" else (3 * i, 3 * i + 2) for i, label in enumerate(labels)]
    found = list(grouped(text, spans, rows, dict(enumerate(names))))
    assert [(each.label, each.start // 3, each.end // 3) for each in found] == want
    for each, (_, first, last) in zip(found, want, strict=True):
        own = [likely[i] for i in range(first, last + 1) if spans[i]]
        assert each.text == text[3 * first : 3 * last + 2] and each.probability == pytest.approx(np.mean(own), abs=1e-6)
    assert not list(grouped("", [], rows[:0], {}))


def scores_by_loops(logits: Array, inside: Array, counted: Array, longest: int) -> dict[tuple[int, int], float]:
    shares, places = np.exp(logits) / np.exp(logits[counted]).sum(axis=0), np.flatnonzero(inside).tolist()
    spans = [(first, last) for first in places for last in places if 0 <= last - first < longest]
    return {(first, last): float(shares[first, 0] * shares[last, 1]) for first, last in spans}


@settings(max_examples=150, deadline=None)
@given(count=st.integers(1, 24), longest=st.integers(1, 18), seed=st.integers(0, 2**16))
def test_the_best_span_is_the_best_of_all(count: int, longest: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    logits, inside = random.uniform(-6, 6, (count, 2)).astype(np.float32), random.random(count) < 0.5
    inside[random.integers(count)] = True
    counted = inside | (np.arange(count) == 0)
    want = scores_by_loops(logits.astype(np.float64), inside, counted, longest)
    first, last, score = best_span(logits, inside, counted, longest)
    assert score == pytest.approx(max(want.values()), rel=1e-9) == want[first, last]
    yes = np.ones(4, bool)
    assert best_span(np.zeros((4, 2), np.float32), yes, yes)[:2] == (0, 0)  # of equal spans the first and shortest


def test_an_answer_by_hand_and_what_has_none(tmp_path: Path) -> None:
    """Every span's score from the logits of the pair; a softmax over the question too would be smaller."""
    config = word_models.settings("bert", architectures=["BertForQuestionAnswering"], max_position_embeddings=40)
    head = {"qa_outputs.weight": checkpoints.numbers(2, encoders.DIM), "qa_outputs.bias": checkpoints.numbers(2)}
    folder = checkpoints.write(tmp_path, config, encoders.tensors(config) | head)
    reader = minibert.load_encoder(word_models.tokenizer(folder, "BertTokenizer", config))
    for question in ("we", "the clouds above", "", "above?", "lived we"):
        batch = reader.tokenize(question, TEXT)
        logits = reader.logits(**batch, head="answer")[0].astype(np.float64)
        inside = batch["token_type_ids"][0] == 1
        inside[-1] = False  # [SEP]
        counted = inside | (np.arange(len(inside)) == 0)  # [CLS]
        want = scores_by_loops(logits, inside, counted, LONGEST)
        (first, last), score = max(want.items(), key=lambda each: each[1])
        answer = reader.answer(question, TEXT)
        assert isinstance(answer, Answer) and answer.score == pytest.approx(score, rel=1e-5)
        assert TEXT[answer.start : answer.end] == answer.text == answer.text.strip() != ""
        pieces = reader.embeddings.tokenizer.tokens(batch["input_ids"][0][first : last + 1])
        assert answer.text.replace(" ", "") == "".join(pieces).replace("##", "").replace("[UNK]", ",")
    for asked, kind, says in (
        (("we", " "), ValueError, "' '"), (("we", "we " * 60), ValueError, r"\b40\b"),
        ((["we"], TEXT), TypeError, None), (("we", [TEXT]), TypeError, None), ((None, TEXT), TypeError, None),
    ):  # fmt: skip
        with pytest.raises(kind, match=says):
            reader.answer(*asked)
    with pytest.raises(minibert.CheckpointError, match="'answer'"):
        opened("sentences-bare").answer("a", "b")
