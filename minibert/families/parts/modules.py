"""The modules of input layers, blocks and heads under the reference's names: Embedding, Linear and the norms.

Each holds tables, calls one equation and prints its sizes. `weight` and `bias` are read-only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.fast import Panels, check_ids, layer_norm, linear, steady_linear
from minibert.equations.input_layer import Array
from minibert.files.tables import ScratchBuffer, StoredTable, Table, Weight

Product = Callable[[Array, Array, Any], Array]  # x, weight and bias -> x @ weight^T + bias

# The size of NumPy's ufunc buffer while LayerNorm runs; the default is 8192 numbers. If two rows fit into the buffer,
# NumPy fills it with copies of the mean before it subtracts; a short buffer prevents that.
BUFFER = 512
SMALL_TILE = 16 * 768  # numbers; for a tile up to this size, setting the buffer costs more than it saves


class Embedding:
    """A table of rows: `y[i] = weight[ids[i]]`, times `scale` if the reference's module multiplies.

    ids of any shape (...) -> (..., dim). Raises TypeError and IndexError as `equations.fast.check_ids`.
    """

    def __init__(self, table: Table, padding_idx: int | None = None, scale: float = 1.0):
        self.table, self.padding_idx, self.scale = table, padding_idx, scale

    @property
    def weight(self) -> Array:
        return self.table.array()

    def __call__(self, ids: ArrayLike) -> Array:
        rows = self.table.rows(check_ids(ids, self.table.shape[0]))
        return rows if self.scale == 1.0 else rows * rows.dtype.type(self.scale)

    def __repr__(self) -> str:
        rows, dim = self.table.shape
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"Embedding({rows}, {dim}{padding})"


class LayerNorm:
    """`(x - mean) / sqrt(variance + eps) * weight + bias` over the last axis: see `equations.layer_norm`."""

    def __init__(self, weight: Array, bias: Array | None, eps: float) -> None:
        self.weight, self.bias, self.eps = weight, bias, eps

    def __call__(self, x: ArrayLike) -> Array:
        return self.formula(_rows(type(self).__name__, x, self.weight.dtype, len(self.weight)))

    def formula(self, x: Array) -> Array:
        """Compute it for rows of the right dtype and width."""
        return layer_norm(x, self.weight, self.bias, self.eps)

    def in_place(self, x: Array) -> Array:
        """Normalize the rows of x in place; with many rows, use a shorter buffer (see `BUFFER`)."""
        if x.size <= SMALL_TILE:
            return layer_norm(x, self.weight, self.bias, self.eps, out=x)
        with np.errstate():  # at its end the buffer has its size again
            np.setbufsize(BUFFER)
            return layer_norm(x, self.weight, self.bias, self.eps, out=x)

    def __repr__(self) -> str:
        bias = "" if self.bias is not None else ", bias=False"
        return f"LayerNorm(({len(self.weight)},), eps={self.eps}{bias})"


class RMSNorm(LayerNorm):
    """`x / sqrt(mean(x^2) + eps) * (weight + plus)` over the last axis, without a bias: see `equations.rms_norm`."""

    plus = 0.0

    def formula(self, x: Array) -> Array:
        """Compute it for rows of the right dtype and width."""
        from minibert.equations.blocks import rms_norm  # here, since no input layer needs it

        weight = self.weight + self.weight.dtype.type(self.plus) if self.plus else self.weight
        return rms_norm(x, weight, self.eps)

    def in_place(self, x: Array) -> Array:
        """Normalize the rows of x in place."""
        x[...] = self.formula(x)
        return x

    def __repr__(self) -> str:
        return f"RMSNorm(({len(self.weight)},), eps={self.eps})"


class GemmaRMSNorm(RMSNorm):
    """RMSNorm with 1 + weight: Gemma's files hold the weight less 1."""

    plus = 1.0


NORMS: Mapping[str, type[LayerNorm]] = {kind.__name__: kind for kind in (LayerNorm, RMSNorm, GemmaRMSNorm)}


HEAD_ROWS = 12  # enough for each kernel in `threads.kernels`, with at least `fast.OUTPUTS` outputs


