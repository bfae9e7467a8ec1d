"""What formulas say of what they do not take: one table of message -> call. Elsewhere tests ask for the type alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from block_gradients import cross_entropy_gradient
from gradients import lookup_gradient
from model_gradients import adam, clipped_gradients, dropout

from minibert import equations
from minibert.equations.fast import check_ids, layer_norm
from minibert.equations.quantization import PRECISIONS, dequantized, hamming, quantized, ranges_of

Row = tuple[type[Exception], str, Callable[[], object]]


def rows(call: Callable[..., object], *given: Any, kind: type[Exception] = ValueError) -> list[Row]:
    """Each item of `given` is a message and the arguments of the call that raises it."""
    return [(kind, message, partial(call, *arguments)) for message, *arguments in given]


integers, no_row = partial(rows, kind=TypeError), partial(rows, kind=IndexError)
ONES, TABLE, ZEROS, ONE, FOUR = np.ones(2), np.ones((3, 2)), np.zeros(3, "f4"), np.ones((1, 1)), np.ones(4)
TARGETS = np.array([0, -100])  # NumPy would read -1 as the last class; -100 is what torch passes over
INPUT_LAYER = [
    *integers(check_ids, *((f"ids must be integers, found {found}", ids, 3) for found, ids in (
        ("float64", [[1.0]]), ("bool", [True]), ("<U1", ["a"]), ("object", [None]))),
        ("every row must have the same length", [[1], [1, 2]], 3)),
    *no_row(check_ids, (r"ids\[0, 1\] is -1, but the table has rows 0..2", [[0, -1]], 3),
            (r"ids\[0\] is 3, but the table has rows 0..2", [3], 3),
            ("ids is 3, but the table has rows 0..2", 3, 3), ("is 9223372036854775808", [2**63], 3)),
    *integers(layer_norm, (r"must be float32 or float64, found float16; convert it, x.astype",  # squares end at 65504
                           np.full((1, 4), 300, "f2"), np.ones(4, "f2"))),
    *rows(equations.sinusoidal_positions, ("length=-1", -1, 4), ("dim=0", 4, 0),
          ("'interleaved' or 'halves', found 'other'", 4, 4, 1e4, "other"),
          *((f"base={base}", 4, 4, base) for base in (0.0, -1.0, np.nan, np.inf))),
]  # fmt: skip
POSITIONS = [
    *rows(equations.rotary_frequencies, ("dim >= 1", 0), ("base > 0", 4, -1.0)),
    *integers(equations.rotary_angles, ("position_ids must be integers, found float64", [0.5], ONES)),
    *rows(equations.rotate, ("'neighbours', found 'pa", FOUR, FOUR, FOUR, "pairs"),
          ("an even width", FOUR, np.ones(3), np.ones(3)), ("at most as wide as x", FOUR, np.ones(6), np.ones(6)),
          ("one shape", FOUR, FOUR, ONES)),
    *rows(equations.alibi_slopes, ("at least one head", 0)),
    *rows(equations.alibi_bias, (r"\(batch, key\) of zeros and ones; found shape \(2,\)", [1, 1], 2),
          ("zeros and ones", [[0.0, -np.inf]], 2)),
    *integers(equations.relative_buckets, ("must be integers", [1.0])),
    *rows(equations.relative_buckets, ("at least 4 buckets", [1], 3), ("max_distance > 8", [1], 32, 8)),
    *no_row(equations.relative_bias, (r"rows 0\.\.15, but a dis.* in bucket 26", np.ones((16, 2)), 20, 20)),
    *rows(equations.relative_bias, ("must not be negative", np.ones((32, 2)), -1, 2)),
    *rows(partial(equations.relative_bias, past_length=-1), ("past_length=-1", np.ones((32, 2)), 1, 2)),
    *rows(equations.log_buckets, ("buckets >= 2", [0], 1, 9), ("max_positions > 9", [0], 16, 9)),
    *rows(equations.log_bucket_rows, ("must not be negative", -1, 2, 8, 17)),
    *rows(equations.linear_frequencies, ("factor must be a number above 0, found 0.0", ONES, 0.0),
          ("above 0, found inf", ONES, np.inf)),
    *rows(equations.yarn_frequencies, ("even dim", 5, 1e4, 2.0, 8)),
    *rows(equations.yarn_attention_factor, ("factor must be a number above 0", -1.0)),
    *rows(equations.llama3_frequencies, ("high_freq_factor must be above", ONES, 2.0, 4.0, 1.0, 8)),
]  # fmt: skip
TRAINING = [
    *rows(equations.top_k, ("k must be an integer >= 1, found 0", ONES, 0)),
    *rows(equations.top_p, ("p must be above 0 and at most 1, found 1.5", ONES, 1.5)),
    *rows(equations.next_word_probabilities, ("at 0 the likeliest word is taken", ONES, 0.0)),
    *rows(dropout, ("at least 0 and below 1, found 1", ONES, ONES > 0, 1.0)),
    *rows(clipped_gradients, ("longest must be above 0, found 0", [ONES], 0.0)),
    *no_row(equations.cross_entropy, (r"targets\[1\] is -100, but the table has rows 0\.\.1", np.eye(2), TARGETS),
            (r"targets\[1\] is 2, but the", np.eye(2), np.array([0, 2]))),
    *no_row(cross_entropy_gradient, (r"targets\[1\] is -100, but the table has rows 0\.\.1", ONES, np.eye(2), TARGETS)),
    *rows(partial(lookup_gradient, np.ones((1, 2))),
          *((rf"padding_idx is {odd}, but the table has rows 0\.\.2", np.array([0]), 3, odd) for odd in (-4, 3)),
          (r"one row for each id; found \(1, 2\)", np.array([0, 1]), 3)),
    *no_row(lookup_gradient, (r"is -1, but the table has rows 0\.\.2", np.ones((1, 2)), np.array([-1]), 3)),
    *rows(adam, ("step must be an integer >= 1, found 0", ZEROS, ZEROS, ZEROS, ZEROS, 0, 0.1)),
]  # fmt: skip
VECTORS = [
    *rows(equations.cosine_similarity, (r"have shape \(rows, dim\), found \(2,\); .* x\[None\]", ONES),
          ("x has 2 columns, but y has 3", TABLE, np.ones((1, 3)))),
    *rows(partial(equations.nearest_tokens, TABLE), (r"k must be in 1\.\.3, .* found 4", 0, 4),
          *(("an id or 2 finite numbers", odd, 1) for odd in (np.ones(3), np.array([1.0, np.nan])))),
    *no_row(equations.nearest_tokens, (r"query is -1, but the table has rows 0\.\.2", TABLE, -1, 1)),
    *integers(equations.nearest_tokens, ("query must be integers", TABLE, 1.0, 1)),
    *rows(quantized, ("one of float32, float16, int8, uint8, binary, ubinary, found 'int4'", TABLE, "int4"),
          *(("need two vectors or more", one, "int8") for one in (ONE, ONES)),
          (r"ranges must be \(2, 1\) finite", ONE, "int8", [[0.0], [np.nan]]),
          (r"\(2, 1\) finite numbers, found float64 of", ONE, "int8", np.eye(2)),
          ("ranges must be", ONE, "uint8", [["a"], ["b"]]),
          ("low <= high, found low > high in dimension 1", np.ones((1, 2)), "uint8", [[0.0, 1.0], [1.0, 0.0]]),
          (r"'binary' needs finite numbers, but vectors\[1\] has NaN or inf", np.array([[0.0], [np.nan]]), "binary"),
          (r"'int8' needs finite numbers, but vectors\[0\]", np.array([[np.inf], [1.0]]), "int8"),
          (r"a width within float32, found \[-3e\+38, 3e\+38\] in dimension 0", ONE, "int8", [[-3e38], [3e38]]),
          ("a width within float32, .* in dimension 1", np.ones((1, 2)), "uint8", [[0.0, -1e300], [1.0, -1e299]]),
          (r"a width within float32, found \[0.0, 1e\+300\]", np.array([[0.0], [1e300]]), "int8"),
          ("too large for float16, whose largest is 65504", np.array([[65536.0]]), "float16")),
    *rows(ranges_of, (r"ranges need finite numbers, but vectors\[1\]", np.array([[1.0], [np.nan], [2.0]]))),
    *rows(dequantized, ("keeps only the signs; compare such vectors with hamming", np.zeros((1, 1), "u1"), "ubinary"),
          (r"ranges must be \(2, 1\)", np.zeros((1, 1), "i1"), "int8")),
    *rows(hamming, *(
        ("^hamming compares .n, bytes. with .m, bytes., both int8 or both uint8, found", np.ones(*a), np.ones(*b))
        for a, b in ((((2, 1), "i1"), ((2, 1), "u1")), (((2, 1), "f4"), ((2, 1), "f4")), (((2,), "u1"), ((2, 2), "u1")),
                     (((2, 1), "u1"), ((2, 2), "u1")), (((2, 2), "u1"), ((2,), "u1"))))),
]  # fmt: skip
for odd in ([[1.0], [2.0]], None, np.array([["a"], ["b"]]), np.array([[None], [1.0]])):
    NUMBERS = "vectors must be a NumPy array of numbers"
    VECTORS += [*integers(quantized, *((NUMBERS, odd, one) for one in PRECISIONS)),
                *integers(ranges_of, (NUMBERS, odd)), *integers(dequantized, (NUMBERS, odd, "float16"))]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "call"), INPUT_LAYER + POSITIONS + TRAINING + VECTORS)
def test_what_a_formula_says(kind: type[Exception], message: str, call: Callable[[], object]) -> None:
    with pytest.raises(kind, match=message):
        call()
