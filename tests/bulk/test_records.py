"""Files of many texts are read row by row: the same rows from every format, with the right ids."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from command_line import typed
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from record_files import NUL_IN_CSV, VIEWS, Rows, good, made, problems, read, write_csv, write_jsonl, write_parquet

from minibert.bulk.records import ROWS, Records

# -- what is written is read back --------------------------------------------------------------------------------

INTEGERS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.lists(st.text())
NAMED = st.lists(st.tuples(st.text(), st.text())) | st.lists(st.tuples(INTEGERS, st.text()))


@given(texts=st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"))), mark=st.booleans(),
       end=st.sampled_from(["\n", "\r\n"]), last=st.booleans())  # fmt: skip
def test_plain_lines_are_read_back(place: Path, texts: list[str], mark: bool, end: str, last: bool) -> None:
    content = end.join(texts) + (end if texts and (last or not texts[-1]) else "")
    mark = (mark and bool(texts)) or content.startswith("\ufeff")  # else that would be taken for the file's
    assert good(made(place / "a.txt", "\ufeff" * mark + content)) == list(enumerate(texts))


@given(rows=NAMED, plain=st.booleans())
def test_json_lines_are_read_back(place: Path, rows: Rows, plain: bool) -> None:
    write_jsonl(place / "a.jsonl", rows, plain)
    assert good(place / "a.jsonl") == rows


CELLS = st.text(min_size=1)
LIMITS = [str(2**63 - 1), str(2**63), str(-(2**63))]
ODD = st.sampled_from(["0", "-1", "-0", "007", "+1", "1_0", " 1", "1.0", "\u0661", *LIMITS])


@given(rows=st.lists(st.tuples(INTEGERS.map(str) | ODD, CELLS)) | st.lists(st.tuples(CELLS, CELLS)))
def test_csv_is_read_back(place: Path, rows: Rows) -> None:
    if not NUL_IN_CSV:
        rows = [(ident.replace("\0", "0"), text.replace("\0", "0")) for ident, text in rows]
    write_csv(place / "a.csv", rows)
    integers = {str(number) for number in map(_number, (ident for ident, _ in rows)) if -(2**63) <= number < 2**63}
    if all(ident in integers for ident, _ in rows):
        rows = [(int(ident), text) for ident, text in rows]
    found = good(place / "a.csv")
    assert found == rows and [type(ident) for ident, _ in found] == [type(ident) for ident, _ in rows]


def _number(cell: str) -> int:
    try:
        return int(cell)
    except ValueError:
        return 2**63


KINDS = [pa.string(), pa.large_string(), *VIEWS, "dictionary"]


@given(rows=NAMED, kind=st.sampled_from(KINDS), group=st.integers(1, 5))
def test_parquet_is_read_back(place: Path, rows: Rows, kind: Any, group: int) -> None:
    ids = pa.string() if rows and isinstance(rows[0][0], str) else pa.int64()
    write_parquet(place / "a.parquet", rows, kind, ids, group)
    assert good(place / "a.parquet") == rows


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint8(), pa.int32(), pa.uint64()])
def test_parquet_takes_every_integer_as_an_id(kind: Any, tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "b"], "id": pa.array([7, 3], pa.int64()).cast(kind)})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert good(tmp_path / "a.parquet") == [(7, "a"), (3, "b")]


def test_more_rows_than_are_read_at_once(tmp_path: Path) -> None:
    rows = [(i, f"text {i}") for i in range(2 * ROWS + 1)]
    write_parquet(tmp_path / "a.parquet", rows, ids=pa.int32(), group=ROWS + 100)
    assert good(tmp_path / "a.parquet") == rows


def test_stdin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, b"we lived\r\n\nclouds")
    found = Records([])
    assert found.names == ["-"] and found.expected is None
    assert [record[:3] for record in found] == [(0, "we lived", ""), (1, "", ""), (2, "clouds", "")]
    assert found.expected is None
    typed(monkeypatch, b'{"text": "a"}\n')
    assert good(Path("-"), form="jsonl") == [(0, "a")]
    typed(monkeypatch, b"a\n\xff\n")
    assert [record.place for record in Records([])] == ["stdin, row 1", "stdin, row 2"]
    write_parquet(tmp_path / "a.parquet", [("x", "a")])
    for names, form, error in (
        (["-"], "parquet", "stdin cannot be Parquet"),
        ([str(tmp_path / "a.parquet"), "-"], "parquet", "stdin cannot be Parquet"),
        (["-", "-"], None, "stdin can be read once"),
    ):
        with pytest.raises(ValueError, match=error):
            Records(names, form=form)


# -- several files, columns and ids --------------------------------------------------------------------------------


def test_rows_are_numbered_through_all_files(tmp_path: Path) -> None:
    first, second = made(tmp_path / "a.txt", "a\nb\n"), made(tmp_path / "b.jsonl", '{"text": "c", "id": 9}\n')
    parquet.write_table(pa.table({"text": ["d"]}), tmp_path / "c.parquet")
    third = tmp_path / "c.parquet"
    assert good(first, third, second) == [(0, "a"), (1, "b"), (2, "d"), (3, "c")]
    assert [(record.file, record.row) for record in read(first, second)][1:] == [(str(first), 2), (str(second), 1)]


def test_ids_of_the_first_file_are_asked_of_all(tmp_path: Path) -> None:
    first = made(tmp_path / "a.csv", "id,text\nx,a\n")
    assert good(first, made(tmp_path / "b.jsonl", '{"id": "y", "text": "b"}')) == [("x", "a"), ("y", "b")]
    absent = read(first, made(tmp_path / "b.jsonl", '{"text": "b"}'))[1]
    assert absent.problem == "there is no 'id'; it has 'text'"
    lines = made(tmp_path / "b.txt", "b\n")
    for files, options, error in (
        ((first, made(tmp_path / "b.csv", "text\nb\n")), {}, r"b\.csv: expected a column 'id'; it has 'text'; name an"),
        ((first, lines), {}, r"b\.txt: plain lines have no column 'id', which the first file has"),
        ((lines,), {"id_column": "key"}, "plain lines have no column 'key'; leave id_column out"),
    ):
        with pytest.raises(ValueError, match=error):
            read(*files, **options)


def test_named_columns(tmp_path: Path) -> None:
    csv_file = made(tmp_path / "a.csv", "id,body,key\n1,a,x\n2,b,y\n")
    jsonl = made(tmp_path / "a.jsonl", '{"id": 1, "body": "a", "key": "x"}\n{"id": 2, "body": "b", "key": "y"}\n')
    parquet.write_table(pa.table({"id": [1, 2], "body": ["a", "b"], "key": ["x", "y"]}), tmp_path / "a.parquet")
    for path in (csv_file, jsonl, tmp_path / "a.parquet"):
        assert good(path, text_column="body", id_column="key") == [("x", "a"), ("y", "b")]
        assert good(path, text_column="body", id_column="body") == [("a", "a"), ("b", "b")]
    assert good(csv_file, text_column="body") == [(1, "a"), (2, "b")]


def test_integers_of_a_csv_stay_integers_where_all_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, names = made(tmp_path / "a.csv", "id,text\n1,a\n22,b\n"), made(tmp_path / "b.csv", "id,text\n3,c\nx,d\n")
    more, bad = made(tmp_path / "c.csv", "id,text\n-4,e\n"), made(tmp_path / "d.csv", "id,text\ny,\n,z\nv,w,x\n5,f\n")
    assert good(numbers, more) == [(1, "a"), (22, "b"), (-4, "e")]
    assert good(numbers, names) == [("1", "a"), ("22", "b"), ("3", "c"), ("x", "d")]  # of all files
    assert [record.id for record in read(numbers, bad)] == [1, 22, None, None, None, 5]  # bad rows decide nothing
    assert [record.id for record in read(bad, names)] == [None, None, None, "5", "3", "x"]
    first = made(tmp_path / "0.jsonl", '{"id": 7, "text": "g"}')
    assert good(first, numbers)[1:] == [(1, "a"), (22, "b")]
    assert read(first, names)[2].problem == "'id' must be an integer, as in the first row, found 'x'"
    first = made(tmp_path / "0.jsonl", '{"id": "7", "text": "g"}')
    assert good(first, numbers)[1:] == [("1", "a"), ("22", "b")]
    # a stream is read once: its first row decides
    for head, kinds in (("1", [1, 2, None]), ("w", ["w", "2", "x"])):
        typed(monkeypatch, f"id,text\n{head},a\n2,b\nx,c\n".encode())
        assert [record.id for record in read(Path("-"), form="csv")] == kinds


def test_a_file_that_grows_while_it_is_read(tmp_path: Path) -> None:
    """As a log does: there are never fewer rows than were read, nor is a file read more than whole."""
    path, other = made(tmp_path / "a.txt", "we lived\n" * 10), made(tmp_path / "b.txt", "we lived\n" * 10)
    found = Records([str(path), str(other)])
    with open(path, "a") as file:
        file.write("we lived\n" * 90)
    guesses = [found.expected for record in found if record.file == str(path)]
    assert guesses[9] == 20 and guesses[99] == 200  # half of the bytes that were there at first
    assert all((guess or 0) >= read for read, guess in enumerate(guesses, 1)) and found.expected == 110


def test_looking_for_ids_does_not_show_in_what_is_expected(tmp_path: Path) -> None:
    rows = "".join(f"{i:04},we lived\n" for i in range(1000, 6000))
    found = Records([str(made(tmp_path / "a.csv", f"id,text\n{rows}"))])
    assert [4900 < (found.expected or 0) < 5100 for record in found if record.row in (100, 4000)] == [True, True]
    assert found.expected == 5000


@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        *((1, odd, f"'id' must be an integer, as in the first row, found {shown}")
          for odd, shown in (("x", "'x'"), (None, "null"), (True, "True"), (1.0, "1.0"))),
        ("x", 1, "'id' must be a text, as in the first row, found 1"),
        (1, 2**63, f"'id' must be an integer of 64 bits, found {2**63}"),
        ("x", "\ud800", "'id' has a lone surrogate U+D800, which is no cha"),
    ],
)  # fmt: skip
def test_a_bad_id(first: object, second: object, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_jsonl(path, [(first, "a"), (second, "b"), (first, "a")])
    found = read(path)
    assert [record.problem.startswith(problem) and bool(record.problem) for record in found] == [False, True, False]
    assert found[1].place == f"{path}, row 2" and found[2].text == "a"


def test_the_first_good_row_decides_about_ids(tmp_path: Path) -> None:
    for wrong, shown in (("[1]", "[1]"), ("true", "True"), ("null", "null"), ("1.5", "1.5")):
        path = made(tmp_path / "a.jsonl", f'{{"id": {wrong}, "text": "a"}}\n{{"id": "x", "text": "b"}}\n')
        assert problems(path) == {1: f"'id' must be an integer or a text, found {shown}"}


@pytest.mark.parametrize("write", [write_csv, write_jsonl, write_parquet])
@pytest.mark.parametrize("first", ["", "null\n"])
def test_a_first_file_without_a_good_row_decides_nothing(
    first: str, write: Callable[[Path, Rows], None], tmp_path: Path
) -> None:
    empty, path = made(tmp_path / "0.jsonl", first), tmp_path / f"1.{write.__name__.removeprefix('write_')}"
    write(path, [("x", "a"), ("y", "b")])
    assert [record.id for record in read(empty, path)][-2:] == ["x", "y"]


@pytest.mark.parametrize("write", [write_csv, write_jsonl, write_parquet])
def test_how_many_rows_are_expected(write: Callable[[Path, Rows], None], tmp_path: Path) -> None:
    names = []
    for file in range(2):
        names.append(str(tmp_path / f"{file}.{write.__name__.removeprefix('write_')}"))
        write(Path(names[-1]), [(f"{i:04}", f"text {i:04}") for i in range(5000)])
    found = Records(names)
    assert found.expected is None
    guesses = [found.expected for record in found if record.row in (2500, 4000)]
    assert found.expected == 10_000
    assert all(guess is not None and abs(guess - 10_000) <= 100 for guess in guesses)  # headers, ends of files


# -- rows that are passed over -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["txt", "jsonl", "csv", "parquet"])
@pytest.mark.parametrize("first", [0, 1, 5])
def test_rows_that_are_passed_over_change_no_other(ending: str, first: int, tmp_path: Path) -> None:
    """Through two files, with bad rows and empty lines: the others have the ids and places that they would have."""
    rows = [{"id": i * i, "text": None if i % 4 == 1 else f"text {i}"} for i in range(12)]
    files = [tmp_path / f"{name}.{ending}" for name in "ab"]
    for file in files:
        if ending == "parquet":
            parquet.write_table(pa.table({"id": [r["id"] for r in rows], "text": [r["text"] for r in rows]}), file)
        elif ending == "csv":
            made(file, "id,text\n" + "".join(f"{r['id']},{r['text'] or ''}\n\n" for r in rows))
        elif ending == "jsonl":
            made(file, "\n".join(json.dumps(r) + "\n" for r in rows))
        else:
            made(file, b"".join(b"\xff\n" if r["text"] is None else f"{r['text']}\n".encode() for r in rows))
    whole = read(*files)
    assert len(whole) == 24 and any(record.problem for record in whole)
    for count in (1, 6, 13, 30):
        records = Records([str(file) for file in files])
        each = iter(records)
        begun = [next(each) for _ in range(first)]
        records.pass_over(count - count // 2)
        records.pass_over(count // 2)  # both count
        assert [*begun, *each] == [*whole[:first], *whole[first + count :]]