def steady(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Return `x @ weight^T + bias` for a head. With kernels that allow it, no row changes a bit of another.

    With another kernel and `same_bits=True`, a call has one text.
    """
    from minibert.threads.kernels import kernel  # here, since no input layer needs it

    return steady_linear(x, weight, bias, HEAD_ROWS, kernel().usual.columns)


class Linear:
    """`y = x @ weight^T + bias` over the last axis: see `equations.linear`. `transposed`: the file holds (in, out).

    product: the function that computes it; an input layer's is `equations.project`.
    panels: the weight once more, for products of few rows: see `bound_blocks.lay_out`.

    A weight in a table stays as it is stored, and is converted for each use, to aligned numbers. A misaligned
    array is copied once, or BLAS would do so at each call.
    """

    def __init__(self, weight: Weight, bias: Array | None, transposed: bool = False, product: Product = steady) -> None:
        if isinstance(weight, np.ndarray) and not weight.flags.aligned:
            weight = np.array(weight)
        self.source, self.bias, self.transposed, self.product = weight, bias, transposed, product
        self.panels: Panels | None = None
        self.dtype = weight.dtype  # the dtype of its products
        out, width = weight.shape[::-1] if transposed else weight.shape
        self.shape: tuple[int, int] = out, width
        # whether the weight stays in its stored format, and is converted for each use
        self.stored = isinstance(weight, StoredTable)
        # whether the numbers of one input stand side by side in memory: see `files.tables.column_major`
        self.column_major = transposed
        if isinstance(weight, np.ndarray):
            down, right = weight.strides
            self.column_major = (right < down) if transposed else (down < right)

    @property
    def weight(self) -> Array:
        """The weight as the file has it, (out, in) or transposed; a stored one is converted anew each time."""
        return self.source.array() if isinstance(self.source, StoredTable) else self.source

    def matrix(self, buffer: ScratchBuffer) -> Array:
        """Return the weight as (out, in); a stored one is converted into `buffer`, valid until that is used again."""
        weight = buffer.converted(self.source) if isinstance(self.source, StoredTable) else self.source
        return weight.T if self.transposed else weight

    def part(self, outputs: slice) -> Linear:
        """Return the layer of some outputs; nothing is copied."""
        index = (slice(None), outputs) if self.transposed else (outputs,)
        weight = self.source.part(*index) if isinstance(self.source, StoredTable) else self.source[index]
        part = Linear(weight, None if self.bias is None else self.bias[outputs], self.transposed, self.product)
        part.panels = self.panels and self.panels.part(slice(*outputs.indices(self.shape[0])[:2]))
        return part

    def __call__(self, x: ArrayLike) -> Array:
        x, matrix = _rows("Linear", x, self.dtype, self.shape[1]), self.matrix(ScratchBuffer())
        product = linear if self.product is steady and x.ndim != 2 else self.product  # steady has one axis of rows
        return product(x, matrix, self.bias)

    def __repr__(self) -> str:
        out, width = self.shape
        if self.transposed:
            return f"Conv1D(nf={out}, nx={width})"
        return f"Linear(in_features={width}, out_features={out}, bias={self.bias is not None})"


def _rows(name: str, x: ArrayLike, dtype: np.dtype[Any], width: int) -> Array:
    """Return contiguous rows: NumPy may sum strided rows in another order, and the last bits would change."""
    try:
        x = np.asarray(x, dtype, order="C")
    except ValueError as error:  # ragged rows, texts
        raise TypeError(f"{name}: expected rows of {width} numbers ({error})") from None
    if x.ndim == 0 or x.shape[-1] != width:
        raise ValueError(f"{name}: the last axis must be {width} wide, found shape {x.shape}")
    return x


def module_list(modules: Mapping[str, Any]) -> str:
    """Return a line for each module, its path and its sizes; equal modules of successive blocks share a line.

    >>> print(module_list({"h.0.ln": Linear(np.eye(2), None), "h.1.ln": Linear(np.eye(2), None)}))
    h.0-1.ln  Linear(in_features=2, out_features=2, bias=False)
    """
    blocks: dict[tuple[str, str, str], list[str]] = {}
    for path, module in modules.items():
        start, number, end = [*re.split(r"(?<=\.)(\d+)(?=\.)", path, maxsplit=1), "", ""][:3]
        blocks.setdefault((start, end, repr(module)), []).append(number)
    lines = {f"{start}{'-'.join(dict.fromkeys((numbers[0], numbers[-1])))}{end}": line
             for (start, end, line), numbers in blocks.items()}  # fmt: skip
    width = max(map(len, lines), default=0)
    return "\n".join(f"{path:{width}}  {line}" for path, line in lines.items())
