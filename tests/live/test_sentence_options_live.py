"""What is asked for once, beside the same arguments of sentence-transformers' constructors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from many_texts import many_texts
from needed import need_sentence_transformers
from reference_files import REFERENCE, changed

import minibert

pytestmark = pytest.mark.reference

SAME = 1e-5  # of vectors, similarities and scores up to 20; measured: 5.2e-6
OPTIONS: list[dict[str, Any]] = [
    {"prompts": {"query": "we lived "}},
    {"prompts": {"query": "we ", "own": "above "}, "default_prompt_name": "own"},
    {"prompts": {"query": "", "document": ""}},
    {"prompts": {"document": "the clouds: "}, "default_prompt_name": "document"},
    {"default_prompt_name": "query"},
    {"truncate_dim": 3},
    {"truncate_dim": 300},
    {"similarity_fn_name": "dot"},
    {"similarity_fn_name": "euclidean", "truncate_dim": 5},
    {"similarity_fn_name": "manhattan", "prompts": {"query": "clouds! "}},
    {"similarity_fn_name": "cosine"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["sentences-prompts", "sentences-dense", "sentences-bare"])
def test_ten_ways_to_ask(name: str, options: dict[str, Any]) -> None:
    need_sentence_transformers()
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(REFERENCE / name), device="cpu", **options)
    ours = minibert.load_encoder(REFERENCE / name, **options)
    assert ours.prompts == theirs.prompts
    texts = ["we lived above the clouds", "", "clouds!", *[text for text in many_texts(30) if len(text) < 100]]
    for method in ("encode", "encode_query", "encode_document"):
        found, want = getattr(ours, method)(texts), getattr(theirs, method)(texts)
        assert found.shape == want.shape and np.abs(found - want).max() <= SAME
    first, second = np.random.default_rng(0).standard_normal((2, 20, 7)).astype("f4")
    assert np.abs(ours.similarity(first, second) - theirs.similarity(first, second).numpy()).max() <= SAME


FOLDER, POOLING = "config_sentence_transformers.json", "1_Pooling/config.json"
SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *(("sentence_bert_config.json", {key: {"torch_dtype": dtype}})
      for key in ("model_args", "model_kwargs") for dtype in ("float32", "auto", None)),
    *(("sentence_bert_config.json", {"do_lower_case": flag}) for flag in (None, 0, 1)),
    *((FOLDER, {"similarity_fn_name": name}) for name in ("dot", "Dot", "dot_score", "Cosine", None)),
    *((POOLING, {"include_prompt": flag}) for flag in (None, 0, 1)),
    (POOLING, {"pooling_mode": "mean"}),
    *(("2_Dense/config.json", {"use_residual": flag}) for flag in (None, 0)),
    ("2_Dense/config.json", {"bias": 1}),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*'similarity_fn_name' is:UserWarning")
@pytest.mark.parametrize(("file", "change"), SETTINGS, ids=str)
def test_odd_values_of_settings_are_read_as_there(file: str, change: dict[str, Any], tmp_path: Path) -> None:
    need_sentence_transformers()
    from sentence_transformers import SentenceTransformer

    ours = changed(tmp_path, "sentences-dense", file, change)
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    texts = ["We lived above the clouds", "", "CLOUDS!"]
    found, want = (model.encode(texts, prompt="the ") for model in (ours, theirs))
    assert np.abs(found - want).max() <= SAME
    assert np.abs(ours.similarity(2 * found, want) - theirs.similarity(2 * found, want).numpy()).max() <= SAME


@pytest.mark.parametrize("length", [5, 6, 7, 8, 9, 10, 12, 16, 20, 30])
def test_ten_lengths_of_pairs(length: int) -> None:
    need_sentence_transformers()
    from sentence_transformers import CrossEncoder

    folder = REFERENCE / "uses-reranker"
    theirs = CrossEncoder(str(folder), device="cpu", max_length=length)
    ours = minibert.load_encoder(folder, max_length=length)
    assert ours.max_seq_length == theirs.max_seq_length
    pairs = [("we lived above the clouds", "the clouds " * n) for n in range(10)]
    assert np.abs(ours.predict(pairs) - theirs.predict(pairs)).max() <= SAME


@pytest.mark.parametrize("name", ["sentences-prompts", "sentences-dense"])
def test_evaluators_that_ask_for_no_tensors_run(name: str) -> None:
    """And the page is right about those that do."""
    need_sentence_transformers()
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import evaluation

    theirs = SentenceTransformer(str(REFERENCE / name), device="cpu")
    ours = minibert.load_encoder(REFERENCE / name, device="cpu")
    first = ["we lived above", "the clouds", "a b c", "we we"]  # nothing that two roundings would order differently
    second, third = ["clouds we lived", "above clouds", "c d", "the the"], ["x y", "z", "we above the", "d e f"]
    scores = [0.1, 0.5, 0.9, 0.3]
    for evaluator in (
        evaluation.EmbeddingSimilarityEvaluator(first, second, scores),
        evaluation.BinaryClassificationEvaluator(first, second, [0, 1, 1, 0]),
        evaluation.TripletEvaluator(first, second, third),
    ):
        found, want = evaluator(ours), evaluator(theirs)
        assert found.keys() == want.keys() and all(abs(found[key] - want[key]) <= SAME for key in want)
    for evaluator in (
        evaluation.InformationRetrievalEvaluator({"q": first[0]}, {"d": second[0]}, {"q": {"d"}}),
        evaluation.RerankingEvaluator([{"query": first[0], "positive": second[:1], "negative": third[:1]}]),
        evaluation.ParaphraseMiningEvaluator({"a": first[0], "b": second[0]}, [("a", "b")]),
        evaluation.TranslationEvaluator(first, second),
    ):
        with pytest.raises(ValueError, match=r"convert_to_(tensor|numpy) must be"):
            evaluator(ours)


def test_old_names_are_theirs() -> None:
    """The list of names without an owner, of which there are 78, and what becomes of others."""
    need_sentence_transformers()
    from sentence_transformers.util.misc import ORIGINAL_TRANSFORMER_MODELS

    from minibert.hub.names import WITHOUT_OWNER

    assert frozenset(ORIGINAL_TRANSFORMER_MODELS) == WITHOUT_OWNER
