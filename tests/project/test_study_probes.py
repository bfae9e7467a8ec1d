"""The two probes of the study files against definitions and known figures; their examples run."""

from __future__ import annotations

import doctest
from functools import partial
from typing import Any

import numpy as np
import probes
import pytest
from command_line import Patch
from drawn import normal
from hypothesis import given
from hypothesis import strategies as st

import minibert
from minibert.equations.input_layer import sinusoidal_positions

# float64 against a definition computed in another order: measured at most 2.7e-14
DEFINITION_TOLERANCE = 3e-13
# what is left of the gradient of the logistic loss at the minimum found: measured 3.7e-11
SLOPE_TOLERANCE = 1e-9

SEEDS = range(10)
# one position, or one pair in 512, may fall otherwise where another processor rounds otherwise
ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE = 0.1, 0.002


def test_the_examples_hold() -> None:
    assert doctest.testmod(probes) == (0, 16)


# the probes' parts


@given(count=st.integers(2, 40), folds=st.integers(2, 40))
def test_every_sample_is_tested_once_by_those_that_did_not_see_it(count: int, folds: int) -> None:
    if folds > count:
        with pytest.raises(ValueError, match=rf"folds must be in 2\.\.{count}"):
            list(probes.k_folds(count, folds))
        return
    parts = list(probes.k_folds(count, folds))
    assert len(parts) == folds
    assert np.concatenate([test for _, test in parts]).tolist() == list(range(count))
    assert all(sorted([*train, *test]) == list(range(count)) for train, test in parts)
    assert np.ptp([len(test) for _, test in parts]) <= 1


@pytest.mark.parametrize(("samples", "features"), [(30, 4), (10, 25)])
@pytest.mark.parametrize("penalty", [0.0, 0.01, 1.0, 100.0])
def test_linear_regression_is_least_squares_with_a_short_w(samples: int, features: int, penalty: float) -> None:
    """A penalty shortens w and leaves b free; without a penalty w is the shortest best fit."""
    x, y = normal(samples, features), normal(samples)
    x[:, 0] *= 1 if penalty else 0.01  # a direction along which the samples differ little is fitted too
    w, b = probes.linear_regression(x, y, penalty)
    residual = x @ w + b - y
    # where this is least, the slope of sum(residual^2) + penalty * |w|^2 is zero, in the intercept's direction too
    assert np.abs(residual @ x + penalty * w).max() <= DEFINITION_TOLERANCE * max(penalty, 1)
    assert abs(residual.sum()) <= DEFINITION_TOLERANCE
    if penalty:
        assert np.linalg.norm(w) < np.linalg.norm(probes.linear_regression(x, y)[0])
    else:
        centred = x - x.mean(axis=0)
        inside = centred.T @ np.linalg.lstsq(centred.T, w, rcond=None)[0]  # no part of w is beside the samples' span
        assert np.abs(inside - w).max() <= DEFINITION_TOLERANCE * max(1, np.abs(w).max())


def test_the_penalty_is_chosen_on_samples_that_the_fit_has_not_seen() -> None:
    """If y follows x in the training part and not in the held-out fifth, the strongest penalty is the best."""
    x = normal(50, 3)
    y = x @ [1.0, 2.0, 3.0]
    assert probes.chosen_penalty(probes.linear_regression, probes.squared_error, x, y, probes.LINEAR) == 1e-6
    _, held_out = next(probes.k_folds(50))
    y[held_out] *= -1
    assert probes.chosen_penalty(probes.linear_regression, probes.squared_error, x, y, probes.LINEAR) == 1e3


def test_a_probe_does_not_choose_by_the_rows_it_is_tested_on(monkeypatch: Patch) -> None:
    given: list[int] = []
    monkeypatch.setattr(probes, "chosen_penalty", lambda fit, loss, x, *_: given.append(len(x)) or 1.0)
    table = normal(50, 3)
    probes.absolute_position_error(table)
    probes.relative_position_error(table, pairs=100)
    assert given == [40] * 5 + [80] * 5


