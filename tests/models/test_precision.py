"""`encode(precision=)`: the formula over the vectors that all else gives, and what it does not go with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from reference_files import REFERENCE

import minibert
from minibert.equations.quantization import PRECISIONS, quantized, ranges_of

TEXTS = ["we lived", "above the clouds", "man", "dog bites man", ""]


@pytest.fixture(scope="module")
def encoder() -> minibert.Encoder:
    return minibert.load_encoder(REFERENCE / "sentences-prompts")


FEW = "ignore:u?int8 takes its ranges from 5 vectors:UserWarning"


@pytest.mark.filterwarnings(FEW)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("options", [{}, {"normalize_embeddings": True, "truncate_dim": 5}, {"prompt": "clouds "}])
def test_smaller_vectors_are_the_formula_of_the_others(
    precision: str, options: dict[str, Any], encoder: minibert.Encoder
) -> None:
    found = encoder.encode(TEXTS, precision=precision, **options)
    want = quantized(encoder.encode(TEXTS, **options), precision)
    assert found.dtype == PRECISIONS[precision] and np.array_equal(found, want)
    assert encoder.encode([], precision=precision, **options).dtype == PRECISIONS[precision]
    if precision not in ("int8", "uint8"):
        assert np.array_equal(encoder.encode_query("man", precision=precision), quantized(
            encoder.encode_query("man"), precision
        ))  # fmt: skip


def test_float32_leaves_what_the_encoder_computes_in() -> None:
    encoder = minibert.load_encoder(REFERENCE / "sentences-prompts", dtype="float64")
    assert encoder.encode("man", precision="float32").dtype == encoder.encode("man", precision=None).dtype == np.float64


@pytest.mark.parametrize("precision", ["int8", "uint8"])
def test_ranges_of_other_vectors(precision: str, encoder: minibert.Encoder) -> None:
    """With them a text's small vector is the same in every call; without them it changes with the others."""
    ranges = ranges_of(encoder.encode([f"we lived above {word}" for word in TEXTS]))
    want = quantized(encoder.encode(TEXTS), precision, ranges)
    for given in (ranges, ranges.tolist()):
        assert np.array_equal(encoder.encode(TEXTS, precision=precision, ranges=given), want)
    alone = encoder.encode(TEXTS[1], precision=precision, ranges=ranges)
    assert alone.shape == want[1].shape and np.abs(alone.astype(int) - want[1]).max() <= 1
    for other in (None, "float32", "float16", "binary"):
        with pytest.raises(ValueError, match=f"ranges are for precision int8 or uint8, found {other!r}; leave them"):
            encoder.encode(TEXTS, precision=other, ranges=ranges)


def test_a_warning_where_ranges_come_from_few_vectors(encoder: minibert.Encoder) -> None:
    """At the caller's line, by each way to `encode`; none for a hundred, for none at all, or for given ranges."""
    for method in (encoder.encode, encoder.encode_query, encoder.encode_document):
        with pytest.warns(UserWarning, match="^uint8 takes its ranges from 5 vectors; 100 or more") as caught:
            method(TEXTS, precision="uint8")
        assert [warning.filename for warning in caught] == [__file__]
    encoder.encode(TEXTS * 20, precision="int8")
    encoder.encode([], precision="int8")
    encoder.encode(TEXTS, precision="int8", ranges=np.stack([np.zeros(48), np.ones(48)]))
    encoder.encode(TEXTS, precision="binary")


def test_what_is_refused(encoder: minibert.Encoder) -> None:
    with pytest.raises(ValueError, match="'int8' is for sentence vectors; leave it out with token_embeddings"):
        encoder.encode(TEXTS, output_value="token_embeddings", precision="int8")
    assert len(encoder.encode(TEXTS, output_value="token_embeddings", precision="float32")) == len(TEXTS)
    for one in ("man", ["man"]):
        with pytest.raises(ValueError, match="need two vectors or more, better a hundred"):
            encoder.encode(one, precision="uint8")
    with pytest.raises(ValueError, match=r"precision must be one of float32, .*, found \['int8'\]"):
        encoder.encode(TEXTS, precision=["int8"])  # type: ignore[arg-type]
