"""What formulas say of what they do not take: one table of message -> call. Elsewhere tests ask for the type alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import block_gradients
import gradients
import model_gradients
import numpy as np
import pytest

from minibert import equations
from minibert.equations.fast import check_ids, layer_norm
from minibert.equations.quantization import PRECISIONS, dequantized, hamming, quantized, ranges_of

ONES, TABLE, ZEROS = np.ones(2), np.ones((3, 2)), np.zeros(3, np.float32)
INTEGER, NO_ROW, REFUSED = TypeError, IndexError, ValueError  # what most are: no integer, no row of a table, no sense
TARGETS = np.array([0, -100])  # NumPy would read -1 as the last class; -100 is what torch passes over

Row = tuple[type[Exception], str, Callable[[], object]]
INPUT_LAYER: list[Row] = [
    (INTEGER, "ids must be integers, found float64", lambda: check_ids([[1.0]], 3)),
    (INTEGER, "ids must be integers, found bool", lambda: check_ids([True], 3)),
    (INTEGER, "ids must be integers, found <U1", lambda: check_ids(["a"], 3)),
    (INTEGER, "ids must be integers, found object", lambda: check_ids([None], 3)),
    (INTEGER, "every row must have the same length", lambda: check_ids([[1], [1, 2]], 3)),
    (NO_ROW, r"ids\[0, 1\] is -1, but the table has rows 0..2", lambda: check_ids([[0, -1]], 3)),
    (NO_ROW, r"ids\[0\] is 3, but the table has rows 0..2", lambda: check_ids([3], 3)),
    (NO_ROW, "ids is 3, but the table has rows 0..2", lambda: check_ids(3, 3)),
    (NO_ROW, "is 9223372036854775808", lambda: check_ids([2**63], 3)),
    (TypeError, r"must be float32 or float64, found float16; convert it, x.astype",  # squares end at 65504 there
     lambda: layer_norm(np.full((1, 4), 300, np.float16), np.ones(4, np.float16))),
    (REFUSED, "length=-1", lambda: equations.sinusoidal_positions(-1, 4)),
    (REFUSED, "dim=0", lambda: equations.sinusoidal_positions(4, 0)),
    (REFUSED, "base=0.0", lambda: equations.sinusoidal_positions(4, 4, 0.0)),
    (REFUSED, "base=-1.0", lambda: equations.sinusoidal_positions(4, 4, -1.0)),
    (REFUSED, "base=nan", lambda: equations.sinusoidal_positions(4, 4, math.nan)),
    (REFUSED, "base=inf", lambda: equations.sinusoidal_positions(4, 4, math.inf)),
    (REFUSED, "'interleaved' or 'halves', found 'other'", lambda: equations.sinusoidal_positions(4, 4, 1e4, "other")),
]  # fmt: skip
POSITIONS: list[Row] = [
    (REFUSED, "dim >= 1", lambda: equations.rotary_frequencies(0)),
    (REFUSED, "base > 0", lambda: equations.rotary_frequencies(4, -1.0)),
    (INTEGER, "position_ids must be integers, found float64", lambda: equations.rotary_angles([0.5], ONES)),
    (REFUSED, "'neighbours', found 'pa", lambda: equations.rotate(np.ones(4), np.ones(4), np.ones(4), "pairs")),
    (REFUSED, "at most as wide as x", lambda: equations.rotate(np.ones(4), np.ones(6), np.ones(6))),
    (REFUSED, "an even width", lambda: equations.rotate(np.ones(4), np.ones(3), np.ones(3))),
    (REFUSED, "one shape", lambda: equations.rotate(np.ones(4), np.ones(4), ONES)),
    (REFUSED, "at least one head", lambda: equations.alibi_slopes(0)),
    (REFUSED, r"\(batch, key\) of zeros and ones; found shape \(2,\)", lambda: equations.alibi_bias([1, 1], 2)),
    (REFUSED, "zeros and ones", lambda: equations.alibi_bias([[0.0, -np.inf]], 2)),
    (INTEGER, "must be integers", lambda: equations.relative_buckets([1.0])),
    (REFUSED, "at least 4 buckets", lambda: equations.relative_buckets([1], buckets=3)),
    (REFUSED, "max_distance > 8", lambda: equations.relative_buckets([1], max_distance=8)),
    (NO_ROW, r"rows 0\.\.15, but a dis.* in bucket 26", lambda: equations.relative_bias(np.ones((16, 2)), 20, 20)),
    (REFUSED, "must not be negative", lambda: equations.relative_bias(np.ones((32, 2)), -1, 2)),
    (REFUSED, "past_length=-1", lambda: equations.relative_bias(np.ones((32, 2)), 1, 2, past_length=-1)),
    (REFUSED, "buckets >= 2", lambda: equations.log_buckets([0], 1, 9)),
    (REFUSED, "max_positions > 9", lambda: equations.log_buckets([0], 16, 9)),
    (REFUSED, "must not be negative", lambda: equations.log_bucket_rows(-1, 2, 8, 17)),
    (REFUSED, "factor must be a number above 0, found 0.0", lambda: equations.linear_frequencies(ONES, 0.0)),
    (REFUSED, "above 0, found inf", lambda: equations.linear_frequencies(ONES, math.inf)),
    (REFUSED, "even dim", lambda: equations.yarn_frequencies(5, 1e4, 2.0, 8)),
    (REFUSED, "factor must be a number above 0", lambda: equations.yarn_attention_factor(-1.0)),
    (REFUSED, "high_freq_factor must be above", lambda: equations.llama3_frequencies(ONES, 2.0, 4.0, 1.0, 8)),
]  # fmt: skip
TRAINING: list[Row] = [
    (REFUSED, "k must be an integer >= 1, found 0", lambda: equations.top_k(ONES, 0)),
    (REFUSED, "p must be above 0 and at most 1, found 1.5", lambda: equations.top_p(ONES, 1.5)),
    (REFUSED, "at 0 the likeliest word is taken", lambda: equations.next_word_probabilities(ONES, 0.0)),
    (REFUSED, "at least 0 and below 1, found 1", lambda: model_gradients.dropout(ONES, ONES > 0, 1.0)),
    (REFUSED, "longest must be above 0, found 0", lambda: model_gradients.clipped_gradients([ONES], 0.0)),
    (NO_ROW, r"targets\[1\] is -100, but the table has rows 0\.\.1",
     lambda: equations.cross_entropy(np.eye(2), TARGETS)),
    (NO_ROW, r"targets\[1\] is -100, but the table has rows 0\.\.1",
     lambda: block_gradients.cross_entropy_gradient(ONES, np.eye(2), TARGETS)),
    (NO_ROW, r"targets\[1\] is 2, but the", lambda: equations.cross_entropy(np.eye(2), np.array([0, 2]))),
    (REFUSED, r"padding_idx is -4, but the table has rows 0\.\.2",
     lambda: gradients.lookup_gradient(np.ones((1, 2)), np.array([0]), 3, -4)),
    (REFUSED, r"padding_idx is 3, but the table has rows 0\.\.2",
     lambda: gradients.lookup_gradient(np.ones((1, 2)), np.array([0]), 3, 3)),
    (NO_ROW, r"is -1, but the table has rows 0\.\.2",
     lambda: gradients.lookup_gradient(np.ones((1, 2)), np.array([-1]), 3)),
    (REFUSED, r"one row for each id; found \(1, 2\)",
     lambda: gradients.lookup_gradient(np.ones((1, 2)), np.array([0, 1]), 3)),
    (REFUSED, "step must be an integer >= 1, found 0",
     lambda: model_gradients.adam(ZEROS, ZEROS, ZEROS, ZEROS, 0, 0.1)),
]  # fmt: skip
VECTORS: list[Row] = [
    (REFUSED, r"have shape \(rows, dim\), found \(2,\); .* x\[None\]", lambda: equations.cosine_similarity(ONES)),
    (REFUSED, "x has 2 columns, but y has 3", lambda: equations.cosine_similarity(TABLE, np.ones((1, 3)))),
    (REFUSED, r"k must be in 1\.\.3, .* found 4", lambda: equations.nearest_tokens(TABLE, 0, k=4)),
    (NO_ROW, r"query is -1, but the table has rows 0\.\.2", lambda: equations.nearest_tokens(TABLE, -1, k=1)),
    (INTEGER, "query must be integers", lambda: equations.nearest_tokens(TABLE, 1.0, k=1)),
    (REFUSED, "an id or 2 finite numbers", lambda: equations.nearest_tokens(TABLE, np.ones(3), k=1)),
    (REFUSED, "an id or 2 finite numbers", lambda: equations.nearest_tokens(TABLE, np.array([1.0, np.nan]), k=1)),
    (REFUSED, "one of float32, float16, int8, uint8, binary, ubinary, found 'int4'", lambda: quantized(TABLE, "int4")),
    (REFUSED, "need two vectors or more", lambda: quantized(np.ones((1, 1)), "int8")),
    (REFUSED, "need two vectors or more", lambda: quantized(np.ones(2), "int8")),
    (REFUSED, r"ranges must be \(2, 1\) finite", lambda: quantized(np.ones((1, 1)), "int8", [[0.0], [np.nan]])),
    (REFUSED, r"\(2, 1\) finite numbers, found float64 of", lambda: quantized(np.ones((1, 1)), "int8", np.eye(2))),
    (REFUSED, "ranges must be", lambda: quantized(np.ones((1, 1)), "uint8", [["a"], ["b"]])),
    (REFUSED, "low <= high, found low > high in dimension 1",
     lambda: quantized(np.ones((1, 2)), "uint8", [[0.0, 1.0], [1.0, 0.0]])),
    (REFUSED, r"'binary' needs finite numbers, but vectors\[1\] has NaN or inf",
     lambda: quantized(np.array([[0.0], [np.nan]]), "binary")),
    (REFUSED, r"'int8' needs finite numbers, but vectors\[0\]", lambda: quantized(np.array([[np.inf], [1.0]]), "int8")),
    (REFUSED, r"a width within float32, found \[-3e\+38, 3e\+38\] in dimension 0",
     lambda: quantized(np.ones((1, 1)), "int8", [[-3e38], [3e38]])),
    (REFUSED, "a width within float32, .* in dimension 1",
     lambda: quantized(np.ones((1, 2)), "uint8", [[0.0, -1e300], [1.0, -1e299]])),
    (REFUSED, r"a width within float32, found \[0.0, 1e\+300\]", lambda: quantized(np.array([[0.0], [1e300]]), "int8")),
    (REFUSED, "too large for float16, whose largest is 65504", lambda: quantized(np.array([[65536.0]]), "float16")),
    (REFUSED, r"ranges need finite numbers, but vectors\[1\]", lambda: ranges_of(np.array([[1.0], [np.nan], [2.0]]))),
    (REFUSED, "keeps only the signs; compare such vectors with hamming",
     lambda: dequantized(np.zeros((1, 1), np.uint8), "ubinary")),
    *((REFUSED, "^hamming compares .n, bytes. with .m, bytes., both int8 or both uint8, found",
       lambda a=a, b=b: hamming(np.ones(*a), np.ones(*b)))
      for a, b in ((((2, 1), "i1"), ((2, 1), "u1")), (((2, 1), "f4"), ((2, 1), "f4")), (((2, 1), "u1"), ((2, 2), "u1")),
                   (((2,), "u1"), ((2, 2), "u1")), (((2, 2), "u1"), ((2,), "u1")))),
    (REFUSED, r"ranges must be \(2, 1\)", lambda: dequantized(np.zeros((1, 1), np.int8), "int8")),
]  # fmt: skip
for odd in ([[1.0], [2.0]], None, np.array([["a"], ["b"]]), np.array([[None], [1.0]])):
    NUMBERS = "vectors must be a NumPy array of numbers"
    VECTORS += [(TypeError, NUMBERS, lambda odd=odd, one=one: quantized(odd, one)) for one in PRECISIONS]
    VECTORS += [(TypeError, NUMBERS, lambda odd=odd: ranges_of(odd))]
    VECTORS += [(TypeError, NUMBERS, lambda odd=odd: dequantized(odd, "float16"))]


@pytest.mark.parametrize(("kind", "message", "call"), INPUT_LAYER + POSITIONS + TRAINING + VECTORS)
def test_what_a_formula_says(kind: type[Exception], message: str, call: Callable[[], object]) -> None:
    with pytest.raises(kind, match=message):
        call()
