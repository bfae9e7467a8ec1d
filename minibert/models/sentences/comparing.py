"""Compares vectors, each with each or in pairs: arrays, sparse vectors (made dense), and token vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, final, overload

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.input_layer import Array
from minibert.equations.sentences import MAXSIMS, SIMILARITIES, similarity_of_pairs

SOME = 256  # sparse vectors that are made dense at once: 30 MiB with BERT's vocabulary
PIECE = 8192  # tokens of documents that are compared at once, or of one document
NAMES = ("embeddings1", "embeddings2")  # the arguments, for messages


class SparseVector(NamedTuple):
    """The non-zero numbers of a vector: ids (n,) int64, ascending, and weights (n,) float32."""

    ids: Array
    weights: Array


def joined(vectors: Sequence[SparseVector]) -> tuple[Array, Array, Array]:
    """Join sparse vectors: all ids, all weights, and offsets: vector i has the ids offsets[i] to offsets[i + 1] - 1.

    >>> ids, weights, offsets = joined([SparseVector(np.array([i]), np.array([0.5])) for i in (2, 7)])
    >>> ids, offsets
    (array([2, 7]), array([0, 1, 2]))
    """
    empty = SparseVector(np.empty(0, np.int64), np.empty(0, np.float32))
    ids, weights = (np.concatenate(parts) for parts in zip(empty, *vectors, strict=True))
    return ids, weights, np.cumsum([0, *(len(vector.ids) for vector in vectors)])


@final
class TokenVectors(Sequence[Array]):
    """Token vectors of texts, concatenated: text i has the rows offsets[i] to offsets[i + 1] - 1.

    A sequence of arrays (tokens, dim); a slice is a `TokenVectors` too, without a copy. rows (all tokens, dim);
    offsets (texts + 1,) int64.

    >>> vectors = TokenVectors(np.arange(6.0).reshape(3, 2), np.array([0, 1, 3]))
    >>> len(vectors), vectors[1]
    (2, array([[2., 3.],
           [4., 5.]]))
    """

    def __init__(self, rows: Array, offsets: Array) -> None:
        self.rows, self.offsets = rows, offsets

    @classmethod
    def of(cls, texts: Sequence[Any] | Array, name: str) -> TokenVectors:
        """Concatenate arrays (tokens, dim). Raises TypeError for anything else, ValueError for different widths.

        In a batch (texts, tokens, dim) rows of zeros are padding.
        """
        if isinstance(texts, cls):
            return texts
        if isinstance(texts, np.ndarray) and texts.ndim == 3:
            texts = [rows[rows.any(axis=1)] for rows in texts]
        arrays = [np.asarray(array) for array in texts]
        if not arrays:
            return cls(np.empty((0, 0), np.float32), np.zeros(1, np.int64))
        for i, array in enumerate(arrays):
            if array.ndim != 2 or array.dtype.kind not in "fiub":
                kind = f"{array.dtype} of shape {array.shape}"
                raise TypeError(f"{name}[{i}] must be vectors of tokens (tokens, dim), found {kind}")
            if array.shape[1] != arrays[0].shape[1]:
                raise ValueError(f"{name} must have one width, found {arrays[0].shape[1]} and {array.shape[1]}")
        offsets = np.concatenate([[0], np.cumsum([len(array) for array in arrays])]).astype(np.int64)
        return cls(arrays[0] if len(arrays) == 1 else np.concatenate(arrays), offsets)

    @property
    def width(self) -> int:
        """The width of a token's vector."""
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
        i = range(len(self))[i]  # a negative i counts from the end; raises IndexError
        rows: Array = self.rows[self.offsets[i] : self.offsets[i + 1]]
        return rows

    def pieces(self) -> list[TokenVectors]:
        """Cut into parts of whole texts, of about `PIECE` tokens each."""
        pieces, start = [], 0
        while start < len(self):
            most = self.offsets[start] + PIECE
            stop = max(start + 1, int(np.searchsorted(self.offsets, most, side="right")) - 1)
            pieces.append(self[start:stop])
            start = stop
        return pieces


Given = ArrayLike | SparseVector | Sequence[SparseVector] | Sequence[Array]
Vectors = Array | list[SparseVector] | TokenVectors
Compare = Callable[[Any, Any], Array]


