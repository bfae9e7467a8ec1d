"""Files of many texts -> records, one after another, in bounded memory: Parquet, JSON lines, CSV, plain lines.

A row without a text is a record with a problem, not an error: the caller decides whether to go on. Parquet is read by
pyarrow. JSON lines and CSV are read by the standard library, row by row: pyarrow's readers refuse a whole block of rows
and do not say which of them is bad.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from minibert.errors import Option, error_of
from minibert.files.lines import STDIN, raw_lines, reading

from .parquet import arrow, need_type, opened, values_of

ENDINGS = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".txt": "lines"}
FORMATS = tuple(dict.fromkeys(ENDINGS.values()))
ID = "id"  # the column of the ids, if it exists and no other is named
ROWS = 2048  # of a Parquet file that are read at once
BUFFER = 1 << 20  # bytes of a Parquet column that are read at once
LONGEST_FIELD = 1 << 24  # letters of a CSV field: an unclosed quote must not swallow a whole file
SHOWN = 40  # letters of a value that a message shows
INT64 = range(-(2**63), 2**63)


class Record(NamedTuple):
    """One row: id, text, file, and number from 1 without a CSV's header. A row with a `problem` has no text."""

    id: int | str | None
    text: str | None
    problem: str
    file: str
    row: int

    @property
    def place(self) -> str:
        return f"{'stdin' if self.file == STDIN else self.file}, row {self.row}"


