"""Nine terms: the first attention's scores, split by the embedding tables that the queries and keys come from.

A token enters as a sum of three parts: its word's row, its position's row, and the rest, which is its token type's row
and all biases. LayerNorm, for a given standard deviation of the token, and the maps to queries and keys are linear. A
score is therefore a sum of nine terms: query's word, position or rest with key's word, position or rest. This holds if
positions are added once, before one LayerNorm: in BERT's input layer, or in block 0 of GPT-2. In GPT-2 the rest is the
biases.

Source: Ke et al. 2021, "Rethinking Positional Encoding in Language Pre-training" (TUPE, arXiv:2006.15595), 3.1 has
the four terms of word and position, without LayerNorm and biases.
"""

from __future__ import annotations

import numpy as np

from .blocks import Linear, linear, split_heads
from .input_layer import Array


def normed_parts(parts: Array, weight: Array, bias: Array, eps: float = 1e-12) -> Array:
    """Split the LayerNorm of a sum: `y[a] = (x[a] - mean(x[a])) / sqrt(variance(sum of x) + eps) * weight`.

    parts x (parts, ..., dim), weight and bias (dim,) -> (parts, ..., dim). The last part also gets the bias, so the sum
    of all y is `layer_norm` of the sum of all x. The trap: the variance is that of the sum, not of x[a].

    >>> word, position, rest = [4.0, 0.0], [0.0, 2.0], [0.0, 0.0]  # the sum is (4, 2): mean 3, variance 1
    >>> normed_parts(np.array([word, position, rest]), np.ones(2), bias=np.array([0.0, 10.0]), eps=0.0)
    array([[ 2., -2.],
           [-1.,  1.],
           [ 0., 10.]])
    """
    centred = parts - parts.mean(axis=-1, keepdims=True)
    variance = np.square(centred.sum(axis=0)).mean(axis=-1, keepdims=True)
    y: Array = centred / np.sqrt(variance + eps) * weight
    y[-1] += bias
    return y


def score_terms(parts: Array, query: Linear, key: Linear, heads: int, scale: float) -> Array:
    """Split the scores: `terms[a, b] = scale * q[a] @ k[b]^T`, where `q[a] = parts[a] @ Wq^T` and k[b] likewise.

    parts (parts, seq, dim) from `normed_parts` -> (parts, parts, heads, query, key). The maps' biases go to the last
    part. The sum of all terms is `attention_scores` of the sum of all parts.

    >>> parts = np.array([[[1.0], [2.0]], [[10.0], [20.0]], [[0.0], [0.0]]])  # word, position, rest of two tokens
    >>> terms = score_terms(parts, Linear(np.eye(1), np.zeros(1)), Linear(np.eye(1), np.array([5.0])), 1, scale=1.0)
    >>> terms[0, 1, 0], terms[0, 2, 0]  # query's word with key's position; with key's rest, which is the bias
    (array([[10., 20.],
           [20., 40.]]), array([[ 5.,  5.],
           [10., 10.]]))
    """
    q, k = (linear(parts, weight) for weight, _ in (query, key))
    for mapped, (_, bias) in ((q, query), (k, key)):
        mapped[-1] += 0 if bias is None else bias
    q, k = (split_heads(mapped, heads) for mapped in (q, k))  # each (parts, heads, seq, head_dim)
    terms: Array = scale * q[:, None] @ k[None].swapaxes(-1, -2)
    return terms


def term_shares(terms: Array, keep: Array | None = None) -> Array:
    """Compute each term's share of the scores' variance: `share[a, b] = sum(c[a, b] * c) / sum(c * c)`, head by head.

    c[a, b] is a term less its mean over the keys that the query sees, because softmax ignores a number that all keys
    share; c is the sum of all c[a, b]. terms (parts, parts, heads, query, key), keep bool (query, key), None: all ->
    (parts, parts, heads). The shares of a head have the sum 1. A share below 0 belongs to a term that opposes the
    other terms. The shares are nan if a head's scores do not differ.

    >>> terms = np.array([[[[[1.0, 5.0]]], [[[0.0, 0.0]]]], [[[[7.0, 7.0]]], [[[0.0, -1.0]]]]])  # two parts
    >>> term_shares(terms)[..., 0].round(3)  # c is (-1.5, 1.5), made of (-2, 2) and (0.5, -0.5)
    array([[ 1.333,  0.   ],
           [ 0.   , -0.333]])
    """
    seen = np.broadcast_to(True if keep is None else keep, terms.shape[-2:])
    centred = np.where(seen, terms - terms.mean(axis=-1, keepdims=True, where=seen), 0)
    whole = centred.sum(axis=(0, 1))
    with np.errstate(invalid="ignore"):  # no warning if nothing differs
        return np.asarray((centred * whole).sum(axis=(-2, -1)) / np.square(whole).sum(axis=(-2, -1)))
