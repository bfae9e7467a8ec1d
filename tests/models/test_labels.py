"""Labels of texts and the spans that have one: grouping, what config.json says, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import change_json
from head_files import damaged
from hypothesis import given
from hypothesis import strategies as st
from reference_files import REFERENCE, changed, opened

import minibert
from minibert.models.heads.labels import Entity, Label, best_labels, grouped
from minibert.models.sentences.sentences import CHUNK

NAMES = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC", "PER", "MISC", "B-O", "I-X-Y", "X-")


# -- labels ------------------------------------------------------------------------------------------------------


def test_labels_of_one_text_and_of_many() -> None:
    encoder = opened("uses-inference")
    one, many = encoder.classify("we"), encoder.classify(["we", "the clouds"])
    assert [type(each) for each in one] == [Label] * 3 and len(many) == 2
    assert sum(each.probability for each in one) == pytest.approx(1, abs=1e-6)
    assert [each.probability for each in one] == sorted((each.probability for each in one), reverse=True)
    assert encoder.classify([]) == [] and encoder.classify("we", 1) == one[:1] and len(encoder.classify("we", 9)) == 3
    topics = opened("uses-topics").classify("we")
    assert sum(each.probability for each in topics) != pytest.approx(1, abs=0.01)  # each by itself


def test_nothing_is_chosen_by_what_is_no_number(tmp_path: Path) -> None:
    for name, method in (("topics", "classify"), ("entities", "entities")):
        bias = "classifier.out_proj.bias" if name == "topics" else "classifier.bias"
        encoder = minibert.load_encoder(damaged(REFERENCE / f"uses-{name}", tmp_path / name, bias))
        with pytest.raises(minibert.CheckpointError, match="the model gives NaN or infinity where a number was"):
            getattr(encoder, method)("we")


def test_numbers_are_no_classes(tmp_path: Path) -> None:
    encoder = changed(tmp_path, "uses-one-label", "config.json", {"problem_type": "regression"})
    with pytest.raises(ValueError, match="problem_type regression: this model gives numbers and no classes; take them"):
        encoder.classify("we")
    assert encoder.logits(**encoder.tokenize("we"), head="classes").shape == (1, 1)  # what the error says


@pytest.mark.parametrize("kind", ["single_label_classification", None])
def test_the_kind_of_problem_says_what_probabilities_are(tmp_path: Path, kind: str | None) -> None:
    found = changed(tmp_path, "uses-topics", "config.json", {"problem_type": kind}).classify("we")
    assert sum(each.probability for each in found) == pytest.approx(1, abs=1e-6)


# -- long texts --------------------------------------------------------------------------------------------------


def test_labels_are_of_the_whole_text_or_of_what_was_set(tmp_path: Path) -> None:
    """Not of the 20 tokens that tokenizer_config.json names: the pipeline does not truncate."""
    encoder = minibert.load_encoder(REFERENCE / "uses-topics")
    text, named = "we " * 23 + "the clouds", encoder.config.id2label

    def same(found: list[Label], logits: Any) -> bool:
        want = best_labels(1 / (1 + np.exp(-logits[0])), {int(i): name for i, name in named.items()})
        return np.allclose([each.probability for each in found], [each.probability for each in want], atol=1e-6)

    def logits(**options: Any) -> Any:
        return encoder.logits(**encoder.tokenize(text, **options), head="classes")

    assert len(encoder.tokenize(text)["input_ids"][0]) > 20 == encoder.max_seq_length
    found = encoder.classify(text)
    assert same(found, logits()) and not same(found, logits(max_length=20, truncation=True))
    with pytest.raises(ValueError, match=r"^texts?.*1.* has 42 tokens, but the longest .* is 32 .*; .* or set max_seq"):
        encoder.classify(["we", "we " * 40])
    encoder.max_seq_length = 7
    assert same(encoder.classify(text), logits(max_length=7, truncation=True)) and encoder.classify("we " * 40)


def test_spans_are_of_as_many_tokens_as_the_tokenizer_takes(tmp_path: Path) -> None:
    """As in the pipeline: tokenizer_config.json says how many; where it does not, the whole text."""
    changed(tmp_path, "uses-entities", "config.json", {})
    text, ends, last = "we lived above " * 9, {}, {}
    for length in (20, None):
        change_json(tmp_path / "model" / "tokenizer_config.json", model_max_length=length)
        encoder = minibert.load_encoder(tmp_path / "model")
        ((_, spans),) = encoder.sentence_tokenizer.encode_with_spans([text], length)
        ends[length] = max(span[1] for span in spans if span)
        last[length] = max(each.end for each in encoder.entities(text))
    assert last[20] <= ends[20] < last[None] <= ends[None] == len(text) - 1
    with pytest.raises(ValueError, match=r"the longest sequence is 32 .*; shorten it, or set max_s"):
        encoder.entities(["we", "we " * 40])
    encoder.max_seq_length = 5
    assert max(each.end for each in encoder.entities(text)) <= len("we lived above")


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=6))
def test_labels_stand_by_probability_then_by_number(probabilities: list[float]) -> None:
    named = {i: f"label {i}" for i in range(len(probabilities))}
    found = best_labels(np.array(probabilities, np.float32), named)
    numbers = [int(each.label.split()[1]) for each in found]
    assert sorted(numbers) == list(range(len(probabilities)))
    assert numbers == sorted(numbers, key=lambda i: (-probabilities[i], i))
    assert all(each.probability == probabilities[i] for each, i in zip(found, numbers, strict=True))


# -- spans -------------------------------------------------------------------------------------------------------


def test_entities_of_one_text_and_of_many() -> None:
    encoder = opened("uses-entities")
    text = "  the\n clouds we  lived. above, THE clouds"
    one, many = encoder.entities(text), encoder.entities([text, "", "we"])
    assert [type(each) for each in one] == [Entity] * len(one) and one[0].text == "the\n clouds we  lived"
    assert [each[:4] for each in many[0]] == [each[:4] for each in one] and many[1] == []
    assert encoder.entities([]) == []
    words = ["we", "lived", "above", "the", "clouds"]
    texts = [" ".join(words[: i % 6]) for i in range(CHUNK + 40)]  # more than one chunk
    found = encoder.entities(texts)
    for i in (*range(6), CHUNK - 1, CHUNK, CHUNK + 39):
        assert [each[:4] for each in found[i]] == [each[:4] for each in encoder.entities(texts[i])]


def test_a_special_token_that_a_text_holds_has_a_place_in_it() -> None:
    """Those that the model adds have none."""
    tokenizer = opened("uses-entities").sentence_tokenizer
    ((encoded, spans),) = tokenizer.encode_with_spans(["we [MASK] the"])
    assert len(encoded.input_ids) == 5 and spans == [None, (0, 2), (3, 9), (10, 13), None]
    ((truncated, positions),) = tokenizer.encode_with_spans(["we [MASK] the"], 4)
    assert truncated.input_ids == [*encoded.input_ids[:3], encoded.input_ids[4]] and positions == [*spans[:3], None]
    assert truncated.truncated == 1 and tokenizer.encode_with_spans([]) == []
    with pytest.raises(TypeError, match=r"texts\[7\] must be a str, found int"):
        tokenizer.encode_with_spans([3], None, 7)


def simply(labels: list[str], places: list[tuple[int, int]]) -> list[tuple[str, int, int, int]]:
    """transformers' own loop, in its words: label, first letter, end, how many tokens."""
    groups: list[list[tuple[str, int, int]]] = []
    for label, (start, end) in zip(labels, places, strict=True):
        kind = label[2:] if label[:2] in ("B-", "I-") else label
        last = groups[-1][-1][0] if groups else ""
        before = last[2:] if last[:2] in ("B-", "I-") else last
        if groups and kind == before and label[:2] != "B-":
            groups[-1].append((label, start, end))
        else:
            groups.append([(label, start, end)])
    found = [(group[0][0].split("-", 1)[-1], group[0][1], group[-1][2], len(group)) for group in groups]
    return [each for each in found if each[0] != "O"]


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.booleans(), st.integers(0, 2)), max_size=14))
def test_spans_are_grouped_as_the_reference_s_simple(tokens: list[tuple[str, bool, int]]) -> None:
    text, spans, labels, places = "", [], [], []
    for label, special, gap in tokens:
        text += " " * gap + "ab"
        spans.append(None if special else (len(text) - 2, len(text)))
        if not special:
            labels.append(label)
            places.append((len(text) - 2, len(text)))
    rows = np.full((len(tokens), len(NAMES)), 0.01, np.float32)
    for i, (label, *_) in enumerate(tokens):
        rows[i, NAMES.index(label)] = 0.5 + i / 100
    found = list(grouped(text, spans, rows, dict(enumerate(NAMES))))
    want = simply(labels, places)
    assert [(each.label, each.start, each.end) for each in found] == [each[:3] for each in want]
    kept = [0.5 + i / 100 for i, (_, special, _) in enumerate(tokens) if not special]
    for each, (_, start, end, count) in zip(found, want, strict=True):
        first = places.index(next(place for place in places if place[0] == start))
        assert each.text == text[start:end]
        assert each.probability == pytest.approx(np.mean(kept[first : first + count]), abs=1e-6)
