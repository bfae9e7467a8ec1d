"""Opens a port's recorded arrays, in each form that a comparison takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np

from minibert.equations.input_layer import Array
from minibert.verify.judge.input_layer import Subject

from .debug_tree import TREE, DebugTree
from .modules import Source
from .numpy_files import checked, npz_names, opened, read_npy, read_npz
from .onnx_model import OnnxModel
from .traces import NPZ, Traces, as_traces, read_file

Against: TypeAlias = "str | os.PathLike[str] | Mapping[str, Array]"

ALONE = "given"  # what the one batch of a folder is called that names none
ONNX = ".onnx"


class Named(Source):
    """Arrays under our own names."""

    whole = True

    def __init__(self, name: str, inputs: Traces, traces: Traces, about: str | None = None) -> None:
        super().__init__(name)
        self._read, self.about = (inputs, traces), about

    def traces(self, subject: Subject, batches: Traces) -> tuple[Traces, Traces]:
        return self._read


def read_against(against: Against) -> Source:
    """Open what another program has written, by what it is.

    A file as `save` writes it; a folder of .npy and .npz files; a folder of transformers' debugger; an ONNX model; or
    a dict of arrays, named as in a file. Raises ValueError, which says what is expected, and what reading raises.
    """
    if isinstance(against, Mapping):
        return Named(
            "the arrays", *as_traces({str(name): _array(name, x) for name, x in against.items()}, "the arrays")
        )
    path = Path(against)
    if not path.is_dir():
        opened(path)
    if path.is_dir():
        return DebugTree(path) if any(path.glob(f"*{TREE}")) else _folder(path)
    return OnnxModel(path) if path.suffix.lower() == ONNX else Named(str(path), *read_file(path))


def _array(name: object, x: object) -> Array:
    where = f"against[{name!r}]"
    try:
        return checked(np.asarray(x), where)
    except ValueError as error:
        raise error if where in str(error) else ValueError(f"{where} is no array: {error}") from None


def _folder(folder: Path) -> Named:
    """Read "<kind>/inputs/<name>.npy" and "<kind>/<key>.npy", or "<kind>.npz" with these names; a kind may be left out.

    Raises ValueError where there is no such file.
    """
    arrays: dict[str, Array] = {}
    for path in sorted(folder.rglob("*.np[yz]")):
        parts = path.relative_to(folder).with_suffix("").parts
        several = read_npz(path, npz_names(path)) if path.suffix == NPZ else {"": read_npy(path)}
        for name, array in several.items():
            words = [*parts, *filter(None, name.replace("/", "|").split("|"))]
            if len(words) == 1 or words[0] == "inputs":
                words.insert(0, ALONE)
            arrays["|".join(words)] = array
    if not arrays:
        raise ValueError(
            f"{folder}: expected .npy or .npz files (plain/sum.npy, plain/inputs/input_ids.npy), or the folder that "
            "model_addition_debugger_context of transformers writes; found neither"
        )
    return Named(str(folder), *as_traces(arrays, str(folder)))
