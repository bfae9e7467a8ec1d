"""The token vectors of many texts, and how alike texts are by them (late interaction)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final, overload

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.sentences import MAXSIMS

PIECE = 8192  # tokens of documents that are compared at once, or of one document


@final
class TokenVectors(Sequence[Array]):
    """Token vectors of texts, one text behind the other: text i has the rows offsets[i] to offsets[i + 1] - 1.

    A sequence of arrays (tokens, dim); a slice of it is one too, and copies no vector. rows (all tokens, dim); offsets
    (texts + 1,) int64.

    >>> vectors = TokenVectors(np.arange(6.0).reshape(3, 2), np.array([0, 1, 3]))
    >>> len(vectors), vectors[1]
    (2, array([[2., 3.],
           [4., 5.]]))
    """

    def __init__(self, rows: Array, offsets: Array) -> None:
        self.rows, self.offsets = rows, offsets

    @classmethod
    def of(cls, texts: Sequence[Any] | Array, name: str) -> TokenVectors:
        """Put arrays (tokens, dim) one behind the other. Raises TypeError for anything else, ValueError for two widths.

        Zeros at which a batch (texts, tokens, dim) is filled up are no tokens.
        """
        if isinstance(texts, cls):
            return texts
        if isinstance(texts, np.ndarray) and texts.ndim == 3:
            texts = [rows[rows.any(axis=1)] for rows in texts]
        arrays = [np.asarray(each) for each in texts]
        if not arrays:
            return cls(np.empty((0, 0), np.float32), np.zeros(1, np.int64))
        for i, each in enumerate(arrays):
            if each.ndim != 2 or each.dtype.kind not in "fiub":
                found = f"{each.dtype} of shape {each.shape}"
                raise TypeError(f"{name}[{i}] must be vectors of tokens (tokens, dim), found {found}")
            if each.shape[1] != arrays[0].shape[1]:
                raise ValueError(f"{name} must have one width, found {arrays[0].shape[1]} and {each.shape[1]}")
        offsets = np.concatenate([[0], np.cumsum([len(each) for each in arrays])]).astype(np.int64)
        return cls(arrays[0] if len(arrays) == 1 else np.concatenate(arrays), offsets)

    @property
    def width(self) -> int:
        """The numbers of a token's vector."""
        return int(self.rows.shape[1])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, i: int) -> Array: ...

    @overload
    def __getitem__(self, i: slice) -> TokenVectors: ...

    def __getitem__(self, i: int | slice) -> Array | TokenVectors:
        if isinstance(i, slice):
            start, stop, step = i.indices(len(self))
            if step != 1:
                raise ValueError(f"a slice of token vectors has the step 1, found {step}")
            offsets = self.offsets[start : max(start, stop) + 1]
            return TokenVectors(self.rows[offsets[0] : offsets[-1]], offsets - offsets[0])
        i = range(len(self))[i]  # from the end where it is negative; raises IndexError
        found: Array = self.rows[self.offsets[i] : self.offsets[i + 1]]
        return found

    def pieces(self) -> list[TokenVectors]:
        """Cut where about `PIECE` tokens end: whole texts."""
        found, start = [], 0
        while start < len(self):
            most = self.offsets[start] + PIECE
            stop = max(start + 1, int(np.searchsorted(self.offsets, most, side="right")) - 1)
            found.append(self[start:stop])
            start = stop
        return found


def rows_of(vectors: Array | TokenVectors) -> Array:
    """Give all vectors (n, dim), those of texts or of their tokens."""
    return vectors.rows if isinstance(vectors, TokenVectors) else vectors


def changed(vectors: Array | TokenVectors, change: Callable[[Array], Array]) -> Array | TokenVectors:
    """Give the same texts' vectors after a change of all, (n, dim) -> (n, ...)."""
    made = change(rows_of(vectors))
    return TokenVectors(made, vectors.offsets) if isinstance(vectors, TokenVectors) else made


def is_token_vectors(value: Any) -> bool:
    """Whether this can only be token vectors of several texts."""
    if isinstance(value, list | tuple):
        return any(isinstance(each, np.ndarray) and each.ndim == 2 for each in value)
    return isinstance(value, TokenVectors) or (isinstance(value, np.ndarray) and value.ndim == 3)


def by_tokens(measure: str, queries: TokenVectors, documents: TokenVectors) -> Array:
    """Compare each query with each document: (n, m). `measure`: a name in `MAXSIMS`."""
    formula = MAXSIMS[measure]
    y = np.empty((len(queries), len(documents)), np.float32)
    start = 0
    for piece in documents.pieces():
        counts = np.diff(piece.offsets)
        for i, query in enumerate(queries):
            y[i, start : start + len(piece)] = formula(query, piece.rows, counts)
        start += len(piece)
    return y


def pairs_by_tokens(measure: str, queries: TokenVectors, documents: TokenVectors) -> Array:
    """Compare texts in the same place: (n,); one of either with each of the others."""
    n = max(len(queries), len(documents)) if len(queries) and len(documents) else 0
    found = [
        MAXSIMS[measure](queries[i % len(queries)], (rows := documents[i % len(documents)]), np.array([len(rows)]))[0]
        for i in range(n)
    ]
    return np.array(found, np.float32)
