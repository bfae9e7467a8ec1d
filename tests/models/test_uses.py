"""Scores, labels, entities and answers: what is passed, and what is refused; the libraries' own: test_calls.py.

Words for a mask, the next word, and a text written on: against the logits of each text, which keep nothing.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import checkpoints
import encoders
import numpy as np
import pytest
import word_models
from command_line import Patch, error_of
from encoder_files import off
from hypothesis import given
from hypothesis import strategies as st
from reference_files import REFERENCE, changed, opened
from tokenizer_folders import BASES, vocabulary

import minibert
from minibert import CheckpointError
from minibert.equations.blocks import Linear, softmax
from minibert.equations.gated_blocks import GatedBlock, LlamaWeights, llama_model
from minibert.equations.input_layer import Array
from minibert.equations.rotary import rotary_frequencies
from minibert.files.tokenizer import Encoded, Tokenizer
from minibert.models.heads import heads, prediction
from minibert.models.heads.labels import LONGEST, Answer, Entity, Label, best_labels, best_span, grouped
from minibert.models.heads.prediction import FILE, REFUSED, choose
from minibert.models.run.pipeline import CHUNK

METHODS: dict[str, tuple[Any, ...]] = {
    "encode": ("we",), "encode_query": ("we",), "encode_document": ("we",), "encode_sparse": ("we",),
    "predict": (("we", "a"),), "rank": ("we", ["a"]),
}  # fmt: skip
RERANKER, BARE = "uses-reranker", "uses-reranker-bare"
PAIRS = [("we", "the clouds"), ("", "we lived above"), ("the", ""), ("a b c d e f g h i j k l", "we")]
NEIGHBOURS = 4e-6  # how far a score or a logit moves with the other pairs of a call; measured: 9.6e-7
TEXT = "we lived above the clouds, we lived  "


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x.astype("f8"))))


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
        with pytest.raises(CheckpointError, match=f"{path!r}"):
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


def scores_by_loops(logits: Array, inside: Array, counted: Array, longest: int) -> dict[tuple[int, int], float]:
    shares, places = np.exp(logits) / np.exp(logits[counted]).sum(axis=0), np.flatnonzero(inside).tolist()
    spans = [(first, last) for first in places for last in places if 0 <= last - first < longest]
    return {(first, last): float(shares[first, 0] * shares[last, 1]) for first, last in spans}


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
    with pytest.raises(CheckpointError, match="'answer'"):
        opened("sentences-bare").answer("a", "b")


# -- words ------------------------------------------------------------------------------------------------------------

SAME = 5e-6  # probabilities; measured 8e-7
LOGITS = 1e-5  # relative to max(1, |logit|)
SHARE = 0.04  # between a share of 4,000 draws and its probability: five standard deviations
MASKED = ["the [MASK] lived above", "[MASK]", "we [MASK] [MASK], the clouds"]
BEGUN = "the he"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> minibert.Encoder:
    return minibert.load_encoder(word_models.write(tmp_path_factory.mktemp("bert"), "bert"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> minibert.Encoder:
    return minibert.load_encoder(word_models.write(tmp_path_factory.mktemp("gpt2"), "gpt2"))


def likely(encoder: minibert.Encoder, ids: list[int]) -> Array:
    """How likely each word is at each token of a text alone; the logits are the reference's: test_heads.py."""
    return softmax(encoder.logits([ids])[0])


def same(found: list[dict[str, Any]], probabilities: Array, k: int) -> None:
    assert [list(each) for each in found] == [["token_str", "score", "token"]] * k
    assert [each["token"] for each in found] == np.argsort(-probabilities)[:k].tolist()
    np.testing.assert_allclose([each["score"] for each in found], np.sort(probabilities)[::-1][:k], rtol=0, atol=SAME)


def llama_weights(tensors: dict[str, Array]) -> LlamaWeights:
    def block(at: str) -> GatedBlock:
        maps = [Linear(tensors[f"{at}self_attn.{name}_proj.weight"]) for name in "qkvo"]
        gate, up, down = (Linear(tensors[f"{at}mlp.{name}_proj.weight"]) for name in ("gate", "up", "down"))
        norm_1, norm_2 = (tensors[f"{at}{name}_layernorm.weight"] for name in ("input", "post_attention"))
        return GatedBlock(*maps, norm_1, gate, up, down, norm_2)

    table, blocks = tensors["embed_tokens.weight"], [block(f"layers.{i}.") for i in range(2)]
    return LlamaWeights(table, blocks, tensors["norm.weight"], table)


