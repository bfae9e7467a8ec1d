"""Vectors in fewer bytes: a byte or a bit for each number, and the comparison of vectors of bits.

    float16          2 bytes a number, rounded to three digits
    int8, uint8      1 byte: one of 256 levels, from the smallest number of its dimension to the largest in 255 steps
    binary, ubinary  1 bit: whether the number is positive; eight bits are an int8 or a uint8

The numbers equal those of sentence-transformers' `quantize_embeddings`, which has no float16.

Source: Shakir, Aarsen, Lee 2024, "Binary and Scalar Embedding Quantization" (the Hugging Face blog).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from .input_layer import Array

PRECISIONS: Mapping[str, type[np.generic]] = {
    "float32": np.float32,
    "float16": np.float16,
    "int8": np.int8,
    "uint8": np.uint8,
    "binary": np.int8,
    "ubinary": np.uint8,
}
"""Name -> the dtype of the stored numbers."""
STEPS = ("int8", "uint8")  # precisions that need ranges
BITS = ("binary", "ubinary")


def quantized(vectors: Array, precision: str, ranges: ArrayLike | None = None) -> Array:
    """Convert vectors (n, dim) to fewer bytes: float16, int8, uint8 (n, dim); binary, ubinary (n, ceil(dim / 8)).

        uint8    y = floor((x - low) / ((high - low) / 255)), from 0 to 255; if high = low, floor(x - low)
        int8     uint8 minus 128
        ubinary  bit i is 1 if x[i] > 0, the first of eight is the highest; bits beyond dim are 0
        binary   ubinary minus 128

    ranges (2, dim): the smallest and the largest number of each dimension, for int8 and uint8; by default the ranges of
    `vectors`. Vectors that will be compared need the same ranges: keep `ranges_of` of the first vectors.

    Raises TypeError for anything but an array of numbers; ValueError for an unknown precision, ranges that are not
    (2, dim) numbers with low <= high and a width within float32, one vector without ranges, a number that is not finite
    or too large for float16.

    >>> quantized(np.array([[0.0], [51.9], [255.0]]), "int8")  # a step is 1
    array([[-128],
           [ -77],
           [ 127]], dtype=int8)
    >>> quantized(np.array([[0.5, -1.0, 2.0]]), "ubinary")  # 101 and five zeros
    array([[160]], dtype=uint8)
    """
    kind = check_precision(precision)
    _check_array(vectors)
    if precision == "float32":
        return np.asarray(vectors, np.float32)
    _check_finite(vectors, f"precision {precision!r} needs")
    if precision == "float16":
        with np.errstate(over="ignore"):
            half = vectors.astype(np.float16)
        if not np.isfinite(half).all():
            raise ValueError("a number is too large for float16, whose largest is 65504; choose another precision")
        return half
    if precision in BITS:
        bits = np.packbits(vectors > 0, axis=-1)
        return bits if precision == "ubinary" else (bits - np.uint8(128)).view(np.int8)
    if len(vectors) == 0:
        return np.zeros(vectors.shape, kind)
    low, steps = _low_and_steps(ranges_of(vectors) if ranges is None else ranges, vectors.shape[-1])
    with np.errstate(over="ignore"):  # numbers outside the ranges are clipped
        y = np.clip(np.floor((vectors - low) / steps), 0, 255)
    return np.asarray(y.astype(np.uint8) if precision == "uint8" else (y - 128).astype(np.int8))


def ranges_of(vectors: Array) -> Array:
    """Compute the smallest and the largest number of each dimension: (n, dim) -> (2, dim) in the dtype of `vectors`.

    Raises ValueError for NaN or infinity, and for fewer than two vectors, as every number would be the smallest.

    >>> ranges_of(np.array([[0.0, 5.0], [1.0, 3.0]]))
    array([[0., 3.],
           [1., 5.]])
    """
    _check_array(vectors)
    if vectors.ndim != 2 or len(vectors) < 2:
        raise ValueError(
            f"the ranges of int8 and uint8 need two vectors or more, better a hundred; found {vectors.shape}; pass "
            "ranges to equations.quantized, or choose another precision"
        )
    _check_finite(vectors, "ranges need")
    return np.stack([vectors.min(axis=0), vectors.max(axis=0)])


def dequantized(vectors: Array, precision: str, ranges: ArrayLike | None = None) -> Array:
    """Approximate the original vectors, in float32: (n, dim). Raises ValueError for one bit a number.

        uint8    x = low + y * (high - low) / 255
        int8     the same with y + 128

    `quantized` rounds down, so x is lower than the vector by half a step on average.

    >>> dequantized(np.array([[-128, 127]], np.int8), "int8", [[0.0, 1.0], [1.0, 3.0]])
    array([[0., 3.]], dtype=float32)
    """
    check_precision(precision)
    _check_array(vectors)
    if precision in BITS:
        raise ValueError(f"{precision} keeps only the signs; compare such vectors with hamming")
    y = vectors.astype(np.float32)
    if precision in STEPS:
        low, steps = _low_and_steps([] if ranges is None else ranges, vectors.shape[-1])
        y += 128 if precision == "int8" else 0
        y *= steps
        y += low
    return y


def hamming(a: Array, b: Array) -> Array:
    """Count the bits that differ, with a minus sign: `y[i, j] = -popcount(a[i] xor b[j])`, float32.

    a (n, bytes), b (m, bytes), both binary or both ubinary -> (n, m). A larger number is more alike; 0 is equal.

    Raises ValueError for vectors of different dtypes or widths, and for a dtype other than int8 and uint8.

    >>> hamming(np.array([[0b1010]], np.uint8), np.array([[0b1010], [0b0110]], np.uint8))
    array([[ 0., -2.]], dtype=float32)
    """
    if a.dtype != b.dtype or a.dtype not in (np.int8, np.uint8) or a.ndim != 2 or a.shape[1:] != b.shape[1:]:
        raise ValueError(
            "hamming compares (n, bytes) with (m, bytes), both int8 or both uint8, found "
            f"{a.dtype} {a.shape} and {b.dtype} {b.shape}"
        )
    y = np.empty((len(a), len(b)), np.float32)
    word = np.uint64 if b.shape[1] % 8 == 0 and a.flags.c_contiguous and b.flags.c_contiguous else np.uint8
    a, b = a.view(word), b.view(word)
    for i, vector in enumerate(a):  # one vector at a time: all pairs at once would be (n, m, bytes)
        y[i] = np.bitwise_count(vector ^ b).sum(axis=1, dtype=np.int32)
    return np.asarray(0 - y)  # -y would be -0 for equal vectors


def check_precision(precision: str) -> type[np.generic]:
    """Return the dtype of a precision. Raises ValueError for an unknown one."""
    if not isinstance(precision, str) or precision not in PRECISIONS:  # a list has no hash
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, found {precision!r}")
    return PRECISIONS[precision]


def _check_array(vectors: Array) -> None:
    if not isinstance(vectors, np.ndarray) or vectors.dtype.kind not in "fiub":
        found_type = vectors.dtype if isinstance(vectors, np.ndarray) else type(vectors).__name__
        raise TypeError(
            f"vectors must be a NumPy array of numbers, (n, dim), found {found_type}; np.array makes one of lists"
        )


def _check_finite(vectors: Array, subject: str) -> None:
    if not np.isfinite(vectors).all():
        row = int(np.isfinite(np.atleast_2d(vectors)).all(axis=-1).argmin())
        raise ValueError(f"{subject} finite numbers, but vectors[{row}] has NaN or infinity; leave it out")


def _low_and_steps(ranges: ArrayLike, dim: int) -> tuple[Array, Array]:
    bounds = np.asarray(ranges)
    if bounds.shape != (2, dim) or bounds.dtype.kind not in "fiu" or not np.isfinite(bounds).all():
        raise ValueError(f"ranges must be (2, {dim}) finite numbers, found {bounds.dtype} of shape {bounds.shape}")
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = bounds.astype(np.float32)
        steps = (high - low) / 255
    if (low > high).any():
        raise ValueError(f"ranges must have low <= high, found low > high in dimension {int((low > high).argmax())}")
    if not np.isfinite(steps).all():
        dimension = int(np.isfinite(steps).argmin())
        ends = bounds[:, dimension].tolist()
        raise ValueError(f"ranges must have a width within float32, found {ends} in dimension {dimension}")
    return low, np.where(steps == 0, np.float32(1), steps)
