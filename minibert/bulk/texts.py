"""Files of many texts -> Arrow tables, some rows at a time: Parquet, JSON lines, CSV, plain lines.

pyarrow reads Parquet; Python's json and csv read lines one by one: pyarrow's JSON reader (26.0) ends the process at
100,000 nested objects, accepts bytes that are not UTF-8, and refuses a whole file for one bad line. Here a row with a
wrong format or with bytes that are not UTF-8 becomes a row of nulls, and the caller decides about it.
"""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, count, islice
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from minibert.errors import Option, error_of
from minibert.files.reading import STDIN, raw_lines, reading, shown_file, without_end

ENDINGS = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".txt": "lines"}
FORMATS = tuple(dict.fromkeys(ENDINGS.values()))
ID = "id"  # the column of the ids, if it exists and no other column is named
VECTOR = "vector"  # the column that is added
PLACE = "\0place"  # a column with a row's file and its number in this file, from 1
NO_TEXT = "it has no text, or is not of its file's format"  # the error for a row whose text is null
ROWS = 2048  # read at once
BUFFER = 1 << 20  # bytes of a Parquet column that are read at once
LONGEST_FIELD = 1 << 24  # letters of a CSV field: an unclosed quote must not swallow a whole file
Record = dict[str, Any]


class Texts:
    """All rows of some files, in order. The name "-" is stdin.

    keep: columns that are kept beside ids and texts; None keeps all columns that are not nested. Without `id_column`
    the ids are the column "id" if it exists; else the rows of all files are numbered from 0. A CSV has no types: its
    columns are texts, and an empty cell is null. rows: read at once, so that a stream is not waited for longer.

    schema      the kept columns
    expected    the approximate number of rows; None if stdin is among the files

    Raises OSError and ValueError that name the file, ImportError without pyarrow.
    """

    def __init__(
        self, names: Sequence[str], text_column: str = "text", id_column: str | None = None, form: str | None = None,
        keep: Sequence[str] | None = None, rows: int = ROWS,
    ) -> None:  # fmt: skip
        pa = arrow()
        self.names, self.text_column, self._at_once = list(names) or [STDIN], text_column, max(1, min(rows, ROWS))
        self.sizes = [None if name == STDIN else _size(name) for name in self.names]
        self._forms = [form or _form(name) for name in self.names]
        if self.names.count(STDIN) > 1 or (STDIN, "parquet") in zip(self.names, self._forms, strict=True):
            raise ValueError("stdin can be read once, and not as Parquet, which is read from its end; name files")
        self._stdin: Iterator[Record] | None = None  # its first rows have been read to find its columns
        files = zip(self.names, self._forms, strict=True)
        columns_of_files = [self._columns(*file, keep, id_column or ID) for file in files]
        self.expected = None if STDIN in self.names else sum(rows for _, rows in columns_of_files)
        self._refuse_mixed_ids(id_column or ID, [schema for schema, _ in columns_of_files])
        where = shown_file(self.names[0])
        with reading(where, "one table with the other files", pa.ArrowException):
            together = pa.unify_schemas([schema for schema, _ in columns_of_files], promote_options="permissive")
        self.id_column = id_column or (ID if ID in together.names else None)
        flat = [field.name for field in together if not pa.types.is_nested(field.type)]
        needed = {text_column: "text_column", **dict.fromkeys(keep or (), "keep")}
        needed = {self.id_column: "id_column", **needed} if self.id_column else needed
        for name in [name for name in needed if name not in flat]:
            known = ", ".join(map(repr, flat)) or "none"
            wrong = f"expected a flat column {name!r}; there are {known}; name another with "
            raise error_of(ValueError, wrong, Option(needed[name]), place=where)
        kept = dict.fromkeys([*needed, *(flat if keep is None else ())])
        self._stored = self.schema = pa.schema([together.field(name) for name in kept])
        if self.id_column is None:
            self.schema = self._stored.insert(0, pa.field(ID, pa.int64()))
        if not str(found_type := together.field(text_column).type).endswith("string"):
            raise ValueError(f"{where}: column {text_column!r} must hold texts, found {found_type}; convert it")
        if VECTOR in kept:
            raise ValueError(f"{where}: a column {VECTOR!r} is added, and there is one already; rename it")
        self._float_ids = self.id_column is not None and pa.types.is_floating(self._stored.field(self.id_column).type)
        if STDIN not in self.names and self._float_ids:
            for _ in self.rows():  # an id may be NaN: the job must fail now and not hours later
                pass

    def rows(self) -> Iterator[Any]:
        """Yield tables with the columns of `schema` and `PLACE`."""
        pa = arrow()
        new_ids = count()
        for name, form in zip(self.names, self._forms, strict=True):
            shown_name, row_numbers = shown_file(name), count(1)
            with reading(shown_name, "a table", pa.ArrowException, OverflowError):
                for table in self._tables(name, form):
                    columns = dict(zip(self._stored.names, _fitted(table, self._stored).columns, strict=True))
                    if self.id_column is None:
                        columns = {ID: pa.array(islice(new_ids, len(table)), pa.int64()), **columns}
                    places = [f"{shown_name}, row {next(row_numbers)}" for _ in range(len(table))]
                    if self._float_ids:
                        finite = pa.compute.is_finite(columns[self.id_column])
                        if (index := pa.compute.index(finite, False).as_py()) >= 0:
                            bad_id = columns[self.id_column][index]
                            wrong = f"column {self.id_column!r} holds {bad_id}, which is no id; "
                            advice = "give the row another, or name another column with ", Option("id_column")
                            raise error_of(ValueError, wrong, *advice, place=places[index])
                    yield pa.table({**columns, PLACE: places})

    def _refuse_mixed_ids(self, ids: str, schemas: list[Any]) -> None:
        """Raise ValueError if the ids of two files have different types: 7 would become 7.0."""
        kinds: dict[str, tuple[str, str]] = {}
        for name, schema in zip(self.names, schemas, strict=True):
            if ids in schema.names:
                kind = str(schema.field(ids).type)
                kinds.setdefault(re.sub(r"^(large_|u)|\W.*|\d+", "", kind), (name, kind))
        if len(kinds) > 1:
            (first, before), (name, kind), *_ = kinds.values()
            wrong = f"column {ids!r} holds {kind}, and {before} in {shown_file(first)}: as one type ids would change; "
            advice = "convert one, or name another column with ", Option("id_column")
            raise error_of(ValueError, wrong, *advice, place=shown_file(name))

    def _columns(self, name: str, form: str, keep: Sequence[str] | None, ids: str) -> tuple[Any, int]:
        """Read a file's columns and their types, and count its rows."""
        pa = arrow()
        if form == "parquet":
            with _parquet(name) as file:
                column_names = file.schema_arrow.names
                for column in column_names if keep is None else (ids, self.text_column, *keep):
                    if column_names.count(column) > 1:
                        twice = f"there are {column_names.count(column)} columns {column!r}; rename all but one"
                        raise ValueError(f"{shown_file(name)}: {twice}")
                return pa.schema({x.name: _plain(x.type) for x in file.schema_arrow}), file.metadata.num_rows
        if form == "lines":  # lines of stdin may come slowly, so they are waited for later
            return pa.schema({self.text_column: pa.string()}), 0 if name == STDIN else sum(1 for _ in raw_lines(name))
        records: Iterable[Record] = self._records(name, form)
        if name == STDIN:
            stream = iter(records)
            records = list(islice(stream, self._at_once))
            self._stdin = chain(records, stream)
        # sample one value per type, and the largest integer, so that a bad column fails now and not hours later
        rows, seen = 0, defaultdict[str, dict[type, Any]](dict)
        for rows, record in enumerate(records, 1):  # noqa: B007
            for column, value in record.items():
                values = seen[column]
                if type(value) is not int or abs(value) >= abs(values.get(int, 0)):
                    values[type(value)] = value
        kinds = {}
        for column, values in (seen if rows else {self.text_column: {}}).items():
            try:
                if column == ids and {int, float} <= {*values}:  # read as one type, an integer id would change
                    raise pa.ArrowTypeError
                kinds[column] = _plain(pa.array([*values.values()]).type)
            except (pa.ArrowException, OverflowError) as error:
                shown = "values of several types, " + " and ".join(sorted(kind.__name__ for kind in values))
                if isinstance(error, OverflowError):
                    shown = "an integer of more than 64 bits"
                if column == ids:
                    wrong = f"column {column!r} holds {shown}; name another with ", Option("id_column")
                    raise error_of(ValueError, *wrong, place=shown_file(name)) from None
                if keep is None or column in keep:
                    wrong = f"column {column!r} holds {shown}; name the columns to keep with ", Option("keep")
                    raise error_of(ValueError, *wrong, place=shown_file(name)) from None
                kinds[column] = pa.list_(pa.null())  # a nested type, which is not kept
        return pa.schema(kinds), rows

    def _tables(self, name: str, form: str) -> Iterator[Any]:
        pa = arrow()
        if form == "parquet":
            with _parquet(name) as file:
                column_names = [name for name in file.schema_arrow.names if name in self._stored.names]
                for batch in file.iter_batches(ROWS, columns=column_names, use_threads=False):
                    yield pa.Table.from_batches([batch])
            return
        records = self._stdin if name == STDIN and self._stdin else self._records(name, form)
        while group := list(islice(records, self._at_once)):
            yield pa.Table.from_pylist(group, self._stored)

    def _records(self, name: str, form: str) -> Iterator[Record]:
        """Read the rows of a file of lines; a bad row has no text."""
        lines = raw_lines(name)
        if form == "lines":
            for line in lines:
                text = without_end(line).decode("utf-8", "surrogateescape")
                yield {self.text_column: text if _is_utf8([text]) else None}
            return
        for record in _json(lines) if form == "jsonl" else _csv(lines, shown_file(name)):
            yield record if isinstance(record.get(self.text_column), str | None) else {}


