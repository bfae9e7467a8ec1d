"""How much memory a call takes, of what Python and NumPy ask for."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any


def with_peak(call: Callable[[], Any]) -> tuple[Any, int]:
    """Return its result, and the most bytes that it held at a time."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def peak(call: Callable[[], Any]) -> int:
    return with_peak(call)[1]
