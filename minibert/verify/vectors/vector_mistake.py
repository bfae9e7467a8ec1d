"""What a mistake between a text and its vector is made of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


class VectorMistake(NamedTuple):
    """A name, what to do, and which fields of the right recipe it changes.

    rounding: a narrower format; then it is no mistake, but the same numbers in it. rare: no pair of it and a mistake
    that takes the model anew is tried. alone: no pair
    at all; such a one may show in most texts.
    """

    name: str
    remedy: str
    changes: dict[str, Any]
    rounding: str = ""
    rare: bool = False
    alone: bool = False


Found = Iterator[VectorMistake]
