"""The files that hold traces: kind of batch -> name of the intermediate -> array, with the inputs beside it.

In a .safetensors or .npz file the names are "<kind>|inputs|<name>" and "<kind>|<key>". No pickle is opened, and every
error names the file.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from tokenize import TokenError  # raised for a header that NumPy takes for one of Python 2
from typing import Any
from zipfile import BadZipFile, LargeZipFile

import numpy as np

from minibert.equations.input_layer import Array
from minibert.files.reading import reading
from minibert.files.tables import convert
from minibert.files.writing import naming, write_output

Traces = dict[str, dict[str, Array]]  # kind -> name -> array

NPZ = ".npz"
ENDINGS = (".safetensors", NPZ)
READABLE = ("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")
# MemoryError: a header may describe an array that no memory holds
BROKEN = (ValueError, TypeError, KeyError, EOFError, SyntaxError, OverflowError, RecursionError, UnicodeError,
          BadZipFile, LargeZipFile, zlib.error, NotImplementedError, RuntimeError, TokenError,
          MemoryError)  # fmt: skip
# an .npz may unpack to this many bytes, or to MOST times its size; 244 compressed traces unpack to at most 4 times
ROOM, MOST = 1 << 26, 20


def write_traces(path: Path, inputs: Traces, traces: Traces) -> None:
    """Write inputs and intermediates for a port in another language; the file appears complete or not at all."""
    from safetensors.numpy import save

    named = {f"{kind}|inputs|{name}": np.asarray(a) for kind, batch in inputs.items() for name, a in batch.items()}
    named |= {f"{kind}|{key}": array for kind, trace in traces.items() for key, array in trace.items()}
    arrays: dict[str, Any] = {name: np.array(array, order="C") for name, array in named.items()}
    if path.suffix.lower() == NPZ:
        content = BytesIO()
        np.savez(content, **arrays)
        write_output(path, content.getvalue())
    else:  # not save_file, which makes files that only their owner may read
        write_output(path, save(arrays))


def read_traces(path: Path) -> tuple[Traces, Traces]:
    """Read inputs and intermediates. Raises ValueError if the file holds no traces."""
    return as_traces(read_arrays(path), str(path))


def as_traces(arrays: Mapping[str, Array], where: str) -> tuple[Traces, Traces]:
    """Sort arrays into inputs, "<kind>|inputs|<name>", and intermediates, "<kind>|<key>".

    Raises ValueError for an array of texts, and if no name has this form.
    """
    if texts := [name for name, array in arrays.items() if array.dtype.kind == "U" and "|" in name]:
        raise ValueError(f"{where}: {texts[0]} is a text; store it as float32, integers as int64")
    inputs: Traces = {}
    traces: Traces = {}
    for name, array in arrays.items():
        kind, bar, key = name.partition("|")
        if key.startswith("inputs|"):
            whole = array.dtype.kind in "iu"  # a port's ids may be U32, and a mistake may subtract 1 from them
            inputs.setdefault(kind, {})[key.removeprefix("inputs|")] = array.astype(np.int64) if whole else array
        elif bar:
            traces.setdefault(kind, {})[key] = array
    if not traces:
        shown = ", ".join(map(repr, sorted(arrays)[:4])) or "no tensor"
        raise ValueError(f'{where}: expected names such as "plain|inputs|input_ids", found {shown}')
    return inputs, traces


def read_arrays(path: Path) -> dict[str, Array]:
    """Read the arrays of a .safetensors or .npz file. Raises ValueError that names the file."""
    if opened(path).suffix.lower() == NPZ:
        return read_npz(path)
    from safetensors import SafetensorError, safe_open

    try:
        with naming(path), safe_open(str(path), framework="np") as file:
            names = list(file.keys())
            for name in names:
                if (stored := file.get_slice(name).get_dtype()) not in READABLE:
                    raise ValueError(f"{path}: {name} is stored as {stored}; store it as F32, integers as I64")
            narrow = [name for name in names if file.get_slice(name).get_dtype() == "BF16"]
            arrays = {name: file.get_tensor(name) for name in names if name not in narrow}
            return arrays | _bfloat16(path, narrow) if narrow else arrays
    except SafetensorError as error:
        advice = "write it anew, as .safetensors or .npz"
        raise ValueError(f"{path}: not a safetensors file, or cut short ({error}); {advice}") from None


def _bfloat16(path: Path, names: list[str]) -> dict[str, Array]:
    """Read tensors of bfloat16, which NumPy does not have, as float32."""
    import safetensors

    stored: dict[str, Any] = dict(safetensors.deserialize(path.read_bytes()))  # type: ignore[no-untyped-call]
    parts = ((name, np.frombuffer(stored[name]["data"], "<u2"), stored[name]["shape"]) for name in names)
    return {name: convert(x.reshape(shape), "BF16", np.dtype(np.float32)) for name, x, shape in parts}


def opened(path: Path) -> Path:
    """Return a path that can be read to its end. Raises ValueError for a pipe or a device, which may wait."""
    if path.is_dir():  # a library's error would be about a device
        raise IsADirectoryError(f"{path} is a folder; name the file in it")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no file but a pipe or a device, which may never end; write it to a file")
    return path


def read_npy(path: Path) -> Array:
    """Read the one array of a .npy file. Raises ValueError that names the file."""
    with open(opened(path), "rb") as file, reading(str(path), "NumPy", *BROKEN):
        array = np.lib.format.read_array(file, allow_pickle=False)
    return checked(array, str(path))


def read_npz(path: Path) -> dict[str, Array]:
    """Read the arrays of a .npz file, arrays of texts too. Raises ValueError that names file and array."""
    arrays: dict[str, Array] = {}
    with open(opened(path), "rb") as content:
        with reading(str(path), "NumPy", *BROKEN):
            file: Any = np.lib.npyio.NpzFile(content, allow_pickle=False)
        unpacked, size = sum(member.file_size for member in file.zip.infolist()), path.stat().st_size
        if unpacked > max(ROOM, MOST * size):
            raise ValueError(f"{path}: {size:,} bytes unpack to {unpacked:,}, unlike a trace; write it by numpy.savez")
        for name in file.files:
            with reading(f"{path}: {name}", "NumPy", *BROKEN):
                array = np.asarray(file[name])
            arrays[name] = array if array.dtype.kind == "U" else checked(array, f"{path}: {name}")
    return arrays


def checked(array: Array, where: str) -> Array:
    """Refuse arrays without numbers. NumPy has no bfloat16: an array saved in it comes back as two bytes per number."""
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise ValueError(f"{where} is stored as {array.dtype}; store it as float32, integers as int64")
    return array
