"""Files as torch.save writes a dict of tensors, made without torch; and pickles of other things."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array

CLASSES = {"<f4": "FloatStorage", "<f2": "HalfStorage", "<f8": "DoubleStorage"}


def text(value: str) -> bytes:
    """BINUNICODE."""
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    """BININT."""
    return b"J" + struct.pack("<i", value)


def many(*values: bytes) -> bytes:
    """MARK .. TUPLE."""
    return b"(" + b"".join(values) + b"t"


def tensor(
    key: int, kind: str, size: int, shape: tuple[int, ...], strides: Any = None, start: int = 0, more: bytes = b""
) -> bytes:
    """What makes a tensor of a storage."""
    strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape))) if strides is None else strides
    storage = many(text("storage"), b"ctorch\n" + kind.encode() + b"\n", text(str(key)), text("cpu"), number(size))
    counts = [many(*map(number, each)) for each in (shape, strides)]
    hooks = b"ccollections\nOrderedDict\n)R"
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n"
        + many(storage + b"Q", number(start), *counts, b"\x89", hooks, more)
        + b"R"
    )


def dict_of(entries: Mapping[str, bytes], ending: bytes = b"") -> bytes:
    """A whole pickle: an OrderedDict of these; `ending` comes before its end."""
    inside = b"".join(text(name) + value for name, value in entries.items())
    return b"\x80\x02ccollections\nOrderedDict\n)R(" + inside + b"u" + ending + b"."


METADATA = b"}" + text("_metadata") + b"}sb"  # a state_dict's own attribute


def archive(
    program: bytes, storages: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED, order: bytes = b"little"
) -> bytes:
    """The zip archive."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", compression) as file:
        file.writestr("archive/data.pkl", program)
        file.writestr("archive/byteorder", order)
        for name, raw in storages.items():
            file.writestr(f"archive/data/{name}", raw)
        file.writestr("archive/version", b"3\n")
    return made.getvalue()


def torch_file(arrays: Mapping[str, Array]) -> bytes:
    """As torch.save writes a state_dict of these."""
    entries = {name: tensor(i, CLASSES[x.dtype.str], x.size, x.shape) for i, (name, x) in enumerate(arrays.items())}
    return archive(dict_of(entries, METADATA), {str(i): x.tobytes() for i, x in enumerate(arrays.values())})


def write(path: Path, arrays: Mapping[str, Array]) -> Path:
    path.write_bytes(torch_file(arrays))
    return path


class Harmful:
    """An object whose pickle would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.write_text, (self.path, "run")


def harmful(path: Path, protocol: int) -> bytes:
    return pickle.dumps({"weight": Harmful(path)}, protocol)
