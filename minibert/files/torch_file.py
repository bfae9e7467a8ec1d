"""A small file of torch.save, read without running what is in it: a dict of tensors by name, and nothing else.

Such a file is a zip archive of a pickle, which is a program, and of each storage's bytes. A pickle may call any
function of Python. Here no pickle is loaded: its opcodes are read one by one, and only those few are followed that a
state_dict of plain tensors has. Whatever else a file says is refused.
"""

from __future__ import annotations

import pickletools
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError

from .reading import FileName
from .tables import NUMPY_DTYPE, convert

LARGEST_PICKLE = 1 << 16  # bytes; that of two tensors has 300
LARGEST_FILE = 1 << 30  # bytes
MOST_AXES = 8
STORAGES = {
    "torch FloatStorage": "F32", "torch HalfStorage": "F16", "torch BFloat16Storage": "BF16",
    "torch DoubleStorage": "F64",
}  # fmt: skip
DICT, TENSOR = "collections OrderedDict", "torch._utils _rebuild_tensor_v2"
CONVERT = (
    "save plain tensors once more where torch is installed: torch.save({name: x.detach().contiguous() for name, x in "
    "torch.load(file, weights_only=True).items()}, file)"
)


class _Global(NamedTuple):
    """What the pickle names. It is compared with the names that are known, and never looked up."""

    name: str


class _Storage(NamedTuple):
    stored: str
    key: str
    numbers: int


class _Tensor(NamedTuple):
    storage: _Storage
    start: int
    shape: tuple[int, ...]


class _RefusedError(Exception):
    """What in a file is not followed; `read_torch_file` says in which."""


def read_torch_file(path: FileName, shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype[Any]) -> list[Array]:
    """Give the tensors of these names, in their order: float32, float64, float16 or bfloat16, as numbers of `dtype`.

    Raises CheckpointError for a file that is damaged, that has other tensors or other shapes, or a pickle that asks for
    anything but such tensors.
    """
    try:
        with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
            found = _tensors(archive)
            for name, shape in shapes.items():
                if name not in found or found[name].shape != shape:
                    there = found[name].shape if name in found else sorted(found)
                    raise _RefusedError(f"expected {name!r} of shape {shape}, found {there}")
            if extra := sorted(found.keys() - shapes.keys()):
                raise _RefusedError(f"it has {extra[0]!r} besides {', '.join(map(repr, shapes))}")
            return [_numbers(archive, found[name], dtype) for name in shapes]
    except _RefusedError as error:
        why = str(error)
    except (
        zipfile.BadZipFile,
        OSError,
        EOFError,
        ValueError,
        OverflowError,
        NotImplementedError,
        RuntimeError,
    ) as error:
        why = f"it is no zip archive as torch.save writes it ({error})"
    raise CheckpointError(f"{path} is not read: {why:.300}; fetch it again, or {CONVERT}")


# -- the archive -------------------------------------------------------------------------------------------------


