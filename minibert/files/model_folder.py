"""minibert writes a model's folder: one safetensors file and what belongs to it, whole or not at all.

The folder is made under another name and moved into place, so a broken run leaves nothing behind.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from minibert.equations.input_layer import Array

from .arrays import ordered, safetensors_header
from .checkpoint import SINGLE
from .writing import KEPT, atomic_write, naming

Entries = dict[str, tuple[str, Array]]
"""Name -> (format, numbers as the file holds them)."""


def write_model(target: Path, entries: Entries, others: Mapping[str, bytes], check: Callable[[Path], object]) -> int:
    """Write a folder of the tensors and the other files, by name; give the size of the file of tensors.

    check: reads the folder back before it is moved into place. Call `check_target` first.
    """
    parent = target.absolute().parent  # all is read: later disk errors concern the target
    with naming(target), tempfile.TemporaryDirectory(prefix=f".{target.name[:KEPT]}.", dir=parent) as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        write_safetensors(made / SINGLE, entries)
        for name, content in others.items():
            atomic_write(made / name, content)
        check(made)
        size = (made / SINGLE).stat().st_size
        made.rename(target)
    return size


def check_target(target: Path) -> None:
    """Refuse, before anything is computed, a place without a folder, and a name that something has."""
    if not target.absolute().parent.is_dir():
        raise FileNotFoundError(f"{target}: there is no folder {target.absolute().parent}; make it first")
    if target.is_symlink() or target.exists():
        raise FileExistsError(f"{target} exists; choose another name, or remove it first")


def write_safetensors(path: Path, entries: Entries) -> None:
    """Write the tensors; the file appears whole or not at all."""

    def contents() -> Iterator[memoryview]:
        for _, (_, raw) in ordered(entries):
            yield np.ascontiguousarray(raw).data.cast("B")  # a strided array would be written in another order

    atomic_write(path, safetensors_header(entries), contents())
