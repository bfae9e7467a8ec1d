"""Rotary positions: queries and keys are rotated by an angle that grows with their token's position in the text.

Read `blocks` first. Nothing is added to the word rows: the input layer knows nothing of positions, attention uses them.
The product of a query at position i and a key at position j then depends only on i - j. Llama, GPT-NeoX, ModernBERT
and Nomic have rotary positions; for longer texts `rotary_scaling` changes the speeds.

The docstring of each formula of floats states the measured difference from the reference.

Source: Su et al. 2021, "RoFormer" (arXiv:2104.09864).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .input_layer import Array


def check_positions(values: ArrayLike, name: str) -> Array:
    """Return positions or distances as an int64 array. Raises TypeError for floats: positions count tokens.

    >>> check_positions([0, 2], "position_ids")
    array([0, 2])
    """
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, found {array.dtype}; positions count tokens")
    return array.astype(np.int64, copy=False)


def rotary_powers(dim: int, base: float = 10000.0) -> Array:
    """Compute for each pair of a head's dimensions how many tokens it needs to turn by one radian: `base^(2i / dim)`.

    -> (ceil(dim / 2),), float32. The exponent is float32, the power float64, rounded once.

    Raises ValueError for a dim below 1 or a base that is not positive. Source: Su et al. 2021.

    >>> rotary_powers(4, base=100.0)
    array([ 1., 10.], dtype=float32)
    """
    if dim < 1 or not 0 < base < np.inf:
        raise ValueError(f"need dim >= 1 and base > 0; found dim={dim}, base={base}")
    exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    return np.power(float(base), exponent.astype(np.float64)).astype(np.float32)


def rotary_frequencies(dim: int, base: float = 10000.0) -> Array:
    """Compute the turning speed of each pair of a head's dimensions, in radians per token.

        f[i] = base^(-2i / dim)     for 2i = 0, 2, 4, ... < dim

    -> (ceil(dim / 2),), float32. `dim` of a head's dimensions rotate, `base` is the config's theta. Some models scale
    the frequencies: see `rotary_scaling`.

    The bits matter: one wrong last bit grows to 1e-4 at position 4096. Here the exponent is float32, the power
    float64, its rounding and the reciprocal float32: over dims 2..256 and bases 500..1e7, 15 of 2723 frequencies
    differ from torch's, by one or two last bits; if all were computed in float64, 1150 would differ.

    Raises as `rotary_powers`. Source: Su et al. 2021.

    >>> rotary_frequencies(4, base=100.0)
    array([1. , 0.1], dtype=float32)
    """
    return np.float32(1.0) / rotary_powers(dim, base)


def rotary_angles(position_ids: ArrayLike, frequencies: Array, factor: float = 1.0) -> tuple[Array, Array]:
    """Compute the cosines and sines of each position's angles, `angle = p * f`, written twice: [angle | angle].

    position_ids of any shape (...), frequencies (n,) -> cos and sin, each (..., 2n), float32, both times `factor`,
    which a rule of `rotary_scaling` may have.

    The angle itself is float32, as in the reference: at position 4095 it is up to 1.2e-4 off the exact product,
    and models have been trained with this error. For the same frequencies, cos and sin differ from torch's by at most
    6.0e-8 up to position 4096; for frequencies that differ in the last bits, by at most 6.2e-5.

    Raises TypeError for positions that are not integers. Source: Su et al. 2021; the layout is Llama's.

    >>> cos, sin = rotary_angles([0, 1], np.array([1.0, 0.5], np.float32))
    >>> cos.round(4)
    array([[1.    , 1.    , 1.    , 1.    ],
           [0.5403, 0.8776, 0.5403, 0.8776]], dtype=float32)
    """
    angle = check_positions(position_ids, "position_ids")[..., None].astype(np.float32) * frequencies.astype(np.float32)
    # the cosine of the float32 angle, rounded once: the same bits on every machine
    exact = np.concatenate([angle, angle], axis=-1).astype(np.float64)
    cos, sin = np.cos(exact).astype(np.float32), np.sin(exact).astype(np.float32)
    return (cos, sin) if factor == 1.0 else (cos * np.float32(factor), sin * np.float32(factor))


def query_factor(position_ids: ArrayLike, beta: float, length: int) -> Array:
    """Compute the factor of each query after its rotation: `1 + beta ln(1 + floor(p / length))`.

    position_ids of any shape (...) -> (...), float32. `length` is the original length, in tokens, so the factor is 1 in
    a shorter text. In a longer text the largest scores are spread over more keys; the factor makes them larger.

    Raises TypeError for positions that are not integers. Source: Llama 4 (Meta, 2025); Ministral 3 has it too.

    >>> query_factor([0, 3, 4, 11], beta=0.5, length=4).round(4)
    array([1.    , 1.    , 1.3466, 1.5493], dtype=float32)
    """
    times = check_positions(position_ids, "position_ids") // length
    return 1 + np.float32(beta) * np.log(1 + times.astype(np.float32))


def rotate(x: Array, cos: Array, sin: Array, pairing: str = "halves") -> Array:
    """Rotate each pair (a, b) of a query's or a key's dimensions by its angle.

        a' = a cos - b sin          "halves":      a, b = x[i], x[i + n]       Llama as saved by transformers, GPT-NeoX
        b' = b cos + a sin          "neighbours":  a, b = x[2i], x[2i + 1]     GPT-J, Llama as first published

    x (..., dim), cos and sin (..., 2n) from `rotary_angles` -> (..., dim). The first 2n dimensions rotate, the
    rest pass through (GPT-NeoX rotates a quarter of each head). For x (batch, heads, seq, dim) write `cos[:, None]`.

    The trap: the two pairings are the same formula with the dimensions in another order. A checkpoint is trained
    for one pairing, and the other pairing computes plausible, wrong scores. Equal to the reference to the bit.

    Raises ValueError for an unknown pairing or for cos wider than x. Source: Su et al. 2021.

    >>> quarter = np.zeros(4), np.ones(4)  # cos and sin of 90 degrees
    >>> rotate(np.array([1.0, 2.0, 3.0, 4.0]), *quarter)
    array([-3., -4.,  1.,  2.])
    >>> rotate(np.array([1.0, 2.0, 3.0, 4.0]), *quarter, pairing="neighbours")
    array([-2.,  1., -4.,  3.])
    """
    rotary_dim = cos.shape[-1]
    if pairing not in ("halves", "neighbours"):
        raise ValueError(f"pairing must be 'halves' or 'neighbours', found {pairing!r}")
    if rotary_dim > x.shape[-1] or rotary_dim % 2 or sin.shape != cos.shape:
        shapes = f"cos {cos.shape}, sin {sin.shape}, x {x.shape}"
        raise ValueError(f"cos and sin must have one shape, an even width, at most as wide as x; found {shapes}")
    n = rotary_dim // 2
    halves = slice(0, n), slice(n, rotary_dim)
    first, second = halves if pairing == "halves" else (slice(0, rotary_dim, 2), slice(1, rotary_dim, 2))
    a, b, cos, sin = x[..., first], x[..., second], cos[..., :n], sin[..., :n]
    y = np.empty(np.broadcast_shapes(x.shape[:-1], cos.shape[:-1]) + x.shape[-1:], np.result_type(x, cos))
    y[...] = x
    y[..., first] = a * cos - b * sin
    y[..., second] = b * cos + a * sin
    return y
