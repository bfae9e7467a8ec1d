"""Faster versions of some formulas: the same numbers except for the last bits, in fewer passes over memory.

The models compute with these, and check their ids with `check_ids`. To learn the formulas, skip this file; a test
compares each version with its formula.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from . import activations
from .activations import Activation
from .input_layer import Array

# OpenBLAS's AVX-512 kernel for small matrices packs nothing. It computes products of row-major operands up to rows *
# outputs * width = 10^6. A usual product packs the whole weight at each call: most of the time of a short text
PANEL = 64  # outputs of a panel: the fastest of 32 to 128
CUTS = 448, 512  # inputs that OpenBLAS's usual product sums at a time: 0.3.27 to 0.3.31, and 0.3.34
FEW = 30  # rows of one product with a panel: FEW * PANEL * 512 is below 10^6; more rows are cut, 16 are slower

# the fewest outputs of a product: with fewer, BLAS may use another kernel (see `steady_linear`)
OUTPUTS = 128

# ln Q(t) on 0..9 as a polynomial, t^0 .. t^6; Q is the upper tail of the normal distribution. The fit minimizes the
# largest error of gelu
LOG_TAIL = (-0.693142371, -0.797952214, -0.317995808, -0.0370224482, 0.00560112511, -0.000533182238, 2.29381657e-05)
PIECE = 1 << 15  # numbers that an activation computes at once: its intermediates stay in the L2 cache
HALVED = 256  # the longest row whose maximum is computed by halves, which is faster only for short rows
FLAT = 9.0  # from here on t Q(t) vanishes beside t in float32: 9 Q(9) = 1e-18


def linear(x: Array, weight: Array, bias: Array | None = None, out: Array | None = None, columns: int = 0) -> Array:
    """Compute `blocks.linear`; up to `columns` rows (tokens, dim) are multiplied, and the result stored, as columns.

    The result is written into the memory of `out` (tokens, out). Columns read the weight in its stored order, which is
    faster with some kernels of BLAS.
    """
    few = x.ndim == 2 and len(x) <= columns
    transposed = out if out is None or not few else out.reshape(out.shape[::-1])
    y: Array = np.matmul(weight, x.T, out=transposed).T if few else np.matmul(x, weight.T, out=out)  # (..., out)
    return y if bias is None else np.add(y, bias, out=y)


class Panels(NamedTuple):
    """A weight (out, in) in panels of PANEL outputs, for products that need no packing.

    pieces: inputs -> the weights of these inputs, (out / PANEL, inputs, PANEL). The inputs are cut as in OpenBLAS, so
    each number has the bits of the usual product: see `cut_of_blas`.
    """

    pieces: tuple[tuple[slice, Array], ...]

    @classmethod
    def of(cls, weight: Array, memory: Array | None = None, cut: int = 0) -> Panels:
        """Lay out the whole panels of a weight (out, in), in `memory`: one row of as many numbers as they have.

        Outputs after the last whole panel are left out.

        Without `memory` nothing is copied: the numbers of the weight must then lie in the order (in, out). cut: of the
        inputs, one of CUTS; 0: as this process's BLAS cuts them.

        >>> weight = np.ones((128, 900), np.float32)
        >>> [panels.shape for _, panels in Panels.of(weight, np.empty(weight.size, np.float32), cut=448).pieces]
        [(2, 448, 64), (2, 240, 64), (2, 212, 64)]
        """
        outputs, width = len(weight) // PANEL * PANEL, weight.shape[1]
        cut = cut or cut_of_blas() or CUTS[0]
        edges = [0]
        while (rest := width - edges[-1]) > 0:  # a rest below two cuts is halved, at a multiple of 16
            edges.append(edges[-1] + (cut if rest >= 2 * cut else rest if rest <= cut else -(-(rest // 2) // 16) * 16))
        panels = weight[:outputs].reshape(outputs // PANEL, PANEL, width).transpose(0, 2, 1)
        pieces = list[tuple[slice, Array]]()
        for begin, end in pairwise(edges):
            piece = panels[:, begin:end]
            if memory is not None:
                copy = memory[outputs * begin : outputs * end].reshape(piece.shape)
                np.copyto(copy, piece)
                piece = copy
            pieces.append((slice(begin, end), piece))
        return cls(tuple(pieces))

    def part(self, outputs: slice) -> Panels | None:
        """Return the panels of some outputs; None unless the outputs begin and end with a panel."""
        if outputs.start % PANEL or outputs.stop % PANEL:
            return None
        panel_range = slice(outputs.start // PANEL, outputs.stop // PANEL)
        return Panels(tuple((inputs, panels[panel_range]) for inputs, panels in self.pieces))

    def linear(self, x: Array, bias: Array | None, out: Array) -> Array:
        """Compute `linear` of x (rows, in), into `out` (rows, out), FEW rows at a time. A single row has other bits."""
        whole = len(x) // FEW * FEW
        for inputs, panels in self.pieces:
            y = np.empty_like(out) if inputs.start else out
            if whole:
                row_groups = x[:whole].reshape(-1, FEW, x.shape[1])[..., inputs]
                np.matmul(
                    row_groups,
                    panels[:, None],
                    out=y[:whole].reshape(-1, FEW, len(panels), PANEL).transpose(2, 0, 1, 3),
                )
            if whole < len(x):
                last_rows = y[whole:].reshape(len(x) - whole, len(panels), PANEL)
                np.matmul(x[whole:, inputs], panels, out=last_rows.swapaxes(0, 1))
            if inputs.start:
                out += y
        return out if bias is None else np.add(out, bias, out=out)


@cache
def cut_of_blas() -> int:
    """Return the cut of CUTS with which panels have the bits of this process's usual product; 0: none has.

    OpenBLAS does not say its cut, and other versions have other ones, so a product is tried.
    """
    width = 1536  # cut alike on any number of threads: see `threads.kernels`
    x = np.sin(np.arange(20 * width, dtype=np.float32)).reshape(20, width)
    weight = np.cos(np.arange(PANEL * width, dtype=np.float32)).reshape(PANEL, width)
    usual = x @ weight.T
    for cut in CUTS:
        panels = Panels.of(weight, np.empty_like(weight).ravel(), cut)
        if np.array_equal(panels.linear(x, None, np.empty_like(usual)), usual):
            return cut
    return 0


def steady_linear(x: Array, weight: Array, bias: Array | None, rows: int, columns: int = 0) -> Array:
    """Compute `linear` of rows (tokens, dim), padded to a multiple of `rows`, and to at least OUTPUTS outputs.

    With some kernels of BLAS no row then changes a bit of another row: see `threads.kernels`.
    """
    count, outputs = len(x), len(weight)
    padded = np.concatenate([x, np.repeat(x[:1], -count % rows, axis=0)])
    if outputs < OUTPUTS:
        weight = np.concatenate([weight, np.repeat(weight[:1], OUTPUTS - outputs, axis=0)])
    y = np.ascontiguousarray(linear(padded, weight, columns=columns)[:count, :outputs])
    return y if bias is None else np.add(y, bias, out=y)


def softmax(x: Array, out: Array | None = None) -> Array:
    """Compute `blocks.softmax`; `out` may be x."""
    row_max = x if x.shape[-1] <= HALVED else np.maximum.reduce(x, axis=-1, keepdims=True)
    while (count := row_max.shape[-1]) > 1:  # fewer and longer loops; the halves of an odd count share the middle
        half = (count + 1) // 2
        row_max = np.maximum(row_max[..., :half], row_max[..., count - half :])
    y: Array = np.subtract(x, row_max, out=out)
    np.exp(y, out=y)
    # the sum of each row: faster than np.sum, and more exact in the memory order of `attention_scores`
    y /= np.matmul(y, np.ones((y.shape[-1], 1), y.dtype))
    return y


def gelu(x: Array) -> Array:
    """Compute `activations.gelu`; float32: `max(x, 0) - t Q(t)`, t = |x|, ln Q a polynomial of degree 6: within 1.4e-7.

    The error is absolute. A small |y| has a larger relative error: 0.04 % at x = -4, 1 % at -7.
    """
    if x.dtype != np.float32:
        return activations.gelu(x)
    size = np.abs(x)
    if not size.max(initial=0) <= FLAT:  # true for nan too; the check is cheaper than a minimum that is seldom needed
        np.minimum(size, np.float32(FLAT), out=size)
    y = size * np.float32(LOG_TAIL[-1])
    for factor in LOG_TAIL[-2:0:-1]:  # Horner's rule
        y += np.float32(factor)
        y *= size
    y += np.float32(LOG_TAIL[0])
    np.exp(y, out=y)
    y *= size
    size.fill(0)  # NumPy's maximum is faster for two arrays than for an array and a number
    return np.subtract(np.maximum(x, size, out=size), y, out=y)


def activated(activate: Activation, x: Array) -> Array:
    """Apply an activation to x in place, piece by piece. x is contiguous, in C or Fortran order."""
    flat = (x if x.flags.c_contiguous else x.T).reshape(-1)  # a view
    for start in range(0, len(flat), PIECE):
        piece = flat[start : start + PIECE]
        piece[:] = activate(piece)
    return x


def attention_scores(q: Array, k: Array, scale: float, bias: Array | None = None) -> Array:
    """Compute `blocks.attention_scores`; in memory the key axis comes before the query axis: softmax is then faster."""
    scores: Array = np.matmul(k, (q * q.dtype.type(scale)).swapaxes(-1, -2)).swapaxes(-1, -2)
    return scores if bias is None else np.add(scores, bias, out=scores)


def by_distance(values: Array, keys: int) -> Array:
    """View a value per distance as a matrix of all pairs, without a copy.

        scores[i, j] = values[i, j - i + rows - 1]

    values (..., rows, rows + keys - 1): each row has a number for each distance from 1 - rows to keys - 1, in this
    order -> (..., rows, keys).

    >>> by_distance(np.array([[10.0, 11.0, 12.0], [20.0, 21.0, 22.0]]), keys=2)  # distances -1, 0, 1
    array([[11., 12.],
           [20., 21.]])
    """
    rows, (*more, down, right) = values.shape[-2], values.strides
    return np.lib.stride_tricks.as_strided(
        values[..., rows - 1 :], (*values.shape[:-1], keys), (*more, down - right, right), writeable=False
    )


def faster(activation: Activation) -> Activation:
    """Return the fast version of an activation, or the activation itself if this file has none."""
    return gelu if activation is activations.gelu else activation


@cache
def _ones(dim: int, dtype: np.dtype[Any]) -> Array:
    """Return a vector of ones, made once: for a short text, making it takes as long as a row's sum."""
    return np.ones(dim, dtype)