class Records:
    """All rows of some files, in order. `name` "-" is stdin. Iterate once.

    text_column, id_column: names; plain lines have none. Without `id_column` the column "id" is used if the first file
    with a good row has it; otherwise ids number the rows of all files from 0. Ids are integers (int64) or text. Those
    of CSV files are integers if every good row of all CSV files has one, written without plus and leading zeros (such
    files are read twice; of stdin the first good row decides). An empty cell of a CSV is no text and no id.

    Raises, before anything is read: FileNotFoundError, IsADirectoryError, ValueError for an unknown ending, ImportError
    if pyarrow is needed and absent. Later: ValueError for a file that is not of its format and for an absent column,
    OSError; both name the file.
    """

    def __init__(
        self, names: Sequence[str], text_column: str = "text", id_column: str | None = None, form: str | None = None
    ) -> None:
        self.names = list(names) or [STDIN]
        self.text_column, self.id_column = text_column, id_column
        self.sizes: list[int | None] = [None if name == STDIN else _size(name) for name in self.names]
        self._form = form
        self._forms = [form or _form(name) for name in self.names]
        if "parquet" in self._forms:
            arrow()
        if self.names.count(STDIN) > 1:
            raise ValueError("stdin can be read once; name it once")
        if (STDIN, "parquet") in zip(self.names, self._forms, strict=True):
            raise ValueError("stdin cannot be Parquet, which is read from its end; name the file")
        if id_column is not None and "lines" in self._forms:
            no_column = f"plain lines have no column {id_column!r}; leave "
            raise error_of(ValueError, no_column, Option("id_column"), " out, or name the format")
        self._current = 0  # the file that is read now, and which share of it has been read
        self._share = 0.0
        self._read = 0  # rows
        self._skip = 0  # of the next rows
        self._kind: type | None = None  # of the ids: the first one decides

    @property
    def source(self) -> dict[str, Any]:
        """Where to read the rows again: absolute paths, None for stdin, and the format of all files or None."""
        paths = [None if name == STDIN else str(Path(name).absolute()) for name in self.names]
        return {"paths": paths, "format": self._form}

    @property
    def expected(self) -> int | None:
        """Estimated rows, from the bytes read so far; None if unknown."""
        if None in self.sizes or not self._read:
            return None
        sizes = [size or 0 for size in self.sizes] + [0]  # at the end no file is being read
        share = (sum(sizes[: self._current]) + self._share * sizes[self._current]) / (sum(sizes) or 1)
        return round(self._read / share) if share else None

    def __iter__(self) -> Iterator[Record]:
        for at, (name, form) in enumerate(zip(self.names, self._forms, strict=True)):
            self._current, self._share = at, 0.0
            for row, ident, text, problem in _READERS[form](self, name):
                if not problem:
                    ident = self._read if ident is _NUMBER else ident
                    problem = _no_text(text, self.text_column) or self._no_id(ident)
                self._read += 1
                if self._skip:
                    self._skip -= 1
                    continue
                yield Record(None, None, problem, name, row) if problem else Record(ident, text, "", name, row)
        self._current = len(self.names)

    def pass_over(self, rows: int) -> None:
        """Skip the next rows. Lines and JSON lines are not even parsed, which is eight times as fast."""
        self._skip += rows

    def _passes(self) -> bool:
        """Whether to skip the next row unparsed: possible once the column and the kind of the ids are known."""
        if not self._skip or self._kind is None:
            return False
        self._skip -= 1
        self._read += 1
        return True

    def _no_id(self, ident: Any) -> str:
        """Why this is not an id; "" if it is one."""
        if self._kind is None and type(ident) in (int, str):
            self._kind = type(ident)
        if type(ident) is not self._kind:
            return f"{self.id_column or ID!r} must be {_WORDS[self._kind]}, found {_shown(ident)}"
        if self._kind is int and ident not in INT64:
            return f"{self.id_column or ID!r} must be an integer of 64 bits, found {ident}"
        return "" if self._kind is int else _no_text(ident, self.id_column or ID)

    def _id_of(self, columns: Sequence[str], name: str) -> str | None:
        """Say which column has the ids, and refuse a file without the columns that are needed."""
        if self.id_column is None and self._kind is None and ID in columns:
            self.id_column = ID  # and then every file must have it
        for column, option in ((self.text_column, "text_column"), (self.id_column, "id_column")):
            if column is not None and (count := list(columns).count(column)) != 1:
                found = "it has " + ", ".join(map(repr, columns)) if not count else f"it has {count} of them"
                missing = f"expected a column {column!r}; {found}; name another with "
                raise error_of(ValueError, missing, Option(option), place=name)
        return self.id_column

    # -- one file each: (row, id, text, problem) ---------------------------------------------------------------

    def _lines(self, name: str) -> Iterator[Row]:
        if self.id_column is not None:
            raise ValueError(f"{name}: plain lines have no column {self.id_column!r}, which the first file has")
        for row, line in enumerate(self._raw_lines(name), 1):
            if not self._passes():
                text, problem = _decoded(line)
                yield row, _NUMBER, text, problem

    def _jsonl(self, name: str) -> Iterator[Row]:
        for row, line in enumerate(self._raw_lines(name), 1):
            if not line.strip() or self._passes():
                continue  # a line between others, or at the end, is no row
            text, problem = _decoded(line)
            if not problem:
                try:
                    found = json.loads(text or "")
                except (ValueError, RecursionError) as error:
                    problem = f"not JSON: {error}"
                else:
                    if not isinstance(found, dict):
                        problem = f"not a JSON object: {_shown(found)}"
            if problem:
                yield row, None, None, problem
                continue
            if self.id_column is None and self._kind is None and ID in found:
                self.id_column = ID
            absent = [key for key in (self.text_column, self.id_column) if key is not None and key not in found]
            if absent:
                keys = ", ".join(map(repr, found)) or "nothing"
                yield row, None, None, f"there is no {absent[0]!r}; it has {keys:.200}"
            else:
                yield row, _NUMBER if self.id_column is None else found[self.id_column], found[self.text_column], ""

    def _csv(self, name: str, look_for_kind: bool = True) -> Iterator[Row]:
        csv.field_size_limit(LONGEST_FIELD)
        # bytes that are not UTF-8 become lone surrogates: one bad row, not the end of the file
        lines = (line.decode("utf-8", "surrogateescape") for line in self._raw_lines(name, strip=False))
        # strict: an unclosed quote is an error, not a text of all rows that follow
        reader = csv.reader(lines, strict=True)
        with reading(name, "CSV", csv.Error):
            columns = next(reader, None)
        if not columns:
            raise ValueError(f"{name}: expected a first line with the names of the columns, found nothing")
        ids = self._id_of(columns, name)
        text_at, id_at = columns.index(self.text_column), None if ids is None else columns.index(ids)
        if ids is not None and look_for_kind and self._kind is None:
            self._kind = self._kind_of_csv()
        row = 0
        while True:
            row += 1
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                if "field limit" not in str(error):
                    yield row, None, None, f"not CSV: {error}; look at its quotes"
                    continue
                # the reader would go on in the middle of the field, and read each of its lines as a row
                yield row, None, None, f"not CSV: {error}; look at its quotes; the rest of this file is not read"
                return
            if not fields:
                row -= 1  # an empty line is no row
            elif len(fields) != len(columns):
                yield row, None, None, f"expected {len(columns)} fields, found {len(fields)}"
            elif absent := [columns[at] for at in (text_at, id_at) if at is not None and not fields[at]]:
                yield row, None, None, f"there is no {absent[0]!r}: its cell is empty"
            else:
                ident: Any = _NUMBER if id_at is None else fields[id_at]
                if id_at is not None and self._kind is not str and _is_integer(ident):
                    ident = int(ident)
                yield row, ident, fields[text_at], ""

    def _kind_of_csv(self) -> type | None:
        """Read the ids of this and later CSV files: int if all are integers, str if not, None without ids."""
        found: set[bool] = set()
        for name, form in list(zip(self.names, self._forms, strict=True))[self._current :]:
            if form == "csv" and name != STDIN:
                good = (row for row in self._csv(name, look_for_kind=False) if not row[3])
                found.update(type(ident) is int for _, ident, text, _ in good if not _no_text(text, ""))
        return None if not found else int if found == {True} else str

    def _parquet(self, name: str) -> Iterator[Row]:
        # by default it buffers a whole row group and verifies no checksum
        with opened(name, buffer_size=BUFFER, pre_buffer=False, page_checksum_verification=True) as file:
            schema, total = file.schema_arrow, file.metadata.num_rows
            ids = self._id_of(schema.names, name)
            need_type(schema.field(self.text_column), name, numbers=False)
            columns = [self.text_column]
            if ids is not None:
                need_type(schema.field(ids), name, numbers=True)
                columns = list(dict.fromkeys((ids, self.text_column)))
            row = 0
            for batch in file.iter_batches(ROWS, columns=columns, use_threads=False):
                texts = values_of(batch.column(self.text_column))
                numbers: Iterable[Any] = [_NUMBER] * len(texts) if ids is None else values_of(batch.column(ids))
                for ident, text in zip(numbers, texts, strict=True):
                    row += 1
                    self._share = row / (total or 1)
                    if isinstance(text, bytes) or isinstance(ident, bytes):
                        yield row, None, None, _decoded(text if isinstance(text, bytes) else ident)[1]
                    else:
                        yield row, ident, text, ""
            if row != total:
                raise ValueError(f"{name}: expected {total:,} rows, as its end says, found {row:,}; is it whole?")

    def _raw_lines(self, name: str, strip: bool = True) -> Iterator[bytes]:
        """Give a file's lines, without their ends if `strip`."""
        size, done = (self.sizes[self._current] or 1), 0
        for line in raw_lines(name):
            done += len(line)
            self._share = min(1.0, done / size)
            yield line.removesuffix(b"\n").removesuffix(b"\r") if strip else line


