"""Arrays into files: vectors that come one chunk after another, and the folder of a whole model."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from minibert.equations.input_layer import Array

from .checkpoint import SINGLE
from .writing import KEPT, atomic_write, naming, refuse_model_file, write_output

COPY_BYTES = 1 << 20  # bytes copied at a time
Entries = dict[str, tuple[str, Array]]
"""Name -> (format, numbers as the file holds them)."""


def ordered(entries: Entries) -> list[tuple[str, tuple[str, Array]]]:
    """Sort tensors by format, the widest first, so that each number is aligned."""
    return sorted(entries.items(), key=lambda entry: (-entry[1][1].dtype.itemsize, entry[0]))


def safetensors_header(entries: Entries) -> bytes:
    """Compute a file's header: each tensor's place among the numbers, in the order of `ordered`.

    It is written here because safetensors' functions for NumPy take no bfloat16, and the arguments of its lower
    functions changed between versions. Its own reader checks the file when it is loaded again.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers looks for this
    stop = 0
    for name, (stored, raw) in ordered(entries):
        start, stop = stop, stop + raw.nbytes
        header[name] = {"dtype": stored, "shape": list(raw.shape), "data_offsets": [start, stop]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def npy_header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Compute a .npy file's header. np.save needs a file that it can seek in, and hides disk errors."""
    header = BytesIO()
    fields = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, fields)
    return header.getvalue()


def write_vectors(
    path: Path, ending: str, vectors: Iterable[Any], dim: int, dtype: np.dtype[Any], pooling: str | None
) -> dict[str, tuple[int, ...]]:
    """Write vectors, or token vectors without pooling; return name -> shape of each array in the file.

    The file's header has their number, which is known only after the last text. Until then they are in a temporary file
    beside `path`, and memory holds one chunk. The file appears complete or not at all.
    """
    refuse_model_file(path)  # before anything is computed
    lengths = [0]  # the tokens of each text, if they are not pooled
    with _temporary(path) as spool:
        for chunk in vectors:
            if not pooling:
                lengths += [len(rows) for rows in chunk]
            for rows in [chunk] if pooling else chunk:
                with naming(path):
                    spool.write(np.ascontiguousarray(rows).data)
        with naming(path):
            spool.flush()
        shape = (spool.tell() // (dim * dtype.itemsize), dim)
        arrays = {"embeddings": np.broadcast_to(np.zeros((), dtype), shape)}  # has their shape, but takes no memory
        if not pooling:
            arrays["offsets"] = np.cumsum(lengths, dtype=np.int64)
        spool.seek(0)
        # read block by block: the pages of a map would count as memory of this process
        numbers = iter(lambda: spool.read(COPY_BYTES), b"")
        if ending == ".npy":
            write_output(path, npy_header(dtype, shape), numbers)
        else:  # int64 offsets are the widest numbers, so they come first
            offsets = [] if pooling else [arrays["offsets"].data]
            write_output(path, safetensors_header(_entries(arrays)), *offsets, numbers)
    return {name: array.shape for name, array in arrays.items()}


def write_arrays(path: Path, arrays: dict[str, Array]) -> None:
    """Write arrays into a .safetensors file, which appears complete or not at all."""
    entries = _entries(arrays)
    write_output(path, safetensors_header(entries), *(array.data for _, (_, array) in ordered(entries)))


def _entries(arrays: dict[str, Array]) -> Entries:
    return {name: (f"{array.dtype.kind.upper()}{8 * array.itemsize}", array) for name, array in arrays.items()}


def _temporary(path: Path) -> BinaryIO:
    """Open an unnamed temporary file, beside `path` if that is regular or absent, else in the system's directory."""
    with naming(path):
        beside = path.absolute().parent if path.is_file() or not path.exists() else None
        return cast(BinaryIO, tempfile.TemporaryFile(dir=beside))


# -- the folder of a model --------------------------------------------------------------------------------------------


def write_model(target: Path, entries: Entries, others: Mapping[str, bytes], check: Callable[[Path], object]) -> int:
    """Write a folder of one safetensors file and other files, by name; return the size of the former.

    The folder is made under another name and moved into place, so a run that ends early leaves nothing behind. check:
    reads the folder back before it is moved. Call `check_target` first.
    """
    parent = target.absolute().parent  # all input has been read: later disk errors concern the target
    with naming(target), tempfile.TemporaryDirectory(prefix=f".{target.name[:KEPT]}.", dir=parent) as scratch:
        folder = Path(scratch) / "made"
        folder.mkdir()
        write_safetensors(folder / SINGLE, entries)
        for name, content in others.items():
            atomic_write(folder / name, content)
        check(folder)
        size = (folder / SINGLE).stat().st_size
        folder.rename(target)
    return size


def check_target(target: Path) -> None:
    """Raise an error, before anything is computed, if the folder's parent is missing or the name is taken."""
    if not target.absolute().parent.is_dir():
        raise FileNotFoundError(f"{target}: there is no folder {target.absolute().parent}; make it first")
    if target.is_symlink() or target.exists():
        raise FileExistsError(f"{target} exists; choose another name, or remove it first")


def write_safetensors(path: Path, entries: Entries) -> None:
    """Write tensors; the file appears complete or not at all."""

    def contents() -> Iterator[memoryview]:
        for _, (_, raw) in ordered(entries):
            yield np.ascontiguousarray(raw).data.cast("B")  # a strided array would be written in another order

    atomic_write(path, safetensors_header(entries), contents())
