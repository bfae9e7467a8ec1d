"""A checkpoint -> a folder with its input layer alone: config, tokenizer and one safetensors file.

The tensors keep their names, so transformers and safetensors read the file too. The folder is made under another name
and moved into place, so a broken run leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError, MinibertError, Option, error_of
from minibert.families.family import Family
from minibert.files.arrays import ordered, safetensors_header
from minibert.files.checkpoint import SINGLE, Checkpoint, SafetensorsFile
from minibert.files.reading import sha256_of
from minibert.files.tables import StoredTable, convert, narrowed
from minibert.files.writing import KEPT, atomic_write, naming, same_file

from .load import Opened, assemble, family_of, is_folder, load, open_model

NARROW = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
COMPANIONS = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt", "generation_config.json",
)  # fmt: skip

MARK = "minibert.extract"  # in a file's metadata: the sha256 of each file of its folder, of itself that of its numbers


class Extracted(NamedTuple):
    """What was written: bytes of the model's files before and of the one file after, and the largest rounding error."""

    folder: Path
    tensors: int
    bytes_before: int
    bytes_after: int
    rounding_error: float


def extract(
    model: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    dtype: str | None = None,
    *,
    revision: str | None = None,
    local_files_only: bool = False,
    force: bool = False,
) -> Extracted:
    """Write a folder that holds the input layer of `model` and nothing else.

    dtype: "float32", "float16" or "bfloat16" for the tables; None keeps each as it is stored. Vectors (the norm's
    weight and bias) keep their format: they are small, and every row passes through them.

    force: replace a folder that holds what `extract` has written, unchanged, and nothing else.

    Raises FileExistsError where `folder` exists and `force` is not given, or where `force` would delete
    another file; ValueError for the model's own folder or one inside or around it, for another dtype, for a number that
    float16 cannot hold; OSError that names `folder`; and the errors of `load`.
    """
    if dtype is not None and dtype not in NARROW:
        raise ValueError(f"dtype must be {', '.join(map(repr, NARROW))} or None (as stored), found {dtype!r}")
    target = Path(folder)
    if is_folder(model):
        _refuse_own(target, Path(model).expanduser())
    _check_target(target, force)
    if not target.absolute().parent.is_dir():
        raise FileNotFoundError(f"{target}: there is no folder {target.absolute().parent}; make it first")
    opened = open_model(model, revision, local_files_only)
    source = opened.source()
    family = family_of(opened)
    sides = _take_all(source, opened, family)
    entries, error = _entries(source, dtype)
    found = {name: opened.find(name) for name in ("config.json", *COMPANIONS)}
    others = {name: Path(path).read_bytes() for name, path in found.items() if path is not None}
    parent = target.absolute().parent  # all is read: later disk errors concern the target
    with naming(target), tempfile.TemporaryDirectory(prefix=f".{target.name[:KEPT]}.", dir=parent) as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        write_safetensors(made / SINGLE, entries, others)
        for name, content in others.items():
            atomic_write(made / name, content)
        load(made, side=sides[0]).close()  # what is moved into place has been read back
        size = (made / SINGLE).stat().st_size
        _replace(made, target, Path(scratch) / "old")
    before = {tensor.file: tensor.file_size for tensor in source.taken.values()}
    source.close()
    return Extracted(target, len(source.taken), sum(before.values()), size, error)


def _check_target(target: Path, force: bool) -> None:
    """Refuse, before anything is computed, to replace files that this program did not make."""
    if not (target.is_symlink() or target.exists()):
        return
    if not force:
        raise error_of(
            FileExistsError,
            f"{target} exists; choose another name, or pass ",
            Option("force", True),
            " to replace what `extract` has written",
        )
    if target.is_symlink() or not target.is_dir() or Path.cwd().is_relative_to(target.resolve()):
        raise FileExistsError(f"{target} is a file, a link, or the folder we are in; choose another name")
    _refuse_foreign(target, target)


