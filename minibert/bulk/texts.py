"""Files of many texts -> tables of Arrow, some rows at a time: Parquet, JSON lines, CSV, plain lines.

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
PLACE = "\0file", "\0row"  # columns with a row's file, and its number there from 1
NUMBER = "\0number"  # a column with its number among all rows, from 0
ROWS = 2048  # read at once
BUFFER = 1 << 20  # bytes of a Parquet column that are read at once
LONGEST_FIELD = 1 << 24  # letters of a CSV field: an unclosed quote must not swallow a whole file


class Texts:
    """All rows of some files, in order. `name` "-" is stdin.

    keep: columns that are kept beside ids and texts; None keeps all that are not nested. Without `id_column` the ids
    are the column "id" if there is one; else they number the rows of all files from 0. A CSV has no types: its columns
    are texts, and an empty cell is null. rows: read at once, so that a stream is not waited for longer.

    schema      the kept columns, first the ids and the texts
    expected    about how many rows there are; None if stdin is among the files

    Raises OSError and ValueError that name the file, ImportError without pyarrow.
    """

    def __init__(
        self, names: Sequence[str], text_column: str = "text", id_column: str | None = None, form: str | None = None,
        keep: Sequence[str] | None = None, rows: int = ROWS,
    ) -> None:  # fmt: skip
        pa = arrow()
        self.names, self.text_column, self._rows = list(names) or [STDIN], text_column, max(1, min(rows, ROWS))
        self.sizes = [None if name == STDIN else _size(name) for name in self.names]
        self._forms = [form or _form(name) for name in self.names]
        if self.names.count(STDIN) > 1 or (STDIN, "parquet") in zip(self.names, self._forms, strict=True):
            raise ValueError("stdin can be read once, and not as Parquet, which is read from its end; name files")
        self._head, self._stdin = list[bytes](), raw_lines(STDIN)  # what was read of it to know its columns, and more
        found = [self._columns(*each) for each in zip(self.names, self._forms, strict=True)]
        self.expected = None if STDIN in self.names else sum(count for _, count in found)
        every = _unified([schema for schema, _ in found], " and ".join(self.names))
        self.id_column = id_column or (ID if ID in every.names else None)
        flat = [field.name for field in every if not pa.types.is_nested(field.type)]
        asked = [(self.id_column, "id_column"), (text_column, "text_column"), *((name, "keep") for name in keep or ())]
        for name, option in asked:
            if name is not None and name not in flat:
                wrong = f"expected a flat column {name!r}; there are {', '.join(map(repr, flat))}; name another with "
                raise error_of(ValueError, wrong, Option(option), place=_shown(self.names[0]))
        kept = dict.fromkeys([name for name, _ in asked if name is not None] + (flat if keep is None else []))
        self._own = self.schema = pa.schema([every.field(name) for name in kept])
        if self.id_column is None:
            self.schema = self._own.insert(0, pa.field(ID, pa.int64()))
        if mixed := [x.name for x in self._own if x.type == pa.month_day_nano_interval()]:
            wrong = f"column {mixed[0]!r} holds values of several types, or integers past 64 bits; name others with "
            raise error_of(ValueError, wrong, Option("keep"), place=_shown(self.names[0]))
        if VECTOR in kept or not str(every.field(text_column).type).endswith("string"):
            wrong = f"column {text_column!r} must hold texts, found {every.field(text_column).type}; convert it"
            taken = f"a column {VECTOR!r} is added, and there is one already; rename it, or leave it out"
            raise ValueError(f"{_shown(self.names[0])}: {taken if VECTOR in kept else wrong}")

    def rows(self, skip: int = 0) -> Iterator[Any]:
        """Give tables with the columns of `schema`, `PLACE` and `NUMBER`, after the first `skip` rows."""
        pa = arrow()
        number = 0
        for name, form in zip(self.names, self._forms, strict=True):
            first = number
            for table in _READERS[form](self, name):
                numbers, number = range(number, number + len(table)), number + len(table)
                if number <= skip:
                    continue
                with reading(_shown(name), "a table", pa.ArrowException):
                    table = _mended(_fitted(table, self._own))
                if self.id_column is None:
                    table = table.add_column(0, ID, pa.array(numbers, pa.int64()))
                rows = pa.array([each - first + 1 for each in numbers], pa.int64())
                for column, values in zip(PLACE, (pa.array([_shown(name)] * len(table)), rows), strict=True):
                    table = table.append_column(column, values)
                yield table.append_column(NUMBER, pa.array(numbers, pa.int64())).slice(max(0, skip - numbers.start))

    def _columns(self, name: str, form: str) -> tuple[Any, int]:
        """Read which columns a file has, and about how many rows."""
        pa = arrow()
        if form == "parquet":
            with _parquet(name) as file:
                return _plain(file.schema_arrow), file.metadata.num_rows
        if form == "jsonl":
            rows = _json_rows(self._read_head() if name == STDIN else raw_lines(name))
            return _json_schema(rows, self.text_column)
        names = [self.text_column]
        if form == "csv":
            every = iter(self._read_head()) if name == STDIN else raw_lines(name)
            with reading(name, "CSV", csv.Error):
                names = next(csv.reader(map(_decoded, every), strict=True), [])
            if len({*names}) < len(names) or not names or not all(map(_is_utf8, names)):
                found = f"found {', '.join(map(ascii, names)) or 'nothing'}"
                raise ValueError(f"{_shown(name)}: expected a first line with names of columns, each once, {found}")
        count = 0 if name == STDIN else sum(1 for _ in raw_lines(name)) - (form == "csv")
        return pa.schema([(each, pa.string()) for each in names]), count

    # -- one file each: tables -------------------------------------------------------------------------------------

    def _read_head(self) -> list[bytes]:
        self._head = self._head or list(islice(self._stdin, self._rows))
        return self._head

    def _lines(self, name: str) -> Iterator[bytes]:
        return chain(self._head, self._stdin) if name == STDIN else raw_lines(name)

    def _plain_tables(self, name: str) -> Iterator[Any]:
        pa = arrow()
        texts = (_decoded(line).removesuffix("\n").removesuffix("\r") for line in self._lines(name))
        for group in _grouped((text if _is_utf8(text) else None for text in texts), self._rows):
            yield pa.table({self.text_column: pa.array(group, pa.string())})

    def _json_tables(self, name: str) -> Iterator[Any]:
        pa = arrow()
        for group in _grouped(_json_rows(self._lines(name)), self._rows):
            # another value under the text's name than a text is none
            texts = [text if isinstance(text := row.get(self.text_column), str) else None for row in group]
            columns = {x.name: [row.get(x.name) for row in group] for x in self._own} | {self.text_column: texts}
            with reading(_shown(name), "JSON lines", pa.ArrowException, OverflowError):
                yield pa.table([pa.array(columns[x.name], x.type) for x in self._own], self._own)

    def _csv_tables(self, name: str) -> Iterator[Any]:
        pa = arrow()
        csv.field_size_limit(LONGEST_FIELD)
        # strict: an unclosed quote is an error, not a text of all rows that follow
        reader = csv.reader(map(_decoded, self._lines(name)), strict=True)
        names = next(reader)
        for group in _grouped(_cells(reader, len(names)), self._rows):
            yield pa.table([pa.array(column, pa.string()) for column in zip(*group, strict=True)], names)

    def _parquet_tables(self, name: str) -> Iterator[Any]:
        with _parquet(name) as file:
            names = [each for each in file.schema_arrow.names if each in self.schema.names]
            for batch in file.iter_batches(ROWS, columns=names, use_threads=False):
                yield arrow().Table.from_batches([batch])


_READERS = {
    "lines": Texts._plain_tables, "jsonl": Texts._json_tables, "csv": Texts._csv_tables,
    "parquet": Texts._parquet_tables,
}  # fmt: skip


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


def _plain(schema: Any) -> Any:
    """Give the types in which columns are kept, and nothing that a file says beside them."""
    pa = arrow()
    views = {"string_view": pa.string(), "binary_view": pa.binary(), "null": pa.string()}
    kinds = ((x.name, x.type.value_type if pa.types.is_dictionary(x.type) else x.type) for x in schema)
    return pa.schema([(name, views.get(str(kind), kind)) for name, kind in kinds])


def _unified(schemas: Sequence[Any], where: str) -> Any:
    pa = arrow()
    try:
        return pa.unify_schemas(list(schemas), promote_options="permissive")
    except pa.ArrowException as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{where}: a column has values of two types ({reason}); write it with one type") from None


def _mended(table: Any) -> Any:
    """Put a row of nulls for each that has bytes that are no text."""
    pa = arrow()
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        half = len(table) // 2
        if not half:
            return pa.table([pa.nulls(1, field.type) for field in table.schema], table.schema)
        return pa.concat_tables([_mended(table.slice(0, half)), _mended(table.slice(half))])
    return table


def _fitted(table: Any, schema: Any) -> Any:
    """Give a file's columns in the types of all files, nulls for a column that it lacks."""
    pa = arrow()
    have = table.column_names
    columns = [table[x.name].cast(x.type) if x.name in have else pa.nulls(len(table), x.type) for x in schema]
    return pa.table(columns, schema)