def similarity(measure: str | None, first: Given, second: Given, dim: int = 0) -> Array:
    """Compare all pairs: see `Encoder.similarity`. The default is cosine, or the dot product for sparse vectors.

    dim: the width of the model's vectors; integers of an eighth of it are refused as packed bits.
    """
    a, b, measure = _prepared(measure, first, second, dim)
    formula: Compare = partial(by_tokens, measure) if measure in MAXSIMS else SIMILARITIES[measure]
    return compared(formula, a, b, NAMES)


def similarity_pairwise(measure: str | None, first: Given, second: Given, dim: int = 0) -> Any:
    """Compare the i-th vectors of both: see `Encoder.similarity_pairwise`."""
    a, b, measure = _prepared(measure, first, second, dim)
    if len(a) != len(b) and 1 not in (len(a), len(b)):
        raise ValueError(f"pairs need as many vectors of each, found {len(a)} and {len(b)}")
    formula: Compare = partial(pairs_by_tokens if measure in MAXSIMS else similarity_of_pairs, measure)
    scores = compared(partial(_pairs_of_sparse, formula) if _sparse(a, b) else formula, a, b, NAMES)
    return scores[0] if all(_alone(passed, vectors) for passed, vectors in ((first, a), (second, b))) else scores


def _alone(passed: Any, vectors: Vectors) -> bool:
    """Whether one text was passed: its vector, or one array of token vectors."""
    if isinstance(vectors, list):
        return isinstance(passed, SparseVector)
    if isinstance(vectors, TokenVectors):
        return not is_token_vectors(passed)
    return np.ndim(passed) == 1


def _prepared(measure: str | None, first: Given, second: Given, dim: int) -> tuple[Vectors, Vectors, str]:
    late = measure in MAXSIMS or is_token_vectors(first) or is_token_vectors(second)
    read: Callable[[Any, str], Vectors] = token_vectors_of if late else vectors_of
    a, b = read(first, NAMES[0]), read(second, NAMES[1])
    check_widths(a, b)
    for name, vectors in zip(NAMES, (a, b), strict=True):
        if not isinstance(vectors, np.ndarray) or vectors.dtype.kind not in "iu":
            continue
        if 0 <= 8 * (vectors.shape[1] - 1) < dim:  # narrower, if truncated before they were packed
            bits = f"{vectors.dtype} of shape {vectors.shape}, as bits are packed"
            advice = "minibert.search with precision='binary' or 'ubinary' compares bits"
            raise ValueError(f"{name} must be vectors of {dim} numbers, found {bits}; {advice}")
    if late and measure not in MAXSIMS:  # the folder's measure is for single vectors
        measure = "maxsim"
    return a, b, measure or ("dot" if _sparse(a, b) else "cosine")


def token_vectors_of(value: Any, name: str) -> TokenVectors:
    """Read token vectors: a list of arrays (tokens, dim), empty too, or one array as one text. Raises TypeError."""
    if not is_token_vectors(value) and np.ndim(value) == 2:
        value = [value]
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        raise TypeError(f"{name} must be vectors of tokens, found {type(value).__name__}; encode_query makes them")
    return TokenVectors.of(value, name)


def vectors_of(value: Any, name: str) -> Vectors:
    """Read vectors: an array (n, dim), or (dim,) as (1, dim); a list of sparse vectors; an empty list.

    Raises TypeError for anything else, ValueError for rows of several lengths.
    """
    value = [value] if isinstance(value, SparseVector) else value
    if isinstance(value, list | tuple) and any(isinstance(vector, SparseVector) for vector in value):
        others = [type(vector).__name__ for vector in value if not isinstance(vector, SparseVector)]
        if others:
            raise TypeError(f"{name} must all be sparse vectors, found {others[0]} among them")
        return list(value)
    try:
        array = np.asarray(value)
    except ValueError:  # NumPy's message would be about an inhomogeneous shape
        raise ValueError(f"{name} must be vectors of one width, found rows of several lengths") from None
    if array.shape == (0,):
        return []
    if array.dtype.kind not in "fiub" or array.ndim not in (1, 2):
        kind = "None" if value is None else f"{array.dtype} of shape {array.shape}"
        raise TypeError(f"{name} must be vectors (n, dim) of numbers, found {kind}; encode makes vectors of texts")
    return np.atleast_2d(array)


