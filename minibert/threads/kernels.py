"""The kernel that NumPy's BLAS multiplies with, and how many rows it is given.

A kernel multiplies a matrix in pieces of fixed sizes. What is left at an edge takes another way, with other last bits,
and mostly a slower one. So the rows of a product are filled up: then a token's numbers have the same bits wherever it
stands, and 15 tokens take no longer than 16. Which number of rows does it depends on the kernel; a property test holds
the table.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .computing import libraries

# numbers of a width: up to the first a sum is not cut; multiples of the second are cut alike on any number of threads
SHORT_WIDTH, WIDTHS = 384, 128
DIFFERENT = "the last bits of a text's vector depend on the texts around it"


class Rows(NamedTuple):
    """The layout of texts' tokens among the rows of a product `x @ weight^T`.

    text     each text begins at a multiple of this number of rows
    total    the count of all rows is a multiple of this number
    numbers  rows times outputs are more than this: smaller products take another way
    volume   and rows times outputs times width more than this, where a weight's memory is (width, outputs)
    wide     rows that are more than half of it beyond a multiple of it are filled up to the next: that is faster
    columns  a product of at most this number of rows is computed as `weight @ x^T`, in columns, where a weight's memory
             is (outputs, width)
    """

    text: int = 1
    total: int = 1
    numbers: int = 0
    volume: int = 0
    wide: int = 1
    columns: int = 0

    def filled(self, rows: int, fewest: int = 1) -> int:
        """Count the rows that a product of `rows` rows takes, and of `fewest` or more: see `fewest`.

        >>> [Rows(total=4, wide=16).filled(rows) for rows in (0, 1, 5, 8, 9, 17, 27)]
        [0, 4, 8, 8, 16, 20, 32]
        """
        if not rows:
            return 0
        rows = _multiple(max(rows, fewest), self.total)
        return _multiple(rows, self.wide) if rows % self.wide > self.wide // 2 else rows

    def fewest(self, outputs: int, width: int, in_order: bool = False) -> int:
        """The fewest rows with which a product with this weight takes the usual way.

        >>> rows = Rows(numbers=1200, volume=1_000_000)
        >>> rows.fewest(384, 384), rows.fewest(32, 32), rows.fewest(384, 384, in_order=True)
        (4, 38, 7)
        """
        volume = self.volume // (outputs * width) if in_order else 0
        return max(self.numbers // outputs, volume) + 1


class Kernel(NamedTuple):
    """A kernel by OpenBLAS's name for it.

    usual  the rows that are fastest
    same   those with which a float32 text has the same bits in any company; None: not known
    small  whether it multiplies small matrices without packing them: then weights are laid out as panels too
    """

    name: str
    usual: Rows
    same: Rows | None
    small: bool = False

    @property
    def always(self) -> bool:
        """Whether the same bits cost nothing, so that every encoder has them."""
        return self.same == self.usual

    def shares(self, width: int) -> bool:
        """Whether a product over `width` numbers has the same bits on BLAS's own threads as on one."""
        return self.always and one_sum(width)


def one_sum(width: int) -> bool:
    """Whether BLAS's own threads add this count of numbers in the order of one thread.

    They cut a longer width in the middle, where one thread cuts it at a multiple of some 16 numbers.
    """
    return width <= SHORT_WIDTH or width % WIDTHS == 0


# Measured with OpenBLAS 0.3.27 to 0.3.31. With the first two and the last any two rows keep their bits, and fours are
# the fastest; with the third a row's bits depend on its place among twelve. All depend on how many outputs a weight
# has. Cooperlake is SkylakeX's kernel, where NumPy 2.0 runs on a processor with AVX-512 for bfloat16.
PAIRS = Rows(total=2)  # of products with panels: one row alone is a matrix-vector product, which has other bits
_SKYLAKEX, _FOURS = Rows(total=4, numbers=1200, volume=10**6, wide=16, columns=96), Rows(total=4)
KERNELS = (
    Kernel("SkylakeX", _SKYLAKEX, _SKYLAKEX, small=True),
    Kernel("Cooperlake", _SKYLAKEX, _SKYLAKEX, small=True),
    Kernel("Haswell", _FOURS, Rows(text=12, total=12)),
    Kernel("Sandybridge", _FOURS, _FOURS),
)


@cache
def kernel() -> Kernel:
    """The kernel of this process."""
    name = _name()
    return next((each for each in KERNELS if each.name == name), Kernel(name, Rows(columns=256), None))


def _name() -> str:
    """OpenBLAS's name of its kernel, as threadpoolctl would find it: to import that takes as long as a short text."""
    # its own file names what it is linked with, and a name is looked for there too
    linked = ctypes.CDLL(sys.modules["numpy._core._multiarray_umath"].__file__)
    for name in ("scipy_openblas_get_corename64_", "scipy_openblas_get_corename", "openblas_get_corename"):
        try:
            found = getattr(linked, name)
        except AttributeError:
            continue
        found.restype = ctypes.c_char_p
        return str(found().decode())
    return next((each.architecture for each in libraries() if hasattr(each, "architecture")), "unknown")


Shape = tuple[int, int, bool]  # outputs and width of a weight, and whether its memory is (width, outputs)


def rows_for(dtype: np.dtype[Any], same_bits: bool) -> Rows:
    """Return the layout of a model's tokens among the rows of its products.

    Raises ValueError if `same_bits` is asked for, and this kernel is not known to give them.
    """
    found = kernel()
    if not same_bits:
        return found.usual
    if found.same is None or not (dtype == np.float32 or found.always):
        of = "" if found.same is None else f" in {dtype}"
        raise ValueError(
            f"same_bits=True cannot be kept here: with the kernel {found.name!r} of NumPy's BLAS{of} {DIFFERENT}; "
            "leave same_bits out"
        )
    return found.same


def _multiple(number: int, of: int) -> int:
    """Round up to a multiple."""
    return -(-number // of) * of