def _refuse_foreign(folder: Path, target: Path) -> None:
    """Refuse a folder with anything but the files that `extract` has written, as it has written them.

    Raises FileExistsError that names `target`, where the folder lies or has lain.
    """
    if other := sorted({path.name for path in folder.iterdir()} - _written(folder)):
        raise FileExistsError(
            f"{target} holds {', '.join(map(repr, other[:3]))}, not as `extract` has written it; choose another name, "
            "or remove it yourself, if you mean it"
        )


def _written(folder: Path) -> set[str]:
    """Give the names of the files in a folder that are as `extract` has written them, by the sha256 noted there."""
    try:
        opened = SafetensorsFile(folder / SINGLE, mmap=False)
        noted = json.loads(opened.metadata[MARK])
        start = min(tensor.start for tensor in opened.tensors.values())
        files = [path for path in folder.iterdir() if path.is_file() and not path.is_symlink()]
        sums = {path.name: sha256_of(path, start if path.name == SINGLE else 0) for path in files}
        return {name for name, found in sums.items() if noted.get(name) == found}
    except (CheckpointError, OSError, ValueError, KeyError, AttributeError, RecursionError):
        return set()  # another program's


def _refuse_own(target: Path, model: Path) -> None:
    """Refuse a target that is the model's folder, is inside or around it, or has what the model links to."""
    links = [path for path in (*model.glob("*"), *model.glob("*/*")) if path.is_symlink()]
    for inner, outer in ((target, model), (model, target), *((link, target) for link in links)):
        real = Path(os.path.realpath(inner))
        if any(same_file(place, outer) for place in (real, *real.parents)):
            raise ValueError(
                f"{target} and the model's folder {model} must lie apart: one is the other, holds it or a file that it "
                "links to, and the model would be lost; choose another folder"
            )


def _take_all(source: Checkpoint, opened: Opened, family: Family) -> list[str]:
    """Let the layer of each side ask for its tensors; give the sides there are (a file may hold a decoder alone)."""
    sides, problems = [], []
    for side in family.sides:
        try:
            layer = assemble(opened, source, family, side)
        except CheckpointError as error:
            problems.append(error)
            continue
        sides.append(side)
        with suppress(MinibertError):  # no concern of the input layer: the file lacks the scheme of its attention,
            layer.attention_position  # noqa: B018  or asks for one that nothing here computes
    if not sides:
        raise problems[0]
    return sides


def _entries(source: Checkpoint, dtype: str | None) -> tuple[dict[str, tuple[str, Array]], float]:
    """Give all taken tensors in the format to write, and the largest rounding error."""
    entries: dict[str, tuple[str, Array]] = {}
    worst = 0.0
    for name, tensor in source.taken.items():
        table, stored = source.table(name, "float32"), tensor.dtype
        assert isinstance(table, StoredTable)  # a lazy checkpoint alone has others
        raw = table.stored_numbers
        if dtype is not None and raw.ndim > 1 and stored != NARROW[dtype]:
            raw, error = _converted(raw, stored, NARROW[dtype], name)
            stored, worst = NARROW[dtype], max(worst, error)
        entries[name] = stored, raw
    return entries, worst


def write_safetensors(path: Path, entries: dict[str, tuple[str, Array]], beside: Mapping[str, bytes] = {}) -> None:
    """Write name -> (format, numbers as the file holds them); the file appears whole or not at all.

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


def _converted(raw: Array, stored: str, target: str, name: str) -> tuple[Array, float]:
    """Round to another format, to nearest; give the largest difference too."""
    exact = convert(raw, stored, np.dtype("float64" if stored == "F64" else "float32"))
    narrow = narrowed(exact, target)
    back = convert(narrow, target, exact.dtype)
    finite = np.isfinite(exact)
    if not np.isfinite(back[finite]).all():
        largest = float(np.abs(exact[finite]).max())
        raise ValueError(f"tensor {name!r} holds {largest:g}, which {target} cannot hold; use bfloat16 or float32")
    return narrow, float(np.abs(back[finite] - exact[finite]).max(initial=0.0))


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