def test_the_textbook_s_llama_gives_the_encoder_s_logits(tmp_path: Path) -> None:
    """Heads that share keys, a head_dim that is not the width's share, no eps or base at its default."""
    settings = encoders.config("llama", rms_norm_eps=0.1, rope_theta=500.0, tie_word_embeddings=True)
    tensors, random = encoders.tensors(settings), np.random.default_rng(0)
    ids, mask = random.integers(0, 60, (12, 9)), np.arange(9) < random.integers(1, 10, (12, 1))
    mask[0] = np.arange(9) != 2  # no token sees it, and those behind keep their places
    frequencies = rotary_frequencies(settings["head_dim"], base=500.0)
    found = llama_model(ids, mask, llama_weights(tensors), encoders.HEADS, 2, frequencies, eps=0.1)
    with minibert.load_encoder(checkpoints.write(tmp_path, settings, tensors)) as encoder:
        assert off(found[mask], encoder.logits(ids, attention_mask=mask.astype(int))[mask]) <= LOGITS


@pytest.mark.parametrize("k", [1, 5, 40])
@pytest.mark.parametrize("numbers", [1 << 22, 64], ids=["at once", "in pieces"])
def test_likeliest_words_of_masks(bert: minibert.Encoder, k: int, numbers: int, monkeypatch: Patch) -> None:
    ids = [bert.tokenize(text)["input_ids"][0].tolist() for text in MASKED]
    want, mask_id = [likely(bert, each) for each in ids], bert.embeddings.tokenizer.id_of("[MASK]")
    monkeypatch.setattr(heads, "PIECE", numbers)
    found = bert.fill(MASKED, k=k)
    assert [len(masks) for masks in found] == [1, 1, 2]
    for own, rows, masks in zip(ids, want, found, strict=True):
        for place, mask in zip(np.flatnonzero(np.array(own) == mask_id), masks, strict=True):
            same(mask, rows[place], k)
    assert [len(mask) for mask in bert.fill(MASKED[2], k=k)] == [k, k]


@pytest.mark.parametrize("method", ["fill", "next_words", "complete"])
def test_threads_are_kept_to(method: str, tmp_path: Path) -> None:
    folder = word_models.write(tmp_path, "bert" if method == "fill" else "gpt2")
    caller = "heads.prediction" if method == "complete" else "run.blocks"
    watched = mock.patch(f"minibert.models.{caller}.compute", side_effect=prediction.compute)
    with minibert.load_encoder(folder, threads=3) as encoder, watched as computed:
        getattr(encoder, method)("[MASK]" if method == "fill" else "we")
    assert {call.args[2] for call in computed.call_args_list} == {3}


def test_the_next_word_and_all_words_there_are(bert: minibert.Encoder, gpt2: minibert.Encoder) -> None:
    for text, words in zip(word_models.TEXTS, gpt2.next_words(word_models.TEXTS, k=6), strict=True):
        same(words, likely(gpt2, gpt2.tokenize(text)["input_ids"][0].tolist())[-1], 6)
    ((found,),) = bert.fill(MASKED[:1], k=10_000)
    assert len(found) == bert.config.vocab_size
    assert abs(sum(each["score"] for each in found) - 1) <= 1e-5  # measured 1.2e-7
    assert {each["token_str"]: each["token"] for each in found}["clouds"] == bert.embeddings.tokenizer.id_of("clouds")
    every = gpt2.next_words("we", k=gpt2.config.vocab_size)
    pieces, decode = {each["token_str"]: each["token"] for each in every}, gpt2.embeddings.tokenizer.decode
    assert all(each["token_str"] == decode([each["token"]]) for each in every)  # a byte of a letter is no letter
    assert len(gpt2.next_words("we")) == 5 and pieces[" w"] == gpt2.embeddings.tokenizer.id_of("\u0120w")


def test_the_mask_is_the_tokenizer_s(tmp_path: Path) -> None:
    encoder = minibert.load_encoder(word_models.write(tmp_path, "roberta"))
    assert [len(masks) for masks in encoder.fill(["we <mask>", "<mask><mask>"])] == [1, 2]
    with pytest.raises(ValueError, match="<mask>"):
        encoder.fill(["<mask>", "we [MASK]"])


def test_what_comes_is_decoded_with_the_text_before_it(tmp_path: Path, monkeypatch: Patch) -> None:
    """Decoded alone, the first word would lose its space; each token alone, the bytes of a letter would be none."""
    config = word_models.settings("gpt2", vocab_size=len(vocabulary(BASES["LlamaTokenizer"])))
    checkpoints.write(tmp_path, config, encoders.tensors(config))
    tokens = map(vocabulary(BASES["LlamaTokenizer"]).index, ["\u2581w", "e", "<0xC3>", "<0xA9>"])
    monkeypatch.setattr(prediction, "choose", lambda *_: next(tokens))
    with minibert.load_encoder(word_models.tokenizer(tmp_path, "LlamaTokenizer", config)) as encoder:
        assert encoder.complete("the", tokens=4) == "the we\u00e9"


