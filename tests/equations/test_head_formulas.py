"""Formulas of heads, of the word that comes next and of the nine terms of a score: against loops and arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
from drawn import normal
from hypothesis import given
from hypothesis import strategies as st

from minibert import equations
from minibert.equations.blocks import Linear, attention_scores, linear, split_heads
from minibert.equations.input_layer import layer_norm

ROUNDING = 1e-12  # float64, relative to max(1, |value|); measured 9e-15
ROWS = np.random.default_rng(5).standard_normal((2, 3, 4))


def by_hand(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> list[float]:
    return [b + sum(map(math.prod, zip(x, w, strict=True))) for w, b in zip(weight, bias, strict=True)]


def test_tied_logits_and_tanh_pooling_by_loops() -> None:
    table, bias = ROWS[0, :, :] * 2, np.array([1.0, -2.0, 3.0])
    want = [[by_hand(x, table, bias) for x in rows] for rows in ROWS]
    np.testing.assert_allclose(equations.tied_logits(ROWS, table, bias), want, ROUNDING, ROUNDING)
    weight, bias = np.arange(16.0).reshape(4, 4) / 9, np.array([0.0, 0.1, 0.2, 0.3])
    y, changed = equations.tanh_pooling(ROWS, weight, bias), ROWS.copy()
    np.testing.assert_allclose(y, [[*map(math.tanh, by_hand(x[0], weight, bias))] for x in ROWS], ROUNDING, ROUNDING)
    changed[:, 1:] = 9  # it reads the first token alone
    assert equations.tanh_pooling(changed, weight, bias).tobytes() == y.tobytes()


@given(st.lists(st.floats(-700, 700), min_size=1, max_size=6))
def test_log_softmax_is_the_logarithm_of_softmax(numbers: list[float]) -> None:
    x = np.array(numbers)
    y = equations.log_softmax(x)
    assert (y <= 0).all() and math.isclose(np.exp(y).sum(), 1, rel_tol=ROUNDING)
    np.testing.assert_allclose(np.exp(y), equations.softmax(x), ROUNDING, ROUNDING)
    np.testing.assert_allclose(equations.log_softmax(x + 3), y, 1e-9, 1e-9)  # the same for all changes nothing


def test_log_softmax_where_a_probability_is_too_small() -> None:
    y = equations.log_softmax(np.array([0.0, -2000.0], np.float32))
    assert y.tolist() == [0, -2000] and y.dtype == np.float32


def test_cross_entropy_by_arithmetic() -> None:
    logits, targets = np.log([[1.0, 3.0], [8.0, 2.0]]), np.array([1, 1])
    np.testing.assert_allclose(equations.cross_entropy(logits, targets), [-math.log(0.75), -math.log(0.2)], ROUNDING)


# -- the next word -----------------------------------------------------------------------------------------------------

LOGITS = 2 * normal(12, 9)


def by_loops(row: list[float], temperature: float, k: int, p: float) -> list[float]:
    row = [x / temperature for x in row]
    row = [x if sum(other > x for other in row) < k else -math.inf for x in row]
    powers = [math.exp(x) for x in row]
    shares = [power / sum(powers) for power in powers]
    kept = [s if sum(other for other in shares if other > s) < p else 0.0 for s in shares]
    return [s / sum(kept) for s in kept]


@pytest.mark.parametrize(("temperature", "k", "p"), [(1.0, 9, 1.0), (0.3, 4, 0.9), (2.5, 6, 0.5), (1.0, 1, 0.2)])
def test_probabilities_of_a_next_word(temperature: float, k: int, p: float) -> None:
    found = equations.next_word_probabilities(LOGITS, temperature, k, p)
    want = [by_loops(row.tolist(), temperature, k, p) for row in LOGITS]
    np.testing.assert_allclose(found, want, rtol=0, atol=ROUNDING)


def test_words_alike_stay_together_and_a_whole_share_leaves_none_out() -> None:
    assert np.isfinite(equations.top_k(np.array([1.0, 3.0, 1.0, 0.0]), 2)).tolist() == [True, True, True, False]
    far = np.array([0.0, -60.0], np.float32)  # a probability that 1 - p cannot show
    assert np.array_equal(equations.top_p(far, 1.0), far) and equations.top_p(far, 0.999).tolist() == [0.0, -math.inf]
    assert equations.top_k(far, 5).dtype == equations.top_p(far, 0.5).dtype == np.float32


def test_a_small_temperature_takes_the_likeliest() -> None:
    for row in LOGITS:
        with np.errstate(over="ignore"):
            assert equations.next_word_probabilities(row, 1e-300).tolist() == (np.arange(9) == row.argmax()).tolist()


def test_the_word_drawn_is_numpy_s() -> None:
    ours, theirs = np.random.default_rng(0), np.random.default_rng(0)
    p = equations.next_word_probabilities(LOGITS[0], temperature=3.0, k=6)
    words = [equations.drawn(p, ours.random()) for _ in range(200)]
    assert words == [theirs.choice(9, p=p) for _ in range(200)] and len(set(words)) > 1


# -- the nine terms of a score -----------------------------------------------------------------------------------------

DIM, HEADS, SEQ = 6, 2, 4
PARTS, WEIGHT, BIAS = 3 * normal(3, SEQ, DIM), normal(DIM), normal(DIM, seed=4)
QUERY, KEY = (Linear(normal(DIM, DIM, seed=seed), normal(DIM, seed=seed)) for seed in (5, 6))


def test_the_parts_add_up_to_the_norm_of_the_sum() -> None:
    parts, given = equations.normed_parts(PARTS, WEIGHT, BIAS, 0.1), PARTS.copy()
    want = layer_norm(PARTS.sum(axis=0), WEIGHT, BIAS, 0.1)
    np.testing.assert_allclose(parts.sum(axis=0), want, ROUNDING, ROUNDING)
    np.testing.assert_array_equal(PARTS, given)
    for a, i in np.ndindex(3, SEQ):  # each by itself; the bias is in the last one
        x, whole = PARTS[a, i], PARTS[:, i].sum(axis=0)
        size = math.sqrt(sum((y - whole.mean()) ** 2 for y in whole) / DIM + 0.1)
        of_each = [(x[d] - x.mean()) / size * WEIGHT[d] + (a == 2) * BIAS[d] for d in range(DIM)]
        np.testing.assert_allclose(parts[a, i], of_each, ROUNDING, ROUNDING)


def test_the_terms_add_up_to_the_scores() -> None:
    terms = equations.score_terms(PARTS, QUERY, KEY, HEADS, scale=0.3)
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
        found = equations.term_shares(terms, seen)
        np.testing.assert_allclose(found.sum(axis=(0, 1)), 1, ROUNDING)
        moved = terms + normal(3, 3, HEADS, SEQ, 1)  # by the same for all keys
        np.testing.assert_allclose(equations.term_shares(moved, seen), found, 1e-9, 1e-9)
    hidden = np.where(keep, terms, 1e9)
    np.testing.assert_allclose(equations.term_shares(hidden, keep), equations.term_shares(terms, keep), 1e-9, 1e-9)


def test_shares_by_hand() -> None:
    """Two parts, one query, two keys: differences of the keys are 6, 0, 0, 2, of their sum 8."""
    terms = np.array([[[[[3.0, -3.0]]], [[[5.0, 5.0]]]], [[[[0.0, 0.0]]], [[[2.0, 0.0]]]]])
    np.testing.assert_allclose(equations.term_shares(terms)[..., 0], [[6 / 8, 0], [0, 2 / 8]], ROUNDING)
    assert np.isnan(equations.term_shares(terms[..., :1])).all(), "one key: nothing differs"
