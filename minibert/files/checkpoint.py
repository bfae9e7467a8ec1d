"""A folder of safetensors files -> named tables, mapped and never copied.

The format: 8 bytes hold the header's length N (little endian), N bytes of JSON say for each tensor its format,
shape and place, the rest is raw numbers. safetensors' own reader has to accept a local file first. Then each tensor's
place is read here too, and NumPy uses the mapped bytes without a copy.

Source: the format's description in the safetensors repository.
"""

from __future__ import annotations

import json
import math
import mmap as memory_map
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from glob import glob
from typing import Any, NamedTuple

import numpy as np

from minibert.errors import CheckpointError

from .reading import FileName, existing, note_model_file
from .tables import EVERY_DTYPE, NUMPY_DTYPE, StoredTable, Table

ADAPTER = "adapter_config.json"  # PEFT's file, beside a model
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# a name that points outside its folder on some system: Windows also separates by backslashes, and has drives
ELSEWHERE = re.compile(r"\.{0,2}\Z|.*[/\\:]", re.DOTALL)
MAX_HEADER = 100_000_000  # bytes; the format's own limit
LFS_POINTER = b"version https://git-lfs"  # git leaves it in place of a large file that it has not fetched

BITS = {
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64, "I64": 64,
    "U64": 64,
}  # fmt: skip

CONVERT = (
    "convert it once, where torch and transformers are installed: "
    "AutoModel.from_pretrained(folder).save_pretrained(folder, safe_serialization=True)"
)
EXPORTED = "minibert reads only safetensors; load the model that this was made from"


class Tensor(NamedTuple):
    """The place of one tensor: its numbers are the bytes start..stop-1 of a file of `file_size` bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int
    file: str
    file_size: int


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict. Raises ValueError for a key that occurs twice: JSON readers disagree about which one counts."""
    entries = dict(pairs)
    if len(entries) != len(pairs):
        twice = sorted(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"duplicate keys {', '.join(map(repr, twice))}")
    return entries


def _place(name: str, entry: Any, data_start: int, file_size: int, file: str) -> Tensor:
    """Read one tensor's entry of a header. JSON holds anything, so every type is checked before it is used."""
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:
        raise ValueError(f"tensor {name!r}: expected a list of sizes and two offsets, found {shape!r} and {offsets!r}")
    if any(type(size) is not int or not 0 <= size < 2**63 for size in (*shape, *offsets)):
        raise ValueError(f"tensor {name!r}: sizes and offsets must be integers >= 0, found {shape} and {offsets}")
    dtype, (start, stop) = entry["dtype"], offsets
    if 8 * (stop - start) != BITS[dtype] * math.prod(shape):
        raise ValueError(f"tensor {name!r}: {dtype} of shape {shape} does not fill the {stop - start} bytes it claims")
    return Tensor(name, dtype, tuple(shape), data_start + start, data_start + stop, file, file_size)


