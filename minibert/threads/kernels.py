"""The kernel of NumPy's BLAS, and the number of rows that its matrix products get.

A kernel multiplies a matrix in pieces of fixed sizes. The remainder at an edge is computed by other code, with other
last bits, and mostly more slowly. So products get padding rows: a token's numbers then have the same bits at every
position, and 15 tokens take no longer than 16. The right number of rows depends on the kernel; a property test checks
the table below.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .computing import libraries

# a sum of up to SHORT_WIDTH numbers is not cut; multiples of WIDTHS are cut alike on any number of threads
SHORT_WIDTH, WIDTHS = 384, 128
DIFFERENT = "the last bits of a text's vector depend on the texts around it"


class Rows(NamedTuple):
    """The layout of texts' tokens among the rows of a product `x @ weight^T`.

    text     each text begins at a multiple of this number of rows
    total    the count of all rows is a multiple of this number
    numbers  rows * outputs must be more than this: other code computes smaller products
    volume   rows * outputs * width must be more than this too, if the weight is stored as (width, outputs)
    wide     rows are padded to a multiple of this number if less than half of it is missing: that is faster
    columns  a product of at most this number of rows is computed as `weight @ x^T`, in columns, if the weight is stored
             as (outputs, width)
    """

    text: int = 1
    total: int = 1
    numbers: int = 0
    volume: int = 0
    wide: int = 1
    columns: int = 0

    def fewest(self, outputs: int, width: int, column_major: bool = False) -> int:
        """Return the fewest rows for which the usual code computes a product with this weight.

        >>> rows = Rows(numbers=1200, volume=1_000_000)
        >>> rows.fewest(384, 384), rows.fewest(32, 32), rows.fewest(384, 384, column_major=True)
        (4, 38, 7)
        """
        volume = self.volume // (outputs * width) if column_major else 0
        return max(self.numbers // outputs, volume) + 1


class Kernel(NamedTuple):
    """A kernel by OpenBLAS's name for it.

    usual  the fastest layout of rows
    same   the layout that keeps a float32 text's bits in any batch; None: not known
    small  whether it multiplies small matrices without packing them: weights are then laid out as panels too
    """

    name: str
    usual: Rows
    same: Rows | None
    small: bool = False

    @property
    def always(self) -> bool:
        """Whether the same bits cost nothing: every encoder then has them."""
        return self.same == self.usual

    def shares(self, width: int) -> bool:
        """Return whether a product over `width` numbers has the same bits on BLAS's own threads as on one thread."""
        return self.always and one_sum(width)


def one_sum(width: int) -> bool:
    """Return whether BLAS's own threads add this many numbers in the same order as one thread.

    Its threads cut a longer width in the middle; one thread cuts it at a multiple of about 16 numbers.
    """
    return width <= SHORT_WIDTH or width % WIDTHS == 0


# Measured with OpenBLAS 0.3.27 to 0.3.34: multiples of four rows are fastest; only on Haswell do a row's bits depend on
# its position among twelve. Cooperlake is SkylakeX's kernel, under NumPy 2.0 on processors that have AVX-512 for
# bfloat16.
PAIRS = Rows(total=2)  # for products with panels: a single row is a matrix-vector product, with other bits
_SKYLAKEX, _FOURS = Rows(total=4, numbers=1200, volume=10**6, wide=16, columns=96), Rows(total=4)
KERNELS = (
    Kernel("SkylakeX", _SKYLAKEX, _SKYLAKEX, small=True),
    Kernel("Cooperlake", _SKYLAKEX, _SKYLAKEX, small=True),
    Kernel("Haswell", _FOURS, Rows(text=12, total=12)),
    Kernel("Zen", _FOURS, Rows(text=12, total=12)),  # Haswell's kernel, under NumPy 2.0 on AMD
    Kernel("Sandybridge", _FOURS, _FOURS),
)


@cache
def kernel() -> Kernel:
    """Return the kernel of this process."""
    name = _name()
    return next((known for known in KERNELS if known.name == name), Kernel(name, Rows(columns=256), None))


def _name() -> str:
    """Return OpenBLAS's name of its kernel. Importing threadpoolctl for it would take as long as a short text."""
    # a name is looked up in the libraries linked to this module too
    linked = ctypes.CDLL(sys.modules["numpy._core._multiarray_umath"].__file__)
    for name in ("scipy_openblas_get_corename64_", "scipy_openblas_get_corename", "openblas_get_corename"):
        try:
            corename = getattr(linked, name)
        except AttributeError:
            continue
        corename.restype = ctypes.c_char_p
        return str(corename().decode())
    return next((library.architecture for library in libraries() if hasattr(library, "architecture")), "unknown")


Shape = tuple[int, int, bool]  # outputs and width of a weight, and whether it is stored as (width, outputs)


def rows_for(dtype: np.dtype[Any], same_bits: bool) -> Rows:
    """Return the layout of a model's tokens among the rows of its products.

    Raises ValueError if this kernel is not known to keep `same_bits`.
    """
    current = kernel()
    if not same_bits:
        return current.usual
    if current.same is None or not (dtype == np.float32 or current.always):
        in_format = "" if current.same is None else f" in {dtype}"
        reason = f"with the kernel {current.name!r} of NumPy's BLAS{in_format} {DIFFERENT}"
        raise ValueError(f"same_bits=True cannot be kept here: {reason}; leave same_bits out")
    return current.same
