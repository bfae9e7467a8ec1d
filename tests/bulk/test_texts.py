"""Files of many texts are read row by row: the same rows from every format; a bad one is null, others right."""

from __future__ import annotations

import csv
import os
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from command_line import Patch, typed
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from record_files import Rows, good, made, read, write_csv, write_jsonl, write_parquet

from minibert.bulk import texts as module
from minibert.bulk.texts import FORMATS, ROWS, Texts

NUL_IN_CSV = sys.version_info >= (3, 11)  # the csv module of Python 3.10 refuses the line

# -- what is written is read back --------------------------------------------------------------------------------

INTEGERS = st.integers(-(2**63), 2**63 - 1)
NAMED = st.lists(st.tuples(st.text(), st.text()), min_size=1) | st.lists(st.tuples(INTEGERS, st.text()), min_size=1)
CELLS = st.text(min_size=1)


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


@given(rows=st.lists(st.tuples(CELLS, CELLS)))
def test_csv_is_read_back(place: Path, rows: Rows) -> None:
    """Every cell is a text: 007 and 1.0 stay what they are."""
    if not NUL_IN_CSV:
        rows = [(ident.replace("\0", "0"), text.replace("\0", "0")) for ident, text in rows]
    write_csv(place / "a.csv", rows)
    assert good(place / "a.csv") == rows


@given(rows=NAMED, kind=st.sampled_from([pa.string(), pa.large_string(), "dictionary"]), group=st.integers(1, 5))
def test_parquet_is_read_back(place: Path, rows: Rows, kind: Any, group: int) -> None:
    write_parquet(place / "a.parquet", rows, kind, group)
    assert good(place / "a.parquet") == rows


def test_more_rows_than_are_read_at_once(tmp_path: Path) -> None:
    rows = [(i, f"text {i}") for i in range(ROWS + 300)]
    for write, ending in ((write_parquet, "parquet"), (write_jsonl, "jsonl")):
        path = tmp_path / f"a.{ending}"
        write(path, rows)
        assert good(path, path) == rows * 2 and Texts([str(path)]).expected == len(rows)


def test_stdin(monkeypatch: Patch) -> None:
    for form, content, want in (
        (None, b"we lived\r\n\nclouds", [(0, "we lived"), (1, ""), (2, "clouds")]),
        ("jsonl", b'{"text": "a", "id": 7}\n{"text": "b"}\n', [(7, "a"), (None, "b")]),
        ("csv", b"id,text\n007,a\nx,b\n", [("007", "a"), ("x", "b")]),
    ):
        typed(monkeypatch, content)
        assert good(Path("-"), form=form, rows=1) == want
        typed(monkeypatch, content)
        assert Texts(["-"], form=form).expected is None
    typed(monkeypatch, b"a\n\xff\n")
    assert [row["place"] for row in read(Path("-"))] == [("stdin", 1), ("stdin", 2)]
    for names, form in ((["-"], "parquet"), (["-", "-"], None)):
        with pytest.raises(ValueError):
            Texts(names, form=form)


# -- columns -----------------------------------------------------------------------------------------------------


def test_columns_that_are_kept(tmp_path: Path) -> None:
    """All that are not nested, of all files, in one type; or those that are named."""
    first = made(tmp_path / "a.jsonl", '{"text": "a", "n": 1, "day": "2020-01-01", "list": [1], "more": {"x": 1}}\n')
    table = pa.table({"text": ["b"], "n": [1.5], "flag": pa.array([True]), "word": pa.array(["w"]).dictionary_encode()})
    parquet.write_table(table, tmp_path / "b.parquet")
    found = read(first, tmp_path / "b.parquet")
    assert [{**row, "place": None} for row in found] == [
        {"id": 0, "text": "a", "n": 1.0, "day": "2020-01-01", "flag": None, "word": None, "place": None},
        {"id": 1, "text": "b", "n": 1.5, "day": None, "flag": True, "word": "w", "place": None},
    ]
    assert [row["place"][1] for row in found] == [1, 1]
    assert [*read(first, keep=["n"])[0]] == ["id", "text", "n", "place"]
    assert [*read(first, keep=[])[0]] == ["id", "text", "place"]
    csv_file = made(tmp_path / "a.csv", "key,body,empty\nx,a,\n")
    assert read(csv_file, text_column="body", id_column="key") == [
        {"key": "x", "body": "a", "empty": None, "place": (str(csv_file), 1)}
    ]