def _json_rows(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Read JSON lines, each alone: pyarrow's reader ends the process at some that are damaged. One that is not right is
    empty; a line between others that holds nothing is no row."""
    for line in lines:
        if line.strip():
            try:
                row = json.loads(line.decode())
            except (ValueError, RecursionError):
                row = None
            right = isinstance(row, dict) and all(_is_utf8(x) for x in (*row, *row.values()) if isinstance(x, str))
            yield row if right else {}


def _json_schema(rows: Iterable[dict[str, Any]], text_column: str) -> tuple[Any, int]:
    """Find the types of columns, and count rows; a type that nothing of JSON has stands for several."""
    pa = arrow()
    several = pa.month_day_nano_interval()
    kinds = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    found: dict[str, Any] = {}
    count = 0
    for row in rows:
        count += 1
        for name, value in row.items():
            kind = kinds.get(type(value), pa.list_(pa.null()))
            if type(value) is int and not -(2**63) <= value < 2**63:
                kind = several
            if value is None or (name == text_column and kind != pa.string()):
                found.setdefault(name, None)
            elif found.get(name) in (None, kind):
                found[name] = kind
            else:
                both = {found[name], kind}
                found[name] = pa.float64() if both == {pa.int64(), pa.float64()} else several
    if not count:
        found[text_column] = None
    return pa.schema([(name, pa.string() if kind is None else kind) for name, kind in found.items()]), count


def _grouped(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    items = iter(items)
    return iter(lambda: list(islice(items, size)), [])


def _cells(reader: Iterator[list[str]], width: int) -> Iterator[list[str | None]]:
    """Give the rows of a CSV; one that is not right has no cell with a text."""
    while True:
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield [None] * width
            if "field limit" in str(error):
                return  # the reader would go on in the middle of the field, and read each of its lines as a row
            continue
        if fields:  # an empty line is no row
            right = len(fields) == width and all(map(_is_utf8, fields))
            yield [cell or None for cell in fields] if right else [None] * width


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
