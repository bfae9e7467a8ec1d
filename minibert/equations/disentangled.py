"""DeBERTa's own formulas: scores of content and position, each in both directions.

A token's content is its query and its key. A position is the row of a distance, mapped as keys or as queries are.
Source: He et al. 2021; DeBERTaV2's reference implementation.
"""

from __future__ import annotations

import numpy as np

from .input_layer import Array


def content_to_position(q: Array, rows: Array, places: Array, scale: float) -> Array:
    """Score each query's response to its distance from each key: `scores[i, j] = scale * q[i] . rows[places[i, j]]`.

    q (..., heads, query, head_dim), rows (heads, distances, head_dim) mapped as keys are, places (query, key) from
    `log_bucket_rows` -> (..., heads, query, key). scale is 1 / sqrt(s * head_dim); s counts the terms of the
    score, content-to-content included.

    >>> rows = np.array([[[1.0], [10.0], [100.0]]])  # one head; of the distances -1, 0, 1 = query - key
    >>> places = np.array([[1, 0], [2, 1]])
    >>> content_to_position(np.array([[[2.0], [3.0]]]), rows, places, scale=1.0)
    array([[[ 20.,   2.],
            [300.,  30.]]])
    """
    of_each = (q * q.dtype.type(scale)) @ rows.swapaxes(-1, -2)  # (..., heads, query, distances)
    return np.take_along_axis(of_each, np.broadcast_to(places, (*of_each.shape[:-1], places.shape[1])), axis=-1)


def position_to_content(k: Array, rows: Array, places: Array, scale: float) -> Array:
    """Score each key's response to its distance from each query: `scores[i, j] = scale * k[j] . rows[places[i, j]]`.

    As `content_to_position`, k (..., heads, key, head_dim), rows mapped as queries are -> (..., heads, query, key).

    The trap: places are the same for both, of query - key. The reference computes this one key by key, with distance
    and sign turned round, and then transposes it.

    >>> rows = np.array([[[1.0], [10.0], [100.0]]])
    >>> places = np.array([[1, 0], [2, 1]])
    >>> position_to_content(np.array([[[2.0], [3.0]]]), rows, places, scale=1.0)
    array([[[ 20.,   3.],
            [200.,  30.]]])
    """
    return content_to_position(k, rows, places.T, scale).swapaxes(-1, -2)
