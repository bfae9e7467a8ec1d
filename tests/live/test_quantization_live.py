"""Smaller vectors, to the bit as sentence-transformers makes them; and the score of vectors that are floats again."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from needed import need_sentence_transformers

import minibert
from minibert.equations.quantization import PRECISIONS, dequantized, quantized, ranges_of

pytestmark = pytest.mark.reference

DIMS = (1, 7, 8, 13, 64, 384)
THEIRS = [precision for precision in PRECISIONS if precision != "float16"]
SCORE = 1e-5  # their scores are float64, ours float32; measured: 1.5e-6 of numbers up to 20

ROOT = Path(__file__).parents[1]


def quantize(*arguments: Any, **options: Any) -> Any:
    need_sentence_transformers()
    from sentence_transformers.util.quantization import quantize_embeddings

    return quantize_embeddings(*arguments, **options)


@pytest.mark.parametrize("precision", THEIRS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_bits_are_theirs(precision: str, dtype: Any) -> None:
    generator = np.random.default_rng(5)
    for dim in DIMS:
        vectors, others = generator.standard_normal((2, 150, dim)).astype(dtype)
        vectors[3] = vectors[:, 0] = 0.0  # a zero vector, and a dimension without a range
        ranges = ranges_of(others)
        for found, want in (
            (quantized(vectors, precision), quantize(vectors, precision)),
            (quantized(vectors, precision, ranges), quantize(vectors, precision, ranges=ranges)),
            (quantized(vectors, precision, ranges), quantize(vectors, precision, calibration_embeddings=others)),
            (quantized(vectors[0], precision, ranges), quantize(vectors[0], precision, ranges=ranges)),
        ):
            assert (found.dtype, found.shape) == (want.dtype, want.shape)
            assert found.tobytes() == want.tobytes(), dim


@pytest.mark.parametrize("precision", ["int8", "uint8"])
def test_converted_vectors_score_as_theirs_do(precision: str) -> None:
    need_sentence_transformers()
    from sentence_transformers.util.quantization import _dequantize_embeddings

    query, vectors = np.split(np.random.default_rng(1).standard_normal((151, 64)).astype(np.float32), [1])
    ranges = ranges_of(vectors)
    small = quantized(vectors, precision, ranges)
    want = query.astype(np.float64) @ _dequantize_embeddings(small, precision, ranges).T
    assert np.abs(query @ dequantized(small, precision, ranges).T - want).max() <= SCORE


def test_committed_sums_are_of_their_bytes() -> None:
    spec = importlib.util.spec_from_file_location("committed", ROOT / "equations" / "test_quantization.py")
    assert spec is not None and spec.loader is not None
    committed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(committed)
    assert {precision for precision, _ in committed.GIVEN} == set(THEIRS) - {"float32"}
    for (precision, dim), sums in committed.GIVEN.items():
        own, others = committed.drawn(dim), committed.drawn(dim, 1)
        found = quantize(own, precision), quantize(own, precision, calibration_embeddings=others)
        assert tuple(map(committed.digest, found)) == sums


def test_encode_makes_what_theirs_makes(minilm: Path) -> None:
    """Of one model's own vectors: those of the two packages differ in the last bits, which a step's edge may show."""
    texts = [f"the {i} clouds above us" for i in range(120)]
    encoder = minibert.load_encoder(minilm)
    vectors = encoder.encode(texts)
    for precision in THEIRS:
        assert np.array_equal(encoder.encode(texts, precision=precision), quantize(vectors, precision))
