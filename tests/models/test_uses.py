"""Scores, labels, entities and sparse vectors against what the reference's libraries gave for the same folders."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from reference_files import REFERENCE, opened

import minibert

FOLDERS = sorted(folder.name for folder in REFERENCE.glob("uses-*"))
SCORES = 1e-5  # of scores and probabilities, of max(1, |score|); measured: 1.6e-6, with Sandybridge's kernels 6.1e-6
WEIGHTS = 1e-5  # of sparse vectors; measured: 5.3e-6, where torch itself is 4.3e-6 from float64


def calls(*methods: str) -> list[Any]:
    return [
        pytest.param(name, call, id=f"{name}-{key}")
        for name in FOLDERS
        for key, call in json.loads((REFERENCE / name / "calls.json").read_text(encoding="utf-8")).items()
        if call["method"] in methods
    ]


@pytest.mark.parametrize(("name", "call"), calls("predict"))
def test_scores_are_those_of_the_cross_encoder(name: str, call: dict[str, Any]) -> None:
    found = opened(name).predict(*call["arguments"], **call["options"])
    want = np.array(call["gave"], np.float32)
    assert np.shape(found) == want.shape and found.dtype == np.float32
    assert (np.abs(found - want) <= SCORES * np.maximum(1, np.abs(want))).all()


@pytest.mark.parametrize(("name", "call"), calls("rank"))
def test_documents_stand_in_the_order_of_the_cross_encoder(name: str, call: dict[str, Any]) -> None:
    found = opened(name).rank(*call["arguments"], **call["options"])
    assert len(found) == len(call["gave"])
    for own, want in zip(found, call["gave"], strict=True):
        assert type(own["score"]) is float
        assert abs(own["score"] - want["score"]) <= SCORES * max(1, abs(want["score"]))
        assert own | {"score": 0} == want | {"score": 0}  # the same number and text, and no other key


@pytest.mark.parametrize(("name", "call"), calls("classify"))
def test_labels_are_those_of_the_pipeline(name: str, call: dict[str, Any]) -> None:
    encoder = minibert.load_encoder(REFERENCE / name)
    encoder.max_seq_length = encoder.max_seq_length  # that one was called with truncation=True
    found = encoder.classify(*call["arguments"])
    for text, own, want in zip(*call["arguments"], found, call["gave"], strict=True):
        assert [each.label for each in own] == [each["label"] for each in want]
        assert np.allclose([each.probability for each in own], [each["score"] for each in want], rtol=0, atol=SCORES)
        alone = encoder.classify(text, k=2)
        assert [each.label for each in alone] == [each["label"] for each in want[:2]]


@pytest.mark.parametrize(("name", "call"), calls("entities"))
def test_entities_are_those_of_the_pipeline(name: str, call: dict[str, Any]) -> None:
    encoder = opened(name)
    found = encoder.entities(*call["arguments"])
    for text, own, want in zip(*call["arguments"], found, call["gave"], strict=True):
        assert [(each.label, each.start, each.end) for each in own] == [
            (each["entity_group"], each["start"], each["end"]) for each in want
        ]
        assert np.allclose([each.probability for each in own], [each["score"] for each in want], rtol=0, atol=SCORES)
        assert all(each.text == text[each.start : each.end] for each in own)
        assert [each[:4] for each in encoder.entities(text)] == [each[:4] for each in own]


@pytest.mark.parametrize(("name", "call"), calls("encode_sparse", "encode_query", "encode_document"))
def test_sparse_vectors_are_those_of_the_sparse_encoder(name: str, call: dict[str, Any]) -> None:
    found = getattr(opened(name), call["method"])(*call["arguments"], **call["options"])
    wanted = call["gave"]
    if isinstance(wanted, dict):
        found, wanted = [found], [wanted]
    for own, want in zip(found, wanted, strict=True):
        assert own.ids.tolist() == want["ids"] and own.weights.dtype == np.float32
        assert np.allclose(own.weights, want["weights"], rtol=WEIGHTS, atol=WEIGHTS)


@pytest.mark.parametrize("method", ["encode_sparse", "encode_query", "encode_document"])
def test_texts_of_a_sparse_encoder_have_the_names_of_sentence_transformers(method: str) -> None:
    call = getattr(opened("uses-sparse"), method)
    want = call("the clouds").ids.tolist()
    assert call(inputs="the clouds").ids.tolist() == call(sentences=["the clouds"])[0].ids.tolist() == want
    for wrong in ({}, {"inputs": "a", "sentences": "b"}):
        with pytest.raises(TypeError, match="passed once, as texts, inputs, sentences; found"):
            call(**wrong)


METHODS: dict[str, tuple[Any, ...]] = {
    "encode": ("we",), "encode_query": ("we",), "encode_document": ("we",), "encode_sparse": ("we",),
    "predict": (("we", "a"),), "rank": ("we", ["a"]),
}  # fmt: skip


@pytest.mark.parametrize("name", ["sentences-dense", "uses-reranker", "uses-sparse", "uses-sparse-router", "late-kept"])
def test_a_wrong_method_names_those_that_work_and_no_other(name: str) -> None:
    """Each method is tried with each kind of folder; what another folder is for is said without a method's name."""
    works, said = set(), []
    for method, given in METHODS.items():
        try:
            getattr(opened(name), method)(*given)
        except ValueError as error:
            said.append(str(error))
        else:
            works.add(method)
    assert works and len(said) == len(METHODS) - len(works)
    for message in said:
        before, named, after = re.split("whose methods here are |;", message, maxsplit=2)
        assert {word for word in re.findall(r"\w+", named) if word in METHODS} == works
        assert not set(re.findall(r"\w+", before + after)) & METHODS.keys()


def test_a_static_model_says_why_it_has_no_other_use() -> None:
    for method in ("encode_sparse", "predict", "rank"):
        with pytest.raises(minibert.CheckpointError, match="only rows of tokens: it is a static model; load a model"):
            getattr(opened("static-dense"), method)(*METHODS[method])