def _read(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Read an entry that is stored as it is: nothing is unpacked, so that no small file fills the memory."""
    entries = [each for each in archive.infolist() if each.filename.partition("/")[2] == name]
    if len(entries) != 1:
        raise _RefusedError(f"it has {len(entries)} entries {name!r}, expected one")
    entry = entries[0]
    if entry.compress_type != zipfile.ZIP_STORED or not entry.file_size == entry.compress_size <= most:
        raise _RefusedError(f"its entry {name!r} is compressed, or too large")
    return archive.read(entry)


def _tensors(archive: zipfile.ZipFile) -> dict[str, _Tensor]:
    if any(each.filename.partition("/")[2] == "byteorder" for each in archive.infolist()):
        order = _read(archive, "byteorder", 16)
        if order != b"little":
            raise _RefusedError(f"its numbers have the byte order {order!r}, expected little")
    found = _followed(_read(archive, "data.pkl", LARGEST_PICKLE))
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(value, _Tensor) for name, value in found.items()
    ):
        raise _RefusedError("its pickle is no dict of tensors by name")
    return found


def _numbers(archive: zipfile.ZipFile, tensor: _Tensor, dtype: np.dtype[Any]) -> Array:
    stored = tensor.storage.stored
    kind = NUMPY_DTYPE[stored]
    raw = _read(archive, f"data/{tensor.storage.key}", LARGEST_FILE)
    count = int(np.prod(tensor.shape, dtype=object))
    if len(raw) != tensor.storage.numbers * kind.itemsize or tensor.start + count > tensor.storage.numbers:
        raise _RefusedError(f"a tensor of shape {tensor.shape} does not fit the {len(raw)} bytes of its storage")
    numbers = np.frombuffer(raw, kind)[tensor.start : tensor.start + count].reshape(tensor.shape)
    return convert(numbers, stored, dtype)


# -- the pickle --------------------------------------------------------------------------------------------------


def _followed(pickle: bytes) -> Any:
    """Follow the opcodes of a pickle; values are texts, numbers, tuples, dicts and what stands for a tensor."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def pop() -> Any:
        if len(stack) <= (marks[-1] if marks else 0):
            raise _RefusedError("its pickle takes more than it has given")
        return stack.pop()

    def since_mark() -> list[Any]:
        if not marks:
            raise _RefusedError("its pickle ends a list that it has not begun")
        start = marks.pop()
        found = stack[start:]
        del stack[start:]
        return found

    for opcode, given, _ in pickletools.genops(pickle):
        name, argument = opcode.name, cast(Any, given)
        if name == "STOP":
            return pop()
        if name in ("BININT", "BININT1", "BININT2", "BINUNICODE"):
            stack.append(argument)
        elif name == "GLOBAL":
            stack.append(_Global(argument))
        elif name in ("NEWFALSE", "EMPTY_TUPLE"):
            stack.append(False if name == "NEWFALSE" else ())
        elif name == "EMPTY_DICT":
            stack.append({})
        elif name == "MARK":
            marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT"):
            value = pop()
            stack.append(value)
            memo[argument] = value
        elif name in ("BINGET", "LONG_BINGET"):
            if argument not in memo:
                raise _RefusedError("its pickle takes what it has not kept")
            stack.append(memo[argument])
        elif name == "TUPLE":
            stack.append(tuple(since_mark()))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            stack.append(tuple([pop() for _ in range(int(name[-1]))][::-1]))
        elif name == "BINPERSID":
            stack.append(_storage(pop()))
        elif name == "REDUCE":
            arguments, function = pop(), pop()
            stack.append(_called(function, arguments))
        elif name in ("SETITEM", "SETITEMS"):
            items = since_mark() if name == "SETITEMS" else [pop(), pop()][::-1]
            _put(pop, stack, items)
        elif name == "BUILD":  # a state_dict notes versions of its modules, which change nothing
            pop()
        elif name != "PROTO":
            raise _RefusedError(f"its pickle has the opcode {name}, which a dict of tensors has not")
    raise _RefusedError("its pickle has no end")


def _put(pop: Any, stack: list[Any], items: list[Any]) -> None:
    target = pop()
    keys = items[::2]
    if not isinstance(target, dict) or len(items) % 2 or not all(isinstance(key, str) for key in keys):
        raise _RefusedError("its pickle sets what is no dict by name")
    target.update(zip(keys, items[1::2], strict=True))
    stack.append(target)


def _storage(value: Any) -> _Storage:
    """Read ("storage", its class, its entry's number, the device, how many numbers)."""
    if not isinstance(value, tuple) or len(value) != 5 or value[0] != "storage" or not isinstance(value[1], _Global):
        raise _RefusedError("its pickle names what is no storage")
    _, kind, key, _, count = value
    if kind.name not in STORAGES:
        raise _RefusedError(f"its numbers are of {kind.name!r}; read are {', '.join(STORAGES)}")
    if not isinstance(key, str) or not key.isdecimal() or not _is_count(count):
        raise _RefusedError("its pickle names a storage by no number")
    return _Storage(STORAGES[kind.name], key, count)


def _called(function: Any, arguments: Any) -> Any:
    """Give what one of two known functions makes of its arguments; no function is ever called."""
    name = function.name if isinstance(function, _Global) else None
    if name == DICT and arguments == ():
        return {}
    if name != TENSOR:
        raise _RefusedError(f"its pickle calls {str(name)!r:.80}, which is not followed")
    if not isinstance(arguments, tuple) or len(arguments) != 6:  # a seventh may say that all signs are turned round
        raise _RefusedError("its pickle makes a tensor of too little or too much")
    storage, start, shape, strides = arguments[:4]
    if not isinstance(storage, _Storage) or not all(isinstance(each, tuple) for each in (shape, strides)):
        raise _RefusedError("its pickle makes a tensor of no storage")
    if not all(map(_is_count, (start, *shape, *strides))) or not len(shape) == len(strides) <= MOST_AXES:
        raise _RefusedError("its pickle has a tensor of no shape")
    rows = [int(np.prod(shape[i + 1 :], dtype=object)) for i in range(len(shape))]
    if any(size > 1 and stride != row for size, stride, row in zip(shape, strides, rows, strict=True)):
        raise _RefusedError(f"its pickle has a tensor of strides {strides}, expected {tuple(rows)}")
    return _Tensor(storage, start, shape)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 40