TWICE = pa.table([["a"], [1], [2]], ["text", "n", "n"])
REFUSED = [
    ("a.csv", b"", {}, "nothing"),
    ("a.csv", b"text,text\n1,2\n", {}, "'text', 'text'"),
    ("a.csv", b"text\xff\n", {}, "each once, found"),
    ("a.csv", b"a,b\n1,2\n", {}, "'text'.*'a', 'b'.*text_column"),
    ("a.jsonl", b"\x00\xff", {}, "'text'.*text_column"),
    ("a.csv", b"text\nb\n", {"id_column": "key"}, "'key'.*id_column"),
    ("a.jsonl", b'{"text": "a", "x": [1]}\n', {"keep": ["x"]}, "'x'.* keep"),
    ("a.jsonl", b'{"text": "a", "vector": 1}\n', {}, "'vector'"),
    ("a.jsonl", b'{"text": "a", "x": 1}\n{"text": "b", "x": "y"}\n', {}, "'x' .*int and str"),
    ("a.jsonl", b'{"text": "a", "id": 1}\n{"text": "b", "id": 2.5}\n', {}, "'id' .*float and int"),
    # said before the model has run for hours
    ("a.jsonl", b'{"text": "a", "x": 1}\n{"text": "b", "x": %d}\n{"text": "c", "x": 1}\n' % 2**70, {}, "'x' .*64"),
    ("a.jsonl", b'{"text": "", "id": 1}\n{"id": "y"}\n', {"keep": []}, "'id' .*int and str.*id_column"),
    ("a.jsonl", b'{"text": "a", "id": 1.5}\n{"text": "b", "id": NaN}\n', {}, "row 2: .*'id' .*nan.*id_c"),
    ("a.jsonl", b'{"text": "a", "id": 9223372036854775808}\n', {}, "'id' .*64"),
    ("a.csv", b'"text\n', {}, "CSV"),
    ("a.parquet", b"", {}, "Parquet"),
    ("a.parquet", b"PAR1" + bytes(20) + b"PAR1", {}, "Parquet"),
    ("a.parquet", pa.table({"text": [b"a"]}), {}, "'text' .*binary"),
    ("a.parquet", pa.table({"text": [1]}), {}, "'text' .*int64"),
    ("a.parquet", TWICE, {}, "2 .*'n'"),
    ("a.parquet", TWICE, {"keep": [], "text_column": "n"}, "2 .*'n'"),
    ("a.parquet", TWICE, {"keep": [], "id_column": "n"}, "2 .*'n'"),
    ("a.json", b"{}", {}, r"\.parquet.*'\.json'.*input_format"),
    ("a.txt", "\ufefftext\n".encode("utf-16-le"), {}, "UTF-16"),
    ("a.txt", b"x" * 17, {}, r"\b16 .*0\b"),
]


