"""Tables of rows in any number format: float32, float64, float16 or bfloat16 in a file, one dtype in a computation.

Conversion is exact, since every float16 and bfloat16 number is a float32 number too. Only float64 is rounded.

Weights are copied or stay mapped as follows. A local file is mapped; with `mmap=False` each tensor is read into memory
(`checkpoint.SafetensorsFile.raw`). Norms and biases are copied. The tables of the input layer keep their stored format:
`rows` copies and converts only the rows of a text; a table of at most SMALL_TABLE numbers, if it must be converted at
all, is converted once. A weight of a block is used whole. If a mapped file stores it in the dtype of the computation,
`array` returns the mapped numbers, which processes share; a misaligned tensor is copied. Any other format is converted
once; with `low_memory` it stays mapped, and each use converts it into a `ScratchBuffer`. A weight in memory is laid out
column-major by `column_major`, also one that `mmap=False` has read. With `mmap=None`, the default of `load_encoder`,
and an AVX-512 kernel the mapped weights of the blocks' products, and a sparse model's map to words, are also copied as
panels (`equations.fast.Panels`), if all of them need at most half of the memory. An adapter's sums and a remote file's
rows are in memory.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.input_layer import Array

# the NumPy dtype of each format's bytes; NumPy has no bfloat16, so its raw bits are kept
NUMPY_DTYPE: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
# only static models have these
INTEGERS: dict[str, np.dtype[Any]] = {"I8": np.dtype("i1"), "I32": np.dtype("<i4"), "I64": np.dtype("<i8")}
EVERY_DTYPE = NUMPY_DTYPE | INTEGERS


class Table:
    """The base class of tables: `shape`, `dtype`, `stored`; `rows`, `array`, `expect`.

    dtype   of the rows that are returned: float32, or float64 if the layer computes in it
    stored  the format in the file by safetensors' name: "F32", "F16", "BF16", ...
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stored: str

    def rows(self, ids: Array | slice, out: Array | None = None) -> Array:
        """Return the rows for ids of any shape, or for a slice; they are written into `out` if it is passed.

        The ids have been checked (`equations.fast.check_ids`): here a wrong id would select a wrong row.
        """
        raise NotImplementedError

    def array(self) -> Array:
        """Return the whole table, read-only: the map itself if stored and computed dtype agree."""
        raise NotImplementedError

    def expect(self, ids: Iterable[ArrayLike]) -> None:
        """Hint that these rows will be needed soon: a remote table then fetches all of them at once."""


AROUND = 1 << 16  # bytes: when a page is read, the system also maps the pages around it
FIRST_ROWS = 512  # fewest rows that a FormulaTable computes: the longest text of most models
SMALL_TABLE = 1 << 20  # numbers: position and type tables have fewer, word tables fifty times as many
# constants of _convert_half and convert: making them takes as long as converting a short text's rows
_NO_SIGN, _NOT_FINITE = np.uint16(0x7FFF), np.uint16(0x7C00)
_UPPER = np.uint32(16)
_SHIFT, _KEPT, _BIASES = np.int32(13), np.int32(-0x70002000), np.float32(2.0**112)


def _convert_half(raw: Array, out: Array) -> bool:
    """Convert finite float16 numbers in three passes, four times as fast as NumPy's cast; False if one is not finite.

    Exponent and mantissa are shifted to the bits where a float32 has the low bits of its exponent and the high bits of
    its mantissa. Then a multiplication by 2^(127 - 15) corrects the exponent: 127 and 15 are the two formats' biases.
    """
    if raw.size and (raw.view(np.uint16) & _NO_SIGN).max() >= _NOT_FINITE:
        return False
    bits = out.view(np.int32)
    np.left_shift(raw.view(np.int16), _SHIFT, out=bits)
    bits &= _KEPT  # sign, exponent and mantissa, without the copies of the sign between them
    out *= _BIASES
    return True