def check_widths(first: Vectors, second: Vectors, names: tuple[str, str] = NAMES) -> None:
    """Refuse arrays of different widths. Raises ValueError."""
    if isinstance(first, TokenVectors) and isinstance(second, TokenVectors) and len(first) and len(second):
        first, second = first.rows, second.rows
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray) and first.shape[1] != second.shape[1]:
        shapes = f"{names[0]} {first.shape} and {names[1]} {second.shape}"
        raise ValueError(f"vectors must have one width, found {shapes}")


def compared(compare: Compare, first: Vectors, second: Vectors, names: tuple[str, str], start: int = 0) -> Array:
    """Return `compare(first, second)`; formulas of `SIMILARITIES` get dense copies of sparse vectors, some at a time.

    start: the number of the first vector of `second`, for messages. Raises ValueError for a vector with NaN or an
    infinite number, which is searched for only if a score is not finite.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        if _sparse(first, second) and compare in SIMILARITIES.values():
            scores = np.block([[compare(*_written(a, b)) for b in _cut(second)] for a in _cut(first)])
        else:
            scores = np.asarray(compare(first, second))
    if scores.dtype.kind not in "fiub":
        raise TypeError(f"compare must give real numbers, found {scores.dtype} of shape {scores.shape}")
    for vectors, name, number in zip((first, second), names, (0, start), strict=True):
        every: Iterable[Any] = () if np.isfinite(scores).all() else vectors
        for i, vector in enumerate(every, number):
            if not np.isfinite(vector.weights if isinstance(vector, SparseVector) else vector).all():
                raise ValueError(f"{name}[{i}] has NaN or an infinite number, so it cannot be compared; leave it out")
    return scores


# -- token vectors ------------------------------------------------------------------------------------------------


def rows_of(vectors: Array | TokenVectors) -> Array:
    """Return all rows (n, dim), one for each text or for each token."""
    return vectors.rows if isinstance(vectors, TokenVectors) else vectors


def changed(vectors: Array | TokenVectors, change: Callable[[Array], Array]) -> Array | TokenVectors:
    """Return the vectors after a function of all rows, (n, dim) -> (n, ...)."""
    rows = change(rows_of(vectors))
    return TokenVectors(rows, vectors.offsets) if isinstance(vectors, TokenVectors) else rows


def is_token_vectors(value: Any) -> bool:
    """Whether a value has the type of several texts' token vectors."""
    if isinstance(value, list | tuple):
        return any(isinstance(array, np.ndarray) and array.ndim == 2 for array in value)
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
    """Compare the i-th texts of both: (n,). A single text on one side is compared with each text of the other."""
    n = max(len(queries), len(documents)) if len(queries) and len(documents) else 0
    scores = [
        MAXSIMS[measure](queries[i % len(queries)], (rows := documents[i % len(documents)]), np.array([len(rows)]))[0]
        for i in range(n)
    ]
    return np.array(scores, np.float32)


# -- sparse vectors ----------------------------------------------------------------------------------------------


def _sparse(*every: Vectors) -> bool:
    return any(isinstance(vectors, list) for vectors in every)


def _cut(vectors: Vectors) -> Iterator[Vectors]:
    return (vectors[i : i + SOME] for i in range(0, max(1, len(vectors)), SOME))


def _pairs_of_sparse(compare: Compare, first: Vectors, second: Vectors) -> Array:
    n = len(second) if len(first) == 1 else len(first)
    parts = (_cut(vectors) if len(vectors) == n else repeat(vectors) for vectors in (first, second))
    return np.concatenate([compare(*_written(a, b)) for a, b in zip(*parts, strict=False)])


def _written(first: Vectors, second: Vectors) -> tuple[Array, Array]:
    """Make both sides dense: two (n, width). An array on either side sets the width, else the largest id does."""
    ids = [vector.ids for vectors in (first, second) for vector in vectors if isinstance(vector, SparseVector)]
    least, most = (int(bound(np.concatenate([[0], *ids]))) for bound in (np.min, np.max))
    width = next((vectors.shape[1] for vectors in (first, second) if isinstance(vectors, np.ndarray)), most + 1)
    if least < 0 or most >= width:
        raise ValueError(f"ids of sparse vectors must be in 0..{width - 1}, found {least if least < 0 else most}")
    return _dense(first, width), _dense(second, width)


def _dense(vectors: Any, width: int) -> Array:
    if isinstance(vectors, np.ndarray):
        return vectors
    y = np.zeros((len(vectors), width), np.float32)
    for row, vector in zip(y, vectors, strict=True):
        row[vector.ids] = vector.weights
    return y
