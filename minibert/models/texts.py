"""Texts -> vectors: one stream, texts in, vectors out, in bounded memory.

Texts of one length are stacked without padding and computed in tiles of whole texts. Rows are added first to last, so
a text's vector has the same bits alone, in any batch and on any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.sentences import normalized
from minibert.files.tokenizer import Encoded
from minibert.threads import ahead, spread

from .tiles import TILE_NUMBERS

K = TypeVar("K")
E = TypeVar("E")
V = TypeVar("V")

CHUNK = 2048  # texts that are tokenized at once; memory beyond the result is bounded by it


class Stages(Protocol):
    """The two halves of the way from texts to vectors: the next chunk is tokenized while this one is computed.

    tokenize: texts, and the number of the first of them for messages -> ids. vectors: ids -> (texts, dim).
    """

    @property
    def dim(self) -> int: ...
    def tokenize(self, texts: list[str], start: int, /) -> list[Encoded]: ...
    def vectors(self, encoded: list[Encoded], /) -> Any: ...


class Halves(NamedTuple):
    """Stages made of two functions."""

    dim: int
    tokenize: Callable[[list[Any], int], list[Encoded]]
    vectors: Callable[[list[Encoded]], Any]


def check_pooling(pooling: str | None) -> None:
    """Refuse a pooling that is not known, and "cls" with the reason."""
    if pooling == "cls":
        raise ValueError(
            "pooling 'cls' is meaningless here: before attention the first row is the same for every text, because "
            "it comes from [CLS], type 0 and position 0 alone; use 'mean' or 'max'"
        )
    if pooling not in (None, "mean", "max"):
        raise ValueError(f"pooling must be 'mean', 'max' or None, found {pooling!r}")


def check_positive(name: str, value: Any) -> None:
    """Refuse anything but an integer from 1 on. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ValueError(f"{name} must be an integer >= 1, found {value!r}")


def pool(rows: Array, pooling: str) -> Array:
    """Pool (texts, seq, dim) over seq -> (texts, dim); without any token the vector is zero.

    >>> pool(np.array([[[1.0, 4.0], [3.0, 2.0]]]), "mean"), pool(np.array([[[1.0, 4.0], [3.0, 2.0]]]), "max")
    (array([[2., 3.]]), array([[3., 4.]]))
    """
    if rows.shape[1] == 0:
        return np.zeros((rows.shape[0], rows.shape[2]), rows.dtype)
    if pooling == "max":
        return np.asarray(np.maximum.reduce(rows, axis=1))
    return np.asarray(np.add.reduce(rows, axis=1) / rows.dtype.type(rows.shape[1]))


def chunked(texts: Iterable[K], size: int) -> Iterator[list[K]]:
    """Cut what comes into lists of `size`, the last one shorter; nothing is read before it is asked for.

    >>> list(chunked("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    texts = iter(texts)
    while chunk := list(islice(texts, size)):
        yield chunk


def stream(
    chunks: Iterable[list[K]],
    tokenize: Callable[[list[K], int], E],
    vectors: Callable[[E], V],
    at_once: bool = False,
) -> Iterator[V]:
    """Turn chunks of texts into chunks of vectors, one after another: every function for many texts uses this.

    tokenize: a chunk and the number of its first text -> ids. vectors: a chunk's ids -> its result. Memory is bounded
    by one chunk, or with `at_once` by two: the next chunk is read and split into tokens, on another thread, while the
    vectors of this one are computed.
    """

    def numbered() -> Iterator[tuple[list[K], int]]:
        start = 0
        for chunk in chunks:
            yield chunk, start
            start += len(chunk)

    for encoded in ahead(lambda chunk: tokenize(*chunk), numbered(), at_once):
        yield vectors(encoded)


def pooled(
    encoded: list[Encoded],
    rows: Callable[[list[Encoded]], Array],
    pooling: str | None,
    normalize: bool,
    dim: int,
    dtype: np.dtype[Any],
    threads: int,
) -> Any:
    """Give a chunk's vectors: (texts, dim), or where `pooling` is None a list of (seq, dim).

    rows: texts of one length -> (texts, seq, dim). Each text's rows are pooled while they are in the cache.
    """
    found: Any = [None] * len(encoded) if pooling is None else np.empty((len(encoded), dim), dtype)

    def work(block: list[int]) -> None:
        block_rows = rows([encoded[i] for i in block])
        if pooling is None:
            for i, row in zip(block, block_rows, strict=True):  # each owns its rows: a view keeps the block alive
                found[i] = normalized(row) if normalize else row.copy()
        else:
            found[block] = pool(block_rows, pooling)

    spread(work, _blocks(encoded, TILE_NUMBERS // dim), threads)
    return normalized(found) if normalize and pooling is not None else found


def gathered(chunks: Iterable[Any], count: int, dim: int | None, dtype: np.dtype[Any]) -> Any:
    """Put the chunks of a stream together: (count, dim), or where `dim` is None one list."""
    if dim is None:
        return [vector for vectors in chunks for vector in vectors]
    found, start = np.empty((count, dim), dtype), 0
    for vectors in chunks:
        found[start : start + len(vectors)] = vectors
        start += len(vectors)
    return found


def shown(chunks: Iterable[list[K]], total: int | None, name: str, delay: float = 0.0) -> Iterator[list[K]]:
    """Pass chunks on and show a bar of texts; tqdm draws it on stderr, after `delay` seconds."""
    from tqdm.auto import tqdm

    with tqdm(total=total, desc=name, unit="text", delay=delay) as bar:
        for chunk in chunks:
            yield chunk
            bar.update(len(chunk))


def _blocks(encoded: list[Encoded], rows: int) -> Iterator[list[int]]:
    """Group texts of one length into blocks of about `rows` tokens."""
    by_length: dict[int, list[int]] = {}
    for i, row in enumerate(encoded):
        by_length.setdefault(len(row.input_ids), []).append(i)
    for length, members in by_length.items():
        tall = max(1, rows // max(length, 1))
        for start in range(0, len(members), tall):
            yield members[start : start + tall]
