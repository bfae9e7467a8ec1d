"""Files of texts in every format, and the rows that are read of them."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from minibert.bulk.records import Record, Records

Rows = list[tuple[Any, str]]
NUL_IN_CSV = sys.version_info >= (3, 11)  # the csv module of Python 3.10 refuses the line


def _views() -> list[Any]:
    """Views of strings, where this pyarrow can write them to Parquet: the oldest ones cannot."""
    try:
        parquet.write_table(pa.table({"text": pa.array(["a"], pa.string_view())}), pa.BufferOutputStream())
    except pa.ArrowNotImplementedError:
        return []
    return [pa.string_view()]


VIEWS = _views()


def read(*paths: Path, **options: Any) -> list[Record]:
    return list(Records([str(path) for path in paths], **options))


def good(*paths: Path, **options: Any) -> Rows:
    """The rows of files without a bad one."""
    found = read(*paths, **options)
    assert [record for record in found if record.problem] == []
    return [(record.id, record.text or "") for record in found]


def problems(*paths: Path, **options: Any) -> dict[int, str]:
    found = {record.row: record.problem for record in read(*paths, **options) if record.problem}
    assert all(record.text is None and record.id is None for record in read(*paths, **options) if record.problem)
    return found


def made(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def unchecked(values: list[bytes | None], kind: Any) -> Any:
    """Bytes as an Arrow column of texts, whatever they are: what a careless writer makes."""
    array = pa.array(values, pa.large_binary() if kind == pa.large_string() else pa.binary())
    if kind == pa.string_view():
        return array.cast(pa.binary_view()).view(kind)
    return pa.Array.from_buffers(kind, len(array), array.buffers())


def write_jsonl(path: Path, rows: Rows, plain: bool = False) -> None:
    lines = [json.dumps({"id": ident, "text": text}, ensure_ascii=not plain) for ident, text in rows]
    made(path, "".join(f"{line}\n" for line in lines))


def write_csv(path: Path, rows: Rows) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *rows])


def write_parquet(path: Path, rows: Rows, kind: Any = None, ids: Any = None, group: int | None = None) -> None:
    texts = pa.array([text for _, text in rows], pa.string())
    texts = texts.dictionary_encode() if kind == "dictionary" else texts.cast(kind or pa.string())
    table = pa.table({"id": pa.array([ident for ident, _ in rows], ids or pa.string()), "text": texts})
    parquet.write_table(table, path, row_group_size=group or max(1, len(rows)))
