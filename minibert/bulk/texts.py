"""Files of many texts -> tables of Arrow, some rows at a time: Parquet, JSON lines, CSV, plain lines.

Parquet is read by pyarrow; lines are read one by one, since pyarrow's reader of JSON ends the process at damaged ones.
A row that is not of its file's format, or has bytes that are no text, is a row of nulls: the caller decides about it.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

from minibert.errors import Option, error_of
from minibert.files.lines import STDIN, raw_lines, reading

ENDINGS = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".txt": "lines"}
FORMATS = tuple(dict.fromkeys(ENDINGS.values()))
ID = "id"  # the column of the ids, if it exists and no other is named
VECTOR = "vector"  # the column that is added
NUMBER = "\0number"  # a column with a row's number among all rows, from 0
ROWS = 2048  # read at once
BUFFER = 1 << 20  # bytes of a Parquet column that are read at once
LONGEST_FIELD = 1 << 24  # letters of a CSV field: an unclosed quote must not swallow a whole file
Record = dict[str, Any]


class Texts:
    """All rows of some files, in order. `name` "-" is stdin.

    keep: columns that are kept beside ids and texts; None keeps all that are not nested. Without `id_column` the ids
    are the column "id" if there is one; else they number the rows of all files from 0. A CSV has no types: its columns
    are texts, and an empty cell is null. rows: read at once, so that a stream is not waited for longer.

    schema      the kept columns
    expected    about how many rows there are; None if stdin is among the files

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
        self._firsts: dict[int, str] = {}  # of each file that is begun, the number of its first row
        self._stdin: Iterator[Record] | None = None  # where its first rows were read to know its columns
        found = [self._columns(*each, keep) for each in zip(self.names, self._forms, strict=True)]
        self.expected = None if STDIN in self.names else sum(count for _, count in found)
        where = _shown(self.names[0])
        with reading(where, "one table with the other files", pa.ArrowException):
            every = pa.unify_schemas([schema for schema, _ in found], promote_options="permissive")
        self.id_column = id_column or (ID if ID in every.names else None)
        flat = [field.name for field in every if not pa.types.is_nested(field.type)]
        asked = [(self.id_column, "id_column"), (text_column, "text_column"), *((name, "keep") for name in keep or ())]
        for name, option in asked:
            if name is not None and name not in flat:
                wrong = f"expected a flat column {name!r}; there are {', '.join(map(repr, flat))}; name another with "
                raise error_of(ValueError, wrong, Option(option), place=where)
        kept = dict.fromkeys([name for name, _ in asked if name is not None] + (flat if keep is None else []))
        self._own = self.schema = pa.schema([every.field(name) for name in kept])
        if self.id_column is None:
            self.schema = self._own.insert(0, pa.field(ID, pa.int64()))
        if not str(every.field(text_column).type).endswith("string"):
            found_type = every.field(text_column).type
            raise ValueError(f"{where}: column {text_column!r} must hold texts, found {found_type}; convert it")
        if VECTOR in kept:
            raise ValueError(f"{where}: a column {VECTOR!r} is added, and there is one already; rename it")

    def rows(self, skip: int = 0) -> Iterator[Any]:
        """Give tables with the columns of `schema` and `NUMBER`, after the first `skip` rows."""
        pa = arrow()
        number = 0
        for name, form in zip(self.names, self._forms, strict=True):
            self._firsts[number] = _shown(name)
            for table in self._tables(name, form):
                numbers, number = range(number, number + len(table)), number + len(table)
                if number > skip:
                    with reading(_shown(name), "a table", pa.ArrowException, OverflowError):
                        columns = dict(zip(self._own.names, _mended(table, self._own).columns, strict=True))
                    if self.id_column is None:
                        columns = {ID: pa.array(numbers, pa.int64()), **columns}
                    yield pa.table({**columns, NUMBER: numbers}).slice(max(0, skip - numbers.start))

    def place(self, number: int) -> str:
        """Name the file of a row that has been read, and say the row's number there, from 1."""
        first = max(each for each in [*self._firsts] if each <= number)  # a copy: another thread reads on
        return f"{self._firsts[first]}, row {number - first + 1}"

    def _columns(self, name: str, form: str, keep: Sequence[str] | None) -> tuple[Any, int]:
        """Find a file's columns and their types, and count its rows."""
        pa = arrow()
        if form == "parquet":
            with _parquet(name) as file:
                views = {"string_view": pa.string(), "binary_view": pa.binary(), "null": pa.string()}
                kinds = {x.name: x.type for x in file.schema_arrow}
                kinds = {x: kind.value_type if pa.types.is_dictionary(kind) else kind for x, kind in kinds.items()}
                return pa.schema({x: views.get(str(kind), kind) for x, kind in kinds.items()}), file.metadata.num_rows
        if form == "lines":
            return pa.schema({self.text_column: pa.string()}), 0 if name == STDIN else sum(1 for _ in raw_lines(name))
        records: Iterable[Record] = self._records(name, form)
        if name == STDIN:
            rest, records = iter(records), list(islice(records, self._at_once))
            self._stdin = chain(records, rest)
        count, shapes = 0, set[tuple[tuple[str, ...], tuple[type, ...]]]()
        for count, record in enumerate(records, 1):  # noqa: B007
            shapes.add((tuple(record), tuple(map(type, record.values()))))
        seen: dict[str, set[type]] = {} if count else {self.text_column: set()}
        for column, kind in (pair for shape in shapes for pair in zip(*shape, strict=True)):
            seen.setdefault(column, set()).add(kind)
        return pa.schema({column: _kind(kinds, column, name, keep) for column, kinds in seen.items()}), count

    def _tables(self, name: str, form: str) -> Iterator[Any]:
        pa = arrow()
        if form == "parquet":
            with _parquet(name) as file:
                names = [each for each in file.schema_arrow.names if each in self._own.names]
                for batch in file.iter_batches(ROWS, columns=names, use_threads=False):
                    yield pa.Table.from_batches([batch])
            return
        records = self._stdin if name == STDIN and self._stdin else self._records(name, form)
        while group := list(islice(records, self._at_once)):
            with reading(_shown(name), "a table", pa.ArrowException, OverflowError):
                yield pa.Table.from_pylist(group, self._own)

    def _records(self, name: str, form: str) -> Iterator[Record]:
        """Read the rows of a file of lines; one that is not right is empty."""
        lines = raw_lines(name)
        if form == "lines":
            for line in lines:
                text = _decoded(line.removesuffix(b"\n").removesuffix(b"\r"))
                yield {self.text_column: text} if _is_utf8(text) else {}
            return
        for record in _json(lines) if form == "jsonl" else _csv(lines, _shown(name)):
            found = record.get(self.text_column)
            yield record if found is None or type(found) is str else {}


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

    # by default it buffers a whole row group and verifies no checksum; it takes some names for addresses on a network
    options: dict[str, Any] = {"buffer_size": BUFFER, "pre_buffer": False, "page_checksum_verification": True}
    failures = pa.ArrowException, UnicodeDecodeError
    with reading(name, "Parquet", *failures), open(name, "rb") as raw, ParquetFile(raw, **options) as file:
        yield file


