"""What a table holds: similarities, nearest tokens, principal components.

Arrays come in, numbers go out; nothing here knows a file or a model. Everything is computed in float64, whatever the
table's dtype, so that rounding does not change what is measured.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.input_layer import Array
from minibert.equations.similarity import as_matrix, cosine_similarity, nearest_tokens

__all__ = ["PrincipalComponents", "cosine_similarity", "nearest_tokens", "principal_components"]


class PrincipalComponents(NamedTuple):
    """Coordinates (rows, count), directions (count, dim), and each direction's part of the variance (count,)."""

    coordinates: Array
    directions: Array
    shares: Array


def principal_components(x: ArrayLike, count: int = 2) -> PrincipalComponents:
    """The directions in which the rows differ most, and each row's coordinates along them.

        x - mean = U S V^T:   directions = V^T,   coordinates = U S,   shares = S^2 / sum(S^2)

    x (rows, dim) -> coordinates (rows, count), directions (count, dim) of length 1, shares (count,) falling. The
    mean is that of the rows passed, so a map of five tokens is not a part of the map of the vocabulary. A
    singular vector's sign is arbitrary: here each direction's largest entry is positive.

    Raises ValueError for a count outside 1..min(rows, dim).

    >>> pc = principal_components([[0.0, 0.0], [3.0, 4.0], [-3.0, -4.0]])
    >>> pc.coordinates[:, 0].round(4) + 0.0, pc.shares.round(4)
    (array([ 0.,  5., -5.]), array([1., 0.]))
    """
    rows = as_matrix(x, "x")
    if not 1 <= count <= min(rows.shape):
        raise ValueError(f"count must be in 1..{min(rows.shape)}, the smaller side of x; found {count}")
    left, sizes, directions = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    left, directions = left[:, :count], directions[:count]
    largest = np.argmax(np.abs(directions), axis=1)
    sign = np.where(directions[np.arange(count), largest] < 0, -1.0, 1.0)
    squares = sizes * sizes
    shares = squares[:count] / (np.sum(squares) or 1.0)  # equal rows do not differ in any direction
    return PrincipalComponents(left * (sizes[:count] * sign), directions * sign[:, None], shares)
