"""Sampling against plain loops, and the word that is drawn against NumPy's own choice."""

from __future__ import annotations

import math

import numpy as np
import pytest
from drawn import normal

from minibert.equations.heads import drawn, next_word_probabilities, top_k, top_p

ROWS = 2 * normal(12, 9)
SAME = 1e-12  # float64 on both sides; measured 2e-16


def by_loops(row: list[float], temperature: float, k: int, p: float) -> list[float]:
    row = [x / temperature for x in row]
    row = [x if sum(other > x for other in row) < k else -math.inf for x in row]
    powers = [math.exp(x) for x in row]
    shares = [power / sum(powers) for power in powers]
    kept = [s if sum(other for other in shares if other > s) < p else 0.0 for s in shares]
    return [s / sum(kept) for s in kept]


@pytest.mark.parametrize(("temperature", "k", "p"), [(1.0, 9, 1.0), (0.3, 4, 0.9), (2.5, 6, 0.5), (1.0, 1, 0.2)])
def test_probabilities_of_a_next_word(temperature: float, k: int, p: float) -> None:
    found = next_word_probabilities(ROWS, temperature, k, p)
    want = [by_loops(row.tolist(), temperature, k, p) for row in ROWS]
    np.testing.assert_allclose(found, want, rtol=0, atol=SAME)


def test_words_alike_stay_together_and_a_whole_share_leaves_none_out() -> None:
    assert np.isfinite(top_k(np.array([1.0, 3.0, 1.0, 0.0]), 2)).tolist() == [True, True, True, False]
    far = np.array([0.0, -60.0], np.float32)  # a probability that 1 - p cannot show
    assert np.array_equal(top_p(far, 1.0), far) and top_p(far, 0.999).tolist() == [0.0, -math.inf]
    assert top_k(far, 5).dtype == top_p(far, 0.5).dtype == np.float32


def test_a_small_temperature_takes_the_likeliest() -> None:
    for row in ROWS:
        with np.errstate(over="ignore"):
            assert next_word_probabilities(row, 1e-300).tolist() == (np.arange(9) == row.argmax()).tolist()


def test_the_word_drawn_is_numpy_s() -> None:
    ours, theirs = np.random.default_rng(0), np.random.default_rng(0)
    p = next_word_probabilities(ROWS[0], temperature=3.0, k=6)
    words = [drawn(p, ours.random()) for _ in range(200)]
    assert words == [theirs.choice(9, p=p) for _ in range(200)] and len(set(words)) > 1
