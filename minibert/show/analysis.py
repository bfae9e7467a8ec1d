"""What a table holds: similarities, nearest tokens, principal components.

Arrays come in, numbers go out; nothing here knows a file or a model. Everything is computed in float64,
whatever the table's dtype: these are measurements, and rounding should not be among the things measured.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.input_layer import Array, check_ids

# rows of a word table that are widened to float64 at a time: 6 MB at 768 columns
BLOCK = 1024


def cosine_similarity(x: ArrayLike, y: ArrayLike | None = None) -> Array:
    """The cosine of the angle between each row of x and each row of y: `c[i, j] = x_i . y_j / (|x_i| |y_j|)`.

    x (rows, dim), y (others, dim), x itself where absent -> (rows, others), float64 in -1..1. A row of zeros has
    no direction; its similarity is 0. The result has rows * others entries: for one row against a whole
    vocabulary use `nearest_tokens`. Raises ValueError for anything but tables of equal width.

    >>> cosine_similarity([[1.0, 0.0], [3.0, 3.0]]).round(4)
    array([[1.    , 0.7071],
           [0.7071, 1.    ]])
    """
    left = _unit_rows(_table(x, "x"))
    right = left if y is None else _unit_rows(_table(y, "y"))
    if left.shape[1] != right.shape[1]:
        raise ValueError(f"x has {left.shape[1]} columns, but y has {right.shape[1]}; only rows of equal width compare")
    # rounding can leave 1 + 2e-16, whose arc cosine is not a number
    similarity: Array = np.clip(left @ right.T, -1.0, 1.0)
    return similarity


def _table(x: ArrayLike, name: str) -> Array:
    rows = np.asarray(x, np.float64)
    if rows.ndim != 2:
        raise ValueError(f"{name} must have shape (rows, dim), found {rows.shape}; for a single row pass {name}[None]")
    return rows


def _unit_rows(rows: Array) -> Array:
    length = np.linalg.norm(rows, axis=-1, keepdims=True)
    unit: Array = np.divide(rows, length, out=np.zeros_like(rows), where=length > 0)
    return unit


def nearest_tokens(table: Array, query: int | Array, k: int = 10) -> tuple[Array, Array]:
    """The k rows of the table whose direction is closest to a vector, or to the row of a token.

    table (vocab, dim), query a token id or a vector (dim,) -> ids (k,) int64 and their cosine similarities (k,),
    falling. Equal similarities are ordered by id. Asked for a token, its own row is among the answers, with
    similarity 1. The table may be a mapped file: it is read once, a block of rows at a time.

    Raises as `check_ids` for an id, ValueError for a vector that does not fit or a k outside 1..vocab.

    >>> nearest_tokens(np.array([[2.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [9.0, 0.0]]), query=3, k=3)
    (array([0, 3, 1]), array([1., 1., 0.]))
    """
    vocab, dim = table.shape
    if not 1 <= k <= vocab:
        raise ValueError(f"k must be in 1..{vocab}, the number of rows of the table; found {k}")
    row = table[check_ids(query, vocab, "query")] if np.ndim(query) == 0 else query
    vector = np.asarray(row, np.float64)
    if vector.shape != (dim,) or not np.all(np.isfinite(vector)):
        raise ValueError(f"query must be an id or {dim} finite numbers, the table's width; found shape {vector.shape}")
    vector, similarities = _unit_rows(vector), np.empty(vocab)
    for start in range(0, vocab, BLOCK):
        block = _unit_rows(table[start : start + BLOCK].astype(np.float64))
        # one dot product a row: in a matrix product equal rows can differ in the last bit, and would not tie
        similarities[start : start + BLOCK] = np.vecdot(block, vector)
    ids = np.argsort(-similarities, kind="stable")[:k]
    return ids, np.clip(similarities[ids], -1.0, 1.0)


class PrincipalComponents(NamedTuple):
    """Where each row lies (rows, count), the directions (count, dim), and the share of the variance (count,)."""

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
    rows = _table(x, "x")
    if not 1 <= count <= min(rows.shape):
        raise ValueError(f"count must be in 1..{min(rows.shape)}, the smaller side of x; found {count}")
    left, sizes, directions = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    left, directions = left[:, :count], directions[:count]
    largest = np.argmax(np.abs(directions), axis=1)
    sign = np.where(directions[np.arange(count), largest] < 0, -1.0, 1.0)
    squares = sizes * sizes
    shares = squares[:count] / (np.sum(squares) or 1.0)  # equal rows do not differ in any direction
    return PrincipalComponents(left * (sizes[:count] * sign), directions * sign[:, None], shares)
