"""Some formulas for speed: the same numbers but for the last bits, in fewer passes over memory.

`Encoder` computes with these. To learn the formulas, skip this file; a test holds each equal to its twin.

Tried on whole texts, and no gain: tokens as columns through a whole block (1.03), pieces of 2^12 to 2^14 numbers
(NumPy's calls take what the cache gives), memory for gelu's intermediates kept, its result written into the piece
(0.99). Weight and bias of LayerNorm repeated for 32 rows take 0.65 of their time, 0.98 of all but the products.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from . import activations
from .activations import Activation
from .input_layer import Array

# OpenBLAS's AVX-512 kernel for small matrices takes a product, both operands row-major, of rows * outputs * width up to
# 10^6 and packs nothing. A usual product packs the whole weight at each call: for a short text that is most of its time
PANEL = 64  # outputs of a panel: 32, 48, 96 and 128 are slower by 5 to 20 %
CUT = 448  # inputs that are added in one go, as in the usual product
FEW = 32  # rows of a product with panels: FEW * PANEL * CUT is below 10^6

# How many outputs a product has at least, where one that has fewer would take another way: see `steady_linear`
OUTPUTS = 128

# ln Q(t) on 0..9 as a polynomial, t^0 .. t^6, Q the upper tail of the normal distribution, fitted for the least largest
# error of gelu
LOG_TAIL = (-0.693142371, -0.797952214, -0.317995808, -0.0370224482, 0.00560112511, -0.000533182238, 2.29381657e-05)
PIECE = 1 << 15  # how many numbers an activation works on at once: its intermediates stay in the L2 cache
HALVED = 256  # numbers of a row, up to which its largest is found by halves: twice as fast for 8 to 40, slower for 512
FLAT = 9.0  # from here on t Q(t) is nothing beside t in float32: 9 Q(9) = 1e-18


def linear(x: Array, weight: Array, bias: Array | None = None, out: Array | None = None, columns: int = 0) -> Array:
    """As `blocks.linear`; up to `columns` rows (tokens, dim) are multiplied, and the result stored, as columns.

    `out` (tokens, out) lends its memory. Columns read the weight as it is stored: with some kernels of BLAS they take
    0.6 to 0.9 times the time.
    """
    few = x.ndim == 2 and len(x) <= columns
    transposed = out if out is None or not few else out.reshape(out.shape[::-1])
    y: Array = np.matmul(weight, x.T, out=transposed).T if few else np.matmul(x, weight.T, out=out)  # (..., out)
    return y if bias is None else np.add(y, bias, out=y)


class Panels(NamedTuple):
    """A weight (out, in) in panels of PANEL outputs, for products of 2 to FEW rows.

    pieces: inputs -> the weights of these inputs, (out / PANEL, inputs, PANEL). The inputs are cut as OpenBLAS cuts
    them, so each number has the bits that the usual product gives.
    """

    pieces: tuple[tuple[slice, Array], ...]

    @classmethod
    def of(cls, weight: Array) -> Panels:
        """Lay out a weight (out, in), with `out` a multiple of PANEL; views if its memory is (in, out).

        >>> [panels.shape for _, panels in Panels.of(np.ones((128, 900))).pieces]
        [(2, 448, 64), (2, 240, 64), (2, 212, 64)]
        """
        outputs, width = weight.shape
        edges = [0]
        while (left := width - edges[-1]) > 0:  # what is left of two cuts is halved, at a multiple of 16
            edges.append(edges[-1] + (CUT if left >= 2 * CUT else left if left <= CUT else -(-(left // 2) // 16) * 16))
        panels = weight.reshape(outputs // PANEL, PANEL, width).transpose(0, 2, 1)
        pieces = ((slice(*edge), panels[:, slice(*edge)]) for edge in pairwise(edges))
        return cls(tuple((some, each if each.strides[-1] == each.itemsize else each.copy()) for some, each in pieces))

    def part(self, outputs: slice) -> Panels | None:
        """Take some outputs; None unless they begin and end with a panel."""
        if outputs.start % PANEL or outputs.stop % PANEL:
            return None
        some = slice(outputs.start // PANEL, outputs.stop // PANEL)
        return Panels(tuple((inputs, each[some]) for inputs, each in self.pieces))

    def linear(self, x: Array, bias: Array | None, out: Array) -> Array:
        """As `linear` of 2 to FEW rows x (rows, in), into `out` (rows, out)."""
        for inputs, panels in self.pieces:
            y = np.empty_like(out) if inputs.start else out
            np.matmul(x[:, inputs], panels, out=y.reshape(len(x), -1, PANEL).swapaxes(0, 1))
            if inputs.start:
                out += y
        return out if bias is None else np.add(out, bias, out=out)


def steady_linear(x: Array, weight: Array, bias: Array | None, rows: int, columns: int = 0) -> Array:
    """As `linear` of rows (tokens, dim), filled up to a multiple of `rows`, and few outputs to OUTPUTS.

    With some kernels of BLAS no row then changes a bit of another: see `threads.kernels`.
    """
    count, outputs = len(x), len(weight)
    filled = np.concatenate([x, np.repeat(x[:1], -count % rows, axis=0)])
    if outputs < OUTPUTS:
        weight = np.concatenate([weight, np.repeat(weight[:1], OUTPUTS - outputs, axis=0)])
    y = np.ascontiguousarray(linear(filled, weight, columns=columns)[:count, :outputs])
    return y if bias is None else np.add(y, bias, out=y)


def softmax(x: Array, out: Array | None = None) -> Array:
    """As `blocks.softmax`; `out` may be x."""
    largest = x if x.shape[-1] <= HALVED else np.maximum.reduce(x, axis=-1, keepdims=True)
    while (count := largest.shape[-1]) > 1:  # in fewer and longer loops; the halves of an odd count share its middle
        half = (count + 1) // 2
        largest = np.maximum(largest[..., :half], largest[..., count - half :])
    y: Array = np.subtract(x, largest, out=out)
    np.exp(y, out=y)
    # each row's sum: sooner than by np.sum, and with the memory order of `attention_scores` rounded less
    y /= np.matmul(y, np.ones((y.shape[-1], 1), y.dtype))
    return y


def gelu(x: Array) -> Array:
    """As `activations.gelu`; in float32 `max(x, 0) - t Q(t)`, t = |x|, ln Q a polynomial of degree 6: within 1.4e-7.

    Of a large |y| that is a share, of a small one it is not: y is right to 0.04 % at x = -4, to 1 % at -7.
    """
    if x.dtype != np.float32:
        return activations.gelu(x)
    size = np.abs(x)
    if not size.max(initial=0) <= FLAT:  # or nan; to look takes a third of the time of the minimum, seldom needed
        np.minimum(size, np.float32(FLAT), out=size)
    y = size * np.float32(LOG_TAIL[-1])
    for factor in LOG_TAIL[-2:0:-1]:  # Horner's rule
        y += np.float32(factor)
        y *= size
    y += np.float32(LOG_TAIL[0])
    np.exp(y, out=y)
    y *= size
    size.fill(0)  # of an array and one number, NumPy takes the maximum four times as slowly as of two arrays
    return np.subtract(np.maximum(x, size, out=size), y, out=y)


def activated(activate: Activation, x: Array) -> Array:
    """Apply an activation to x in place, piece by piece. x has no gaps in memory, in either order."""
    flat = (x if x.flags.c_contiguous else x.T).reshape(-1)  # a view
    for start in range(0, len(flat), PIECE):
        piece = flat[start : start + PIECE]
        piece[:] = activate(piece)
    return x


def attention_scores(q: Array, k: Array, scale: float, bias: Array | None = None) -> Array:
    """As `blocks.attention_scores`; in memory key stands before query, which makes softmax faster."""
    scores: Array = np.matmul(k, (q * q.dtype.type(scale)).swapaxes(-1, -2)).swapaxes(-1, -2)
    return scores if bias is None else np.add(scores, bias, out=scores)


def by_distance(of_each: Array, keys: int) -> Array:
    """View a value per distance as a matrix of all pairs, without a copy.

        scores[i, j] = of_each[i, j - i + rows - 1]

    of_each (..., rows, rows + keys - 1): for each row the numbers of all distances from 1 - rows to keys - 1, in their
    order -> (..., rows, keys).

    >>> by_distance(np.array([[10.0, 11.0, 12.0], [20.0, 21.0, 22.0]]), keys=2)  # distances -1, 0, 1
    array([[11., 12.],
           [20., 21.]])
    """
    rows, (*more, down, right) = of_each.shape[-2], of_each.strides
    return np.lib.stride_tricks.as_strided(
        of_each[..., rows - 1 :], (*of_each.shape[:-1], keys), (*more, down - right, right), writeable=False
    )


def faster(activation: Activation) -> Activation:
    """Find the fast version of an activation, if this file has one."""
    return gelu if activation is activations.gelu else activation