def arrow() -> Any:
    """Import pyarrow. Raises ImportError that says how to install it."""
    try:
        import pyarrow as pa
        import pyarrow.compute
    except ImportError:
        raise ImportError("this needs pyarrow: pip install 'pyarrow>=18.1'") from None
    return pa


@contextmanager
def _parquet(name: str) -> Iterator[Any]:
    """Open a file as pyarrow's `ParquetFile`; every error of reading it names it."""
    pa = arrow()
    from pyarrow.parquet import ParquetFile

    # its defaults buffer a whole row group and verify no checksum; it would read some file names as URLs
    options: dict[str, Any] = {"buffer_size": BUFFER, "pre_buffer": False, "page_checksum_verification": True}
    failures = pa.ArrowException, UnicodeDecodeError
    with reading(name, "Parquet", *failures), open(name, "rb") as raw, ParquetFile(raw, **options) as file:
        yield file


def _plain(kind: Any) -> Any:
    """Return the type in which a column is kept: some programs cannot read Arrow's views."""
    pa = arrow()
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return {"string_view": pa.string(), "binary_view": pa.binary(), "null": pa.string()}.get(str(kind), kind)


def _fitted(table: Any, schema: Any) -> Any:
    """Return a table in the types of a schema, with nulls for missing columns and for rows that are not UTF-8."""
    pa = arrow()
    have = table.column_names
    columns = [table[x.name].cast(x.type) if x.name in have else pa.nulls(len(table), x.type) for x in schema]
    fitted = pa.table(columns, schema)
    try:
        fitted.validate(full=True)
    except pa.ArrowInvalid:
        if len(table) == 1:
            return pa.Table.from_pylist([{}], schema)
        half = len(table) // 2
        return pa.concat_tables([_fitted(part, schema) for part in (table.slice(0, half), table.slice(half))])
    return fitted