@pytest.mark.parametrize(("name", "content", "options", "error"), REFUSED)
def test_a_file_that_is_refused(
    name: str, content: Any, options: Any, error: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    if "16" in error:
        monkeypatch.setattr("minibert.files.reading.LONGEST_LINE", 16)
    path = tmp_path / name
    made(path, content) if isinstance(content, bytes) else parquet.write_table(content, path)
    with pytest.raises(ValueError, match=error) as caught:
        read(path, **options)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(("ids", "found"), [([7.5], "double"), (["x"], "string"), ([Decimal("1.5")], r"decimal.*")])
def test_ids_of_another_kind_in_the_next_file(ids: list[Any], found: str, tmp_path: Path) -> None:
    """As one type, 7 would become 7.0; of one kind they may be narrow or wide."""
    first, second = made(tmp_path / "a.jsonl", '{"text": "a", "id": 7}\n'), tmp_path / "b.parquet"
    parquet.write_table(pa.table({"text": ["b"], "id": ids}), second)
    with pytest.raises(ValueError, match=f"{second}: .*{found}.*{first}: .*id_column"):
        Texts([str(first), str(second)])
    parquet.write_table(pa.table({"text": ["b"], "id": pa.array([8], pa.uint8())}), second)
    assert good(first, second) == [(7, "a"), (8, "b")]
    assert good(made(tmp_path / "c.jsonl", '{"text": "a", "id": 7.5}\n{"text": "b"}')) == [(7.5, "a"), (None, "b")]


def test_names_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.txt"):
        Texts([str(tmp_path / "none.txt")])
    with pytest.raises(IsADirectoryError, match=r"\*\.parquet"):
        Texts([str(tmp_path)])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems allow no such names")
@pytest.mark.parametrize("name", [b"\xff.parquet", b"s3:/bucket/a.parquet", b"file:/a.parquet"])
def test_a_name_is_a_file_whatever_it_looks_like(name: bytes, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(os.fsdecode(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_parquet(tmp_path / "a", [("x", "a")])
    (tmp_path / "a").rename(path)
    spelled = os.fsdecode(name).replace(":/", "://")
    assert [table["text"].to_pylist() for table in Texts([spelled]).rows()] == [["a"]]


# -- bad rows ----------------------------------------------------------------------------------------------------

BAD: dict[str, tuple[bytes, list[str | None]]] = {  # content, and the texts; None: a bad row
    # one end is taken off a line and no more; a mark is one only at the first byte
    "lines": (b"\xef\xbb\xbfa\r\r\nb\xff\n\rb\n\xef\xbb\xbfc\r\n\r\nd", ["a\r", None, "\rb", "\ufeffc", "", "d"]),
    "jsonl": (
        b'{"text": "a"}\n{"text": "b"\n\n3\n{"text": null}\n{"te": 1}\n{"text": "\\udc41"}\n{\xff}\n[[\n'
        b'{"text": "x"}{"text": "y"}\n{"text": "\xff"}\n{"text": 7}\n{"text": "z"}',
        ["a", *[None] * 10, "z"],
    ),
    "csv": (
        b'text,more\na,1\nb\nc,1,2\n"d\n\xff",1\n\n"e"e,1\n"f\n""g""\r\n",2\nh,\xff\nk,\n,1\n"i,1\nj,2\n',
        ["a", None, None, None, None, 'f\n"g"\r\n', None, "k", None, None],
    ),
}


@pytest.mark.parametrize("form", BAD)
def test_bad_rows_are_nulls_and_the_others_are_right(form: str, tmp_path: Path) -> None:
    content, want = BAD[form]
    found = read(made(tmp_path / "a", content), form=form)
    assert [row["text"] for row in found] == want
    assert [row["place"] for row in found] == [(str(tmp_path / "a"), i) for i in range(1, len(want) + 1)]


def test_a_file_ends_at_a_field_that_is_too_long(tmp_path: Path, monkeypatch: Patch) -> None:
    """Behind it stands the rest of the field, and no reader knows where that ends."""
    monkeypatch.setattr(module, "LONGEST_FIELD", 10)
    first = made(tmp_path / "a.csv", 'text\na\n"long\nand longer\nb"\nc\n')
    usual = csv.field_size_limit()
    try:
        assert [row["text"] for row in read(first, made(tmp_path / "b.csv", "text\nd\n"))] == ["a", None, "d"]
    finally:
        csv.field_size_limit(usual)  # the limit is the whole process's


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize("column", ["text", "more"])
def test_parquet_with_bytes_that_are_no_text(kind: Any, column: str, tmp_path: Path) -> None:
    """In any kept column: no other program could read it."""
    plain = pa.array([b"ok", b"\xff\xfe", "ä".encode()], pa.large_binary() if kind == pa.large_string() else None)
    texts = {"text": pa.array(["ok", "no", "ä"], kind), "more": pa.array(["x", "y", "z"], kind)}
    texts[column] = pa.Array.from_buffers(kind, 3, plain.buffers())
    parquet.write_table(pa.table(texts), tmp_path / "a.parquet")
    assert [row["text"] for row in read(tmp_path / "a.parquet")] == ["ok", None, "ä"]
    if column == "more":
        assert good(tmp_path / "a.parquet", keep=[]) == [(0, "ok"), (1, "no"), (2, "ä")]


# -- any bytes ---------------------------------------------------------------------------------------------------

PIECES = [
    b'"', b",", b"\n", b"\r", b"text", b"id", b"\xff", b"\xef\xbb\xbf", b"{", b"}", b'{"text":', b'"a"', b"\0",
    b"1", b":", b"[", b"\xed\xa0\x80", b"\\ud800", b"null", b"text\n",
]  # fmt: skip
BYTES = st.binary() | st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join)


def read_any(path: Path, form: str) -> list[dict[str, Any]] | None:
    """The rows of any bytes; None where the error is one that says which file."""
    try:
        found = read(path, form=form)
    except (ValueError, OSError) as error:
        if type(error) in (ValueError, OSError) and str(path) in str(error):
            return None
        raise
    "".join(row["text"] or "" for row in found).encode()
    assert [row["place"][1] for row in found] == list(range(1, len(found) + 1))
    return found


@pytest.mark.parametrize("form", FORMATS)
@given(content=BYTES)
def test_any_bytes(place: Path, form: str, content: bytes) -> None:
    found = read_any(made(place / "any", content), form)
    if form == "lines" and found is not None:
        lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        assert len(found) == len(lines) - (lines[-1] == b"")


@given(at=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), min_size=1, max_size=4))
def test_parquet_with_damaged_bytes(place: Path, at: list[tuple[float, int]]) -> None:
    path = place / "damaged.parquet"
    write_parquet(path, [(f"a{i}", f"we lived {i} ä") for i in range(10)], group=3)
    content = bytearray(path.read_bytes())
    for where, byte in at:
        content[int(where * len(content))] = byte
    read_any(made(path, bytes(content)), "parquet")


def test_parquet_with_a_damaged_page_that_has_a_checksum(place: Path) -> None:
    """Without one, the text would be another one, and no reader could know."""
    path = place / "checked.parquet"
    parquet.write_table(pa.table({"text": ["we lived"]}), path, compression="none", write_page_checksum=True)
    made(path, path.read_bytes().replace(b"we lived", b"he lived", 1))
    with pytest.raises(ValueError, match=f"{path}"):
        read(path)
