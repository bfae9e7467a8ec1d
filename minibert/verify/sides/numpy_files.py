"""Reading .npy and .npz files of other programs: no pickle is opened, no array made that its file is too small for."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from math import prod
from pathlib import Path
from tokenize import TokenError  # of a header that NumPy takes for one of Python 2
from typing import IO, Any
from zipfile import BadZipFile, LargeZipFile, ZipFile

import numpy as np

from minibert.equations.input_layer import Array
from minibert.files.lines import reading

BROKEN = (ValueError, TypeError, KeyError, EOFError, SyntaxError, OverflowError, RecursionError, UnicodeError,
          BadZipFile, LargeZipFile, zlib.error, NotImplementedError, RuntimeError,
          TokenError)  # fmt: skip
ROOM = 1 << 26  # bytes of all arrays of a .npz together; of a larger file `TIMES` its own
TIMES = 8  # bfloat16 that was converted to float64 is packed to a quarter or a fifth, zeros to a thousandth
HEADER = 10_000  # bytes at most, as NumPy itself wants of files that are not trusted


def opened(path: Path) -> Path:
    """Give the path of a file that can be read to its end. Raises ValueError for a pipe or a device, which may wait."""
    if path.is_dir():  # a library would speak of a device
        raise IsADirectoryError(f"{path} is a folder; name the file in it")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no file but a pipe or a device, which may never end; write it to a file")
    return path


def read_npy(path: Path) -> Array:
    """Read the one array of a .npy file. Raises ValueError that names the file."""
    with reading(str(path), "NumPy", *BROKEN), open(opened(path), "rb") as file:
        found = _array(file, path.stat().st_size)
    return checked(found, str(path))


def npz_names(path: Path) -> list[str]:
    """List the arrays of a .npz file."""
    with reading(str(path), "NumPy", *BROKEN), ZipFile(opened(path)) as file:
        return [name.removesuffix(".npy") for name in file.namelist()]


def read_npz(path: Path, names: Collection[str]) -> dict[str, Array]:
    """Read some arrays of a .npz file. Raises ValueError that names file and array."""
    found = {}
    room = max(ROOM, TIMES * path.stat().st_size)
    with reading(str(path), "NumPy", *BROKEN):
        file = ZipFile(path)
    with file:
        for member in file.infolist():
            if (name := member.filename.removesuffix(".npy")) in names:
                with reading(f"{path}: {name}", "NumPy", *BROKEN), file.open(member) as opened:
                    found[name] = _array(opened, min(member.file_size, room))
                room -= found[name].nbytes
    return {name: array if array.dtype.kind == "U" else checked(array, f"{path}: {name}")
            for name, array in found.items()}  # fmt: skip


def checked(array: Array, where: str) -> Array:
    """Refuse what are no numbers. NumPy has no bfloat16: what is saved as such comes back as two bytes each."""
    if array.dtype.kind == "V" and array.dtype.names is None:
        kind = "bfloat16 or another type" if array.dtype.itemsize == 2 else "a type"
        raise ValueError(
            f"{where} is stored as {kind} that NumPy does not know ({array.dtype.str}); store it as float32"
        )
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise ValueError(f"{where} is stored as {array.dtype}; store it as float32, integers as int64")
    return array


def _array(file: IO[bytes], size: int) -> Array:
    """Read header and numbers; an array larger than what follows its header is refused before it is made."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version}")
    read: Any = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file, max_header_size=HEADER)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, and not numbers")
    wanted = prod(shape) * dtype.itemsize
    if wanted < 0 or min(shape, default=0) < 0 or wanted > size:
        raise ValueError(f"its header describes an array of {wanted:,} bytes, where at most {size:,} can be")
    content = file.read(wanted)
    if len(content) < wanted:
        raise ValueError(f"it ends after {len(content):,} of {wanted:,} bytes")
    flat = np.frombuffer(content, dtype)
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
