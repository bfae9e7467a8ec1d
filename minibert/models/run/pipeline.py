"""Texts -> vectors, by one way for `embed`, `encode`, the commands and `bulk`.

    texts -> ids, packed without padding -> rows of a layer or an encoder -> pooled -> the steps after

A model gives a `Pipeline`: its own functions for these steps. What cuts texts into chunks and puts vectors together is
here, once; `packing` cuts a chunk into tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError, Option, error_of
from minibert.files.tokenizer import Encoded
from minibert.threads.pool import parallel_for, prefetch

from .packing import Packed

K = TypeVar("K")
BROKEN = "a weight in its file is NaN, or too large; fetch the file again"  # ends errors about NaN and infinity


class Pipeline(NamedTuple):
    """Turns texts into vectors, or into other results, as one model does."""

    tokenize: Callable[[list[Any], int], list[Encoded]]  # a chunk, and the number of its first text for messages -> ids
    # a chunk's ids and a function, which is called with each tile and its rows (tokens, width), on several threads
    compute: Callable[[Sequence[Encoded], Callable[[Packed, Array], None]], None]
    results: Callable[[Packed, Array], Any]  # a tile and its rows -> one result for each of its texts: see `pooled`
    dim: int | None  # of a vector, None where the results are anything else
    dtype: np.dtype[Any]
    chunk: int  # texts tokenized, and sorted by length, at once: memory beyond the result is bounded by it
    prefetching: bool = False  # tokenize the next chunk on another thread while this one is computed
    chunk_threads: int = 1  # threads that each take a chunk, where tokenizing is most of the work

    def vectors(self, encoded: Sequence[Encoded]) -> Any:
        """Give a chunk's vectors (texts, dim), or the list of its results. Texts of the same ids are computed once."""
        if len(encoded) > 1:
            keys = [(tuple(ids), tuple(types or ()), unseen) for ids, types, _, unseen in encoded]
            different = dict(zip(keys, encoded, strict=True))
            if len(different) < len(encoded):
                made = dict(zip(different, self.vectors([*different.values()]), strict=True))
                if self.dim is not None:
                    return np.array([made[key] for key in keys])
                return [deepcopy(made[key]) for key in keys]  # of a sparse vector its arrays too
        found = self._room(len(encoded))

        def put(tile: Packed, x: Array) -> None:
            results = self.results(tile, x)  # while the rows are in the cache
            if self.dim is not None:
                found[tile.texts] = results
                return
            for i, result in zip(tile.texts.tolist(), results, strict=True):
                found[i] = result

        with np.errstate(over="ignore", invalid="ignore"):  # `finite` says it
            self.compute(encoded, put)
        return found

    def stream(self, chunks: Iterable[list[Any]], prefetching: bool = False) -> Iterator[Any]:
        """Turn chunks of texts into chunks of vectors, one after another: every function for many texts uses this.

        Memory is bounded by one chunk, or with `prefetching` by two: the next chunk is read and tokenized, on another
        thread, while the vectors of this one are computed.
        """

        def numbered() -> Iterator[tuple[list[Any], int]]:
            start = 0
            for chunk in chunks:
                yield chunk, start
                start += len(chunk)

        for encoded in prefetch(lambda chunk: self.tokenize(*chunk), numbered(), prefetching and self.prefetching):
            yield self.vectors(encoded)

    def all(self, texts: list[Any], shown_as: str = "") -> Any:
        """Give the vectors of all texts (texts, dim), or one list; with a bar on stderr where it has a name."""
        if 0 < len(texts) <= self.chunk and not shown_as:
            return self.vectors(self.tokenize(texts, 0))
        found, start = self._room(len(texts)), 0
        if self.chunk_threads > 1 and not shown_as:

            def work(start: int) -> None:
                some = slice(start, start + self.chunk)
                found[some] = self.vectors(self.tokenize(texts[some], start))

            parallel_for(work, range(0, len(texts), self.chunk), self.chunk_threads)
            return found
        chunks = chunked(texts, self.chunk)
        chunks = shown(chunks, len(texts), shown_as) if shown_as else chunks
        for each in self.stream(chunks, prefetching=len(texts) > self.chunk):
            found[start : start + len(each)] = each
            start += len(each)
        return found

    def noting(self, cut: list[int]) -> Pipeline:
        """Give the same steps, which add to `cut` the number of tokens that each truncated text has lost."""

        def tokenize(texts: list[Any], start: int) -> list[Encoded]:
            encoded = self.tokenize(texts, start)
            cut.extend(each.truncated for each in encoded if each.truncated)
            return encoded

        return self._replace(tokenize=tokenize)

    def _room(self, count: int) -> Any:
        return [None] * count if self.dim is None else np.empty((count, self.dim), self.dtype)


def pooled(
    pool: Callable[[Array], Array],
    after: Sequence[Callable[[Array], Array]],
    which: Callable[[Array], Array] | None = None,
) -> Callable[[Packed, Array], Any]:
    """Make the `results` of vectors: pool (texts, seq, width) -> (texts, numbers), then take the steps after in turn.

    which: instead of pooling one token of each text is taken, where this finds it in their ids (texts, seq).
    """

    def results(tile: Packed, x: Array) -> Array:
        if which is None:
            of_groups = [pool(group.of(x)) for group in tile.groups()]
        else:
            of_groups = [picked(which, group.of(x), group.of(tile.ids)) for group in tile.groups()]
        y = of_groups[0] if len(of_groups) == 1 else np.concatenate(of_groups)
        for step in after:
            y = step(y)
        return y

    return results


def finite(vectors: Array) -> Array:
    """Pass finished vectors on, as the last step. Raises CheckpointError for NaN and infinity."""
    if not np.isfinite(vectors).all():
        raise CheckpointError(f"the model gives NaN or infinity where a vector was expected: {BROKEN}")
    return vectors


def picked(which: Callable[[Array], Array], rows: Array, ids: Array) -> Array:
    """Take one token's row of each text, where its ids say it stands; zeros for a text without tokens."""
    return rows[np.arange(len(rows)), which(ids)] if ids.shape[1] else np.zeros_like(rows, shape=rows.shape[::2])


def token_vectors(after: Sequence[Callable[[Array], Array]] = ()) -> Callable[[Packed, Array], Any]:
    """Make the `results` of tokens' vectors: each text's rows (seq, width), then the steps after in turn."""

    def results(tile: Packed, x: Array) -> list[Array]:
        found = [rows.copy() for group in tile.groups() for rows in group.of(x)]  # a view would keep the tile alive
        for step in after:
            found = [step(rows) for rows in found]
        return found

    return results


def check_positive(name: str, value: Any, or_none: bool = False) -> None:
    """Refuse anything but an integer from 1 on, or None where that may be. Raises ValueError."""
    if or_none and value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise error_of(ValueError, Option(name), f" must be an integer >= 1, found {value!r}")


def chunked(texts: Iterable[K], size: int) -> Iterator[list[K]]:
    """Cut what comes into lists of `size`, the last one shorter; nothing is read before it is asked for.

    >>> list(chunked("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    texts = iter(texts)
    while chunk := list(islice(texts, size)):
        yield chunk


def shown(chunks: Iterable[list[K]], total: int | None, name: str, delay: float = 0.0) -> Iterator[list[K]]:
    """Pass chunks on and show a bar of texts; tqdm draws it on stderr, after `delay` seconds."""
    from tqdm.auto import tqdm

    with tqdm(total=total, desc=name, unit="text", delay=delay) as bar:
        for chunk in chunks:
            yield chunk
            bar.update(len(chunk))
