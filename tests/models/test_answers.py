"""Answers to questions: the span that is chosen, its place in the text, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_files import REFERENCE, opened
from safetensors.numpy import load_file, save_file
from tokenizer_folders import BASES, vocabulary, write_tokenizer

import minibert
from minibert.equations.input_layer import Array
from minibert.models.heads.answers import LONGEST, Answer, best_span

TEXT = "we lived above the clouds, we lived  "


def scores_by_loops(logits: Array, inside: Array, counted: Array, longest: int) -> dict[tuple[int, int], float]:
    """p(start) p(end) of every span, one number after another."""
    shares = np.exp(logits) / np.exp(logits[counted]).sum(axis=0)
    return {
        (first, last): float(shares[first, 0] * shares[last, 1])
        for first in range(len(logits))
        for last in range(first, min(first + longest, len(logits)))
        if inside[first] and inside[last]
    }


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_the_best_span_is_the_best_of_all(data: Any) -> None:
    count = data.draw(st.integers(1, 24))
    numbers = st.floats(-6, 6, width=32)
    logits = np.array(data.draw(st.lists(st.tuples(numbers, numbers), min_size=count, max_size=count)), np.float32)
    inside = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    inside[data.draw(st.integers(0, count - 1))] = True
    counted = inside | (np.arange(count) == 0)
    longest = data.draw(st.integers(1, 18))
    want = scores_by_loops(logits.astype(np.float64), inside, counted, longest)
    first, last, score = best_span(logits, inside, counted, longest)
    assert score == pytest.approx(max(want.values()), rel=1e-9) == want[first, last]


def test_of_equal_spans_the_first_and_shortest() -> None:
    yes = np.ones(4, bool)
    assert best_span(np.zeros((4, 2), np.float32), yes, yes)[:2] == (0, 0)


@pytest.fixture
def reader(tmp_path: Path) -> minibert.Encoder:
    """The committed BERT for answers with a wider table, and a tokenizer of BERT's class."""
    folder = shutil.copytree(REFERENCE / "heads" / "bert-answer", tmp_path / "model")
    rows = len(vocabulary(BASES["BertTokenizer"]))
    tensors = load_file(folder / "model.safetensors")
    name = "bert.embeddings.word_embeddings.weight"
    numbers = np.random.default_rng(0)
    tensors[name] = numbers.normal(size=(rows, tensors[name].shape[1])).astype("f")
    places = "bert.embeddings.position_embeddings.weight"
    tensors[places] = numbers.normal(size=(40, tensors[name].shape[1])).astype("f")
    tensors["qa_outputs.weight"] = numbers.normal(size=tensors["qa_outputs.weight"].shape).astype("f")
    save_file(tensors, folder / "model.safetensors")
    config = minibert.load_encoder(REFERENCE / "heads" / "bert-answer").config
    write_tokenizer(folder, "BertTokenizer", {})
    made = {**config, "vocab_size": rows, "max_position_embeddings": 40}
    (folder / "config.json").write_text(json.dumps(made), encoding="utf-8")
    return minibert.load_encoder(folder)


def test_an_answer_stands_in_the_text(reader: minibert.Encoder) -> None:
    found = set()
    for question in ("we", "the clouds", "", "above?", "lived we", "a b c"):
        answer = reader.answer(question, TEXT)
        assert isinstance(answer, Answer) and TEXT[answer.start : answer.end] == answer.text
        assert answer.text and answer.text == answer.text.strip() and 0 < answer.score <= 1
        found.add(answer.text)
    assert len(found) > 1


def test_an_answer_by_hand(reader: minibert.Encoder) -> None:
    """Every span's score from the logits of the pair; a softmax over the question too would be smaller."""
    tokenizer = reader.embeddings.tokenizer
    for question in ("we", "the clouds above"):
        batch = reader.tokenize(question, TEXT)
        logits = reader.logits(**batch, head="answer")[0].astype(np.float64)
        kinds = batch["token_type_ids"][0] == 1
        inside = kinds.copy()
        inside[-1] = False  # [SEP]
        counted = inside.copy()
        counted[0] = True  # [CLS]
        want = scores_by_loops(logits, inside, counted, LONGEST)
        (first, last), score = max(want.items(), key=lambda each: each[1])
        answer = reader.answer(question, TEXT)
        assert answer.score == pytest.approx(score, rel=1e-5)
        pieces = tokenizer.tokens(batch["input_ids"][0][first : last + 1])
        assert answer.text.replace(" ", "") == "".join(pieces).replace("##", "")


def test_what_is_refused(reader: minibert.Encoder) -> None:
    with pytest.raises(ValueError, match="the text must have a token to answer with, found ' '"):
        reader.answer("we", " ")
    with pytest.raises(
        ValueError, match=r"has \d+ tokens, but the longest sequence is 40 .*shorten it or its question"
    ):
        reader.answer("we", "we " * 60)
    for question, text in ((["we"], TEXT), ("we", [TEXT]), (None, TEXT)):
        with pytest.raises(TypeError, match="must be a str, found"):
            reader.answer(question, text)  # type: ignore[arg-type]
    with pytest.raises(minibert.CheckpointError, match="there is no head 'answer'"):
        opened("sentences-bare").answer("a", "b")
