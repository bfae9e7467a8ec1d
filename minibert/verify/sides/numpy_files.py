"""Reading .npy and .npz files of other programs: no pickle is opened, every error names the file."""

from __future__ import annotations

import zlib
from pathlib import Path
from tokenize import TokenError  # of a header that NumPy takes for one of Python 2
from typing import Any
from zipfile import BadZipFile, LargeZipFile

import numpy as np

from minibert.equations.input_layer import Array
from minibert.files.reading import reading

# a header may describe an array that no memory holds
BROKEN = (ValueError, TypeError, KeyError, EOFError, SyntaxError, OverflowError, RecursionError, UnicodeError,
          BadZipFile, LargeZipFile, zlib.error, NotImplementedError, RuntimeError, TokenError,
          MemoryError)  # fmt: skip
# an .npz may unpack to the larger of these bytes and this multiple of the file; of 244 compressed traces the most is 4
ROOM, MOST = 1 << 26, 20


def opened(path: Path) -> Path:
    """Give the path of a file that can be read to its end. Raises ValueError for a pipe or a device, which may wait."""
    if path.is_dir():  # a library would speak of a device
        raise IsADirectoryError(f"{path} is a folder; name the file in it")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no file but a pipe or a device, which may never end; write it to a file")
    return path


def read_npy(path: Path) -> Array:
    """Read the one array of a .npy file. Raises ValueError that names the file."""
    with open(opened(path), "rb") as file, reading(str(path), "NumPy", *BROKEN):
        found = np.lib.format.read_array(file, allow_pickle=False)
    return checked(found, str(path))


def read_npz(path: Path) -> dict[str, Array]:
    """Read the arrays of a .npz file, texts too. Raises ValueError that names file and array."""
    arrays: dict[str, Array] = {}
    with open(opened(path), "rb") as content:
        with reading(str(path), "NumPy", *BROKEN):
            file: Any = np.lib.npyio.NpzFile(content, allow_pickle=False)
        unpacked, size = sum(member.file_size for member in file.zip.infolist()), path.stat().st_size
        if unpacked > max(ROOM, MOST * size):
            raise ValueError(f"{path}: its {size:,} bytes unpack to {unpacked:,}, and no trace shrinks like that; if "
                             "it is one, write it by numpy.savez")  # fmt: skip
        for name in file.files:
            with reading(f"{path}: {name}", "NumPy", *BROKEN):
                found = np.asarray(file[name])
            arrays[name] = found if found.dtype.kind == "U" else checked(found, f"{path}: {name}")
    return arrays


def checked(array: Array, where: str) -> Array:
    """Refuse what are no numbers. NumPy has no bfloat16: what is saved as such comes back as two bytes each."""
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise ValueError(f"{where} is stored as {array.dtype}; store it as float32, integers as int64")
    return array
