"""Traces, and the files that hold them: kind of batch -> name of the intermediate -> array, the inputs beside it.

In a file, .safetensors or .npz, the names are "<kind>|inputs|<name>" and "<kind>|<key>".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.files.writing import naming, write_output
from minibert.models.encoder import Encoder
from minibert.models.input_layer import EmbeddingLayer

from .numpy_files import opened, read_npz

Traces = dict[str, dict[str, Array]]  # kind -> name -> array

INPUT_LAYER, BLOCKS, HEAD = PARTS = "input layer", "blocks", "head"  # of a model, in the order of a trace
NPZ = ".npz"
ENDINGS = (".safetensors", NPZ)
READABLE = ("F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")


def trace(model: EmbeddingLayer | Encoder, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Trace one batch, with past_length as a file holds it."""
    keywords: dict[str, Any] = dict(inputs)
    if "past_length" in keywords:
        keywords["past_length"] = int(np.asarray(keywords["past_length"]).item())
    return model.trace(keywords.pop("input_ids", None), **keywords)


def tokens_of(batch: Mapping[str, Array]) -> tuple[Array | None, Array]:
    """A batch's ids and which of its tokens are no padding, both (batch, seq)."""
    ids = batch.get("input_ids")
    shape = np.shape(batch["inputs_embeds"])[:-1] if ids is None else np.shape(ids)
    shape = shape if len(shape) == 2 else (1, *shape)
    mask = np.reshape(batch.get("attention_mask", np.ones(shape)), (shape[0], -1))[:, -shape[1] :] != 0
    return None if ids is None else np.reshape(ids, shape), np.asarray(mask)


def keys_of(traces: Mapping[str, Iterable[str]]) -> list[str]:
    """List the names in all kinds of batch, in the order of computation, also those that only some kinds have.

    >>> keys_of({"plain": {"a": 0, "c": 0}, "types": {"a": 0, "b": 0, "c": 0}})
    ['a', 'b', 'c']
    """
    order: list[str] = []
    for named in traces.values():
        place = 0
        for key in named:
            if key not in order:
                order.insert(place, key)
            place = order.index(key) + 1
    return order


def write_traces(path: Path, inputs: Traces, traces: Traces) -> None:
    """Write inputs and intermediates for a port in another language; the file appears complete or not at all."""
    from safetensors.numpy import save

    named = {f"{kind}|inputs|{name}": np.asarray(a) for kind, given in inputs.items() for name, a in given.items()}
    named |= {f"{kind}|{key}": array for kind, found in traces.items() for key, array in found.items()}
    arrays: dict[str, Any] = {name: np.array(array, order="C") for name, array in named.items()}
    if path.suffix.lower() == NPZ:
        content = BytesIO()
        np.savez(content, **arrays)
        write_output(path, content.getvalue())
    else:  # not save_file, which makes files that their owner alone may read
        write_output(path, save(arrays))


def read_traces(path: Path) -> tuple[Traces, Traces]:
    """Read such a file: inputs and intermediates. Raises ValueError for another file."""
    return as_traces(read_arrays(path), str(path))


def as_traces(arrays: Mapping[str, Array], where: str) -> tuple[Traces, Traces]:
    """Sort arrays by their names, "<kind>|inputs|<name>" and "<kind>|<key>": inputs and intermediates.

    Raises ValueError for a text, and where no name is such a one.
    """
    if texts := [name for name, array in arrays.items() if array.dtype.kind == "U" and "|" in name]:
        raise ValueError(f"{where}: {texts[0]} is a text; store it as float32, integers as int64")
    inputs: Traces = {}
    traces: Traces = {}
    for name, array in arrays.items():
        kind, bar, key = name.partition("|")
        if key.startswith("inputs|"):
            whole = array.dtype.kind in "iu"  # a port's ids may be U32, from which a mistake cannot take 1
            inputs.setdefault(kind, {})[key.removeprefix("inputs|")] = array.astype(np.int64) if whole else array
        elif bar:
            traces.setdefault(kind, {})[key] = array
    if not traces:
        shown = ", ".join(map(repr, sorted(arrays)[:4])) or "no tensor"
        raise ValueError(f'{where}: expected names such as "plain|sum", found {shown}')
    return inputs, traces


def read_arrays(path: Path) -> dict[str, Array]:
    """Read the arrays of a .safetensors or .npz file. Raises ValueError that names it."""
    if opened(path).suffix.lower() == NPZ:
        return read_npz(path)
    from safetensors import SafetensorError, safe_open

    try:
        with naming(path), safe_open(str(path), framework="np") as file:
            names = list(file.keys())
            for name in names:
                if (stored := file.get_slice(name).get_dtype()) not in READABLE:
                    raise ValueError(f"{path}: {name} is stored as {stored}; store it as F32, integers as I64")
            return {name: file.get_tensor(name) for name in names}
    except SafetensorError as error:
        raise ValueError(
            f"{path}: not a safetensors file, or cut short ({error}); write it anew, as .safetensors or .npz"
        ) from None
