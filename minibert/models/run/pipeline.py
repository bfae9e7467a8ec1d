"""Texts -> vectors, in the same steps for `embed`, `encode`, the commands and `bulk`.

    TextPipeline.all -> tokenize -> vectors -> run -> pool

`run` packs the ids and computes rows tile by tile. A subclass overrides a step: heads compute logits in `pool`, pairs
are split in `tokenize`, and an input layer by itself has another `run`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy, deepcopy
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.sentences import POOLINGS, normalized
from minibert.errors import CheckpointError, Text, error_of
from minibert.files.tokenizer import Encoded, Tokenizer
from minibert.threads.computing import cores
from minibert.threads.pool import parallel_for, prefetch

from .layer import InputLayer
from .packing import TILE_ROWS, Packed

if TYPE_CHECKING:
    from .blocks import Stack

K = TypeVar("K")
P = TypeVar("P", bound="TextPipeline")
Truncated = tuple[int, int]  # the number of a text, from 0, and how many of its tokens were left out
CHUNK = 512  # texts sorted by length together; this bounds the memory beyond the result
BROKEN = "a weight in its file is NaN, or too large; fetch the file again"  # the end of errors about NaN and infinity


class TextPipeline:
    """Turns each text into one result: a pooled vector, or without pooling the vectors of its tokens.

    `steps` sets any of the attributes below and of a subclass.
    """

    layer: InputLayer
    stack: Stack | None = None  # the blocks
    max_length: int | None = None  # tokens for which the position table has rows
    dim: int | None = None  # numbers of a vector, the first ones of it; None if results are anything else
    prompt: str = ""  # put before each text
    longest: int | None = None  # tokens; a longer text is truncated
    poolings: tuple[str, ...] = ()  # names in `POOLINGS`, concatenated
    picks: Callable[[Array], Array] | None = None  # instead of pooling: ids (texts, seq) -> the position of one token
    skip: int = 0  # how many first tokens are not pooled
    after: tuple[Callable[[Array], Array], ...] = ()  # applied to the pooled vectors in turn
    normalize: bool = False
    take: Any = None  # a method of heads: the tokens of a tile that leave the last block; None: all
    threads: int | None = None
    single_threaded: bool = False  # no bit of a result depends on `threads`: see `computing.compute`
    chunk: int = CHUNK
    chunk_threads: int = 1  # threads that each take a chunk: more than one if tokenizing takes longest
    truncated: list[Truncated] | None = None  # receives each truncated text

    def __init__(self, tokenizer: Tokenizer, dtype: np.dtype[Any], **steps: Any) -> None:
        self.tokenizer, self.dtype = tokenizer, dtype
        vars(self).update(steps)

    def all(self, texts: list[Any], shown_as: str = "") -> Any:
        """Return the vectors of all texts (texts, dim), or a list of results; a name shows a bar on stderr."""
        if 0 < len(texts) <= self.chunk and not shown_as:
            return self.vectors(self.tokenize(texts, 0))
        results: Any = [None] * len(texts) if self.dim is None else np.empty((len(texts), self.dim), self.dtype)
        start = 0
        if self.chunk_threads > 1 and not shown_as:

            def compute_chunk(start: int) -> None:
                some = slice(start, start + self.chunk)
                results[some] = self.vectors(self.tokenize(texts[some], start), start)

            parallel_for(compute_chunk, range(0, len(texts), self.chunk), self.chunk_threads)
            return results
        chunks = chunked(texts, self.chunk)
        chunks = shown(chunks, len(texts), shown_as) if shown_as else chunks
        for part in self.stream(chunks, prefetching=len(texts) > self.chunk):
            results[start : start + len(part)] = part
            start += len(part)
        return results

    def stream(self, chunks: Iterable[list[Any]], prefetching: bool = False) -> Iterator[Any]:
        """Turn chunks of texts into chunks of vectors, one after another.

        Memory is bounded by one chunk, or with `prefetching` by two: the next chunk is read and tokenized on another
        thread while the vectors of this one are computed.
        """

        def tokenized() -> Iterator[tuple[int, list[Encoded]]]:
            start = 0
            for chunk in chunks:
                yield start, self.tokenize(chunk, start)
                start += len(chunk)

        for start, encoded in prefetch(tokenized(), prefetching and self.prefetching):
            yield self.vectors(encoded, start)

    @property
    def prefetching(self) -> bool:
        """Whether a thread is free to tokenize the next chunk while one is computed."""
        return (self.threads or cores()) > 1

    def tokenize(self, texts: list[Any], start: int) -> list[Encoded]:
        """Return the ids of a chunk's texts behind the prompt, truncated. start: the number of the first, for messages.

        Raises ValueError for a text without a token with pooling "max".
        """
        if self.prompt:  # the tokenizer's error for anything but a str names its number
            texts = [self.prompt + text if isinstance(text, str) else text for text in texts]
        encoded = self.tokenizer.encode(texts, None, True, self.longest, start)
        if "max" in self.poolings and not self.picks:
            for i, sequence in enumerate(encoded, start):
                if len(sequence.input_ids) <= self.skip:
                    beyond = " beyond its prompt" if self.skip else ""
                    without = f" has no token{beyond}, and pooling 'max' needs one; leave it out"
                    raise error_of(ValueError, Text(i), without)
        return encoded

    def vectors(self, encoded: Sequence[Encoded], start: int = 0) -> Any:
        """Return a chunk's vectors (texts, dim), or the list of its results. Identical ids are computed once.

        start: the number of the first text, in `truncated`.
        """
        if self.truncated is not None:
            self.truncated += [
                (i, sequence.truncated) for i, sequence in enumerate(encoded, start) if sequence.truncated
            ]
        keys = [(tuple(ids), tuple(types or ()), unseen) for ids, types, _, unseen in encoded]
        different = dict(zip(keys, encoded, strict=True))
        count = len(different)
        results: Any = [None] * count if self.dim is None else np.empty((count, self.dim), self.dtype)

        def put(tile: Packed, x: Array) -> None:
            pooled = self.pool(tile, x)  # while the rows are in the cache
            if self.dim is not None:
                results[tile.texts] = pooled
                return
            for i, result in zip(tile.texts.tolist(), pooled, strict=True):
                results[i] = result

        with np.errstate(over="ignore", invalid="ignore"):  # `finite` raises
            self.run([*different.values()], put)
        if len(different) == len(encoded):
            return results
        numbers = {key: i for i, key in enumerate(different)}
        if self.dim is not None:
            return results[[numbers[key] for key in keys]]
        return [deepcopy(results[numbers[key]]) for key in keys]  # the arrays of a sparse vector too

    def run(self, encoded: Sequence[Encoded], put: Callable[[Packed, Array], None]) -> None:
        """Pack a chunk's ids and run them through the model; `put` is called with each tile and its rows, on several
        threads."""
        packed, stack = self.layer.pack(encoded), self.stack
        if stack and (stack.blocks or any(step is not normalized for step in self.after)):
            from .blocks import run_model  # imported here: the input layer alone does not need it

            threads = self.threads if stack.blocks else 1
            run_model(self.layer, stack, packed, put, threads, self.single_threaded, self.take)
            return
        for tile in packed.tiles(TILE_ROWS):  # without a matrix product no thread has to wait for BLAS
            put(tile, self.layer.rows(tile))

    def pool(self, tile: Packed, x: Array) -> Any:
        """Return one result for each text of a tile, of its rows x (tokens, width). Raises CheckpointError for NaN."""
        groups, pooled = tile.groups(), list[Array]()
        for group in groups if self.poolings else ():
            rows, names = group.select(x), self.poolings
            if not group.length:
                pooled.append(np.zeros((len(rows), rows.shape[2] * (1 if self.picks else len(names))), x.dtype))
            elif self.picks:
                pooled.append(rows[np.arange(len(rows)), self.picks(group.select(tile.ids))])
            else:
                pooled.append(np.concatenate([POOLINGS[name](rows, self.skip) for name in names], axis=1))
        y = np.concatenate(pooled) if pooled else x
        for step in self.after:
            y = step(y)
        y = y[:, : self.dim]
        y = finite(normalized(y) if self.normalize else y)
        return y if self.poolings else [rows.copy() for group in groups for rows in group.select(y)]

    def noting(self: P, truncated: list[Truncated]) -> P:
        """Return a copy that adds each truncated text to `truncated`."""
        pipeline = copy(self)
        pipeline.truncated = truncated
        return pipeline


def finite(vectors: Array) -> Array:
    """Return finished vectors. Raises CheckpointError for NaN and infinity."""
    if not np.isfinite(vectors).all():
        raise CheckpointError(f"the model gives NaN or infinity where a vector was expected: {BROKEN}")
    return vectors


def chunked(texts: Iterable[K], size: int) -> Iterator[list[K]]:
    """Cut an iterable into lists of `size`, the last one shorter; nothing is read before it is needed.

    >>> list(chunked("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    texts = iter(texts)
    while chunk := list(islice(texts, size)):
        yield chunk


def shown(chunks: Iterable[list[K]], total: int | None, name: str, delay: float = 0.0) -> Iterator[list[K]]:
    """Yield chunks and show a bar of texts; tqdm draws it on stderr, after `delay` seconds."""
    from tqdm.auto import tqdm

    with tqdm(total=total, desc=name, unit="text", delay=delay) as bar:
        for chunk in chunks:
            yield chunk
            bar.update(len(chunk))