def parse_header(header: bytes, data_start: int, file_size: int, file: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a header's JSON: each tensor's place, and the file's `__metadata__`.

    data_start = 8 + length of the header; places are absolute, in bytes. Every rule of the format is checked: known
    formats, shape x size = length, no gap, no overlap, and the file ends with the last tensor.

    Raises CheckpointError that names the file and the tensor.
    """
    try:
        entries = json.loads(header.decode("utf-8"), object_pairs_hook=_unique)
        metadata = entries.pop("__metadata__", None) or {}
        if not all(isinstance(text, str) for text in metadata.values()):
            raise ValueError("__metadata__ must hold only texts")
        tensors = {name: _place(name, entry, data_start, file_size, file) for name, entry in entries.items()}
        expected = data_start
        for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.start, tensor.stop)):
            if tensor.start != expected:
                raise ValueError(f"tensor {tensor.name!r} starts at byte {tensor.start}, expected {expected}")
            expected = tensor.stop
        if expected != file_size:
            raise ValueError(f"the header describes {expected} bytes, the file has {file_size}")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        wrong = f"the safetensors header is wrong: {type(error).__name__}: {error}"
        raise CheckpointError(f"{file}: {wrong}; the file is damaged or incomplete, fetch it again") from None
    return tensors, metadata


class SafetensorsFile:
    """One file: its tensors' places, and its bytes mapped read-only (or read on demand with mmap=False)."""

    def __init__(self, path: FileName, mmap: bool = True) -> None:
        self.path = path
        self.mmap = mmap
        note_model_file(path)
        _accept(path)
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length)
            self.tensors, self.metadata = parse_header(header, 8 + length, size, str(path))
            self._map = memory_map.mmap(file.fileno(), 0, access=memory_map.ACCESS_READ) if mmap else None
        if self._map is not None and hasattr(memory_map, "MADV_RANDOM"):
            # rows are scattered: reading ahead would load fifty times too much
            self._map.madvise(memory_map.MADV_RANDOM)

    def raw(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        """Return the stored numbers, read-only: over the map, or over bytes that are read now."""
        dtype = EVERY_DTYPE[tensor.dtype]
        if self._map is not None:
            return np.ndarray(tensor.shape, dtype, buffer=self._map, offset=tensor.start)
        with open(self.path, "rb") as file:
            file.seek(tensor.start)
            numbers = file.read(tensor.stop - tensor.start)
        if len(numbers) != tensor.stop - tensor.start:
            raise CheckpointError(f"{self.path}: ends inside tensor {tensor.name!r}; it changed while it was read")
        return np.frombuffer(numbers, dtype).reshape(tensor.shape)

    def expect(self, tensor: Tensor) -> None:
        """Hint that this tensor will be read in full: the system then reads it at once, not page by page."""
        if self._map is not None and hasattr(memory_map, "MADV_WILLNEED"):
            start = tensor.start - tensor.start % memory_map.PAGESIZE
            self._map.madvise(memory_map.MADV_WILLNEED, start, tensor.stop - start)


def _accept(path: FileName) -> None:
    """Check a file by safetensors' own reader. Raises CheckpointError."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="np"):
            pass
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be opened ({error})") from None
    except SafetensorError as error:
        with open(path, "rb") as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                raise CheckpointError(f"{path} is a Git LFS pointer, not the tensors; run git lfs pull") from None
        advice = "it is damaged, incomplete or of another format: fetch it again"
        raise CheckpointError(f"{path}: not a whole safetensors file ({error}); {advice}") from None


class Checkpoint:
    """Named tensors of one file or of the shards that an index lists; a shard is opened when first needed.

    `weight_map` maps a tensor to its file's name, `locate` a file's name to its path.
    """

    def __init__(
        self, locate: Callable[[str], FileName], weight_map: dict[str, str] | None = None, mmap: bool = True
    ) -> None:
        self._locate = locate
        self._mmap = mmap
        self._files: dict[str, SafetensorsFile] = {}
        self._places: dict[str, tuple[SafetensorsFile, Tensor]] = {}  # tensors that were looked up
        self.requested_tensors: dict[str, Tensor] = {}  # tensors whose tables were requested
        self.merged: Mapping[str, Callable[[Table], Table]] = {}  # tensor name -> merge function of the adapter
        self._weight_map = weight_map if weight_map is not None else dict.fromkeys(self._file(SINGLE).tensors, SINGLE)
        self.names: Collection[str] = self._weight_map.keys()  # a view: `add` adds names

    def tensor(self, name: str) -> Tensor:
        """Return a tensor's place. Raises CheckpointError if the index and a shard come from different saves."""
        if name not in self._places:
            file = self._file(self._weight_map[name])
            if name not in file.tensors:
                wrong = f"{INDEX} names {name!r} in {os.path.basename(file.path)}, which does not hold it"
                raise CheckpointError(f"{wrong}; index and shards are of different saves: fetch both again")
            self._places[name] = file, file.tensors[name]
        return self._places[name][1]

    def known(self) -> dict[str, Tensor | None]:
        """Return every tensor's place, None in a shard whose header has not been read yet."""
        opened = {file: self._files[file].tensors if file in self._files else {} for file in self._weight_map.values()}
        places = {name: tensor for name, (_, tensor) in self._places.items()}
        return {name: places.get(name) or opened[file].get(name) for name, file in self._weight_map.items()}

    def add(self, other: Checkpoint, there: str, name: str) -> None:
        """Add the tensor `there` of another checkpoint as `name`; it replaces a tensor of this name."""
        tensor = other.tensor(there)
        file = other._places[there][0]
        self._places[name] = file, tensor._replace(name=name)
        self._weight_map[name] = os.path.basename(file.path)

    def table(self, name: str, dtype: np.dtype[Any] | str = "float32", formats: Iterable[str] = NUMPY_DTYPE) -> Table:
        """Return a tensor, not read yet, as numbers of `dtype`. Raises CheckpointError for any other format."""
        tensor = self.tensor(name)
        if tensor.dtype not in formats:
            wrong = f"tensor {name!r} is stored as {tensor.dtype}"
            raise CheckpointError(f"{tensor.file}: {wrong}; this layer reads {', '.join(formats)}")
        self.requested_tensors[name] = tensor
        return StoredTable(self._places[name][0].raw(tensor), tensor.dtype, dtype)

    def aliases(self) -> dict[str, str]:
        """Return the other names of stored tensors that some files list in `__metadata__`: alias -> stored name."""
        return {
            alias: name
            for file in self._files.values()
            for alias, name in file.metadata.items()
            if name in self._weight_map and alias not in self._weight_map
        }

    def expect(self, names: Iterable[str]) -> None:
        """Hint that these tensors will be read in full."""
        for name in names:
            tensor = self.tensor(name)
            self._places[name][0].expect(tensor)

    def close(self) -> None:
        """Drop the maps; a map is released with the last array over it."""
        self._files.clear()
        self._places.clear()

    def _file(self, name: str) -> SafetensorsFile:
        if name not in self._files:
            self._files[name] = SafetensorsFile(self._locate(name), self._mmap)
        return self._files[name]


def read_index(text: bytes, where: str) -> dict[str, str]:
    """Read a sharded checkpoint's index: tensor name -> file name. Raises CheckpointError."""
    try:
        index = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
        weight_map = index.get("weight_map") if isinstance(index, dict) else index
        if not isinstance(weight_map, dict):
            raise ValueError(f"found {weight_map!r:.80}")
        strange = [file for file in weight_map.values() if not isinstance(file, str) or ELSEWHERE.match(file)]
        if strange:
            raise ValueError(f"a shard must be a plain file name, found {strange[0]!r:.80}")
    except (ValueError, RecursionError) as error:
        expected = 'expected {"weight_map": {tensor: file}}'
        raise CheckpointError(f"{where}: not an index of shards ({error}); {expected}; fetch it again") from None
    return dict(weight_map)


def open_folder(folder: str, mmap: bool = True) -> Checkpoint:
    """Open a folder's `model.safetensors`, or the shards of its `model.safetensors.index.json`.

    Raises CheckpointError if both are missing, and for a missing shard when a tensor of it is needed.
    """

    def locate(name: str) -> str:
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            raise CheckpointError(f"{folder} has no {name}, which {INDEX} lists; fetch the missing shard")
        return path

    index = os.path.join(folder, INDEX)
    single, shards = existing(os.path.join(folder, SINGLE)), existing(index)
    if single:
        return Checkpoint(locate, mmap=mmap)
    if shards:
        with open(index, "rb") as file:
            weight_map = read_index(file.read(), index)
        for shard in {INDEX, *weight_map.values()}:  # also shards that are never opened
            note_model_file(os.path.join(folder, shard))
        return Checkpoint(locate, weight_map, mmap)
    if not os.path.isdir(folder):
        raise CheckpointError(f"{folder}: no such folder; expected one with {SINGLE}, fetch it beside the other files")
    names = sorted([*os.listdir(folder), *glob("onnx/*", root_dir=folder)])
    foreign, advice = advice_for(names)
    contents = f"only {', '.join((foreign or names)[:8])}" if names else "an empty folder"
    raise CheckpointError(f"{folder} has no {SINGLE} and no {INDEX}; found {contents}{advice}")


def advice_for(names: Iterable[str]) -> tuple[list[str], str]:
    """Return the weight files in other formats, and advice about them."""
    for endings, advice in (
        ((".bin", ".h5", ".msgpack", ".ckpt", ".pt", ".pth"), CONVERT),
        ((".onnx", ".gguf", "openvino_model.xml"), EXPORTED),
    ):
        if foreign := [name for name in names if name.endswith(endings) and name != "openvino_model.bin"]:
            return foreign, f": {advice}"
    return [], ""