def _json(lines: Iterable[bytes]) -> Iterator[Record]:
    for line in filter(bytes.strip, lines):  # an empty line is not a row
        record = {}
        with suppress(ValueError, RecursionError):
            value = json.loads(line.decode())
            if isinstance(value, dict) and (b"\\u" not in line or _is_utf8([*value, *value.values()])):
                record = value  # it has no lone surrogate, as "\ud800" is
        yield record


def _csv(lines: Iterable[bytes], where: str) -> Iterator[Record]:
    csv.field_size_limit(LONGEST_FIELD)
    # strict: an unclosed quote is an error, not a text of all rows that follow
    reader = csv.reader((line.decode("utf-8", "surrogateescape") for line in lines), strict=True)
    with reading(where, "CSV", csv.Error):
        column_names = next(reader, [])
    if len({*column_names}) < len(column_names) or not column_names or not _is_utf8(column_names):
        shown_names = ", ".join(map(ascii, column_names)) or "nothing"
        raise ValueError(f"{where}: expected a first line with names of columns, each once, found {shown_names}")
    while True:
        try:
            if (fields := next(reader, None)) is None:
                return
        except csv.Error as error:
            yield {}
            if "field limit" in str(error):
                return  # the reader would continue inside the field, and read each of its lines as a row
            continue
        right = len(fields) == len(column_names) and _is_utf8(fields)
        if fields:  # an empty line is not a row
            yield {name: field or None for name, field in zip(column_names, fields, strict=True)} if right else {}


def _is_utf8(values: Iterable[Any]) -> bool:
    try:
        "".join(value for value in values if isinstance(value, str)).encode()
    except UnicodeEncodeError:
        return False
    return True


def _size(name: str) -> int:
    with reading(shown_file(name), "a file"):
        status = Path(name).stat()
    if S_ISDIR(status.st_mode):
        raise IsADirectoryError(f"{name} is a folder; name the files in it, as in {Path(name, '*.parquet')}")
    return status.st_size


def _form(name: str) -> str:
    ending = ".txt" if name == STDIN else Path(name).suffix.lower()
    if ending not in ENDINGS:
        wrong = f"the file must end in {', '.join(ENDINGS)}, found {ending or 'no ending'!r}; "
        raise error_of(ValueError, wrong, Option("input_format"), f" names one of {', '.join(FORMATS)}", place=name)
    return ENDINGS[ending]
