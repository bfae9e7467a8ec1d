"""Exact search for the nearest vectors: all are compared, the best are kept; memory holds one block of scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.quantization import BITS, PRECISIONS, check_precision, hamming
from minibert.equations.sentences import Matrix, cosine
from minibert.equations.similarity import BLOCK as ROWS
from minibert.equations.similarity import similarities_to, top_indices
from minibert.errors import warn
from minibert.files.tables import Table
from minibert.files.tokenizer import Tokenizer
from minibert.models.run.attributes import check_positive, hinted

from . import comparing
from .comparing import Compare, Given, SparseVector, TokenVectors, Vectors, is_token_vectors, vectors_of

BLOCK = 8192  # vectors that are compared at once
NAMES = ("queries", "vectors")
PACKED = {"int8": "binary", "uint8": "ubinary"}  # a dtype that may hold bits -> the precision of such vectors


@hinted
def search(
    queries: Given,
    vectors: Array | Sequence[SparseVector] | TokenVectors | Iterable[Any],
    k: int = 10,
    compare: Compare = cosine,
    *,
    precision: str | None = None,
) -> tuple[Matrix, Matrix]:
    """Return the k vectors with the largest score for each query, best first: their indices and their scores.

    queries (n, dim), vectors (m, dim) or an iterator of blocks -> (n, k) int64 and (n, k); (n, m) if m < k. Vectors of
    equal scores keep their order. compare: (n, dim), (m, dim) -> (n, m); `encoder.similarity` uses the measure of a
    model's folder, and `equations.sentences.dot` is the cosine of vectors of length 1 in one product.

    `precision="binary"` or "ubinary" is for packed bits that `encode` made with the same precision: the score is minus
    the number of bits that differ. Without `precision` int8 and uint8 vectors are compared as numbers, with a warning,
    since both dtypes may hold bits; `precision="int8"` or "uint8" means numbers, without a warning.

    Queries and vectors may be lists of `SparseVector`, which `compare=encoder.similarity` takes too; your own function
    gets the lists. Or they are lists of token vectors (tokens, dim), `TokenVectors`, or an iterator of `TokenVectors`:
    then the default of `compare` is `equations.sentences.maxsim`.

    Raises TypeError for anything but vectors, and for vectors of another dtype than `precision`; ValueError for vectors
    of different widths, for a vector with NaN or infinity, for a k below 1, for `compare` with a `precision` of bits,
    and for one query's token vectors outside a list.

    >>> search(np.array([[1.0, 0.0]]), np.array([[0.0, 2.0], [3.0, 0.0], [1.0, 0.0]]), k=2)
    (array([[1, 2]]), array([[1., 1.]]))
    """
    check_positive("k", k)
    if not callable(compare):
        raise TypeError(f"compare must be a function, such as equations.sentences.dot, found {compare!r}")
    late = _late(queries, vectors)
    if precision is not None and check_precision(precision) and precision in BITS:
        if compare is not cosine:
            raise ValueError(f"precision={precision!r} counts bits; leave it out, or compare")
        compare = partial(_bits, precision)
    wanted: Vectors = comparing.token_vectors_of(queries, NAMES[0]) if late else vectors_of(queries, NAMES[0])
    if precision is None and compare is cosine:
        kinds = [str(getattr(value, "dtype", "")) for value in (wanted, vectors)]
        if kind := next((kind for kind in kinds if "int" in kinds[0] and kind in PACKED), ""):  # JSON gives int64
            bits = f"precision={PACKED[kind]!r}"
            advice = f"if encode made them with {bits}, they hold bits: pass {bits}, or precision={kind!r} for numbers"
            warn(f"vectors of {kind} are compared by the cosine of their numbers; {advice}")
    if late and compare is cosine:
        compare = partial(comparing.by_tokens, "maxsim")
    best = np.empty((len(wanted), 0), np.int64), np.empty((len(wanted), 0), np.float32)
    for so_far in searching(wanted, _blocks(vectors, wanted), k, compare):
        best = so_far  # the last one counts
    return best


def _late(queries: Any, vectors: Any) -> bool:
    """Whether these are token vectors. Raises ValueError if an array may be either tokens or texts."""
    if is_token_vectors(queries) or isinstance(vectors, TokenVectors):
        if isinstance(vectors, np.ndarray) and vectors.ndim == 2:
            problem = "found those of tokens; compare them with a list of arrays"
            raise TypeError(f"queries must be vectors (n, dim) of numbers, {problem}")
        return True
    is_matrix = isinstance(queries, np.ndarray) and queries.ndim == 2
    if is_matrix and isinstance(vectors, list | tuple) and is_token_vectors(vectors):
        advice = "to compare one query by its tokens pass [queries], to compare single vectors pass iter(vectors)"
        raise ValueError(f"a list of arrays may be texts' tokens or blocks of vectors; {advice}")
    return False


def _bits(precision: str, queries: Any, vectors: Any) -> Array:
    """Compare packed bits by `hamming`. Raises TypeError for vectors of another dtype."""
    kind = np.dtype(PRECISIONS[precision])
    for value, name in ((queries, NAMES[0]), (vectors, NAMES[1])):
        dtype = getattr(value, "dtype", type(value).__name__)
        if dtype != kind:
            raise TypeError(
                f"precision={precision!r} compares vectors of {kind}, as encode makes them; {name}: {dtype}"
            )
    return hamming(queries, vectors)


def _blocks(vectors: Any, queries: Vectors) -> Iterator[Vectors]:
    late = isinstance(queries, TokenVectors)
    read: Callable[[Any, str], Vectors] = comparing.token_vectors_of if late else vectors_of
    whole = isinstance(vectors, np.ndarray) or (
        isinstance(vectors, list | tuple) and any(isinstance(vector, SparseVector) for vector in vectors)
    )
    if whole or not isinstance(vectors, Iterable) or (late and is_token_vectors(vectors)):
        rows = read(vectors, NAMES[1])
        vectors = (rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK))
    for value in vectors:
        block = read(value, NAMES[1])
        comparing.check_widths(queries, block, NAMES)
        yield block


def searching(queries: Vectors, blocks: Iterable[Vectors], k: int, compare: Compare) -> Iterator[tuple[Array, Array]]:
    """Yield, after each block, the result of `search` for all blocks so far."""
    ids, scores, start = np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32), 0
    for block in blocks:
        new_scores = comparing.compared(compare, queries, block, NAMES, start)
        scores = scores.astype(new_scores.dtype, copy=False)
        if ids.shape[1] == k:
            ids, scores = ids.copy(), scores.copy()  # the caller has the old arrays
            for i, row in enumerate(new_scores):
                # a later equal score is not among the best; if the last score is NaN, any score may be
                better = np.flatnonzero(~(row <= scores[i, -1]))
                if len(better):
                    joined = np.hstack([ids[i], better + start]), np.hstack([scores[i], row[better]])
                    (order,) = top_indices(joined[1][None], k)
                    ids[i], scores[i] = joined[0][order], joined[1][order]
        else:
            order = top_indices(new_scores, k)
            joined = np.hstack([ids, order + start]), np.hstack([scores, np.take_along_axis(new_scores, order, 1)])
            order = top_indices(joined[1], k)
            ids, scores = np.take_along_axis(joined[0], order, 1), np.take_along_axis(joined[1], order, 1)
        start += len(block)
        yield ids, scores


@hinted
def semantic_search(
    query_embeddings: Given,
    corpus_embeddings: Given,
    query_chunk_size: int = 100,
    corpus_chunk_size: int = 500000,
    top_k: int = 10,
    score_function: Compare = cosine,
    *,
    precision: str | None = None,
) -> list[list[dict[str, Any]]]:
    """Search as sentence-transformers' `semantic_search` does: for each query a list of dicts, best first.

    Each dict has corpus_id, the vector's index, and score. score_function and precision: as `compare` and `precision`
    of `search`. The chunk sizes have no effect. Raises as `search`.

    >>> semantic_search([1.0, 0.0], [[0.0, 2.0], [3.0, 0.0]], top_k=1)
    [[{'corpus_id': 1, 'score': 1.0}]]
    """
    corpus = vectors_of(corpus_embeddings, "corpus_embeddings")
    check_positive("top_k", top_k)
    ids, scores = search(query_embeddings, corpus, top_k, score_function, precision=precision)
    pairs = (zip(*result, strict=True) for result in zip(ids.tolist(), scores.tolist(), strict=True))
    return [[{"corpus_id": i, "score": score} for i, score in hits] for hits in pairs]


# -- the words nearest to a word, by the rows of a word table -----------------------------------------------------


def nearest(table: Table, tokenizer: Tokenizer, word: str, k: int) -> list[tuple[str, float]]:
    """Return the k tokens whose rows have the largest cosine with a word's: see `EmbeddingLayer.nearest`."""
    check_positive("k", k)
    row = row_of_word(tokenizer, word)
    names = {i: name for i, name in tokenizer.names().items() if i < table.shape[0] and i != row}
    starts = range(0, table.shape[0], ROWS)
    blocks = (table.rows(slice(start, min(start + ROWS, table.shape[0]))) for start in starts)
    similarities = similarities_to(np.asarray(table.rows(np.array([row])))[0], blocks)
    ids = np.fromiter(names, np.int64, len(names))
    ids.sort()  # rows that are equally near are ordered by id
    ids = ids[top_indices(similarities[ids][None], k)[0]]
    return [(names[i], similarity) for i, similarity in zip(ids.tolist(), similarities[ids].tolist(), strict=True)]


def row_of_word(tokenizer: Tokenizer, word: str) -> int:
    """Return the row of a word: inside a text, after a space; alone; or as the vocabulary writes it.

    Raises TypeError for anything but a str, ValueError for a word of several pieces, or of none.
    """
    if not isinstance(word, str):
        raise TypeError(f"word must be a str, found {type(word).__name__}")
    names = tokenizer.names()
    ways = [tokenizer.pieces(f" {word}"), tokenizer.pieces(word)]
    for ids in ways:
        if len(ids) == 1 and ids[0] in names:
            return ids[0]
    written = tokenizer.id_of(word)
    if written is not None:
        return written
    pieces = [str(tokenizer.tokens(np.array(i))) for i in min(ways, key=len)]
    if not pieces:
        raise ValueError(f"{word!r} has no token in this vocabulary; give a word")
    if len(pieces) == 1:
        raise ValueError(f"{word!r} is unknown to this vocabulary, which has {pieces[0]} for it; give another word")
    many = f"{len(pieces)} pieces here, {' '.join(pieces)}"
    raise ValueError(f"{word!r} has no row of its own: it is {many}; ask for one of them as written, or another word")
