"""The two probes of the study files against definitions and known figures; their examples run."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from pathlib import Path

import numpy as np
import probes
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibert.equations.input_layer import Array, sinusoidal_positions

# float64 against a definition computed in another order: measured at most 2.7e-14
DEFINITION_TOLERANCE = 3e-13
# what is left of the gradient of the logistic loss at the minimum found: measured 3.7e-11
SLOPE_TOLERANCE = 1e-9

# means over ten shuffles of bert-base-uncased's table and of sinusoids, as the study files and docstrings state them
SEEDS = range(10)
BERT_ABSOLUTE, BERT_RELATIVE = 34.25, 0.182
SINUSOID_RELATIVE = {512: 0.062, 768: 0.060}  # by width
# one position, or one pair in 512, may fall otherwise where another processor rounds otherwise
ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE = 0.1, 0.002


def normal(*shape: int, seed: int = 3) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape)


@pytest.fixture(scope="module")
def bert_table(reference_folder: Path) -> Array:
    path = reference_folder / "bert_base_uncased_position_embeddings.npy"
    if not path.is_file():
        pytest.skip(f"{reference_folder}, which MINIBERT_REFERENCE names, holds no {path.name}")
    table: Array = np.load(path)
    assert table.shape == (512, 768)
    return table


def test_the_examples_hold() -> None:
    assert doctest.testmod(probes) == (0, 11)


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
    for train, test in parts:
        assert sorted([*train.tolist(), *test.tolist()]) == list(range(count))
    sizes = [len(test) for _, test in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("samples", "features"), [(30, 4), (10, 25)])
def test_linear_regression_is_least_squares_with_the_shortest_w(samples: int, features: int) -> None:
    x, y = normal(samples, features), normal(samples)
    w, b = probes.linear_regression(x, y)
    residual = x @ w + b - y
    # the slope of the squares is zero in every direction, the intercept's included
    assert np.abs(np.append(residual @ x, residual.sum())).max() <= DEFINITION_TOLERANCE
    centred = x - x.mean(axis=0)
    inside = centred.T @ np.linalg.lstsq(centred.T, w, rcond=None)[0]
    assert np.abs(inside - w).max() <= DEFINITION_TOLERANCE  # no part of w stands beside the samples' span


@pytest.mark.parametrize(("samples", "features"), [(60, 4), (20, 60)])
@pytest.mark.parametrize("c", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("size", [1e-2, 1.0, 1e3])
def test_logistic_regression_stands_at_the_minimum(samples: int, features: int, c: float, size: float) -> None:
    """The loss is convex: where its slope over all features and the intercept is zero, there is the minimum."""
    x, y = size * (normal(samples, features) + 0.3), normal(samples) > 0.4
    w, b = probes.logistic_regression(x, y, c)
    p = 1 / (1 + np.exp(-(x @ w + b)))
    assert np.abs(c * (p - y) @ x + w).max() <= SLOPE_TOLERANCE * max(size, 1)
    assert abs(c * np.sum(p - y)) <= SLOPE_TOLERANCE


def test_logistic_regression_shortens_a_step_that_is_too_long() -> None:
    """Rows of very unequal length and hardly any penalty: whole Newton steps would run away from the minimum."""
    generator = np.random.default_rng(36)
    samples, features = 13, 4
    x = generator.standard_normal((samples, features)) * 10 ** generator.uniform(-2, 3, (samples, 1))
    y, c = generator.random(samples) > 0.5, 1000.0
    w, b = probes.logistic_regression(x, y, c)
    p = (1 + np.tanh((x @ w + b) / 2)) / 2
    assert np.abs(c * (p - y) @ x + w).max() <= SLOPE_TOLERANCE and abs(c * np.sum(p - y)) <= SLOPE_TOLERANCE


def test_the_intercept_bears_no_penalty() -> None:
    """Shifting every feature moves the intercept alone, however far the shift."""
    x, y = normal(50, 3), normal(50) > 0
    w, b = probes.logistic_regression(x, y)
    shifted, b_shifted = probes.logistic_regression(x + 10, y)
    assert np.abs(shifted - w).max() <= SLOPE_TOLERANCE
    assert abs(b_shifted - (b - 10 * w.sum())) <= SLOPE_TOLERANCE


def test_logistic_regression_refuses_one_class_and_numbers_that_are_none() -> None:
    for x, y in ((normal(3, 2), np.ones(3, bool)), (normal(3, 2), np.zeros(3, bool))):
        with pytest.raises(ValueError, match="samples of both classes"):
            probes.logistic_regression(x, y)
    with pytest.raises(ValueError, match="finite features"):
        probes.logistic_regression(np.array([[np.nan], [1.0]]), np.array([True, False]))


# the probes


def test_absolute_data_are_the_rows_shuffled() -> None:
    table = normal(50, 3).astype(np.float32)
    x, y = probes.absolute_position_data(table, seed=1)
    assert x.dtype == np.float64 and np.array_equal(x, table[y])
    assert sorted(y.tolist()) == list(range(50)) and y.tolist() != list(range(50))
    assert not np.array_equal(y, probes.absolute_position_data(table, seed=2)[1])


def test_relative_data_are_distinct_ordered_pairs() -> None:
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
    assert probes.absolute_position_error(noise) > 500  # guessing the middle would be 512 off; measured 516
    assert 0.43 < probes.relative_position_error(noise) < 0.57  # 512 coins: 0.50 +- 0.022; measured 0.48


def shuffled(probe: Callable[[Array, int], float], table: Array) -> list[float]:
    return [probe(table, seed) for seed in SEEDS]


@pytest.mark.slow
@pytest.mark.parametrize("dim", SINUSOID_RELATIVE)
def test_sinusoids_tell_every_position_and_nearly_every_order(dim: int) -> None:
    table = sinusoidal_positions(512, dim)
    assert shuffled(probes.absolute_position_error, table) == [0.0] * len(SEEDS)
    relative = np.mean(shuffled(probes.relative_position_error, table))
    assert abs(relative - SINUSOID_RELATIVE[dim]) <= RELATIVE_TOLERANCE


@pytest.mark.slow
def test_absolute_probe_of_bert(bert_table: Array) -> None:
    errors = shuffled(probes.absolute_position_error, bert_table)
    assert abs(np.mean(errors) - BERT_ABSOLUTE) <= ABSOLUTE_TOLERANCE
    assert min(errors) > 32.5 and max(errors) < 36.5  # how far one shuffle scatters: measured 32.9 to 35.9


@pytest.mark.slow
def test_relative_probe_of_bert(bert_table: Array) -> None:
    errors = shuffled(probes.relative_position_error, bert_table)
    assert abs(np.mean(errors) - BERT_RELATIVE) <= RELATIVE_TOLERANCE
    assert min(errors) > 0.14 and max(errors) < 0.22  # measured 0.149 to 0.213
