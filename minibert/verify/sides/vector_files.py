"""Files of vectors, with or without their texts, and files of texts: what other programs write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minibert.bulk.parquet import read_columns
from minibert.bulk.records import Records
from minibert.equations.input_layer import Array
from minibert.files.lines import raw_lines

from .numpy_files import read_npy
from .traces import read_arrays

VECTORS = ("vector", "embedding", "vectors", "embeddings")  # names that hold them, in this order
TEXT = "text"


def read_texts(path: Path) -> list[str]:
    """Read the texts of a file: plain lines (.txt), the column "text" of JSON lines, CSV or Parquet.

    Raises ValueError for a row without a text, and what `Records` raises.
    """
    texts = []
    for record in Records([str(path)]):
        if record.text is None:
            raise ValueError(f"{record.place}: {record.problem}")
        texts.append(record.text)
    if not texts:
        raise ValueError(f"{path} has no text")
    return texts


def read_vectors(path: Path) -> tuple[Array, list[str] | None]:
    """Read vectors (n, dim), float32 or wider, and their texts where the file has them.

    .npy; .npz and .safetensors with one array, or one of a name in `VECTORS`; .parquet and .jsonl with a column of such
    a name, and the texts in "text". Raises ValueError that names file and key.
    """
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; name the file in it")
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise ValueError(f"{path}: the file must end in {', '.join(_READERS)}, found {path.suffix or 'no ending'!r}")
    key, found, texts = read(path)
    where = f"{path}: {key}" if key else str(path)
    return as_vectors(found, where), texts


def as_vectors(found: Any, where: str) -> Array:
    """Check that these are vectors, one a row: (n, dim). Raises ValueError."""
    try:
        array = np.asarray(found)
    except ValueError:
        array = np.empty(0, object)
    if array.dtype.kind in "iub":
        raise ValueError(f"{where} has integers ({array.dtype}); give the vectors before they are quantized")
    if array.dtype.kind != "f" or array.ndim != 2 or not array.size:
        shown = "rows of unequal length, or no numbers" if array.dtype.kind != "f" else f"shape {array.shape}"
        raise ValueError(f"{where} must have one vector a row, (texts, numbers), float; found {shown}")
    return array if array.dtype == np.float64 else array.astype(np.float32)


Read = tuple[str, Any, "list[str] | None"]


def _npy(path: Path) -> Read:
    return "", read_npy(path), None


def _named(path: Path) -> Read:
    _, arrays, _ = read_arrays(path, lambda names: [_key(names, path)])
    ((key, found),) = arrays.items()
    return key, found, None


def _parquet(path: Path) -> Read:
    rows = read_columns(str(path), lambda names: [x for x in (TEXT, _key(names, path, only=False)) if x in names])
    key = next(name for name in rows if name != TEXT)
    return key, _floats(rows[key]), _texts(rows[TEXT], path) if TEXT in rows else None


def _jsonl(path: Path) -> Read:
    vectors, texts, key = [], [], ""
    for number, line in enumerate(raw_lines(str(path)), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            wanted = f"a JSON object with {TEXT!r} and a vector"
            raise ValueError(f"{path}, line {number}: expected {wanted} ({error})") from None
        key = key or _key(list(row), path, only=False)
        if key not in row:
            raise ValueError(f"{path}, line {number}: there is no {key!r}, which the first line has")
        vectors.append(row[key])
        texts.append(row.get(TEXT))
    known = None if all(text is None for text in texts) else _texts(texts, path)
    return key, _floats(vectors), known


_READERS = {".npy": _npy, ".npz": _named, ".safetensors": _named, ".parquet": _parquet, ".jsonl": _jsonl}


def _key(names: Sequence[str], path: Path, only: bool = True) -> str:
    """Which name has the vectors: the only one, or one that says so."""
    if only and len(names) == 1:
        return names[0]
    for name in VECTORS:
        if name in names:
            return name
    shown = ", ".join(map(repr, names[:8])) or "nothing"
    raise ValueError(f"{path}: expected one array, or one called {' or '.join(map(repr, VECTORS))}; found {shown}")


def _floats(rows: Iterable[Any]) -> Any:
    """Rows of a text file: whole numbers among them, such as a 0, are floats too. Bad rows are seen later."""
    try:
        return np.array(list(rows), np.float64)
    except (TypeError, ValueError):
        return np.empty(0, object)


def _texts(found: Sequence[Any], path: Path) -> list[str]:
    for number, text in enumerate(found, 1):
        if not isinstance(text, str):
            raise ValueError(f"{path}, row {number}: {TEXT!r} must be a text, found {text!r:.40}")
    return list(found)