Row = tuple[int, Any, Any, str]
_NUMBER = object()  # stands for the row's number as its id
_WORDS: dict[type | None, str] = {
    None: "an integer or a text",
    int: "an integer, as in the first row",
    str: "a text, as in the first row",
}
_READERS = {"lines": Records._lines, "jsonl": Records._jsonl, "csv": Records._csv, "parquet": Records._parquet}


def _size(name: str) -> int:
    if Path(name).is_dir():
        raise IsADirectoryError(f"{name} is a folder; name the files in it, as in {Path(name, '*.parquet')}")
    return Path(name).stat().st_size


def _form(name: str) -> str:
    if name == STDIN:
        return "lines"
    ending = Path(name).suffix.lower()
    if ending not in ENDINGS:
        wrong = f"the file must end in {', '.join(ENDINGS)}, found {ending or 'no ending'!r}; "
        raise error_of(ValueError, wrong, Option("input_format"), f" names one of {', '.join(FORMATS)}", place=name)
    return ENDINGS[ending]


def _decoded(line: bytes) -> tuple[str | None, str]:
    try:
        return line.decode(), ""
    except UnicodeDecodeError as error:
        return None, f"not UTF-8: byte 0x{line[error.start]:02x} at {error.start} ({error.reason}); convert the file"


def _is_integer(cell: str) -> bool:
    """Whether a cell is an integer of 64 bits in its usual spelling, so that writing it again gives the same cell.

    >>> [_is_integer(cell) for cell in ("0", "-7", "007", "+1", "1_000", "-0", "1.0", " 1", "9223372036854775808")]
    [True, True, False, False, False, False, False, False, False]
    """
    return re.fullmatch("0|-?[1-9][0-9]{0,18}", cell) is not None and int(cell) in INT64


def _no_text(text: Any, column: str) -> str:
    """Why this is not a text; "" if it is one."""
    if not isinstance(text, str):
        return f"{column!r} must be a text, found {_shown(text)}"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        letter = ord(text[error.start])
        if 0xDC80 <= letter <= 0xDCFF:
            return f"{column!r} is not UTF-8: byte 0x{letter - 0xDC00:02x}; convert the file"
        return f"{column!r} has a lone surrogate U+{letter:04X}, which is no character"
    return ""


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
