"""minibert writes a model's folder: one safetensors file and what belongs to it, whole or not at all.

The folder is made under another name and moved into place, so a broken run leaves nothing behind. The file notes what
the folder holds, so that `force` replaces nothing else.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError, Option, error_of

from .arrays import ordered, safetensors_header
from .checkpoint import SINGLE, SafetensorsFile
from .reading import sha256_of
from .writing import KEPT, atomic_write, naming

MARK = "minibert.extract"  # in a file's metadata: the sha256 of each file of its folder, of itself that of its numbers

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
        write_safetensors(made / SINGLE, entries, others)
        for name, content in others.items():
            atomic_write(made / name, content)
        check(made)
        size = (made / SINGLE).stat().st_size
        _replace(made, target, Path(scratch) / "old")
    return size


def check_target(target: Path, force: bool) -> None:
    """Refuse, before anything is computed, a place without a folder, or to replace files that we did not make."""
    if not target.absolute().parent.is_dir():
        raise FileNotFoundError(f"{target}: there is no folder {target.absolute().parent}; make it first")
    if not (target.is_symlink() or target.exists()):
        return
    if not force:
        raise error_of(
            FileExistsError,
            f"{target} exists; choose another name, or pass ",
            Option("force", True),
            " to replace what minibert has written",
        )
    if target.is_symlink() or not target.is_dir() or Path.cwd().is_relative_to(target.resolve()):
        raise FileExistsError(f"{target} is a file, a link, or the folder we are in; choose another name")
    _refuse_foreign(target, target)


def _refuse_foreign(folder: Path, target: Path) -> None:
    """Refuse a folder with anything but the files that `write_model` has written, as it has written them.

    Raises FileExistsError that names `target`, where the folder lies or has lain.
    """
    if other := sorted({path.name for path in folder.iterdir()} - _written(folder)):
        raise FileExistsError(
            f"{target} holds {', '.join(map(repr, other[:3]))}, not as minibert has written it; choose another name, "
            "or remove it yourself, if you mean it"
        )


def _written(folder: Path) -> set[str]:
    """Give the names of the files in a folder that are as `write_model` has written them, by the sha256 noted there."""
    try:
        opened = SafetensorsFile(folder / SINGLE, mmap=False)
        noted = json.loads(opened.metadata[MARK])
        start = min(tensor.start for tensor in opened.tensors.values())
        files = [path for path in folder.iterdir() if path.is_file() and not path.is_symlink()]
        sums = {path.name: sha256_of(path, start if path.name == SINGLE else 0) for path in files}
        return {name for name, found in sums.items() if noted.get(name) == found}
    except (CheckpointError, OSError, ValueError, KeyError, AttributeError, RecursionError):
        return set()  # another program's


def write_safetensors(path: Path, entries: Entries, beside: Mapping[str, bytes] = {}) -> None:
    """Write the tensors; the file appears whole or not at all.

    beside: the other files of the folder. Their sha256, and that of the numbers, are noted in the file.
    """

    def contents() -> Iterator[memoryview]:
        for _, (_, raw) in ordered(entries):
            yield np.ascontiguousarray(raw).data.cast("B")  # a strided array would be written in another order

    numbers = hashlib.sha256()
    for content in contents():
        numbers.update(content)
    noted = {SINGLE: numbers.hexdigest(), **{name: hashlib.sha256(each).hexdigest() for name, each in beside.items()}}
    atomic_write(path, safetensors_header(entries, {MARK: json.dumps(noted)}), contents())


def _replace(made: Path, target: Path, old: Path) -> None:
    """Move the finished folder into place; what was there before goes away with the scratch folder, or comes back."""
    replaced = target.is_symlink() or target.exists()
    if replaced:
        target.rename(old)
    try:
        if replaced:
            _refuse_foreign(old, target)  # what has come since the first look would be lost
        made.rename(target)
    except BaseException:
        if replaced:
            old.rename(target)
        raise
