"""Opens a port's recorded arrays, in each form that a comparison takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import numpy as np

from minibert.equations.input_layer import Array
from minibert.verify.judge.input_layer import Subject

from .debug_tree import DebugTree
from .modules import Source
from .numpy_files import checked
from .onnx_model import OnnxModel
from .traces import Traces, as_traces, read_traces

Against: TypeAlias = "str | os.PathLike[str] | Mapping[str, Array]"

ONNX = ".onnx"


class Named(Source):
    """Arrays under our own names."""

    whole = True

    def __init__(self, name: str, inputs: Traces, traces: Traces) -> None:
        super().__init__(name)
        self._read = inputs, traces

    def traces(self, subject: Subject, batches: Traces) -> tuple[Traces, Traces]:
        return self._read


def read_against(against: Against) -> Source:
    """Open what another program has written, by what it is.

    A file as `save` writes it; a folder of transformers' debugger; an ONNX model; or a dict of arrays, named as in a
    file. Raises ValueError, which says what is expected, and what reading raises.
    """
    if isinstance(against, Mapping):
        arrays = {str(name): _array(f"against[{name!r}]", x) for name, x in against.items()}
        return Named("the arrays", *as_traces(arrays, "the arrays"))
    path = Path(against)
    if path.is_dir():
        return DebugTree(path)
    return OnnxModel(path) if path.suffix.lower() == ONNX else Named(str(path), *read_traces(path))


def _array(where: str, x: object) -> Array:
    try:
        array = np.asarray(x)
    except ValueError as error:  # rows of unequal length
        raise ValueError(f"{where} is no array: {error}") from None
    return checked(array, where)