def _kind(seen: set[type], column: str, name: str, keep: Sequence[str] | None) -> Any:
    """Give the type for the values of a column. Raises ValueError for a kept one that has several types."""
    pa = arrow()
    nested = pa.list_(pa.null())  # of which no column is kept
    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}
    found = {kinds.get(each, nested) for each in seen - {type(None)}} or {pa.string()}
    if len(found) == 1:
        return found.pop()
    if found == {pa.int64(), pa.float64()}:
        return pa.float64()
    if keep is None or column in keep:
        shown = " and ".join(sorted(str(each) for each in found))
        wrong = f"column {column!r} holds values of several types, {shown}; name the columns that are kept with "
        raise error_of(ValueError, wrong, Option("keep"), place=_shown(name))
    return nested


def _mended(table: Any, schema: Any) -> Any:
    """Give a table in the types of a schema, with nulls for a column that it lacks; a row with bytes that are no text
    becomes a row of nulls."""
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
        return pa.concat_tables([_mended(some, schema) for some in (table.slice(0, half), table.slice(half))])
    return fitted


def _json(lines: Iterable[bytes]) -> Iterator[Record]:
    for line in lines:
        if line.strip():  # a line of nothing between others is no row
            try:
                record = json.loads(line.decode())
                right = isinstance(record, dict)
                if right and b"\\u" in line:  # which may stand for half of a character
                    right = all(_is_utf8(each) for each in (*record, *record.values()) if isinstance(each, str))
            except (ValueError, RecursionError):
                right = False
            yield record if right else {}


def _csv(lines: Iterable[bytes], where: str) -> Iterator[Record]:
    csv.field_size_limit(LONGEST_FIELD)
    # strict: an unclosed quote is an error, not a text of all rows that follow
    reader = csv.reader(map(_decoded, lines), strict=True)
    with reading(where, "CSV", csv.Error):
        names = next(reader, [])
    if len({*names}) < len(names) or not names or not all(map(_is_utf8, names)):
        found = ", ".join(map(ascii, names)) or "nothing"
        raise ValueError(f"{where}: expected a first line with names of columns, each once, found {found}")
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield {}
            if "field limit" in str(error):
                return  # the reader would go on in the middle of the field, and read each of its lines as a row
            continue
        if len(fields) == len(names) and all(map(_is_utf8, fields)):
            yield {name: field or None for name, field in zip(names, fields, strict=True)}
        elif fields:  # an empty line is no row
            yield {}


def _decoded(line: bytes) -> str:
    return line.decode("utf-8", "surrogateescape")


def _is_utf8(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _shown(name: str) -> str:
    return "stdin" if name == STDIN else name.encode("utf-8", "backslashreplace").decode()


def _size(name: str) -> int:
    if Path(name).is_dir():
        raise IsADirectoryError(f"{name} is a folder; name the files in it, as in {Path(name, '*.parquet')}")
    return Path(name).stat().st_size


def _form(name: str) -> str:
    ending = ".txt" if name == STDIN else Path(name).suffix.lower()
    if ending not in ENDINGS:
        wrong = f"the file must end in {', '.join(ENDINGS)}, found {ending or 'no ending'!r}; "
        raise error_of(ValueError, wrong, Option("input_format"), f" names one of {', '.join(FORMATS)}", place=name)
    return ENDINGS[ending]
