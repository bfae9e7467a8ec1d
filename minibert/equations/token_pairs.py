"""Why two texts are alike: their similarity as a sum over pairs of tokens.

A pooled vector is a sum with one part for each token, v = sum_i p_i, and so the cosine of two texts is a sum too:

    cos(v, w) = v . w / (|v| |w|) = sum_i sum_j p_i . q_j / (|v| |w|)

| pooling | the part of token i |
|---|---|
| mean | p_i = x_i / n |
| mean_sqrt_len_tokens | p_i = x_i / sqrt(n) |
| weightedmean | p_i = i x_i / (1 + 2 + ... + n) |
| max | p_i[d] = x_i[d] for each dimension d in which token i has the largest number, else 0 |

A linear map after the pooling maps each part: v W^T + b = sum_i p_i W^T + b, and its bias is a part of its own.

A part of a sum is no cause: each x_i already depends on all tokens of its text. Take a word out and compare.
"""

from __future__ import annotations

import math

import numpy as np

from .input_layer import Array
from .sentences import MAXSIMS

SUMS = ("mean", "mean_sqrt_len_tokens", "weightedmean", "max")
"""The poolings with a part for each token. "cls" and "lasttoken" are the vector of one token."""


def pooled_parts(rows: Array, pooling: str, skip: int = 0) -> Array:
    """Compute each token's part of a pooled vector: `sum_i y[i] = POOLINGS[pooling](rows)`.

    rows (seq, dim), the vectors of one text's tokens -> (seq, dim) float64. The parts of the first `skip` tokens, which
    are a prompt, are 0. With "max" the first token that has a dimension's largest number gets it.

    Raises ValueError for a pooling that is not in `SUMS`.

    >>> pooled_parts(np.array([[1.0, 4.0], [3.0, 2.0]]), "mean")
    array([[0.5, 2. ],
           [1.5, 1. ]])
    >>> pooled_parts(np.array([[1.0, 4.0], [3.0, 2.0]]), "max")
    array([[0., 4.],
           [3., 0.]])
    """
    if pooling not in SUMS:
        raise ValueError(f"pooling must be one of {', '.join(SUMS)}, found {pooling!r}; its vector is one token's")
    x = np.asarray(rows, np.float64)
    seq = len(x)
    count = max(1, seq - skip)
    counted = np.arange(seq) >= skip
    if pooling == "max":
        largest = np.where(counted[:, None], x, -np.inf).argmax(axis=0) if seq else np.zeros(x.shape[1], int)
        return np.where((np.arange(seq)[:, None] == largest) & counted[:, None], x, 0.0)
    positions = np.arange(1, seq + 1) * counted
    weights = {
        "mean": counted / count,
        "mean_sqrt_len_tokens": counted / math.sqrt(count),
        "weightedmean": positions / max(1, positions.sum()),
    }
    return np.asarray(weights[pooling][:, None] * x)


def similarity_pairs(a: Array, b: Array, measure: str = "cosine") -> Array:
    """Split the similarity of two vectors by the parts of both: `y[i, j] = a_i . b_j / (|sum a| |sum b|)`.

    a (n, dim) and b (m, dim), the parts of two vectors -> (n, m) float64, whose sum is the cosine of the vectors. With
    "dot" the divisor is 1. If a vector is zero, all pairs are 0.

    Raises ValueError for another measure: a distance is no sum over pairs.

    >>> similarity_pairs(np.array([[3.0, 0.0], [0.0, 4.0]]), np.array([[0.0, 1.0], [2.0, 0.0], [-2.0, 0.0]]))
    array([[ 0. ,  1.2, -1.2],
           [ 0.8,  0. ,  0. ]])
    """
    if measure not in ("cosine", "dot"):
        raise ValueError(f"measure must be cosine or dot, found {measure!r}, which is no sum over pairs of tokens")
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    y = a @ b.T
    if measure == "cosine":
        length = float(np.linalg.norm(a.sum(axis=0)) * np.linalg.norm(b.sum(axis=0)))
        y = y / length if length else np.zeros_like(y)
    return np.asarray(y)


def maxsim_pairs(query: Array, document: Array, measure: str = "maxsim") -> Array:
    """Split the score of late interaction: a query's token adds its product with the document's token that fits best.

    `y[i, j] = query[i] . document[j]` for the first j with the largest product, else 0; "meanmaxsim" divides by the
    number of the query's tokens.

    query (n, dim), document (m, dim) -> (n, m) float64, whose sum is the score. Raises ValueError for another measure.

    >>> maxsim_pairs(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[3.0, 1.0], [2.0, 5.0]]))
    array([[3., 0.],
           [0., 5.]])
    """
    if measure not in MAXSIMS:
        raise ValueError(f"measure must be one of {', '.join(MAXSIMS)}, found {measure!r}")
    products = np.asarray(query, np.float64) @ np.asarray(document, np.float64).T
    if not products.size:
        return products
    best = products.argmax(axis=1)[:, None] == np.arange(products.shape[1])
    return np.where(best, products, 0.0) / (len(products) if measure == "meanmaxsim" else 1)
