"""The names of blocks' tensors and modules if several blocks share a module, or if a file has older names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from minibert.equations.input_layer import Array
from minibert.files.tables import StoredTable, Weight, column_major

if TYPE_CHECKING:
    from .steps import Tensors


class LegacyName(NamedTuple):
    """The older name of a map or a norm. If one tensor holds several maps, this one is number `part` of `parts`."""

    path: str
    part: int = 0
    parts: int = 1


def module_path(key: str) -> str:
    """Return the path of a module from its key in a trace; the key of a shared module has a block's number too.

    >>> module_path("encoder.albert_layer_groups.0.albert_layers.0[3].ffn")
    'encoder.albert_layer_groups.0.albert_layers.0.ffn'
    """
    return re.sub(r"\[\d+\]", "", key)


def by_module(keys: Mapping[str, str]) -> dict[str, list[str]]:
    """Group values of keys `path.name` by their module's path, in the order of a shared module's calls.

    >>> by_module({"layers.0[0].ffn": "a", "layers.0[1].ffn": "b"})
    {'layers.0.ffn': ['a', 'b']}
    """
    grouped: dict[str, list[str]] = {}
    for key, value in keys.items():
        grouped.setdefault(module_path(key), []).append(value)
    return grouped


class OtherNames:
    """`steps.Tensors` that are stored under other names.

    names  the names of today -> the stored ones, and which of how many parts of that tensor is meant
    """

    def __init__(self, binder: Tensors, names: Callable[[tuple[str, ...]], tuple[tuple[str, ...], int, int]]) -> None:
        self._binder, self._names = binder, names
        self._known: dict[tuple[str, ...], Any] = {}  # a narrow tensor is converted once

    def vector(self, names: tuple[str, ...], shape: tuple[int, ...]) -> Array:
        vector: Array = self._find(self._binder.vector, names, shape)
        return vector

    def weight(self, names: tuple[str, ...], shape: tuple[int, ...]) -> Weight:
        weight: Weight = self._find(lambda *arguments: column_major(self._binder.weight(*arguments)), names, shape)
        return weight

    def _find(self, read: Callable[..., Any], names: tuple[str, ...], shape: tuple[int, ...]) -> Any:
        stored_names, part, parts = self._names(names)
        if stored_names not in self._known:
            self._known[stored_names] = read(stored_names, (parts * shape[0], *shape[1:]))
        whole, rows = self._known[stored_names], slice(part * shape[0], (part + 1) * shape[0])
        if parts == 1:
            return whole
        return whole.part(rows) if isinstance(whole, StoredTable) else whole[rows]


def shared_names(binder: Tensors) -> OtherNames:
    """Return the tensors of modules that several blocks share: the same arrays for every block."""
    return OtherNames(binder, lambda names: (tuple(map(module_path, names)), 0, 1))


def older_names(binder: Tensors, prefix: str, older: str, known: Mapping[str, LegacyName]) -> OtherNames:
    """Return one block's tensors in a file with older names; one stored tensor may hold the rows of several."""

    def stored_names(names: tuple[str, ...]) -> tuple[tuple[str, ...], int, int]:
        path, _, last = names[0].removeprefix(prefix).rpartition(".")
        return (f"{older}{known[path].path}.{last}",), known[path].part, known[path].parts

    return OtherNames(binder, stored_names)
