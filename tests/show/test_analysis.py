"""Similarity, nearest rows, principal components, and the two probes, against definitions and known figures."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibert.equations.input_layer import Array, sinusoidal_positions
from minibert.show import analysis

# float64 against a definition computed in another order: measured at most 2.7e-14
DEFINITION_TOLERANCE = 3e-13
# what is left of the gradient of the logistic loss at the minimum found: measured 3.7e-11
SLOPE_TOLERANCE = 1e-9

# where the mean over the seeds must lie; measured: BERT 34.25 and 18.2 %, sinusoids 0.00 and 6.0 %
SEEDS = range(10)
BERT_ABSOLUTE, BERT_RELATIVE = (33.0, 36.0), (0.17, 0.21)
SINUSOID_ABSOLUTE, SINUSOID_RELATIVE = (0.0, 0.05), (0.04, 0.07)


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


# cosine similarity


def test_cosine_similarity_is_its_definition() -> None:
    x, y = normal(5, 4), normal(3, 4)
    found = analysis.cosine_similarity(x, y)
    assert found.shape == (5, 3)
    for i, j in np.ndindex(5, 3):
        expected = sum(x[i] * y[j]) / (sum(x[i] ** 2) * sum(y[j] ** 2)) ** 0.5
        assert abs(found[i, j] - expected) <= DEFINITION_TOLERANCE


def test_cosine_similarity_to_itself_is_symmetric_with_ones() -> None:
    x = normal(40, 7).astype(np.float32)
    found = analysis.cosine_similarity(x)
    assert found.dtype == np.float64
    assert np.abs(np.diag(found) - 1).max() <= DEFINITION_TOLERANCE
    assert np.abs(found - found.T).max() <= DEFINITION_TOLERANCE
    assert np.all(np.isfinite(np.arccos(found)))
    assert np.abs(analysis.cosine_similarity(1024 * x) - found).max() <= DEFINITION_TOLERANCE


def test_sinusoids_are_similar_by_distance_alone() -> None:
    found = analysis.cosine_similarity(sinusoidal_positions(64, 32))
    for distance in range(64):
        assert np.ptp(np.diagonal(found, distance)) <= 1e-7  # the table is float32: measured 2.3e-8
    assert np.ptp(analysis.cosine_similarity(normal(64, 32)).diagonal(1)) > 0.1


def test_a_row_of_zeros_is_similar_to_nothing() -> None:
    assert np.array_equal(analysis.cosine_similarity([[0.0, 0.0], [1.0, 0.0]]), [[0, 0], [0, 1]])


def test_cosine_similarity_refuses_what_has_no_rows() -> None:
    with pytest.raises(ValueError, match=r"x must have shape \(rows, dim\), found \(2,\); .* x\[None\]"):
        analysis.cosine_similarity([1.0, 2.0])
    with pytest.raises(ValueError, match="x has 2 columns, but y has 3"):
        analysis.cosine_similarity([[1.0, 2.0]], [[1.0, 2.0, 3.0]])


# nearest tokens


@given(
    seed=st.integers(0, 2**16),
    vocab=st.sampled_from([1, 5, 40, analysis.BLOCK - 1, analysis.BLOCK, 2 * analysis.BLOCK + 3]),
    by_id=st.booleans(),
)
def test_nearest_tokens_are_the_largest_similarities(seed: int, vocab: int, by_id: bool) -> None:
    table = np.random.default_rng(seed).standard_normal((vocab, 3)).astype(np.float32)
    token, k = seed % vocab, min(vocab, 7)
    query = table[token] if by_id else normal(3, seed=seed)
    ids, similarities = analysis.nearest_tokens(table, token if by_id else query, k)
    every = analysis.cosine_similarity(np.asarray(query)[None], table)[0]
    assert ids.dtype == np.int64 and ids.shape == similarities.shape == (k,)
    assert len(set(ids.tolist())) == k
    assert np.abs(similarities - every[ids]).max() <= DEFINITION_TOLERANCE
    assert np.all(np.diff(similarities) <= 0)
    assert np.delete(every, ids).max(initial=-1.0) <= similarities[-1] + DEFINITION_TOLERANCE


def test_equal_rows_tie_by_id_across_blocks() -> None:
    table = normal(2 * analysis.BLOCK + 3, 50)  # a matrix product treats the last rows of an odd number differently
    copies = [5, analysis.BLOCK - 1, analysis.BLOCK, 2 * analysis.BLOCK, 2 * analysis.BLOCK + 2]
    table[copies] = normal(50)
    for query in (copies[2], table[copies[2]] + 0.3):
        ids, similarities = analysis.nearest_tokens(table, query, k=6)
        assert ids[:5].tolist() == copies
        assert len(set(similarities[:5].tolist())) == 1
        assert similarities[5] < similarities[4]


def test_nearest_tokens_in_a_mapped_table(tmp_path: Path) -> None:
    table = normal(100, 8).astype(np.float32)
    np.save(tmp_path / "table.npy", table)
    mapped = np.load(tmp_path / "table.npy", mmap_mode="r")
    for from_map, from_memory in zip(
        analysis.nearest_tokens(mapped, 3), analysis.nearest_tokens(table, 3), strict=True
    ):
        assert np.array_equal(from_map, from_memory)


def test_nearest_tokens_need_little_memory_beside_the_table() -> None:
    table = np.ones((30522, 768), np.float32)
    tracemalloc.start()
    try:
        analysis.nearest_tokens(table, 101)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 30e6  # measured 19.2 MB; the table widened at once would be 188 MB


def test_nearest_tokens_refuse_what_they_cannot_answer() -> None:
    table = np.ones((3, 2))
    with pytest.raises(ValueError, match=r"k must be in 1\.\.3, .* found 4"):
        analysis.nearest_tokens(table, 0, k=4)
    with pytest.raises(IndexError, match=r"query is -1, but the table has rows 0\.\.2"):
        analysis.nearest_tokens(table, -1, k=1)
    with pytest.raises(TypeError, match="query must be integers"):
        analysis.nearest_tokens(table, 1.0, k=1)  # type: ignore[arg-type]
    for vector in (np.ones(3), np.array([1.0, np.nan])):
        with pytest.raises(ValueError, match="an id or 2 finite numbers"):
            analysis.nearest_tokens(table, vector, k=1)


# principal components


def test_principal_components_are_the_eigenvectors_of_the_covariance() -> None:
    x = normal(30, 5) * [5.0, 1.0, 3.0, 0.5, 0.1]
    found = analysis.principal_components(x, count=3)
    variances, vectors = np.linalg.eigh(np.cov(x.T))
    for i in range(3):
        assert abs(abs(found.directions[i] @ vectors[:, -1 - i]) - 1) <= DEFINITION_TOLERANCE
        assert abs(found.shares[i] - variances[-1 - i] / variances.sum()) <= DEFINITION_TOLERANCE
    assert np.abs(found.coordinates - (x - x.mean(axis=0)) @ found.directions.T).max() <= DEFINITION_TOLERANCE
    assert found.coordinates.shape == (30, 3) and np.all(np.diff(found.shares) < 0)


def test_principal_components_do_not_depend_on_the_sign_of_a_singular_vector() -> None:
    x = normal(20, 6)
    found, mirrored = analysis.principal_components(x), analysis.principal_components(-x)
    assert np.abs(found.directions - mirrored.directions).max() <= DEFINITION_TOLERANCE
    assert np.abs(found.coordinates + mirrored.coordinates).max() <= DEFINITION_TOLERANCE
    assert np.all(found.directions[np.arange(2), np.abs(found.directions).argmax(axis=1)] > 0)


def test_equal_rows_have_no_components_to_share() -> None:
    found = analysis.principal_components(np.ones((4, 3)))
    assert not np.any(found.coordinates) and not np.any(found.shares)


@pytest.mark.parametrize("count", [0, 3])
def test_principal_components_refuse_more_than_there_are(count: int) -> None:
    with pytest.raises(ValueError, match=rf"count must be in 1\.\.2, .* found {count}"):
        analysis.principal_components(np.ones((5, 2)), count)


# the probes' parts


@given(count=st.integers(2, 40), folds=st.integers(2, 40))
def test_every_sample_is_tested_once_by_those_that_did_not_see_it(count: int, folds: int) -> None:
    if folds > count:
        with pytest.raises(ValueError, match=rf"folds must be in 2\.\.{count}"):
            list(analysis.k_folds(count, folds))
        return
    parts = list(analysis.k_folds(count, folds))
    assert len(parts) == folds
    assert np.concatenate([test for _, test in parts]).tolist() == list(range(count))
    for train, test in parts:
        assert sorted([*train.tolist(), *test.tolist()]) == list(range(count))
    sizes = [len(test) for _, test in parts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(("samples", "features"), [(30, 4), (10, 25)])
def test_linear_regression_is_least_squares_with_the_shortest_w(samples: int, features: int) -> None:
    x, y = normal(samples, features), normal(samples)
    w, b = analysis.linear_regression(x, y)
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
    w, b = analysis.logistic_regression(x, y, c)
    p = 1 / (1 + np.exp(-(x @ w + b)))
    assert np.abs(c * (p - y) @ x + w).max() <= SLOPE_TOLERANCE * max(size, 1)
    assert abs(c * np.sum(p - y)) <= SLOPE_TOLERANCE


def test_logistic_regression_shortens_a_step_that_is_too_long() -> None:
    """Rows of very unequal length and hardly any penalty: whole Newton steps would run away from the minimum."""
    generator = np.random.default_rng(36)
    samples, features = 13, 4
    x = generator.standard_normal((samples, features)) * 10 ** generator.uniform(-2, 3, (samples, 1))
    y, c = generator.random(samples) > 0.5, 1000.0
    w, b = analysis.logistic_regression(x, y, c)
    p = (1 + np.tanh((x @ w + b) / 2)) / 2
    assert np.abs(c * (p - y) @ x + w).max() <= SLOPE_TOLERANCE and abs(c * np.sum(p - y)) <= SLOPE_TOLERANCE


def test_the_intercept_bears_no_penalty() -> None:
    """Shifting every feature moves the intercept alone, however far the shift."""
    x, y = normal(50, 3), normal(50) > 0
    w, b = analysis.logistic_regression(x, y)
    shifted, b_shifted = analysis.logistic_regression(x + 10, y)
    assert np.abs(shifted - w).max() <= SLOPE_TOLERANCE
    assert abs(b_shifted - (b - 10 * w.sum())) <= SLOPE_TOLERANCE


def test_logistic_regression_refuses_one_class_and_numbers_that_are_none() -> None:
    for x, y in ((normal(3, 2), np.ones(3, bool)), (normal(3, 2), np.zeros(3, bool))):
        with pytest.raises(ValueError, match="samples of both classes"):
            analysis.logistic_regression(x, y)
    with pytest.raises(ValueError, match="finite features"):
        analysis.logistic_regression(np.array([[np.nan], [1.0]]), np.array([True, False]))


# the probes


def test_absolute_data_are_the_rows_shuffled() -> None:
    table = normal(50, 3).astype(np.float32)
    x, y = analysis.absolute_position_data(table, seed=1)
    assert x.dtype == np.float64 and np.array_equal(x, table[y])
    assert sorted(y.tolist()) == list(range(50)) and y.tolist() != list(range(50))
    assert not np.array_equal(y, analysis.absolute_position_data(table, seed=2)[1])


def test_relative_data_are_distinct_ordered_pairs() -> None:
    table = np.arange(30.0)[:, None] * [1.0, 0.0]  # column 0 of either half tells the position
    x, y = analysis.relative_position_data(table, seed=1, pairs=900)
    first, second = x[:, 0], x[:, 2]
    assert len(set(zip(first.tolist(), second.tolist(), strict=True))) == 900
    assert np.array_equal(y, second > first) and y.sum() == 30 * 29 / 2
    assert first.tolist() != sorted(first.tolist())
    with pytest.raises(ValueError, match="pairs is 901, but 30 positions make only 900"):
        analysis.relative_position_data(table, pairs=901)


@pytest.mark.slow
def test_rows_without_a_meaning_teach_the_probes_nothing() -> None:
    """The probes measure the table, not themselves: on noise they are as good as a guess."""
    noise = normal(2048, 64)
    assert analysis.absolute_position_error(noise) > 500  # guessing the middle would be 512 off; measured 516
    assert 0.43 < analysis.relative_position_error(noise) < 0.57  # 512 coins: 0.50 +- 0.022; measured 0.48


def within(band: tuple[float, float], errors: list[float]) -> bool:
    return bool(band[0] <= np.mean(errors) <= band[1])


@pytest.mark.slow
def test_absolute_probe_reads_sinusoids() -> None:
    table = sinusoidal_positions(512, 768)
    assert within(SINUSOID_ABSOLUTE, [analysis.absolute_position_error(table, seed) for seed in SEEDS])


@pytest.mark.slow
def test_relative_probe_reads_sinusoids() -> None:
    table = sinusoidal_positions(512, 768)
    assert within(SINUSOID_RELATIVE, [analysis.relative_position_error(table, seed) for seed in SEEDS])


@pytest.mark.slow
def test_absolute_probe_of_bert_is_the_papers(bert_table: Array) -> None:
    assert within(BERT_ABSOLUTE, [analysis.absolute_position_error(bert_table, seed) for seed in SEEDS])


@pytest.mark.slow
def test_relative_probe_of_bert_is_the_papers(bert_table: Array) -> None:
    assert within(BERT_RELATIVE, [analysis.relative_position_error(bert_table, seed) for seed in SEEDS])