@pytest.mark.parametrize(("samples", "features"), [(60, 4), (20, 60)])
@pytest.mark.parametrize("penalty", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("size", [1e-2, 1.0, 1e3])
def test_logistic_regression_stands_at_the_minimum(samples: int, features: int, penalty: float, size: float) -> None:
    """The loss is convex: it is minimal if its slope over all features and the intercept is zero."""
    x, y = size * (normal(samples, features) + 0.3), normal(samples) > 0.4
    w, b = probes.logistic_regression(x, y, penalty)
    p = 1 / (1 + np.exp(-(x @ w + b)))
    assert np.abs((p - y) @ x + penalty * w).max() <= SLOPE_TOLERANCE * max(size, 1)
    assert abs(np.sum(p - y)) <= SLOPE_TOLERANCE


def test_logistic_regression_shortens_a_step_that_is_too_long() -> None:
    """Rows of very unequal length and hardly any penalty: whole Newton steps would run away from the minimum."""
    generator = np.random.default_rng(36)
    samples, features = 13, 4
    x = generator.standard_normal((samples, features)) * 10 ** generator.uniform(-2, 3, (samples, 1))
    y, penalty = generator.random(samples) > 0.5, 0.001
    w, b = probes.logistic_regression(x, y, penalty)
    p = (1 + np.tanh((x @ w + b) / 2)) / 2
    assert np.abs((p - y) @ x + penalty * w).max() <= SLOPE_TOLERANCE and abs(np.sum(p - y)) <= SLOPE_TOLERANCE


def test_logistic_regression_refuses_one_class_and_numbers_that_are_none() -> None:
    for y in (np.ones(3, bool), np.zeros(3, bool)):
        with pytest.raises(ValueError, match="samples of both classes"):
            probes.logistic_regression(normal(3, 2), y)
    with pytest.raises(ValueError, match="finite features"):
        probes.logistic_regression(np.array([[np.nan], [1.0]]), np.array([True, False]))


# the probes


def test_data_of_the_probes() -> None:
    table = normal(50, 3).astype(np.float32)
    x, y = probes.absolute_position_data(table, seed=1)
    assert x.dtype == np.float64 and np.array_equal(x, table[y])
    assert sorted(y.tolist()) == list(range(50)) and y.tolist() != list(range(50))
    assert not np.array_equal(y, probes.absolute_position_data(table, seed=2)[1])
    table = np.arange(30.0)[:, None] * [1.0, 0.0]  # column 0 of either half tells the position
    x, y = probes.relative_position_data(table, seed=1, pairs=900)
    first, second = x[:, 0], x[:, 2]
    assert len(set(zip(first.tolist(), second.tolist(), strict=True))) == 900
    assert np.array_equal(y, second > first) and y.sum() == 30 * 29 / 2
    assert first.tolist() != sorted(first.tolist())
    with pytest.raises(ValueError, match="pairs is 901, but 30 positions make only 900"):
        probes.relative_position_data(table, pairs=901)


@pytest.mark.slow
def test_rows_without_a_meaning_teach_the_probes_nothing() -> None:
    """The probes measure the table, not themselves: on noise they are as good as a guess."""
    noise = normal(2048, 64)
    assert 500 < probes.absolute_position_error(noise) < 530  # guessing the middle would be 512 off; measured @
    assert 0.43 < probes.relative_position_error(noise) < 0.57  # 512 coins: 0.50 +- 0.022; measured 0.48


@pytest.mark.slow
def test_sinusoids_tell_every_position_and_nearly_every_order() -> None:
    for dim in (512, 768):
        assert [probes.absolute_position_error(sinusoidal_positions(512, dim), seed) for seed in SEEDS] == [0.0] * 10
    errors = [probes.relative_position_error(sinusoidal_positions(512, 512), seed) for seed in SEEDS]
    assert abs(np.mean(errors) - 0.0588) <= RELATIVE_TOLERANCE


absolute, by_heart = probes.absolute_position_error, partial(probes.absolute_position_error, penalty=0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "probe", "mean", "lowest", "highest"),  # as the study files and docstrings state them
    [
        ("minilm", absolute, 15.62, 14.48, 17.03), ("minilm", by_heart, 58.03, 50.9, 63.5),
        ("minilm", probes.relative_position_error, 0.0568, 0.039, 0.072),
        ("bert", absolute, 30.14, 28.04, 36.34), ("bert", by_heart, 34.25, 32.9, 35.9),
        ("bert", probes.relative_position_error, 0.1237, 0.1035, 0.1427),
    ],
)  # fmt: skip
def test_learned_tables_over_ten_shuffles(
    model: str, probe: Any, mean: float, lowest: float, highest: float, request: pytest.FixtureRequest
) -> None:
    if model == "bert":
        table = request.getfixturevalue("bert_positions")
    else:
        with minibert.load(request.getfixturevalue("minilm")) as layer:
            table = np.array(layer.position_embeddings.weight)
    errors = [probe(table, seed) for seed in SEEDS]
    near = RELATIVE_TOLERANCE if mean < 1 else ABSOLUTE_TOLERANCE
    assert abs(np.mean(errors) - mean) <= near
    assert lowest - 3 * near < min(errors) and max(errors) < highest + 3 * near
