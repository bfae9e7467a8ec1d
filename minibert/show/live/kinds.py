"""Name each head's kind by where its attention weights go in one text."""

from __future__ import annotations

from typing import Any

import numpy as np

from minibert.equations.input_layer import Array

KINDS = ("previous token", "first token", "same word")
LEAST = 0.5  # a head looks like a kind if so much of its weight goes there, in the mean
FROM = 2  # the first query that counts: of token 1 the previous token is the first one too


def head_kinds(weights: Array, input_ids: Array) -> Array:
    """Give the mean weight that a head's queries give to one kind of key; nan where no key is of that kind.

        previous token  mean over i of w[i, i - 1]
        first token     mean over i of w[i, 0]
        same word       mean over i of sum over j of w[i, j], where token j is token i's id at another place

    The means are over the queries i from 2 on; of the same word only over those that have such a j.
    weights (..., heads, query, key), input_ids (seq,) -> (..., heads, KINDS).

    >>> weights = np.array([[[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0.5, 0.5, 0]]])
    >>> head_kinds(weights, np.array([7, 8, 9, 8]))
    array([[0.75, 0.  , 0.5 ]])
    """
    queries = np.arange(FROM, len(input_ids))
    of_each = weights[..., FROM:, :].astype(np.float64)
    same = (input_ids[queries, None] == input_ids) & (queries[:, None] != np.arange(len(input_ids)))
    found = np.full((*weights.shape[:-2], len(KINDS)), np.nan)
    if len(queries):
        found[..., 0] = of_each[..., queries - FROM, queries - 1].mean(axis=-1)
        found[..., 1] = of_each[..., 0].mean(axis=-1)
    if (some := same.any(axis=1)).any():
        found[..., 2] = (of_each * same).sum(axis=-1)[..., some].mean(axis=-1)
    return found


def named_kinds(weights: Array, input_ids: Array) -> dict[str, Any]:
    """Give these means for all blocks of a page, with the name of the largest that reaches `LEAST`, else "none".

    weights (blocks, heads, query, key).
    """
    found = head_kinds(weights, input_ids)
    known = np.nan_to_num(found, nan=-1.0)
    return {
        "kinds": KINDS,
        "least": LEAST,
        "shares": [[[None if np.isnan(x) else x for x in head] for head in block] for block in found.tolist()],
        "names": np.where(known.max(-1) >= LEAST, np.array(KINDS)[known.argmax(-1)], "none").tolist(),
    }
