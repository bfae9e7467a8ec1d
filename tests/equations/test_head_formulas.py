"""Formulas of heads: against loops and arithmetic, and what must hold for any numbers."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minibert.equations import cross_entropy, log_softmax, softmax, tanh_pooling, tied_logits

ROUNDING = 1e-12  # float64, relative to max(1, |value|); measured 9e-15
ROWS = np.random.default_rng(5).standard_normal((2, 3, 4))


def test_tied_logits_by_loops() -> None:
    table, bias = ROWS[0, :, :] * 2, np.array([1.0, -2.0, 3.0])
    want = [[[bias[v] + sum(map(math.prod, zip(x, table[v], strict=True))) for v in range(3)] for x in r] for r in ROWS]
    np.testing.assert_allclose(tied_logits(ROWS, table, bias), want, ROUNDING, ROUNDING)


def test_tanh_pooling_reads_the_first_token_alone() -> None:
    weight, bias = np.arange(16.0).reshape(4, 4) / 9, np.array([0.0, 0.1, 0.2, 0.3])
    want = [[math.tanh(b + sum(map(math.prod, zip(w, x[0], strict=True)))) for w, b in zip(weight, bias, strict=True)]
            for x in ROWS]  # fmt: skip
    y = tanh_pooling(ROWS, weight, bias)
    np.testing.assert_allclose(y, want, ROUNDING, ROUNDING)
    changed = ROWS.copy()
    changed[:, 1:] = 9
    assert tanh_pooling(changed, weight, bias).tobytes() == y.tobytes()


@given(st.lists(st.floats(-700, 700), min_size=1, max_size=6))
def test_log_softmax_is_the_logarithm_of_softmax(numbers: list[float]) -> None:
    x = np.array(numbers)
    y = log_softmax(x)
    assert (y <= 0).all() and math.isclose(np.exp(y).sum(), 1, rel_tol=ROUNDING)
    np.testing.assert_allclose(np.exp(y), softmax(x), ROUNDING, ROUNDING)
    np.testing.assert_allclose(log_softmax(x + 3), y, 1e-9, 1e-9)  # the same for all changes nothing


def test_log_softmax_where_a_probability_is_too_small() -> None:
    y = log_softmax(np.array([0.0, -2000.0], np.float32))
    assert y.tolist() == [0, -2000] and y.dtype == np.float32


def test_cross_entropy_by_arithmetic_and_its_slope() -> None:
    logits, targets = np.log([[1.0, 3.0], [8.0, 2.0]]), np.array([1, 1])
    np.testing.assert_allclose(cross_entropy(logits, targets), [-math.log(0.75), -math.log(0.2)], ROUNDING)
    step = 1e-6  # what a training step uses: the slope is the probability, less 1 at the target
    for i in range(2):
        moved = logits.copy()
        moved[:, i] += step
        slope = (cross_entropy(moved, targets) - cross_entropy(logits, targets)) / step
        np.testing.assert_allclose(slope, softmax(logits)[:, i] - (targets == i), atol=1e-6)
