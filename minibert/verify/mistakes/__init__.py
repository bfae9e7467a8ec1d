"""The mistakes that ports make. Whole traces, single modules, heads and vectors all try this list.

A mistake that changes no step in a place is not tried there. `MISTAKES.md` is made from the list.
"""

from __future__ import annotations

from .mistake import Mistake
from .wrong_attention import ATTENTION
from .wrong_modules import MODULES, RESIDUALS_AND_HEADS
from .wrong_rotations import ROTATIONS
from .wrong_rows import ROWS

MISTAKES: tuple[Mistake, ...] = (*MODULES, *ATTENTION, *ROTATIONS, *RESIDUALS_AND_HEADS, *ROWS)