def convert(raw: Array, stored: str, dtype: np.dtype[Any], out: Array | None = None) -> Array:
    """Convert stored numbers to `dtype`, exactly (float64 to float32 is rounded to nearest).

    A bfloat16 is the upper half of a float32, so conversion is a shift by 16 bits.

    >>> convert(np.array([0x3F80, 0xC000], np.uint16), "BF16", np.dtype("float32"))
    array([ 1., -2.], dtype=float32)
    """
    if out is None:
        out = np.empty(raw.shape, dtype)
    if stored == "BF16" and dtype == np.float32 and out.flags.c_contiguous:
        bits = out.view(np.uint32)
        bits[...] = raw  # NumPy has fast loops for these two passes: half the time of one shift that also converts
        np.left_shift(bits, _UPPER, out=bits)
        return out
    if stored == "F16" and dtype == np.float32 and out.flags.c_contiguous and _convert_half(raw, out):
        return out
    with np.errstate(invalid="ignore", over="ignore"):  # a NaN stays a NaN; a number too large for float32 is infinity
        if stored == "BF16":
            out[...] = (raw.astype(np.uint32) << 16).view(np.float32)
        else:
            out[...] = raw
    return out


def narrowed(x: Array, target: str) -> Array:
    """Round to float32, float16 or bfloat16, ties to even; bfloat16 is returned as bits: NumPy has no type for it.

    >>> narrowed(np.array([1.0, -2.0], np.float32), "BF16")
    array([16256, 49152], dtype=uint16)
    """
    with np.errstate(over="ignore"):
        if target != "BF16":
            return x.astype({"F32": np.float32, "F16": np.float16}[target])
        bits = x.astype(np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    quiet_nan = (bits >> np.uint32(16)) | np.uint32(0x40)  # rounding could carry a NaN over into infinity
    return np.where(np.isnan(x), quiet_nan, rounded >> np.uint32(16)).astype(np.uint16)


class StoredTable(Table):
    """A table over bytes in memory or in a mapped file; nothing is copied until rows are requested.

    filling: rows of `raw` will still be written (by a remote table), so no converted copy is kept.
    """

    def __init__(self, raw: Array, stored: str, dtype: np.dtype[Any] | str = "float32", filling: bool = False) -> None:
        self.stored = stored
        self.dtype = np.dtype(dtype)
        self.shape = raw.shape
        self._raw = raw.view()
        self._raw.flags.writeable = False  # returned rows and weights may be views of it
        self._same = raw.dtype == self.dtype and stored in ("F32", "F64")
        self._aligned = raw.flags.aligned
        self._small = not self._same and not filling and raw.size <= SMALL_TABLE
        self._converted: Array | None = None

    def rows(self, ids: Array | slice, out: Array | None = None) -> Array:
        if self._small and out is None:
            if self._converted is None:
                self._converted = self.array()
            return self._converted[ids]
        if isinstance(ids, slice):
            raw = self._raw[ids]
        elif self._aligned:  # the np.take of `lookup`, but the ids are not checked again
            raw = self._raw.take(ids, 0, out if self._same else None, "clip")
            if self._same:
                return raw
        else:  # np.take would copy a whole misaligned table; indexing copies only the rows
            raw = self._raw[ids]
        if self._same and out is None:
            return raw
        return convert(raw, self.stored, self.dtype, out)

    def array(self) -> Array:
        if self._same:
            return self._raw
        converted = convert(self._raw, self.stored, self.dtype)
        converted.flags.writeable = False
        return converted

    @property
    def stored_numbers(self) -> Array:
        """The stored numbers, in memory or in the mapped file; raw bits for bfloat16."""
        return self._raw

    @property
    def zero_copy(self) -> bool:
        """Whether the file holds the numbers in the computed dtype, aligned: then nothing is copied or converted."""
        return self._same and self._aligned

    def part(self, *slices: slice) -> StoredTable:
        """Return some rows, or some rows and columns, as a table; nothing is copied."""
        return StoredTable(self._raw[slices], self.stored, self.dtype)


class FoldedTable(Table):
    """A table in which several ids share a row, each with a weight: `row(id) = rows[mapping[id]] * weights[id]`.

    `mapping` and `weights` may be None. Rows are multiplied when they are requested, so a mapped or a remote table is
    not copied.
    """

    def __init__(self, table: Table, mapping: Array | None, weights: Array | None) -> None:
        """`mapping` and `weights` have been checked; weights have the table's dtype."""
        self.table, self.dtype, self.stored = table, table.dtype, table.stored
        self._mapping, self._weights = mapping, weights
        self.shape = (table.shape[0] if mapping is None else len(mapping), table.shape[1])

    def rows(self, ids: Array | slice, out: Array | None = None) -> Array:
        rows = self.table.rows(ids if self._mapping is None else self._mapping[ids], out)
        return rows if self._weights is None else np.multiply(rows, self._weights[ids][..., None], out=out)

    def expect(self, ids: Iterable[ArrayLike]) -> None:
        self.table.expect(ids if self._mapping is None else (self._mapping[part] for part in map(np.asarray, ids)))

    def array(self) -> Array:
        rows = self.rows(slice(None))
        rows.flags.writeable = False
        return rows


class ScratchBuffer:
    """A scratch buffer for one converted weight at a time; it grows to the largest."""

    _numbers: Array = np.empty(0, np.float32)

    def converted(self, table: StoredTable) -> Array:
        """Convert a whole table into the buffer, which overwrites the weight before."""
        count = math.prod(table.shape)
        if len(self._numbers) < count or self._numbers.dtype != table.dtype:
            self._numbers = np.empty(0)  # free the smaller buffer before the larger one is allocated
            self._numbers = np.empty(count, table.dtype)
        return table.rows(slice(None), self._numbers[:count].reshape(table.shape))


Weight = Array | StoredTable
"""The weight of a linear layer: an array, or with `low_memory` a table whose numbers stay as they are stored."""


def column_major(weight: Weight) -> Weight:
    """Lay a map's weight (out, in) out as `x @ weight^T` reads it: the numbers of one input side by side.

    BLAS need not reorder them then: 5 to 32 tokens take 0.7 to 0.95 of the time. This is for numbers that were copied
    or converted anyway: those of a mapped file, which other processes share, stay as they are.
    """
    if isinstance(weight, StoredTable) or (map_of(weight) and weight.flags.aligned):
        return weight
    laid: Array = np.asfortranarray(weight)
    laid.flags.writeable = False
    return laid


def map_of(array: Array) -> mmap.mmap | None:
    """Return the mapped file that holds an array's numbers, or None."""
    mapped: object = array
    while isinstance(mapped, np.ndarray):
        mapped = mapped.base
    return mapped if isinstance(mapped, mmap.mmap) else None


def forget(array: Array) -> None:
    """Drop a mapped array's pages from this process's memory, once its numbers are copied: the file keeps them."""
    mapped = map_of(array)
    if mapped is not None and hasattr(mapped, "madvise"):
        start = array.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data
        stop = min(-(-(start + array.nbytes) // AROUND) * AROUND, len(mapped))
        start -= start % AROUND
        mapped.madvise(mmap.MADV_DONTNEED, start, stop - start)


def as_table(array: Array) -> StoredTable:
    """Return a table over an array of floats; its rows are float32."""
    return StoredTable(array, {8: "F64", 4: "F32", 2: "F16"}[array.dtype.itemsize], "float32")


class FormulaTable(Table):
    """A table that a formula computes: the first rows, up to the last one requested.

    make(length, dim) computes them; a row must not depend on the length. `shape` is read from a config and may be huge.
    """

    stored = "F32"
    dtype = np.dtype("float32")

    def __init__(self, make: Callable[[int, int], Array], shape: tuple[int, int]) -> None:
        self.shape = shape
        self._make = make
        self._made: StoredTable | None = None

    def rows(self, ids: Array | slice, out: Array | None = None) -> Array:
        last = ids.stop if isinstance(ids, slice) else int(ids.max(initial=-1)) + 1
        return self._first(last).rows(ids, out)

    def array(self) -> Array:
        return self._first(self.shape[0]).array()

    def _first(self, count: int) -> StoredTable:
        table = self._made  # read once: another thread may replace it by a longer table
        if table is None or len(table.stored_numbers) < count:
            rows, dim = self.shape
            table = self._made = as_table(self._make(min(rows, max(2 * count, FIRST_ROWS)), dim))
        return table


class PaddedTable(Table):
    """A table in which some ids have the row of padding: they stand for images and the like, which are not read."""

    def __init__(self, table: Table, ids: list[int], padding: int) -> None:
        self._table, self._ids, self._padding = table, ids, padding
        self.shape, self.dtype, self.stored = table.shape, table.dtype, table.stored

    def rows(self, ids: Array | slice, out: Array | None = None) -> Array:
        ids = np.arange(ids.start, ids.stop) if isinstance(ids, slice) else ids
        return self._table.rows(np.where(np.isin(ids, self._ids), self._padding, ids), out)

    def array(self) -> Array:
        return self._table.array()

    def expect(self, ids: Iterable[ArrayLike]) -> None:
        self._table.expect(ids)
