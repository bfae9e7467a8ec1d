"""Sentence vectors beside sentence-transformers itself: texts of all kinds, folders it saves, options, searches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn import apart, away
from many_texts import many_texts
from needed import need_sentence_transformers, opened_there
from reference_files import REFERENCE, changed

import minibert

pytestmark = pytest.mark.reference

EXACT = 1e-6  # of a vector's numbers, as a share of its length; measured: 3.0e-7 on two kernels
# of the whole vector; measured: 1.6e-6 and 1.9e-6. sentence-transformers' own are up to 1.4e-6 from float64
WHOLE = 2.5e-6


def test_texts_of_all_kinds_and_how_much_of_each_is_truncated(minilm: Path) -> None:
    texts, theirs, ours = many_texts(250), opened_there(minilm), minibert.load_encoder(minilm)
    lengths = [len(text.split()) for text in texts]
    assert min(lengths) == 0 and max(lengths) == 5000 and len(set(lengths)) > 40
    both = ours.encode(texts), theirs.encode(texts)
    assert away(*both) <= EXACT and apart(*both) <= WHOLE
    tokens = [len(theirs.tokenizer(text, truncation=False)["input_ids"]) for text in texts]
    want = [max(0, length - theirs.max_seq_length) for length in tokens]
    assert ours.tokens_cut(texts).tolist() == want and np.count_nonzero(want) > 2


def test_a_narrow_folder_is_computed_in_float32(minilm: Path, tmp_path: Path) -> None:
    """And so far from what sentence-transformers gives in the narrow format as the docstring of `encode` says."""
    import torch

    texts = [text for text in many_texts(120) if 0 < len(text) < 600][:60]
    for dtype, most in ((torch.float16, 6e-4), (torch.bfloat16, 4e-3)):  # measured: 5.4e-4, 3.2e-3
        model = opened_there(minilm)
        model[0].auto_model.to(dtype)
        folder = tmp_path / str(dtype)
        model.save(str(folder), create_model_card=False)
        theirs, ours = opened_there(folder), minibert.load_encoder(folder).encode(texts)
        assert most / 4 <= away(ours, np.asarray(theirs.encode(texts), "f4")) <= most
        assert away(ours, theirs.float().encode(texts)) <= EXACT


SAME = 1e-5  # of vectors, similarities and scores up to 20; measured: 5.2e-6
OPTIONS: list[dict[str, Any]] = [
    {"prompts": {"query": "we lived "}}, {"prompts": {"query": "", "document": ""}}, {"default_prompt_name": "query"},
    {"prompts": {"query": "we ", "own": "above "}, "default_prompt_name": "own"},
    {"prompts": {"document": "the clouds: "}, "default_prompt_name": "document"},
    {"truncate_dim": 3}, {"truncate_dim": 300}, {"similarity_fn_name": "dot"}, {"similarity_fn_name": "cosine"},
    {"similarity_fn_name": "euclidean", "truncate_dim": 5},
    {"similarity_fn_name": "manhattan", "prompts": {"query": "clouds! "}},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", ["sentences-prompts", "sentences-dense", "sentences-bare"])
def test_ten_ways_to_ask(name: str, options: dict[str, Any]) -> None:
    theirs = opened_there(REFERENCE / name, **options)
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
    (POOLING, {"pooling_mode": "mean"}), ("3_Normalize/config.json", {"module_output_name": None}),
    *(("2_Dense/config.json", change)
      for change in ({"use_residual": None}, {"use_residual": 0}, {"bias": 1}, {"module_output_name": None})),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*'similarity_fn_name' is:UserWarning")
@pytest.mark.parametrize(("file", "change"), SETTINGS, ids=str)
def test_odd_values_of_settings_are_read_as_there(file: str, change: dict[str, Any], tmp_path: Path) -> None:
    ours = changed(tmp_path, "sentences-dense", file, change)
    theirs = opened_there(tmp_path / "model")
    texts = ["We lived above the clouds", "", "CLOUDS!"]
    found, want = (model.encode(texts, prompt="the ") for model in (ours, theirs))
    assert np.abs(found - want).max() <= SAME
    assert np.abs(ours.similarity(2 * found, want) - theirs.similarity(2 * found, want).numpy()).max() <= SAME


@pytest.mark.parametrize("name", ["sentences-prompts", "sentences-dense"])
def test_evaluators_that_ask_for_no_tensors_run(name: str) -> None:
    theirs = opened_there(REFERENCE / name)
    from sentence_transformers.sentence_transformer import evaluation

    ours = minibert.load_encoder(REFERENCE / name, device="cpu")
    first = ["we lived above", "the clouds", "a b c", "we we"]  # nothing that two roundings would order differently
    second, third = ["clouds we lived", "above clouds", "c d", "the the"], ["x y", "z", "we above the", "d e f"]
    for evaluator in (
        evaluation.EmbeddingSimilarityEvaluator(first, second, [0.1, 0.5, 0.9, 0.3]),
        evaluation.BinaryClassificationEvaluator(first, second, [0, 1, 1, 0]),
        evaluation.TripletEvaluator(first, second, third),
    ):
        found, want = evaluator(ours), evaluator(theirs)
        assert found.keys() == want.keys() and all(abs(found[key] - want[key]) <= SAME for key in want)


def test_old_names_are_theirs() -> None:
    """The list of names without an owner, of which there are 78, and what becomes of others."""
    need_sentence_transformers()
    from sentence_transformers.util.misc import ORIGINAL_TRANSFORMER_MODELS

    from minibert.hub.repository import WITHOUT_OWNER

    assert frozenset(ORIGINAL_TRANSFORMER_MODELS) == WITHOUT_OWNER


def test_a_model_that_is_saved_again_keeps_its_identity(minilm: Path, tmp_path: Path) -> None:
    opened_there(minilm).save(str(tmp_path))
    assert minibert.load_encoder(tmp_path).identity == minibert.load_encoder(minilm).identity
