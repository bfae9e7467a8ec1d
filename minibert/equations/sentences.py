"""One vector for a text: six formulas that pool its tokens' vectors, and four similarities of two texts. Two more
similarities are for texts that keep a vector for each token (`maxsim`).

Rows are (texts, seq, dim): texts of one length, nothing padded. `skip` leaves out a text's first tokens, which are a
prompt. The formulas are those of sentence-transformers, and so are the names in `POOLINGS` and `SIMILARITIES`.

Sources
    Reimers, Gurevych 2019, "Sentence-BERT" (arXiv:1908.10084): cls, max, mean
    Muennighoff 2022, "SGPT" (arXiv:2202.08904): the mean weighted by position, for causal models
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .input_layer import Array

Vector = np.ndarray[tuple[int], np.dtype[Any]]  # (dim,)
Matrix = np.ndarray[tuple[int, int], np.dtype[Any]]  # (n, dim)


def first_token(rows: Array, skip: int = 0) -> Array:
    """Return the first token's vector, [CLS] in BERT: `y = x[skip]`; if all tokens are left out, `x[0]`.

    (texts, seq, dim) -> (texts, dim).

    >>> first_token(np.array([[[1.0, 4.0], [3.0, 2.0]]]))
    array([[1., 4.]])
    """
    if rows.shape[1] == 0:
        return np.zeros((rows.shape[0], rows.shape[2]), rows.dtype)
    return np.array(rows[:, skip if skip < rows.shape[1] else 0])


def last_token(rows: Array, skip: int = 0) -> Array:
    """Return the last token's vector: in a causal model only the last token has seen the whole text.

    (texts, seq, dim) -> (texts, dim). Zeros if all tokens are left out.

    >>> last_token(np.array([[[1.0, 4.0], [3.0, 2.0]]]))
    array([[3., 2.]])
    """
    if rows.shape[1] <= skip:
        return np.zeros((rows.shape[0], rows.shape[2]), rows.dtype)
    return np.array(rows[:, -1])


def largest(rows: Array, skip: int = 0) -> Array:
    """Compute the largest number of each dimension: `y[d] = max_t x[t, d]`; minus infinity if all are left out.

    >>> largest(np.array([[[1.0, 4.0], [3.0, 2.0]]]))
    array([[3., 4.]])
    """
    return np.asarray(np.maximum.reduce(rows[:, skip:], axis=1, initial=-np.inf))


def mean(rows: Array, skip: int = 0) -> Array:
    """Divide the sum by the number of tokens n: `y = sum_t x[t] / n`; zeros if all are left out.

    >>> mean(np.array([[[1.0, 4.0], [3.0, 2.0]]])), mean(np.array([[[1.0, 4.0], [3.0, 2.0]]]), skip=1)
    (array([[2., 3.]]), array([[3., 2.]]))
    """
    total = np.add.reduce(rows[:, skip:], axis=1)
    return np.asarray(total / rows.dtype.type(max(1, rows.shape[1] - skip)))


def mean_sqrt_length(rows: Array, skip: int = 0) -> Array:
    """Divide the sum by the root of the number of tokens: `y = sum_t x[t] / sqrt(n)`.

    >>> mean_sqrt_length(np.array([[[1.0], [3.0], [5.0], [7.0]]]))
    array([[8.]])
    """
    total = np.add.reduce(rows[:, skip:], axis=1)
    return np.asarray(total / rows.dtype.type(math.sqrt(max(1, rows.shape[1] - skip))))


def weighted_mean(rows: Array, skip: int = 0) -> Array:
    """Weight each token by its position, counted from 1: `y = sum_t t x[t] / sum_t t`.

    Tokens that are left out still count as positions: with skip = 1 the first weight is 2.

    >>> weighted_mean(np.array([[[4.0], [1.0]]])), weighted_mean(np.array([[[4.0], [1.0], [6.0]]]), skip=1)
    (array([[2.]]), array([[4.]]))
    """
    weights = np.arange(1 + skip, 1 + max(skip, rows.shape[1])).astype(rows.dtype)
    return np.asarray(np.matmul(weights, rows[:, skip:]) / rows.dtype.type(max(1, weights.sum())))


def first_of_id(ids: Array, wanted: int) -> Array:
    """Return the first position of an id in each text: CLIP's vector is the vector of the end token.

    (texts, seq) -> (texts,); 0 if the id is missing.

    >>> first_of_id(np.array([[5, 9, 7, 9], [5, 6, 7, 8]]), 9)
    array([1, 0])
    """
    return np.asarray(np.argmax(ids == wanted, axis=1))


def first_of_largest(ids: Array) -> Array:
    """Return the first position of each text's largest id, CLIP's end token in older files.

    >>> first_of_largest(np.array([[5, 9, 7, 9], [5, 6, 7, 8]]))
    array([1, 3])
    """
    return np.asarray(np.argmax(ids, axis=1))


POOLINGS: Mapping[str, Callable[[Array, int], Array]] = {
    "cls": first_token,
    "max": largest,
    "mean": mean,
    "mean_sqrt_len_tokens": mean_sqrt_length,
    "weightedmean": weighted_mean,
    "lasttoken": last_token,
}
"""Name -> formula; the results of several names are concatenated."""


def splade(logits: Array, starts: Array, pooling: str = "max", activation: str = "relu") -> Array:
    """Compute the weight of each word of the vocabulary in a text: `y[w] = max_t log(1 + relu(x[t, w]))`.

    x: logits of a masked word (tokens, words), one text after another; starts (texts,): the first token of each
    text, which has at least one token -> (texts, words). pooling "sum" adds over the tokens; the activation
    "log1p_relu" applies the logarithm twice.

    Sources: Formal et al. 2021, "SPLADE v2" (arXiv:2109.10086), the maximum; Formal, Piwowarski, Clinchant 2021,
    "SPLADE" (arXiv:2107.05720), the sum; arXiv:2504.14839, the second logarithm.

    >>> splade(np.array([[0.0, -1.0], [np.e - 1, -2.0], [-3.0, 0.0]]), np.array([0, 2]))
    array([[1., 0.],
           [0., 0.]])
    """
    y = np.maximum(logits, logits.dtype.type(0))
    if pooling == "max":  # the logarithm keeps the order, so the maximum comes first
        y = np.maximum.reduceat(y, starts, axis=0)
    for _ in range(2 if activation == "log1p_relu" else 1):
        y = np.log1p(y)
    return np.asarray(y if pooling == "max" else np.add.reduceat(y, starts, axis=0))


def normalized(vectors: Array) -> Array:
    """Divide each vector by its Euclidean length: `y = v / sqrt(v . v)`; a zero vector stays zero.

    If squares might leave float32, as the squares of 1e-25 and 1e25 do, each vector is first multiplied by the power of
    two that makes its largest number about 1. This changes no digit. An infinite number becomes NaN, and all other
    numbers of its vector become 0. A vector with a NaN becomes all NaN.

    >>> normalized(np.array([[3e-25, 4e-25], [0.0, 0.0]], np.float32))
    array([[0.6, 0.8],
           [0. , 0. ]], dtype=float32)
    """
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.vecdot(vectors, vectors)
    if vectors.itemsize > 2 and squares.min(initial=1) >= 1e-20 and squares.max(initial=1) <= 1e20:
        return np.asarray(vectors / np.sqrt(squares)[..., None])
    size = np.maximum(vectors.max(-1, keepdims=True, initial=0), -vectors.min(-1, keepdims=True, initial=0))
    exponent = np.frexp(np.where(np.isfinite(size), size, 1))[1]
    y = np.ldexp(vectors, -exponent)
    length = np.sqrt(np.vecdot(y, y))[..., None]
    with np.errstate(invalid="ignore"):  # infinity divided by infinity
        y /= np.where(length == 0, 1, length)
    return np.asarray(y, vectors.dtype)


def _wide(vectors: Array) -> Array:
    """Convert integers, whose products would overflow, and float16 to float32."""
    return vectors if vectors.dtype in (np.float32, np.float64) else vectors.astype(np.float32)


def dot(a: Array, b: Array) -> Array:
    """Multiply each vector of a with each of b: `y[i, j] = a[i] . b[j]`. (n, dim), (m, dim) -> (n, m).

    >>> dot(np.array([[1.0, 2.0]]), np.array([[3.0, 4.0], [0.0, 1.0]]))
    array([[11.,  2.]])
    """
    return np.asarray(np.matmul(_wide(a), _wide(b).T))


def cosine(a: Array, b: Array) -> Array:
    """Compute the cosine of the angle between vectors: `y[i, j] = a[i] . b[j] / (|a[i]| |b[j]|)`.

    >>> cosine(np.array([[2.0, 0.0]]), np.array([[3.0, 0.0], [0.0, 5.0], [-1.0, 0.0]]))
    array([[ 1.,  0., -1.]])
    """
    return dot(normalized(_wide(a)), normalized(_wide(b)))


def euclidean(a: Array, b: Array) -> Array:
    """Compute minus the distance, largest for the nearest: `y[i, j] = -sqrt(sum_d (a[i, d] - b[j, d])^2)`.

    >>> euclidean(np.array([[0.0, 0.0]]), np.array([[3.0, 4.0]]))
    array([[-5.]])
    """
    return _rows_of(a, b, _minus_length)


def manhattan(a: Array, b: Array) -> Array:
    """Compute minus the sum of absolute differences: `y[i, j] = -sum_d |a[i, d] - b[j, d]|`.

    >>> manhattan(np.array([[0.0, 0.0]]), np.array([[3.0, -4.0]]))
    array([[-7.]])
    """
    return _rows_of(a, b, _minus_sum)


def _minus_length(difference: Array) -> Array:
    return np.asarray(-np.sqrt(np.vecdot(difference, difference)))


def _minus_sum(difference: Array) -> Array:
    return np.asarray(-np.add.reduce(np.abs(difference), axis=-1))


def _rows_of(a: Array, b: Array, compare: Callable[[Array], Array]) -> Array:
    a, b = _wide(a), _wide(b)
    y = np.empty((len(a), len(b)), np.result_type(a, b))
    for i, vector in enumerate(a):  # one vector at a time: all differences at once would be (n, m, dim)
        y[i] = compare(vector - b)
    return y


SIMILARITIES: Mapping[str, Callable[[Array, Array], Array]] = {
    "cosine": cosine,
    "dot": dot,
    "euclidean": euclidean,
    "manhattan": manhattan,
}
"""Name -> formula."""


EMPTY = -1e9  # the score of a document without a token: below any other score


def maxsim(query: Array, tokens: Array, counts: Array) -> Array:
    """Add up, over a query's tokens, the largest product with a token of the document (late interaction).

    `y[j] = sum_i max_t query[i] . document_j[t]`, -1e9 for a document without a token.

    query (query tokens, dim); tokens (all tokens, dim), one document behind the other; counts (documents,): how many
    tokens each document has -> (documents,).

    Source: Khattab, Zaharia 2020, "ColBERT" (arXiv:2004.12832).

    >>> query, tokens = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[3.0, 1.0], [2.0, 5.0], [-1.0, -2.0]])
    >>> maxsim(query, tokens, np.array([2, 1, 0]))  # 3 + 5, -1 - 2, and nothing
    array([ 8.e+00, -3.e+00, -1.e+09])
    """
    products = np.matmul(_wide(query), _wide(tokens).T)  # (query tokens, all tokens)
    y = np.full(len(counts), EMPTY, products.dtype)
    full = np.flatnonzero(counts)
    if len(full):
        best_products = np.maximum.reduceat(products, (np.cumsum(counts) - counts)[full], axis=1)
        y[full] = np.add.reduce(best_products, axis=0)
    return y


def mean_maxsim(query: Array, tokens: Array, counts: Array) -> Array:
    """Divide `maxsim` by the number of the query's tokens, so that long queries score no more than short ones.

    >>> mean_maxsim(np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[3.0, 1.0], [2.0, 5.0]]), np.array([2]))
    array([4.])
    """
    y = maxsim(query, tokens, counts)
    return np.asarray(y / y.dtype.type(max(1, len(query))))


MAXSIMS: Mapping[str, Callable[[Array, Array, Array], Array]] = {"maxsim": maxsim, "meanmaxsim": mean_maxsim}
"""Name -> formula."""


def similarity_of_pairs(name: str, a: Array, b: Array) -> Array:
    """Compare each vector of a with the vector of b at the same index: `y[i] = similarity(a[i], b[i])`.

    name: in `SIMILARITIES`. (n, dim), (n, dim) -> (n,); a single vector (dim,) is compared with each vector of the
    other argument.

    >>> similarity_of_pairs("manhattan", np.array([[1.0, 2.0], [5.0, 5.0]]), np.array([[1.0, 0.0], [6.0, 7.0]]))
    array([-2., -3.])
    """
    a, b = _wide(a), _wide(b)
    if name == "cosine":
        a, b = normalized(a), normalized(b)
    if name in ("cosine", "dot"):
        return np.asarray(np.vecdot(a, b))
    return {"euclidean": _minus_length, "manhattan": _minus_sum}[name](a - b)