def test_a_text_goes_on_to_the_end_of_the_position_table(tmp_path: Path) -> None:
    with minibert.load_encoder(word_models.write(tmp_path, "gpt2")) as encoder:
        vars(encoder)["config"] = {}  # nothing ends a text
        ids = encoder.tokenize("we")["input_ids"][0].tolist()
        most = encoders.LONGEST - len(ids) + 1  # the last one is written, not read
        said = f"tokens must be at most {most}, found {most + 1}: the text has {len(ids)} tokens, and the position"
        for _ in range(most):
            ids.append(int(np.argmax(likely(encoder, ids)[-1])))
        written = encoder.complete("we", tokens=most)
        assert written == encoder.embeddings.tokenizer.decode(ids, skip_special_tokens=True)
        with pytest.raises(ValueError, match=said):
            encoder.complete("we", tokens=most + 1)


def test_chance_follows_the_seed(gpt2: minibert.Encoder) -> None:
    written = [gpt2.complete("we", tokens=8, temperature=2.0, seed=seed) for seed in (0, 0, 1, 2, 3)]
    assert written[0] == written[1] and len(set(written)) > 2
    for kind in (np.float16, np.float32, np.int8):  # without a warning of an overflow
        assert gpt2.complete("we", tokens=8, temperature=kind(2)) == written[0]
    for wrong in (np.float32(np.inf), np.complex64(1)):
        with pytest.raises(ValueError, match=r"^temperature "):
            gpt2.complete("we", 4, temperature=wrong)  # type: ignore[arg-type]
    greedy = [gpt2.complete("we", 8), gpt2.complete("we", tokens=8, temperature=1e-300, seed=5)]
    assert greedy == [gpt2.complete("we", 8, 0, 7)] * 2


def test_a_word_is_chosen_as_often_as_it_is_likely() -> None:
    logits, random = np.array([1.0, -2.0, 0.5, 2.0], np.float32), np.random.default_rng(1)
    chosen = np.bincount([choose(logits, 3.0, random) for _ in range(4_000)], minlength=4) / 4_000
    assert np.abs(chosen - softmax(logits / 3)).max() <= SHARE
    never = np.array([-np.inf, 1, -np.inf], np.float32)  # a word that can never come is no damage
    assert choose(never, 3.0, random) == choose(never, 0.0, random) == 1


def gpt2_of(folder: Path, settings: dict[str, Any] | None, **config: Any) -> minibert.Encoder:
    path = word_models.write(folder, "gpt2", **config) / FILE
    path.unlink(missing_ok=True) if settings is None else path.write_text(json.dumps(settings), encoding="utf-8")
    return minibert.load_encoder(folder)


def test_which_file_says_where_a_text_ends_and_what_changes_no_word(tmp_path: Path) -> None:
    """generation_config.json alone where it is there, else config.json alone: no default of a class."""
    (first,) = gpt2_of(tmp_path, None).next_words(BEGUN, k=1)
    end = first["token"]
    for settings, config in (({"eos_token_id": end}, None), ({"eos_token_id": [3, end]}, 3), (None, [3, end])):
        assert gpt2_of(tmp_path, settings, eos_token_id=config).complete(BEGUN, 1) == BEGUN
    for settings, config in (({}, end), ({"eos_token_id": None}, end), ({"eos_token_id": 3}, [end]), (None, None)):
        assert gpt2_of(tmp_path, settings, eos_token_id=config).complete(BEGUN, 1) == BEGUN + first["token_str"]
    # what changes no word passes
    want = gpt2_of(tmp_path, {}).complete(BEGUN, 9)
    usual = {"do_sample": True, "temperature": 0.1, "top_k": 1, "top_p": 0.1, "max_length": 2, "max_new_tokens": 1}
    neutral = {key: value for key, value in REFUSED.items() if value is not None}
    for settings in (usual, neutral, dict.fromkeys(REFUSED), {"no_such_key": 3}):
        assert gpt2_of(tmp_path, settings).complete(BEGUN, 9) == want


@pytest.mark.parametrize("key", REFUSED)
def test_what_changes_the_words_and_is_not_computed_is_refused(tmp_path: Path, key: str) -> None:
    encoder = gpt2_of(tmp_path, {key: [[2]]})
    with pytest.raises(CheckpointError, match=FILE):
        encoder.complete(BEGUN)
    assert encoder.next_words(BEGUN)
    with pytest.raises(CheckpointError, match=key):
        gpt2_of(tmp_path, None, **{key: 7}).complete(BEGUN)


@pytest.mark.parametrize("end", [5.5, "e", True, [1, [2]], {"a": 1}])
@pytest.mark.parametrize("own", [False, True])
def test_an_end_that_is_no_id(tmp_path: Path, end: Any, own: bool) -> None:
    encoder = gpt2_of(tmp_path, {"eos_token_id": end}) if own else gpt2_of(tmp_path, None, eos_token_id=end)
    file = FILE if own else "config.json"
    with pytest.raises(CheckpointError, match=f"{file}: 'eos_token_id' must be an integer, a list of"):
        encoder.complete("we")
