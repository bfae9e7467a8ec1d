"""The nine terms add up to LayerNorm and to the scores; each is what numbers one by one give; shares by hand."""

from __future__ import annotations

import math

import numpy as np
from drawn import normal

from minibert.equations.blocks import Linear, attention_scores, linear, split_heads
from minibert.equations.input_layer import layer_norm
from minibert.equations.nine_terms import normed_parts, score_terms, term_shares

ROUNDING = 1e-12  # float64, relative to max(1, |value|); measured 8e-15
DIM, HEADS, SEQ = 6, 2, 4
PARTS, WEIGHT, BIAS = 3 * normal(3, SEQ, DIM), normal(DIM), normal(DIM, seed=4)
QUERY, KEY = (Linear(normal(DIM, DIM, seed=seed), normal(DIM, seed=seed)) for seed in (5, 6))


def test_the_parts_add_up_to_the_norm_of_the_sum() -> None:
    parts, given = normed_parts(PARTS, WEIGHT, BIAS, 0.1), PARTS.copy()
    want = layer_norm(PARTS.sum(axis=0), WEIGHT, BIAS, 0.1)
    np.testing.assert_allclose(parts.sum(axis=0), want, ROUNDING, ROUNDING)
    np.testing.assert_array_equal(PARTS, given)
    for a, i in np.ndindex(3, SEQ):  # each by itself; the bias is in the last one
        x, whole = PARTS[a, i], PARTS[:, i].sum(axis=0)
        size = math.sqrt(sum((y - whole.mean()) ** 2 for y in whole) / DIM + 0.1)
        of_each = [(x[d] - x.mean()) / size * WEIGHT[d] + (a == 2) * BIAS[d] for d in range(DIM)]
        np.testing.assert_allclose(parts[a, i], of_each, ROUNDING, ROUNDING)


def test_the_terms_add_up_to_the_scores() -> None:
    terms = score_terms(PARTS, QUERY, KEY, HEADS, scale=0.3)
    q, k = (split_heads(linear(PARTS.sum(axis=0), *each), HEADS) for each in (QUERY, KEY))
    assert terms.shape == (3, 3, HEADS, SEQ, SEQ)
    np.testing.assert_allclose(terms.sum(axis=(0, 1)), attention_scores(q, k, 0.3), ROUNDING, ROUNDING)
    for a, b, h, i, j in np.ndindex(terms.shape):
        own = slice(h * DIM // HEADS, (h + 1) * DIM // HEADS)
        query = QUERY.weight[own] @ PARTS[a, i] + (a == 2) * QUERY.bias[own]
        key = KEY.weight[own] @ PARTS[b, j] + (b == 2) * KEY.bias[own]
        np.testing.assert_allclose(terms[a, b, h, i, j], 0.3 * query @ key, ROUNDING, ROUNDING)


def test_shares_are_of_what_softmax_sees() -> None:
    terms, keep = normal(3, 3, HEADS, SEQ, SEQ), np.tri(SEQ, dtype=bool)
    for seen in (None, keep):
        found = term_shares(terms, seen)
        np.testing.assert_allclose(found.sum(axis=(0, 1)), 1, ROUNDING)
        moved = terms + normal(3, 3, HEADS, SEQ, 1)  # by the same for all keys
        np.testing.assert_allclose(term_shares(moved, seen), found, 1e-9, 1e-9)
    hidden = np.where(keep, terms, 1e9)
    np.testing.assert_allclose(term_shares(hidden, keep), term_shares(terms, keep), 1e-9, 1e-9)


def test_shares_by_hand() -> None:
    """Two parts, one query, two keys: differences of the keys are 6, 0, 0, 2, of their sum 8."""
    terms = np.array([[[[[3.0, -3.0]]], [[[5.0, 5.0]]]], [[[[0.0, 0.0]]], [[[2.0, 0.0]]]]])
    np.testing.assert_allclose(term_shares(terms)[..., 0], [[6 / 8, 0], [0, 2 / 8]], ROUNDING)
    assert np.isnan(term_shares(terms[..., :1])).all(), "one key: nothing differs"
