"""The names of blocks' tensors and modules: where several blocks share a module, and in files with older names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from minibert.equations.input_layer import Array
from minibert.files.tables import StoredTable, Weight

if TYPE_CHECKING:
    from .steps import Tensors

T = TypeVar("T")


class Older(NamedTuple):
    """The older name of a map or a norm, or of several maps that a file holds one after another: part of how many."""

    path: str
    part: int = 0
    parts: int = 1


def module_path(key: str) -> str:
    """The path of a module from its key in a trace: without the block's number, which a shared module's key has.

    >>> module_path("encoder.albert_layer_groups.0.albert_layers.0[3].ffn")
    'encoder.albert_layer_groups.0.albert_layers.0.ffn'
    """
    return re.sub(r"\[\d+\]", "", key)


def by_module(keys: Mapping[str, str]) -> dict[str, list[str]]:
    """Sort what is known by a module's key by its path: in the order in which a shared module is called.

    >>> by_module({"layers.0[0].ffn": "a", "layers.0[1].ffn": "b"})
    {'layers.0.ffn': ['a', 'b']}
    """
    found: dict[str, list[str]] = {}
    for key, value in keys.items():
        found.setdefault(module_path(key), []).append(value)
    return found


class SharedNames:
    """Finds the tensors of a module that several blocks use; asked for as `steps.Tensors` are."""

    def __init__(self, binder: Tensors) -> None:
        self._binder = binder
        self._known: dict[tuple[str, ...], Any] = {}  # a narrow tensor is widened once for all blocks

    def vector(self, names: tuple[str, ...], shape: tuple[int, ...]) -> Array:
        """Give a tensor, the same array to every block."""
        return np.asarray(self._shared(self._binder.vector, names, shape))

    def weight(self, names: tuple[str, ...], shape: tuple[int, ...]) -> Weight:
        """Give a map's weight, the same to every block."""
        return self._shared(self._binder.weight, names, shape)

    def _shared(self, give: Callable[..., T], names: tuple[str, ...], shape: tuple[int, ...]) -> T:
        paths = tuple(map(module_path, names))
        if paths not in self._known:
            self._known[paths] = give(paths, shape)
        found: T = self._known[paths]
        return found


class OlderNames:
    """Finds one block's tensors in a file with older names; asked for as `steps.Tensors` are."""

    def __init__(self, binder: Tensors, prefix: str, older: str, names: Mapping[str, Older]) -> None:
        self._binder, self._prefix, self._older, self._names = binder, prefix, older, names
        self._whole: dict[str, Any] = {}  # by name: a narrow one is widened once for all its parts

    def vector(self, names: tuple[str, ...], shape: tuple[int, ...]) -> Array:
        """Give a tensor, or the rows of one that holds several."""
        whole, rows = self._holding(self._binder.vector, names, shape)
        return whole[rows]

    def weight(self, names: tuple[str, ...], shape: tuple[int, ...]) -> Weight:
        """Give a map's weight, or the rows of one that holds several."""
        whole, rows = self._holding(self._binder.weight, names, shape)
        return whole.part(rows) if isinstance(whole, StoredTable) else whole[rows]

    def _holding(self, give: Callable[..., T], names: tuple[str, ...], shape: tuple[int, ...]) -> tuple[T, slice]:
        """The tensor of the older name, and which rows of it are meant."""
        path, _, last = names[0].removeprefix(self._prefix).rpartition(".")
        older = self._names[path]
        name = f"{self._older}{older.path}.{last}"
        if name not in self._whole:
            self._whole[name] = give((name,), (older.parts * shape[0], *shape[1:]))
        return self._whole[name], slice(older.part * shape[0], (older.part + 1) * shape[0])
