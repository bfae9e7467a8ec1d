"""A binder that returns its given values, zeros for the rest, and records every request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import minibert
from minibert.equations.input_layer import Array
from minibert.families.parts.attention_schemes import Rotary
from minibert.families.parts.config import Config


class Stored:
    def __init__(self, tensors: Mapping[str, Array] = {}, config: Config | None = None) -> None:
        self.tensors, self.config = tensors, config or Config({})
        self.asked: dict[str, tuple[int, ...]] = {}

    def vector(self, names: tuple[str, ...], shape: tuple[int, ...]) -> Array:
        self.asked[names[0]] = shape
        given = self.tensors.get(names[0])
        return np.zeros(shape, np.float32) if given is None else np.resize(given, shape)

    def weight(self, names: tuple[str, ...], shape: tuple[int, ...]) -> Array:
        return self.vector(names, shape)

    def stored_under(self, scope: tuple[str, ...]) -> list[str]:
        return list(scope)  # whatever is asked for is there, by its name of today

    def table(self, names: tuple[str, ...], shape: tuple[int, ...]) -> Any:
        raise NotImplementedError


def scheme_of(family: str, config: Mapping[str, Any]) -> Rotary:
    """The rotary scheme that a family's row reads from config.json."""
    row = minibert.FAMILIES[family]
    found = row.attention and row.attention(row.configure(config), Stored(), "encoder")
    assert isinstance(found, Rotary)
    return found
