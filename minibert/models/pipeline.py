"""Texts -> vectors, by one way for `embed`, `encode`, their streams, `bulk` and `Embedder`.

    texts -> ids, packed without padding -> rows of a layer or an encoder -> pooled -> the steps after

A model gives a `Pipeline`: its own functions for these steps. What cuts texts into chunks, a chunk into tiles and puts
vectors together is here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from typing import Any, NamedTuple, TypeVar

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import Option, worded
from minibert.files.tokenizer import Encoded
from minibert.threads.pool import ahead

from .packing import cuts

K = TypeVar("K")
E = TypeVar("E")
V = TypeVar("V")


class Batch(NamedTuple):
    """Some texts of one length, side by side: their tokens are first .. first + len(texts) * length - 1."""

    first: int
    texts: Array
    length: int

    def of(self, x: Array) -> Array:
        """Take their rows: (tokens, ...) -> (texts, seq, ...)."""
        own = x[self.first : self.first + len(self.texts) * self.length]
        return own.reshape(len(self.texts), self.length, *x.shape[1:])


class Packed(NamedTuple):
    """The tokens of some texts, one text behind the other, the shortest first; nothing is padded.

    ids (tokens,); types (tokens,), None where all are 0; texts and lengths (texts,): which text of its chunk each one
    is, and how many tokens it has.
    """

    ids: Array
    types: Array | None
    texts: Array
    lengths: Array

    def batches(self) -> Iterator[Batch]:
        """Give the texts of each length."""
        first = start = 0
        for length, same in groupby(self.lengths.tolist()):
            count = len(list(same))
            yield Batch(first, self.texts[start : start + count], length)
            first, start = first + count * length, start + count

    def tiles(self, tokens: int) -> Iterator[Packed]:
        """Cut into parts of about so many tokens, each of whole texts."""
        if len(self.ids) <= tokens:
            yield from [self] * bool(len(self.texts))
            return
        before = 0
        for part in cuts(self.lengths, tokens):
            here = slice(before, before := before + int(self.lengths[part].sum()))
            types = None if self.types is None else self.types[here]
            yield Packed(self.ids[here], types, self.texts[part], self.lengths[part])


def pack(encoded: Sequence[Encoded], typed: bool = True) -> Packed:
    """Put the ids of texts together. Without `typed` their types are left out, which the model then has no use for.

    >>> pack([Encoded([7, 8], None), Encoded([9], None)])[0]
    array([9, 7, 8])
    """
    if len(encoded) == 1:  # nothing to sort and to join: a tenth of the time of one short text
        ids, own = encoded[0].input_ids, encoded[0].token_type_ids if typed else None
        own_types = None if own is None else np.array(own, np.int64)
        return Packed(np.array(ids, np.int64), own_types, np.zeros(1, np.int64), np.array([len(ids)]))
    lengths = np.fromiter((len(each.input_ids) for each in encoded), np.int64, len(encoded))
    texts = np.argsort(lengths, kind="stable")
    ordered = [encoded[i] for i in texts.tolist()]

    def joined(rows: Iterable[Sequence[int]]) -> Array:
        return np.array(list(chain.from_iterable(rows)), np.int64)

    types = None
    if typed and any(each.token_type_ids is not None for each in ordered):
        types = joined(each.token_type_ids or [0] * len(each.input_ids) for each in ordered)
    return Packed(joined(each.input_ids for each in ordered), types, texts, lengths[texts])


class Pipeline(NamedTuple):
    """How one model turns texts into vectors.

    tokenize   a chunk of texts, and the number of the first of them for messages -> ids
    rows       tokens -> their rows (tokens, width)
    pool       (texts, seq, width) -> (texts, numbers); None keeps each text's rows (seq, width)
    after      what is done to the pooled vectors in turn, or to each text's rows
    dim        of a vector at the end
    chunk      texts that are tokenized, and sorted by length, at once: memory beyond the result is bounded by it
    spread     work and a chunk's tokens -> cuts them into tiles and has the work done for each, on several threads;
               it may pass a tile's rows along, where it has computed them
    typed      types of tokens are of use
    hint       is told of all tokens of a chunk before they are computed
    alone      computes on one thread: nothing is tokenized on another meanwhile
    whole      `rows` gives one result for each text, of any kind, and nothing is pooled
    """

    tokenize: Callable[[list[Any], int], list[Encoded]]
    rows: Callable[[Packed], Any]
    pool: Callable[[Array], Array] | None
    after: Sequence[Callable[[Array], Array]]
    dim: int
    dtype: np.dtype[Any]
    chunk: int
    spread: Callable[[Callable[..., None], Packed], None]
    typed: bool = True
    hint: Callable[[Packed], object] = lambda packed: None
    alone: bool = False
    whole: bool = False

    def vectors(self, encoded: Sequence[Encoded]) -> Any:
        """Give a chunk's vectors (texts, dim), or where nothing is pooled a list of (seq, width)."""
        packed, pool = pack(encoded, self.typed), self.pool
        self.hint(packed)
        found: Any = [None] * len(encoded) if pool is None else np.empty((len(encoded), self.dim), self.dtype)

        def work(tile: Packed, x: Any = None) -> None:
            x = self.rows(tile) if x is None else x
            if self.whole:
                for i, result in zip(tile.texts.tolist(), x, strict=True):
                    found[i] = result
                return
            if pool is not None:  # while the rows are in the cache
                found[tile.texts] = self._finish(np.concatenate([pool(batch.of(x)) for batch in tile.batches()]))
                return
            for batch in tile.batches():
                for i, rows in zip(batch.texts.tolist(), batch.of(x), strict=True):
                    found[i] = self._finish(rows.copy())  # a view would keep the tile alive

        self.spread(work, packed)
        return found

    def _finish(self, x: Array) -> Array:
        for step in self.after:
            x = step(x)
        return x

    def stream(self, chunks: Iterable[list[Any]], at_once: bool = False) -> Iterator[Any]:
        """Give each chunk's vectors when it has come: see `stream`."""
        return stream(chunks, self.tokenize, self.vectors, at_once and not self.alone)

    def all(self, texts: list[Any], shown_as: str = "") -> Any:
        """Give the vectors of all texts (texts, dim), or one list; with a bar on stderr where it has a name."""
        chunks = chunked(texts, self.chunk)
        chunks = shown(chunks, len(texts), shown_as) if shown_as else chunks
        found = self.stream(chunks, at_once=len(texts) > self.chunk)
        if self.pool is None:
            return [rows for each in found for rows in each]
        vectors, start = np.empty((len(texts), self.dim), self.dtype), 0
        for each in found:
            vectors[start : start + len(each)] = each
            start += len(each)
        return vectors


def check_positive(name: str, value: Any) -> None:
    """Refuse anything but an integer from 1 on. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise worded(ValueError, Option(name), f" must be an integer >= 1, found {value!r}")


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
    by one chunk, or with `at_once` by two: the next chunk is read and tokenized, on another thread, while the vectors
    of this one are computed.
    """

    def numbered() -> Iterator[tuple[list[K], int]]:
        start = 0
        for chunk in chunks:
            yield chunk, start
            start += len(chunk)

    for encoded in ahead(lambda chunk: tokenize(*chunk), numbered(), at_once):
        yield vectors(encoded)


def shown(chunks: Iterable[list[K]], total: int | None, name: str, delay: float = 0.0) -> Iterator[list[K]]:
    """Pass chunks on and show a bar of texts; tqdm draws it on stderr, after `delay` seconds."""
    from tqdm.auto import tqdm

    with tqdm(total=total, desc=name, unit="text", delay=delay) as bar:
        for chunk in chunks:
            yield chunk
            bar.update(len(chunk))
