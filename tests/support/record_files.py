"""Files of texts in every format, the rows that are read of them, and a shard of `bulk` with another content."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import dataset, parquet

from minibert.bulk import stored
from minibert.bulk.texts import PLACE, Texts

Rows = Sequence[tuple[Any, str]]


def read(*paths: Path, **options: Any) -> list[dict[str, Any]]:
    """All rows of files, each with its kept columns and its place."""
    found = []
    for table in Texts([str(path) for path in paths], **options).rows():
        for row in table.to_pylist():
            name, _, number = row.pop(PLACE).rpartition(", row ")
            found.append({**row, "place": (name, int(number))})
    return found


def good(*paths: Path, **options: Any) -> list[tuple[Any, str]]:
    """The ids and texts of files without a bad row."""
    found = read(*paths, **options)
    assert all(row["text"] is not None for row in found)
    return [(row["id"], row["text"]) for row in found]


def made(path: Path, content: bytes | str) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def lines(path: Path, texts: Iterable[str]) -> Path:
    return made(path, "".join(f"{text}\n" for text in texts))


def jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> Path:
    return lines(path, map(json.dumps, rows))


def write_jsonl(path: Path, rows: Rows, plain: bool = False) -> None:
    lines(path, (json.dumps({"id": ident, "text": text}, ensure_ascii=not plain) for ident, text in rows))


def write_csv(path: Path, rows: Rows) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("id", "text"), *rows])


def write_parquet(path: Path, rows: Rows, kind: Any = None, group: int | None = None) -> None:
    texts = pa.array([text for _, text in rows], pa.string())
    texts = texts.dictionary_encode() if kind == "dictionary" else texts.cast(kind or pa.string())
    ids = pa.array([ident for ident, _ in rows], None if rows else pa.string())
    parquet.write_table(pa.table({"id": ids, "text": texts}), path, row_group_size=group or max(1, len(rows)))


def rewritten(path: Path, table: Any = lambda found: found, metadata: bytes | str | None = None, **said: Any) -> None:
    """Write a shard as another program may: its rows or its metadata changed."""
    form, before = path.suffix[1:], stored.metadata_of(path)
    found = table(dataset.dataset(path, format=form).to_table())
    found = found.replace_schema_metadata({stored.KEY: metadata or json.dumps({**before, **said})})
    if form == "arrow":
        with pa.ipc.new_file(path, found.schema) as writer:
            writer.write_table(found)
    else:
        parquet.write_table(found, path)
