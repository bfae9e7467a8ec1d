"""The vectors that are nearest to others. All are compared, the best are kept; memory holds one block of scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.input_layer import Array
from minibert.equations.sentences import cosine, dot

from .pipeline import check_positive

BLOCK = 8192  # vectors that are compared at once
UNIT = 1e-3  # how far the length of a normalized vector may be from 1: rounded to float16 it is up to 5e-4


def search(
    queries: ArrayLike,
    vectors: Array | Iterable[Array],
    k: int = 10,
    compare: Callable[[Array, Array], Array] = cosine,
    *,
    normalized: bool = False,
) -> tuple[Array, Array]:
    """Give for each query the k vectors with the largest score, best first: their numbers and their scores.

    queries (n, dim), vectors (m, dim) or an iterator of such blocks -> (n, k) int64 and (n, k); (n, m) where m < k. Of
    equal scores the first vector comes first. compare: (n, dim), (m, dim) -> (n, m); `encoder.similarity` compares as a
    model's folder says. normalized: queries and vectors have length 1 already, so their dot product is the cosine, and
    nothing is divided again. Of int8 and uint8 vectors the numbers themselves are compared; those of one bit a number
    take `compare=minibert.equations.quantization.hamming`.

    Raises TypeError for anything but vectors; ValueError for vectors of two widths, for a k below 1, for `normalized`
    with another `compare`, and as `cosine_of_normalized`.

    >>> search(np.array([[1.0, 0.0]]), np.array([[0.0, 2.0], [3.0, 0.0], [1.0, 0.0]]), k=2)
    (array([[1, 2]]), array([[1., 1.]]))
    """
    check_positive("k", k)
    if normalized:
        if compare is not cosine:
            raise ValueError("normalized=True compares by the dot product; leave compare out, or normalized")
        compare = cosine_of_normalized
    wanted = vectors_of(queries, "queries")
    found = np.empty((len(wanted), 0), np.int64), np.empty((len(wanted), 0), np.float32)
    blocks: Iterable[ArrayLike] = vectors
    if isinstance(vectors, np.ndarray):
        rows = vectors_of(vectors, "vectors")
        blocks = (rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK))
    for each in searching(wanted, (_block(block, wanted) for block in blocks), k, compare):
        found = each  # the last one counts
    return found


def vectors_of(value: ArrayLike, name: str) -> Array:
    """Give vectors (n, dim); one (dim,) becomes (1, dim). Raises TypeError for anything else."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiub" or array.ndim not in (1, 2):
        raise TypeError(
            f"{name} must be vectors (n, dim) of numbers, found {array.dtype} of shape {array.shape}; encode makes "
            "vectors of texts"
        )
    return np.atleast_2d(array)


def _block(value: ArrayLike, queries: Array) -> Array:
    block = vectors_of(value, "vectors")
    if block.shape[1] != queries.shape[1]:
        raise ValueError(f"vectors must have one width, found queries {queries.shape} and vectors {block.shape}")
    return block


def cosine_of_normalized(a: Array, b: Array) -> Array:
    """Give the cosine of vectors of length 1, which is their dot product: (n, dim), (m, dim) -> (n, m).

    Raises ValueError where the first vector of either is not normalized; of the others this is not known. Zeros pass.
    """
    for vector in (*a[:1], *b[:1]):
        length = float(np.linalg.norm(vector.astype(np.float64)))
        if length and not abs(length - 1) <= UNIT:
            raise ValueError(
                f"normalized=True is for vectors of length 1, found one of length {length:.6g}; leave it out, or pass "
                "normalize_embeddings=True to encode"
            )
    return dot(a, b)


def searching(
    queries: Array, blocks: Iterable[Array], k: int, compare: Callable[[Array, Array], Array]
) -> Iterator[tuple[Array, Array]]:
    """Give what `search` gives for all blocks so far, after each block."""
    ids, scores, start = np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32), 0
    for block in blocks:
        found = compare(queries, block)
        if ids.shape[1] == k:
            ids, scores = ids.copy(), scores.copy()  # the others were given away
            for i, row in enumerate(found):
                # an equal score comes later, and so is not among the best; nothing is larger than NaN
                last = scores[i, -1]
                better = np.arange(len(row)) if np.isnan(last) else np.flatnonzero(row > last)
                if len(better):
                    both = np.hstack([ids[i], better + start]), np.hstack([scores[i], row[better]])
                    (order,) = largest(both[1][None], k)
                    ids[i], scores[i] = both[0][order], both[1][order]
        else:
            order = largest(found, k)
            some = np.hstack([ids, order + start]), np.hstack([scores, np.take_along_axis(found, order, 1)])
            order = largest(some[1], k)
            ids, scores = np.take_along_axis(some[0], order, 1), np.take_along_axis(some[1], order, 1)
        start += len(block)
        yield ids, scores


def largest(scores: Array, k: int) -> Array:
    """Give the places of each row's k largest scores, best first: (n, m) -> (n, k), (n, m) where m < k.

    Of equal scores the first comes first; NaN comes last.

    >>> largest(np.array([[0.5, 2.0, 0.5, 3.0]]), 3)
    array([[3, 1, 0]])
    """
    if scores.shape[1] <= 2 * k:
        return np.argsort(-scores, axis=1, kind="stable")[:, :k]
    found = np.empty((len(scores), k), np.int64)
    for i, row in enumerate(-scores):
        last = np.partition(row, k - 1)[k - 1]  # sorting all would take longer than comparing
        some = np.arange(len(row)) if np.isnan(last) else np.flatnonzero(row <= last)
        found[i] = some[np.argsort(row[some], kind="stable")[:k]]
    return found
