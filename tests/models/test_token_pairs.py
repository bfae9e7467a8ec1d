"""The similarity of two texts, split by tokens: the parts add up to it, and a model without such a sum is refused."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from checkpoints import change_json
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_files import REFERENCE, opened

import minibert
from minibert.equations.sentences import POOLINGS
from minibert.equations.token_pairs import SUMS, maxsim_pairs, pooled_parts, similarity_pairs

SUM = 1e-6  # of the lengths of both vectors; measured: 1.3e-7
IDENTITY = "torch.nn.modules.linear.Identity"
WORDS = st.lists(st.sampled_from(["we", "lived", "clouds", ",", "."]), min_size=1, max_size=14).map(" ".join)
DENSE = ["sentences-bare", "sentences-search", "sentences-t5", "sentences-two-dense", "static-half", "static-plain"]
LATE = ["late-bare", "late-fixed", "late-least", "late-pylate", "late-stanford"]

encoder_of = cache(opened)


def check_sum(encoder: minibert.Encoder, text: str, other: str, names: tuple[str | None, str | None]) -> None:
    split = encoder.similarity_pairs(text, other, names)
    first, second = (encoder.encode(each, name, task=name) for each, name in zip((text, other), names, strict=True))
    lengths = 1.0
    if encoder.sentence_config.measure == "dot":
        lengths = max(1.0, float(np.linalg.norm(first) * np.linalg.norm(second)))
    assert split.pairs.shape == (len(split.tokens), len(split.others))
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


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("sentences-cls", "the first token"), ("sentences-last-token", "the last token"), ("clip", "the end token"),
        ("sentences-causal", "weightedmean, lasttoken"), ("sentences-dense", "Dense"),
        ("sentences-modules", "LayerNorm"),
        ("sentences-flags", "manhattan"), ("sentences-prompts", "euclidean"), ("uses-sparse", "SparseEncoder"),
        ("uses-reranker", "CrossEncoder"),
    ],
)  # fmt: skip
def test_a_similarity_that_is_no_sum_is_refused_by_name(name: str, found: str) -> None:
    with pytest.raises(ValueError, match=found):
        encoder_of(name).similarity_pairs("we lived", "above")


@pytest.mark.parametrize("pooling", SUMS)
@settings(max_examples=30)
@given(seq=st.integers(1, 9), skip=st.integers(0, 8), seed=st.integers(0, 99))
def test_parts_add_up_to_the_pooled_vector(pooling: str, seq: int, skip: int, seed: int) -> None:
    skip = min(skip, seq - 1)
    rows = np.random.default_rng(seed).integers(-3, 4, (seq, 5)).astype(float)  # with ties
    want = POOLINGS[pooling](rows[None], skip)[0]
    parts = pooled_parts(rows, pooling, skip)
    assert np.allclose(parts.sum(axis=0), want, rtol=0, atol=1e-12) and not parts[:skip].any()


def test_formulas_refuse_what_is_no_sum_and_zero_has_no_direction() -> None:
    for call, named in (
        (lambda: pooled_parts(np.ones((2, 2)), "cls"), "cls"),
        (lambda: similarity_pairs(np.ones((1, 2)), np.ones((1, 2)), "euclidean"), "euclidean"),
        (lambda: maxsim_pairs(np.ones((1, 2)), np.ones((1, 2)), "cosine"), "cosine"),
    ):
        with pytest.raises(ValueError, match=named):
            call()
    assert (similarity_pairs(np.array([[1.0, 0.0], [-1.0, 0.0]]), np.ones((3, 2))) == np.zeros((2, 3))).all()
