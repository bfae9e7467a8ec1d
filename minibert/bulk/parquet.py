"""Columns of Parquet, read and written; the only file that uses pyarrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import error_of
from minibert.files.lines import reading
from minibert.models.sentences.token_vectors import TokenVectors, rows_of

if TYPE_CHECKING:
    import pyarrow as pa


def arrow(*otherwise: object) -> Any:
    """Import pyarrow. Raises ImportError that says how to install it, and what works without it."""
    try:
        import pyarrow as pa
    except ImportError:
        raise error_of(ImportError, "Parquet needs pyarrow: pip install 'pyarrow>=18.1'", *otherwise) from None
    return pa


def need_type(field: pa.Field, name: str, numbers: bool, nulls: bool = True) -> None:
    """Refuse a Parquet column that cannot hold texts, or ids. `nulls`: one that holds nothing at all may pass."""
    from pyarrow import types

    kind = field.type.value_type if types.is_dictionary(field.type) else field.type
    is_text = types.is_string(kind) or types.is_large_string(kind) or kind == "string_view"
    if not (is_text or (nulls and types.is_null(kind)) or (numbers and types.is_integer(kind))):
        wanted = "integers or texts" if numbers else "texts"
        raise ValueError(f"{name}: column {field.name!r} must hold {wanted}, found {field.type}; convert it")


def values_of(column: Any) -> list[Any]:
    """Read an Arrow column; rows that are not UTF-8 are bytes."""
    try:
        found: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        pa = arrow()
        plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        found = [
            value if value is None else _text_or_bytes(value) for value in plain.cast(pa.large_binary()).to_pylist()
        ]
    return found


def _text_or_bytes(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


@contextmanager
def opened(name: str, **options: Any) -> Iterator[Any]:
    """Open a file as pyarrow's `ParquetFile`; every error of reading it names it.

    pyarrow itself would take some names for addresses on a network, and no name that is not UTF-8.
    """
    pa = arrow()
    from pyarrow.parquet import ParquetFile

    with (
        reading(name, "Parquet", pa.ArrowException, UnicodeDecodeError),
        open(name, "rb") as raw,
        ParquetFile(raw, **options) as file,
    ):
        yield file


def read_columns(name: str, choose: Callable[[Sequence[str]], Sequence[str]]) -> dict[str, list[Any]]:
    """Read some columns of a small file whole; `choose` gets all names. Raises ValueError that names the file."""
    with opened(name) as file:
        found: dict[str, list[Any]] = file.read(list(choose(file.schema_arrow.names))).to_pydict()
    return found


def write_vectors(ids: Sequence[int | str], vectors: Sequence[Array | TokenVectors], file: BinaryIO) -> None:
    """id (int64 or string) and vector (a list of fixed size): what DuckDB, Polars and Arrow read.

    Of token vectors it is a list of such lists.
    """
    pa = arrow()
    from pyarrow import parquet

    rows = []
    for part in vectors:
        numbers = rows_of(part)
        made = pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), numbers.shape[1])
        rows.append(pa.LargeListArray.from_arrays(part.offsets, made) if isinstance(part, TokenVectors) else made)
    table = pa.table({"id": pa.array(ids), "vector": pa.chunked_array(rows)})
    # dictionaries and compression save next to nothing on a vector's numbers, and cost time
    parquet.write_table(table, file, use_dictionary=False, compression="none")


def read_vectors(name: str, rows: int, late: bool = False) -> Iterator[Array | TokenVectors]:
    """Read the column `vector` in blocks of at most `rows` rows: (rows, dim), or token vectors. Raises ValueError."""
    types = arrow().types
    fixed = types.is_fixed_size_list
    with opened(name) as file:
        for batch in file.iter_batches(rows, columns=["vector"], use_threads=False):
            column = batch.column("vector")
            if late:
                if not types.is_large_list(column.type) or column.null_count or not fixed(column.type.value_type):
                    raise ValueError(f"{name}: expected vectors of tokens, found {column.type}; is it another file?")
                tokens, width = column.flatten(), column.type.value_type.list_size
                offsets = column.offsets.to_numpy().astype(np.int64)
                yield TokenVectors(tokens.flatten().to_numpy().reshape(len(tokens), width), offsets - offsets[0])
                continue
            if not fixed(column.type) or column.null_count:
                raise ValueError(f"{name}: expected vectors of one length, found {column.type}; is it another file?")
            yield column.flatten().to_numpy().reshape(len(column), column.type.list_size)