def layer_norm(
    x: Array, weight: Array, bias: Array | None = None, eps: float = 1e-12, out: Array | None = None
) -> Array:
    """Compute `input_layer.layer_norm` within 2e-6; `out` may be x.

    Both sums are dot products of one row, so the bits of a row do not depend on its neighbours. 1 / sqrt(..) is
    computed in float64: in float32 the error is a tenth larger. With eps 0 a row of equal numbers becomes nan, without
    a warning. Raises TypeError for float16.
    """
    if x.dtype == np.float16:
        raise TypeError("layer_norm: x must be float32 or float64, found float16; convert it, x.astype(np.float32)")
    dim = x.shape[-1]
    mean = np.vecdot(x, _ones(dim, x.dtype))[..., None] / dim
    y: Array = np.subtract(x, mean, out=out)
    variance = np.vecdot(y, y)[..., None] / np.float64(dim)
    with np.errstate(divide="ignore", invalid="ignore"):
        y *= (1 / np.sqrt(variance + eps)).astype(y.dtype)  # multiply by the reciprocal, as the reference does
    y *= weight
    return y if bias is None else np.add(y, bias, out=y)


def check_ids(ids: ArrayLike, rows: int, name: str = "ids", first: int = 0) -> Array:
    """Return `ids` as an int64 array, all of them in first..rows-1.

    NumPy would silently read row -1 as the last row; a table of embeddings has no row -1.

    Raises TypeError for floats, booleans and ragged lists, IndexError for an id outside the table.

    >>> check_ids([[0, 2]], rows=3)
    array([[0, 2]])
    >>> check_ids([[0, 3]], rows=3, name="input_ids")
    Traceback (most recent call last):
    IndexError: input_ids[0, 1] is 3, but the table has rows 0..2; is this the right tokenizer?
    """
    try:
        ids = np.asarray(ids)
    except ValueError as error:  # a ragged list
        raise TypeError(f"{name}: every row must have the same length; pad the shorter ones ({error})") from None
    if ids.size == 0:
        return ids.astype(np.int64)
    if ids.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, found {ids.dtype}; ids are row numbers of a table")
    # small types would wrap when a step adds to ids: uint8 254 + 2 is 0
    checked = ids.astype(np.int64, copy=False)
    if ids.dtype.kind == "u":
        first = 0  # otherwise 2^64 - 1, which is -1 in int64, would pass as -1
    unsigned = (checked - first if first else checked).view(np.uint64)  # -1 is the largest number
    if unsigned.max() >= rows - first:
        index = tuple(int(i) for i in np.argwhere((checked < first) | (checked >= rows))[0])
        element = f"{name}[{', '.join(map(str, index))}]" if index else name
        hint = "; is this the right tokenizer?" if name.partition("[")[0] in ("ids", "input_ids") else ""
        raise IndexError(f"{element} is {ids[index]}, but the table has rows {first}..{rows - 1}{hint}")
    return checked
