"""Texts -> vectors: the layer's rows of each text, and their mean or maximum, in bounded memory.

Texts of one length are stacked without padding and taken through the layer's steps in tiles of whole texts; each
text's rows are pooled while they lie in the cache. Rows are added first to last, so a text's vector has the same
bits alone, in any batch and on any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from minibert.files.tokenizer import Encoded, Texts, listed

from .tiles import SHARE, TILE_NUMBERS, ahead, spread, usable_threads

if TYPE_CHECKING:
    from .layer import EmbeddingLayer

Array = NDArray[Any]

CHUNK = 2048  # texts that are tokenized at once; memory beyond the result is bounded by it


def check(pooling: str | None) -> None:
    """Refuse a pooling that is not known, and "cls" with the reason."""
    if pooling == "cls":
        raise ValueError(
            "pooling 'cls' is meaningless here: before attention the first row is the same for every text, because "
            "it comes from [CLS], type 0 and position 0 alone; use 'mean' or 'max'"
        )
    if pooling not in (None, "mean", "max"):
        raise ValueError(f"pooling must be 'mean', 'max' or None, found {pooling!r}")


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


def normalized(vectors: Array) -> Array:
    """Divide each vector by its Euclidean length: `y = v / sqrt(v . v)`; a zero vector stays zero.

    A vector is first multiplied by the power of two that makes its largest number about 1, so that no square is lost
    at 1e-25 or 1e25; that changes no digit. Where a number is infinite the vector has no direction: NaN stands there,
    0 beside it. With a NaN all of it is NaN.

    >>> normalized(np.array([[3e-25, 4e-25], [0.0, 0.0]], np.float32))
    array([[0.6, 0.8],
           [0. , 0. ]], dtype=float32)
    """
    largest = np.maximum(vectors.max(-1, keepdims=True, initial=0), -vectors.min(-1, keepdims=True, initial=0))
    exponent = np.frexp(np.where(np.isfinite(largest), largest, 1))[1]
    y = np.ldexp(vectors, -exponent)
    length = np.sqrt(np.vecdot(y, y))[..., None]
    with np.errstate(invalid="ignore"):  # infinity by infinity
        y /= np.where(length == 0, 1, length)
    return np.asarray(y, vectors.dtype)


def embed(
    texts: Texts,
    text_pair: Texts | None,
    pooling: str | None,
    normalize: bool,
    threads: int | None,
    progress: bool,
    encode: Callable[[list[str], list[str] | None, int], list[Encoded]],
    layer: EmbeddingLayer,
) -> Any:
    """What `EmbeddingLayer.embed` does; the text of its parameters is there."""
    firsts, pairs = listed(texts, text_pair)
    ragged: list[Array] = [] if pooling else [np.empty((0, layer.dim), layer.dtype)] * len(firsts)
    pooled = np.empty((len(firsts) if pooling else 0, layer.dim), layer.dtype)

    def encoded_from(start: int) -> list[Encoded]:
        stop = start + CHUNK
        return encode(firsts[start:stop], None if pairs is None else pairs[start:stop], start)

    starts = range(0, len(firsts), CHUNK)
    # with several chunks the next one is split into tokens while the rows of this one are added up
    at_once = len(starts) > 1 and usable_threads(2 * SHARE, threads) > 1
    for start, encoded in zip(_shown(starts, progress), ahead(encoded_from, starts, at_once), strict=True):
        layer.steps[0].module.table.expect(row.input_ids for row in encoded)

        def work(block: list[int], encoded: list[Encoded] = encoded, start: int = start) -> None:
            rows = _rows(layer, [encoded[i] for i in block])
            if pooling is None:
                for i, row in zip(block, rows, strict=True):  # each owns its rows: a view would keep the block alive
                    ragged[start + i] = normalized(row) if normalize else row.copy()
            else:
                pooled[[start + i for i in block]] = pool(rows, pooling)

        numbers = sum(len(row.input_ids) for row in encoded) * layer.dim
        count = usable_threads(numbers, threads)
        spread(work, _blocks(encoded, TILE_NUMBERS // layer.dim), max(1, count - 1) if at_once else count)
    if pooling is None:
        return ragged
    return normalized(pooled) if normalize else pooled


def _shown(starts: range, progress: bool) -> Iterable[int]:
    if progress:
        from tqdm.auto import tqdm

        return tqdm(starts, desc="embed", unit_scale=CHUNK, unit="text")  # type: ignore[no-any-return]
    return starts


def _blocks(encoded: list[Encoded], rows: int) -> Iterator[list[int]]:
    """Group texts of one length into blocks of about `rows` tokens."""
    by_length: dict[int, list[int]] = {}
    for i, row in enumerate(encoded):
        by_length.setdefault(len(row.input_ids), []).append(i)
    for length, members in by_length.items():
        tall = max(1, rows // max(length, 1))
        for start in range(0, len(members), tall):
            yield members[start : start + tall]


def _rows(layer: EmbeddingLayer, encoded: list[Encoded]) -> Array:
    """Take texts of one length through the layer: (texts, seq, dim)."""
    input_ids = np.array([row.input_ids for row in encoded], np.int64)
    token_type_ids = None
    if layer.adds_types and encoded[0].token_type_ids is not None:
        token_type_ids = np.array([row.token_type_ids for row in encoded], np.int64)
    return layer(input_ids, token_type_ids=token_type_ids, threads=1)
