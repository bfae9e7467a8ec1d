"""Similarity of rows: the cosine between them, and the rows of a table nearest to one.

Everything is computed in float64, whatever the table's dtype, so that rounding does not change the similarities.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike

from .fast import check_ids
from .input_layer import Array
from .sentences import normalized

# rows of a word table that are converted to float64 at a time: 6 MB at 768 columns
BLOCK = 1024
LARGEST = 1e150  # a length: float64 holds its square, and the square of its inverse


def cosine_similarity(x: ArrayLike, y: ArrayLike | None = None) -> Array:
    """Compute the cosine of the angle between each row of x and each row of y: `c[i, j] = x_i . y_j / (|x_i| |y_j|)`.

    x (n, dim), y (m, dim), by default x -> (n, m), float64 in -1..1. A row of zeros has no direction; its similarity
    is 0. The similarity of a row with a NaN is NaN. The result has n * m entries: for one row against a whole
    vocabulary use `nearest_tokens`. Raises ValueError for anything but tables of equal width.

    >>> cosine_similarity([[1.0, 0.0], [3.0, 3.0]]).round(4)
    array([[1.    , 0.7071],
           [0.7071, 1.    ]])
    """
    left = _unit_rows(as_matrix(x, "x"))
    right = left if y is None else _unit_rows(as_matrix(y, "y"))
    if left.shape[1] != right.shape[1]:
        raise ValueError(f"x has {left.shape[1]} columns, but y has {right.shape[1]}; only rows of equal width compare")
    # rounding can leave 1 + 2e-16, whose arc cosine is not a number
    similarity: Array = np.clip(left @ right.T, -1.0, 1.0)
    return similarity


def as_matrix(x: ArrayLike, name: str) -> Array:
    """Convert rows to float64. Raises ValueError for anything but two axes."""
    rows = np.asarray(x, np.float64)
    if rows.ndim != 2:
        raise ValueError(f"{name} must have shape (rows, dim), found {rows.shape}; for a single row pass {name}[None]")
    return rows


def _unit_rows(rows: Array) -> Array:
    with np.errstate(over="ignore"):
        length = np.linalg.norm(rows, axis=-1, keepdims=True)
    unit: Array = np.divide(rows, length, out=np.zeros_like(rows), where=length > 0)
    lost = ~((length[..., 0] > 1 / LARGEST) & (length[..., 0] < LARGEST))  # NaN too
    unit[lost] = normalized(rows[lost])  # slower, for any length
    return unit


def similarities_to(vector: Array, blocks: Iterable[Array]) -> Array:
    """Compute the cosine of a vector and each row of a table in blocks: (dim,), blocks (rows, dim) -> (all rows,).

    One block is in memory at a time, so the table may be larger than memory. Equal rows have equal similarities.

    >>> similarities_to(np.array([2.0, 0.0]), [np.array([[0.0, 3.0]]), np.array([[-1.0, 0.0], [5.0, 0.0]])])
    array([ 0., -1.,  1.])
    """
    unit = _unit_rows(np.asarray(vector, np.float64))
    # one dot product for each row: a matrix product can give equal rows results that differ in the last bit
    cosines = [np.vecdot(_unit_rows(np.asarray(block, np.float64)), unit) for block in blocks]
    similarities: Array = np.clip(np.concatenate([np.empty(0), *cosines]), -1.0, 1.0)
    return similarities


def nearest_tokens(table: Array, query: int | Array, k: int = 10) -> tuple[Array, Array]:
    """Return the k rows of the table whose direction is closest to a vector, or to the row of a token.

    table (vocab, dim), query a token id or a vector (dim,) -> ids (k,) int64 and their cosine similarities (k,),
    falling. Equal similarities are ordered by id. If query is an id, the row of this token is among the results, with
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
    similarities = similarities_to(vector, (table[start : start + BLOCK] for start in range(0, vocab, BLOCK)))
    (ids,) = top_indices(similarities[None], k)
    return ids, similarities[ids]


def top_indices(scores: Array, k: int) -> Array:
    """Return the indices of each row's k largest scores, best first: (n, m) -> (n, k), or (n, m) if m < k.

    If scores are equal, the first comes first; NaN comes last.

    >>> top_indices(np.array([[0.5, 2.0, 0.5, 3.0]]), 3)
    array([[3, 1, 0]])
    """
    falling = -scores if scores.dtype.kind == "f" else ~scores  # -x of an unsigned number wraps
    if scores.shape[1] <= 2 * k:
        return np.argsort(falling, axis=1, kind="stable")[:, :k]
    indices = np.empty((len(scores), k), np.int64)
    for i, row in enumerate(falling):
        last = np.partition(row, k - 1)[k - 1]  # sorting all would take longer than comparing
        some = np.flatnonzero(~(row > last))  # all of them if it is NaN
        indices[i] = some[np.argsort(row[some], kind="stable")[:k]]
    return indices
