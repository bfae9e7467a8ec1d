"""`extract`: a checkpoint -> a folder with only its input layer: config, tokenizer and one safetensors file.

The tensors keep their names, so transformers and safetensors read the file too.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from minibert.errors import CheckpointError, MinibertError
from minibert.families.family import Family
from minibert.files.arrays import Entries, check_target, write_model
from minibert.files.checkpoint import Checkpoint
from minibert.files.tables import StoredTable, convert, narrowed
from minibert.files.tokenizer_files import TOKENIZER_FILES

from .load import ModelFiles, assemble, family_of, load, open_model

NARROW = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
BESIDE = ("config.json", *TOKENIZER_FILES, "generation_config.json")


class Extracted(NamedTuple):
    """The written folder: its tensors, and the bytes of the weight files before and after."""

    folder: Path
    tensors: int
    bytes_before: int
    bytes_after: int


def extract(
    model: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    dtype: str | None = None,
    *,
    revision: str | None = None,
    local_files_only: bool = False,
) -> Extracted:
    """Write a folder that holds only the input layer of `model`.

    dtype: "float32", "float16" or "bfloat16" for the tables; None keeps each table's format. Vectors (the norm's weight
    and bias) always keep their format: they are small, and every row passes through them.

    Raises FileExistsError if `folder` exists; ValueError for another dtype, for a number that float16 cannot hold and
    for a static model; OSError that names `folder`; and the errors of `load`.
    """
    if dtype is not None and dtype not in NARROW:
        raise ValueError(f"dtype must be {', '.join(map(repr, NARROW))} or None (as stored), found {dtype!r}")
    target = Path(folder)
    check_target(target)
    files = open_model(model, revision=revision, local_files_only=local_files_only)
    if files.static:
        raise ValueError(f"{files.where} is a static model, which is only an input layer already; copy its folder")
    source = files.source()
    family = family_of(files)
    sides = _take_all(source, files, family)
    if changed := sorted(source.merged.keys() & source.requested_tensors.keys()):
        raise CheckpointError(f"{files.where}: an adapter changes {changed[0]!r}, which extract does not write merged")
    entries = _entries(source, dtype)
    paths = {name: files.find(name) for name in BESIDE}
    others = {name: Path(path).read_bytes() for name, path in paths.items() if path is not None}
    size = write_model(target, entries, others, lambda written: load(written, side=sides[0]).close())
    before = {tensor.file: tensor.file_size for tensor in source.requested_tensors.values()}
    source.close()
    return Extracted(target, len(source.requested_tensors), sum(before.values()), size)


def _take_all(source: Checkpoint, files: ModelFiles, family: Family) -> list[str]:
    """Bind the layer of each side, so that its tensors are taken; return the stored sides (a file may lack one)."""
    sides, problems = [], []
    for side in family.sides:
        try:
            layer = assemble(files, source, family, side)
        except CheckpointError as error:
            problems.append(error)
            continue
        sides.append(side)
        with suppress(MinibertError):  # not part of the input layer: the file may lack its attention's positions,
            layer.attention_position  # noqa: B018  or name some that are not computed here
    if not sides:
        raise problems[0]
    return sides


def _entries(source: Checkpoint, dtype: str | None) -> Entries:
    """Return all taken tensors in the format to write."""
    entries: Entries = {}
    for name, tensor in source.requested_tensors.items():
        table, stored = source.table(name, "float32"), tensor.dtype
        assert isinstance(table, StoredTable)  # only a lazy checkpoint has other tables
        raw = table.stored_numbers
        if dtype is not None and raw.ndim > 1 and stored != NARROW[dtype]:
            exact = convert(raw, stored, np.dtype("float64" if stored == "F64" else "float32"))
            stored, raw = NARROW[dtype], narrowed(exact, NARROW[dtype])
            finite = np.isfinite(exact)
            if not np.isfinite(convert(raw, stored, exact.dtype)[finite]).all():
                problem = f"tensor {name!r} holds {float(np.abs(exact[finite]).max()):g}"
                raise ValueError(f"{problem}, which {stored} cannot hold; use bfloat16 or float32")
        entries[name] = stored, raw
    return entries
