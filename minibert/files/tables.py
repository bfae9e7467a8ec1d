"""One protocol for a table of rows, whatever number format its file holds.

A checkpoint may store float32, float64, float16 or bfloat16. A `Table` keeps the stored bytes as they are (often a
map of the file) and gives rows in the dtype that the layer computes in. Conversion is exact: every float16 and
bfloat16 number is a float32 number too. Only float64 is rounded.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.input_layer import Array

# the NumPy dtype of each format's bytes; NumPy has no bfloat16, which is kept as raw bits
NUMPY_DTYPE: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
}
# of static models alone
INTEGERS: dict[str, np.dtype[Any]] = {"I8": np.dtype("i1"), "I32": np.dtype("<i4"), "I64": np.dtype("<i8")}
EVERY_DTYPE = NUMPY_DTYPE | INTEGERS


class Table:
    """Holds rows, whatever format its file has; a layer needs three attributes of it and three ways to read it.

    dtype   of the rows that it gives: float32, or float64 where the layer computes in it
    stored  the format in the file, in safetensors' words: "F32", "F16", "BF16", ...
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    stored: str

    def rows(self, ids: Array | slice, out: Array | None = None) -> Array:
        """Give the rows for ids of any shape, or for a run of neighbours as a slice; `out` receives them.

        The ids are checked already (`equations.check_ids`): here a wrong one would give a wrong row.
        """
        raise NotImplementedError

    def array(self) -> Array:
        """Give the whole table, read-only: the map itself where stored and computed dtype agree."""
        raise NotImplementedError

    def expect(self, ids: Iterable[ArrayLike]) -> None:
        """Hint: these rows will be needed soon, so a remote table fetches them all at once."""


AROUND = 1 << 16  # bytes: with a page that is read, the system maps those around it
FIRST_ROWS = 512  # of a table that a formula makes: the longest text of most models

# numbers up to which a narrow table is converted once and for all: positions and types, a fiftieth of the words
SMALL_TABLE = 1 << 20


# of _convert_half, made once: a short sentence's rows take no longer than these would
_NO_SIGN, _NOT_FINITE = np.uint16(0x7FFF), np.uint16(0x7C00)
_UPPER = np.uint32(16)  # of _convert_half and convert
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
    """Turn stored numbers into numbers of `dtype`, exactly (float64 into float32 is rounded to nearest).

    A bfloat16 is the upper half of a float32, so conversion is a shift by 16 bits.

    >>> convert(np.array([0x3F80, 0xC000], np.uint16), "BF16", np.dtype("float32"))
    array([ 1., -2.], dtype=float32)
    """
    if out is None:
        out = np.empty(raw.shape, dtype)
    if stored == "BF16" and dtype == np.float32 and out.flags.c_contiguous:
        bits = out.view(np.uint32)
        bits[...] = raw  # two passes that NumPy has fast loops for: half of the time of one shift that converts as well
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
    """Round to float32, float16 or bfloat16, ties to even; bfloat16 comes as its bits, which NumPy has no type for.

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
    """A table over bytes in memory or in a mapped file; nothing is copied until rows are asked for.

    filling: rows of `raw` are still to be written (a remote table's), so no converted copy of them is kept.
    """

    def __init__(self, raw: Array, stored: str, dtype: np.dtype[Any] | str = "float32", filling: bool = False) -> None:
        self.stored = stored
        self.dtype = np.dtype(dtype)
        self.shape = raw.shape
        self._raw = raw.view()
        self._raw.flags.writeable = False  # rows and weights that are handed out may be views of it
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
        elif self._aligned:  # lookup's own np.take, without checking the ids once more
            raw = self._raw.take(ids, 0, out if self._same else None, "clip")
            if self._same:
                return raw
        else:  # np.take would copy a whole misaligned table; indexing copies the rows alone
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
        """The stored numbers as they are in memory or in the mapped file; raw bits for bfloat16."""
        return self._raw

    @property
    def at_hand(self) -> bool:
        """Whether the file holds the very numbers that are computed with, so that nothing has to be made of them."""
        return self._same and self._aligned

    def part(self, *where: slice) -> StoredTable:
        """Take some rows, or some rows and columns, as a table; nothing is copied."""
        return StoredTable(self._raw[where], self.stored, self.dtype)


class FoldedTable(Table):
    """A table in which several ids share a row, each with a weight: `row(id) = rows[mapping[id]] * weights[id]`.

    Either may be None. Rows are multiplied when they are asked for, so a mapped or a remote table stays what it is.
    """

    def __init__(self, table: Table, mapping: Array | None, weights: Array | None) -> None:
        """`mapping` and `weights` are checked already; weights have the table's dtype."""
        self.table, self.dtype, self.stored = table, table.dtype, table.stored
        self._mapping, self._weights = mapping, weights
        self.shape = (table.shape[0] if mapping is None else len(mapping), table.shape[1])

    def rows(self, ids: Array | slice, out: Array | None = None) -> Array:
        found = self.table.rows(ids if self._mapping is None else self._mapping[ids], out)
        return found if self._weights is None else np.multiply(found, self._weights[ids][..., None], out=out)

    def expect(self, ids: Iterable[ArrayLike]) -> None:
        self.table.expect(ids if self._mapping is None else (self._mapping[some] for some in map(np.asarray, ids)))

    def array(self) -> Array:
        found = self.rows(slice(None))
        found.flags.writeable = False
        return found


class ScratchBuffer:
    """A scratch buffer for one converted weight at a time; it grows to the largest."""

    _numbers: Array = np.empty(0, np.float32)

    def converted(self, table: StoredTable) -> Array:
        """Convert a whole table into it: what was in it before is gone."""
        count = math.prod(table.shape)
        if len(self._numbers) < count or self._numbers.dtype != table.dtype:
            self._numbers = np.empty(0)  # the smaller one goes before the larger one comes
            self._numbers = np.empty(count, table.dtype)
        return table.rows(slice(None), self._numbers[:count].reshape(table.shape))


Weight = Array | StoredTable
"""The numbers of a map: an array, or where memory is to be saved a table whose numbers stay as they are stored."""


def in_order(weight: Weight) -> Weight:
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
    """Find the mapped file that an array's numbers are in."""
    place: object = array
    while isinstance(place, np.ndarray):
        place = place.base
    return place if isinstance(place, mmap.mmap) else None


def forget(array: Array) -> None:
    """Drop a mapped array's pages from this process's memory, once its numbers are copied: the file keeps them."""
    place = map_of(array)
    if place is not None and hasattr(place, "madvise"):
        start = array.ctypes.data - np.frombuffer(place, np.uint8).ctypes.data
        stop = min(-(-(start + array.nbytes) // AROUND) * AROUND, len(place))
        start -= start % AROUND
        place.madvise(mmap.MADV_DONTNEED, start, stop - start)


def as_table(array: Array) -> StoredTable:
    """Make a table of an array of ordinary floats; its rows are float32."""
    return StoredTable(array, {8: "F64", 4: "F32", 2: "F16"}[array.dtype.itemsize], "float32")


class FormulaTable(Table):
    """A table that a formula makes, not a file: the first rows, up to the last one requested.

    make(length, dim) gives them; a row must not depend on the length. `shape` comes from a config: it can be anything.
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
        made = self._made  # read once: another thread may replace it by a longer one, which is no harm
        if made is None or len(made.stored_numbers) < count:
            rows, dim = self.shape
            made = self._made = as_table(self._make(min(rows, max(2 * count, FIRST_ROWS)), dim))
        return made
