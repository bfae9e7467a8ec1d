"""Reads a folder of `bulk`: vectors block by block, and the kept columns of single rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.quantization import BITS, dequantized, hamming, quantized
from minibert.equations.sentences import SIMILARITIES, dot
from minibert.models.sentences.comparing import (
    Given,
    SparseVector,
    Vectors,
    by_tokens,
    changed,
    similarity,
    token_vectors_of,
    vectors_of,
)
from minibert.models.sentences.search import BLOCK, search

from . import shards
from .texts import VECTOR

TEXTS = 512  # whose token vectors are compared at once
MAPS = 1024  # shards that stay mapped between searches, four million rows: mapping takes longer than comparing


class StoredVectors:
    """A complete folder of `bulk`: `StoredVectors("./vectors").search(encoder.encode_query(text), k=5)`.

    path, meta      the folder, and what its last shard says of it
    rows, dim       how many vectors, and the numbers of one before quantization
    precision       how a number is stored: see `equations.quantization`
    late, sparse    whether a row has a vector for each token: then queries are lists of (tokens, dim); or a sparse one
    measure         the score's name: see `search`

    Vectors are mapped (Arrow) or read in blocks (Parquet), never loaded whole. Checksums are not compared here, but by
    `check_folder`. Raises ValueError for a folder that `bulk` has not made or not finished, whose shards are not
    all of one run and in their places, or that holds no row; OSError; ImportError without pyarrow. All name the folder
    or the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._shards, self._ends, self.meta = shards.finished(self.path)
        self.late, self.sparse = (self.meta["result"] == kind for kind in ("tokens", "sparse"))
        self.rows, self.dim = int(self.meta["rows"]), int(self.meta["dim"])
        self.precision: str = self.meta["precision"]
        if not self.rows:
            raise ValueError(f"{path}: it holds no vectors, since its input had no good row")
        bits = f"minus the Hamming distance of {self.precision} vectors"
        self.measure = bits if self.precision in BITS else self.meta["similarity"]
        self._maps: dict[Path, list[Any]] = {}

    def search(self, queries: Given, k: int = 10) -> tuple[Array, Array]:
        """Give for each query the numbers and scores of the k best rows: (n, dim) float32 -> (n, k) twice.

        Of equal scores the first row comes first; fewer than k where there are no more rows. A score is the model's
        similarity of the query and the stored vector as float32 (for vectors of length 1, the dot product). With binary
        and ubinary it is minus the number of bits that differ.

        Raises ValueError for a k below 1, and for queries of another width; TypeError for queries of another kind, and
        for quantized ones.
        """
        wanted: Any = token_vectors_of(queries, "queries") if self.late else vectors_of(queries, "queries")
        if self.sparse is not isinstance(wanted, list) and len(wanted):
            raise TypeError(
                f"{self.path} has {'sparse' if self.sparse else 'dense'} vectors, and the queries are of another kind"
            )
        if isinstance(wanted, np.ndarray) and wanted.dtype in (np.int8, np.uint8):
            raise TypeError(f"queries must be vectors of floats, as encode_query gives them, found {wanted.dtype}")
        width = wanted.width if self.late else self.dim if self.sparse else wanted.shape[1]
        if width != self.dim and len(wanted):
            raise ValueError(f"{self.path} has vectors of {self.dim} numbers, found queries of {width}")
        if self.precision in BITS:
            wanted = quantized(wanted, self.precision)
        return search(wanted, self.blocks(), k, self.compare)

    def compare(self, queries: Any, block: Any) -> Array:
        """Give the scores of a block of stored vectors: (n, dim), (m, dim) -> (n, m)."""
        if self.precision in BITS:
            return hamming(queries, block)
        if self.precision != "float32":
            block = changed(block, partial(dequantized, precision=self.precision, ranges=self.meta.get("ranges")))
        name = self.meta["similarity"]
        if self.sparse:
            return _sparse_dots(queries, block, self.dim) if name == "dot" else similarity(name, queries, block)
        if self.late:
            return by_tokens(name, queries, block)
        if name == "dot" or (name == "cosine" and self.meta["normalized"]):
            return np.ascontiguousarray(dot(block, queries).T)  # of many by few, BLAS is faster in this order
        return SIMILARITIES[name](queries, block)

    def blocks(self) -> Iterator[Vectors]:
        """Give all stored vectors, some thousand at a time: (m, dim), for `BITS` (m, ceil(dim / 8))."""
        size = TEXTS if self.late or self.sparse else BLOCK
        for path in self._shards:
            found = self._maps.get(path) or shards.batches(path, size, [VECTOR])
            if path.suffix == ".arrow" and len(self._maps) < MAPS:
                found = self._maps[path] = [*found]
            for batch in found:
                for start in range(0, len(batch), size):
                    yield shards.vectors_of(batch.column(0).slice(start, size))

    def ids(self, numbers: Iterable[int]) -> dict[int, int | str]:
        """Give the ids of rows by their numbers, counted from 0 through all shards."""
        return self.column(self.meta["id_column"] or "id", numbers)

    def texts(self, numbers: Iterable[int]) -> dict[int, str]:
        """Give the texts of rows by their numbers."""
        return self.column(self.meta["text_column"], numbers)

    def column(self, name: str, numbers: Iterable[int]) -> dict[int, Any]:
        """Return a kept column's values of rows by their numbers. Raises ValueError for a column that was not kept."""
        if name not in self.meta["columns"]:
            known = ", ".join(map(repr, self.meta["columns"]))
            raise ValueError(f"{self.path} has no column {name!r}; it has {known}")
        found: dict[int, Any] = {}
        wanted, start = sorted({int(number) for number in numbers}), 0
        for path, end in zip(self._shards, self._ends, strict=True):
            some = [row for row in wanted if start <= row < end]
            for batch in shards.batches(path, BLOCK, [name]) if some else ():
                found.update(
                    (row, batch.column(0)[row - start].as_py()) for row in some if 0 <= row - start < len(batch)
                )
                start += len(batch)
            start = end
        return found


def _sparse_dots(queries: list[SparseVector], block: list[SparseVector], width: int) -> Array:
    """Multiply only the entries that are not zero: written out, a million vectors would be 120 GB."""
    ids, weights = (np.concatenate(each) for each in zip(*block, strict=True))
    rows = np.repeat(np.arange(len(block)), [len(each.ids) for each in block])
    dense = np.zeros((len(queries), width), np.float32)
    for y, query in zip(dense, queries, strict=True):
        y[query.ids] = query.weights
    return np.array([np.bincount(rows, y[ids] * weights, len(block)) for y in dense], np.float32)
