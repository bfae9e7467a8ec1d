"""Name each head's kind by where its attention weights go in one text."""

from __future__ import annotations

from typing import Any

import numpy as np

from minibert.equations.input_layer import Array

KINDS = ("previous token", "next token", "first token", "same word")
LEAST = 0.5  # a head looks like a kind if so much of its weight goes there, in the mean
FROM = 2  # the first query that counts: of token 1 the previous token is the first one too


def head_kinds(weights: Array, input_ids: Array, separator: int | None = None) -> Array:
    """Give the mean weight that a head's queries give to one kind of key; nan where no key is of that kind.

        previous token  mean over i of w[i, i - 1]
        next token      mean over i of w[i, i + 1]
        first token     mean over i of w[i, 0]
        same word       mean over i of sum over j of w[i, j], where token j is token i's id at another place
        separator       mean over i of sum over j of w[i, j], where token j is the separator, as [SEP] of BERT

    The means are over the queries i from 2 on that have such a j; a separator is no word.
    weights (..., heads, query, key), input_ids (seq,) -> (..., heads, 5). Source: Clark et al. 2019, "What Does BERT
    Look At?" (arXiv:1906.04341).

    >>> weights = np.array([[[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0.5, 0.5, 0]]])
    >>> head_kinds(weights, np.array([7, 8, 9, 8]), separator=9)
    array([[0.75, 0.  , 0.  , 0.5 , 0.25]])
    """
    query, key = np.indices(weights.shape[-2:])
    separators = input_ids == (-1 if separator is None else separator)
    same = (input_ids[:, None] == input_ids) & (query != key) & ~separators
    wide = np.broadcast_to(separators, same.shape)
    found = []
    for where in (key == query - 1, key == query + 1, key == 0, same, wide):
        counted = where[FROM:].any(axis=1)
        of_each = (weights[..., FROM:, :].astype(np.float64) * where[FROM:]).sum(axis=-1)[..., counted]
        found.append(of_each.mean(axis=-1) if counted.any() else np.full(weights.shape[:-2], np.nan))
    return np.stack(found, axis=-1)


def named_kinds(weights: Array, input_ids: Array, separator: int | None, name: str | None) -> dict[str, Any]:
    """The same of all blocks for a page, with the name of the largest that reaches `LEAST`, else "none".

    weights (blocks, heads, query, key); name: the separator's.
    """
    kinds = (*KINDS, name or "separator")
    found = head_kinds(weights, input_ids, separator)
    known = np.nan_to_num(found, nan=-1.0)
    return {
        "kinds": kinds,
        "least": LEAST,
        "shares": [[[None if np.isnan(x) else x for x in head] for head in block] for block in found.tolist()],
        "names": np.where(known.max(-1) >= LEAST, np.array(kinds)[known.argmax(-1)], "none").tolist(),
    }
