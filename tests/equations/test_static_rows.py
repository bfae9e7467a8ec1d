"""How a static model's rows are made: the laws of frequencies and weights, components beside their definition."""

from __future__ import annotations

import numpy as np
import pytest
from drawn import normal

from minibert.equations import static

# float64 by the covariance beside a singular value decomposition: measured 4e-14
DEFINITION_TOLERANCE = 4e-13


def test_frequencies_add_up_and_fall_with_the_rank() -> None:
    p = static.zipf_probabilities(1000)
    assert abs(p.sum() - 1) < 1e-12 and np.abs(p[0] / p - (np.arange(1000) + 2) / 2).max() < 1e-9


def test_what_is_rarer_weighs_more_and_at_most_1() -> None:
    p = static.zipf_probabilities(30_000)
    w = static.sif_weights(p)
    assert (np.diff(w) > 0).all() and w.min() > 0 and w.max() < 1


@pytest.mark.parametrize(("rows", "dim"), [(9, 3), (3, 9), (2 * static.BLOCK + 5, 4)])
def test_components_are_those_of_the_decomposition_but_for_the_signs(rows: int, dim: int) -> None:
    x = (normal(rows, dim) * np.arange(1, dim + 1) + 5).astype(np.float32)
    count = min(rows - 1, dim)
    found = static.covariance_components(x, count)
    left, sizes, directions = np.linalg.svd(x - x.mean(axis=0, dtype=np.float64), full_matrices=False)
    coordinates, directions = left[:, :count] * sizes[:count], directions[:count]
    assert found.coordinates.dtype == np.float64
    turned = np.sign(np.vecdot(found.directions, directions))
    size = np.abs(coordinates).max()
    assert np.abs(found.coordinates - coordinates * turned).max() <= DEFINITION_TOLERANCE * size
    assert np.abs(found.directions - directions * turned[:, None]).max() <= DEFINITION_TOLERANCE * 10
    assert np.abs(found.shares - (sizes**2 / np.sum(sizes**2))[:count]).max() <= DEFINITION_TOLERANCE
    largest = np.abs(found.coordinates).argmax(axis=0)
    assert (found.coordinates[largest, np.arange(count)] > 0).all()


def test_the_first_of_two_largest_coordinates_is_positive() -> None:
    for x in ([[-1.0], [1.0]], [[1.0], [-1.0]]):
        assert static.covariance_components(x, 1).coordinates.tolist() == [[1.0], [-1.0]]


@pytest.mark.parametrize(
    "call",
    [
        lambda: static.zipf_probabilities(0),
        lambda: static.sif_weights([0.5], a=0),
        lambda: static.sif_weights([1.5]),
        lambda: static.sif_weights([np.nan]),
        lambda: static.covariance_components(np.ones((1, 3)), 1),
        lambda: static.covariance_components(np.ones((5, 3)), 4),
        lambda: static.covariance_components(np.ones((5, 3)), 0),
        lambda: static.covariance_components([[1.0, np.nan], [0.0, 1.0]], 1),
        lambda: static.covariance_components([[1.0, np.inf], [0.0, 1.0]], 1),
    ],
)
def test_what_has_no_meaning_is_refused(call: object) -> None:
    with pytest.raises(ValueError, match="found"):
        call()  # type: ignore[operator]
