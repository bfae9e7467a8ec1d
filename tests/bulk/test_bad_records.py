"""Bad rows and files that are not what they say: each is named, and the other rows are right, in bounded memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from command_line import Patch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from record_files import NUL_IN_CSV, VIEWS, good, made, problems, read, unchecked, write_csv, write_parquet

from minibert.bulk import records
from minibert.bulk.records import FORMATS, ROWS, Record, Records

LARGE = 64 << 20  # bytes of a file whose parts are each small
HELD = 32 << 20  # bytes beyond what some rows take; measured 16 MiB for Parquet (72 with a whole row group), else 0


# -- bad rows --------------------------------------------------------------------------------------------------------

NOT_UTF8 = "not UTF-8: byte 0xff at 1 (invalid start byte); convert the file"
LINES: dict[str, tuple[bytes, dict[int, str], list[str]]] = {  # content, problems, the texts of the good rows
    # one end is taken off a line and no more; a mark is one only at the first byte
    "lines": (b"\xef\xbb\xbfa\r\r\nb\xff\n\rb\n\xef\xbb\xbfc\r\n\r\nd", {2: NOT_UTF8},
              ["a\r", "\rb", "\ufeffc", "", "d"]),
    "jsonl": (
        b'{"text": "a"}\n{"text": "b"\n\n3\n{"text": null}\n{"te": 1}\n{"text": "\\udc41"}\n{\xff}\n[[\n{"text": "z"}',
        {
            2: "not JSON: Expecting ',' delimiter: line 1 column 13 (char 12)",
            4: "not a JSON object: 3",
            5: "'text' must be a text, found null",
            6: "there is no 'text'; it has 'te'",
            7: "'text' has a lone surrogate U+DC41, which is no character",
            8: NOT_UTF8,
            9: "not JSON: Expecting value: line 1 column 3 (char 2)",
        },
        ["a", "z"],
    ),
    "csv": (
        b'text,more\na,1\nb\nc,1,2\n"d\n\xff",1\n\n"e"e,1\n"f\n""g""\r\n",2\nh,\xff\n"i,1\nj,2\n',
        {
            2: "expected 2 fields, found 1",
            3: "expected 2 fields, found 3",
            4: "'text' is not UTF-8: byte 0xff; convert the file",
            5: "not CSV: ',' expected after '\"'; look at its quotes",
            8: "not CSV: unexpected end of data; look at its quotes",
        },
        ["a", 'f\n"g"\r\n', "h"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", LINES)
def test_bad_rows_are_named_and_the_others_are_right(form: str, tmp_path: Path) -> None:
    content, wrong, texts = LINES[form]
    path = made(tmp_path / "a", content)
    assert problems(path, form=form) == wrong
    assert [record.text for record in read(path, form=form) if not record.problem] == texts


def test_a_file_ends_at_a_field_that_is_too_long(tmp_path: Path, monkeypatch: Patch) -> None:
    """Behind it stands the rest of the field, and no reader knows where that ends."""
    monkeypatch.setattr(records, "LONGEST_FIELD", 10)
    first = made(tmp_path / "a.csv", 'text\na\n"long\nand longer\nb"\nc\n')
    all_records = Records([str(first), str(made(tmp_path / "b.csv", "text\nd\n")), str(first)])
    found = list(all_records)
    assert all_records.expected == 5  # though much of two files is not read
    problem = "not CSV: field larger than field limit (10); look at its quotes; the rest of this file is not read"
    assert [(record.text, record.problem) for record in found] == [
        ("a", ""), (None, problem), ("d", ""), ("a", ""), (None, problem)
    ]  # fmt: skip


def test_an_empty_cell_is_no_text_and_no_id(tmp_path: Path) -> None:
    path = made(tmp_path / "a.csv", 'id,text,more\n1,a,\n2,,x\n,c,x\n3,"",x\n4, ,x\n')
    no_text, no_id = (f"there is no {name!r}: its cell is empty" for name in ("text", "id"))
    assert problems(path) == {2: no_text, 3: no_id, 4: no_text}
    assert [(record.id, record.text) for record in read(path) if not record.problem] == [(1, "a"), (4, " ")]
    assert [record.id for record in read(path, id_column="text")] == ["a", None, "c", None, " "]


def test_json_too_deep_to_be_read_is_a_bad_row(tmp_path: Path) -> None:
    path = made(tmp_path / "a.jsonl", '{"text": "a"}\n' + "[" * 100_000 + '\n{"text": "b"}\n')
    assert list(problems(path)) == [2] and problems(path)[2].startswith("not JSON: ")


def test_a_nul_in_csv(tmp_path: Path) -> None:
    found = read(made(tmp_path / "a.csv", b"text\na\nb\0b\nc\n"))
    middle = "" if NUL_IN_CSV else "not CSV: line contains NUL; look at its quotes"
    assert [record.problem for record in found] == ["", middle, ""] and found[2].text == "c"


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), *VIEWS], ids=str)
def test_parquet_with_bytes_that_are_no_text(kind: Any, tmp_path: Path) -> None:
    bad: list[bytes | None] = [b"ok", b"\xff\xfe", None, "ä".encode()]
    table = pa.table({"text": unchecked(bad, kind)})
    parquet.write_table(table, tmp_path / "a.parquet")
    wrong = {2: NOT_UTF8.replace("at 1", "at 0"), 3: "'text' must be a text, found null"}
    assert problems(tmp_path / "a.parquet") == wrong
    assert [r.text for r in read(tmp_path / "a.parquet") if not r.problem] == ["ok", "ä"]
    parquet.write_table(pa.table({"id": unchecked(bad, kind), "text": ["a"] * 4}), tmp_path / "b.parquet")
    assert problems(tmp_path / "b.parquet") == {**wrong, 3: "'id' must be a text, as in the first row, found null"}


def test_parquet_with_bytes_that_are_no_text_in_a_dictionary(tmp_path: Path) -> None:
    words = unchecked([b"ok", b"\xff"], pa.string())
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0], pa.int32()), words)
    parquet.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    assert list(problems(tmp_path / "a.parquet")) == [2, 3]
    narrow = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), words)  # which newer pyarrow refuses to read
    parquet.write_table(pa.table({"text": narrow}), tmp_path / "a.parquet")
    found = read_any(tmp_path / "a.parquet", "parquet")
    assert found is None or [record.row for record in found if record.problem] == [2]
    parquet.write_table(pa.table({"text": pa.nulls(2)}), tmp_path / "a.parquet")
    assert problems(tmp_path / "a.parquet") == dict.fromkeys((1, 2), "'text' must be a text, found null")


# -- whole files that are not right --------------------------------------------------------------------------------

WRONG = [
    ("a.csv", b"", "expected a first line with the names of the columns, found nothing"),
    ("a.csv", b"\xef\xbb\xbf", "expected a first line with the names of the columns, found nothing"),
    ("a.csv", b"a,b\n1,2\n", "expected a column 'text'; it has 'a', 'b'; name another with text_column"),
    ("a.csv", b"text,text\n1,2\n", "expected a column 'text'; it has 2 of them"),
    ("a.csv", b'"text\n', r"not readable as CSV \(unexpected end of data\); is it whole\?"),
    ("a.parquet", b"", r"not readable as Parquet \(.*\); is it whole\?"),
    ("a.parquet", b"PAR1" + bytes(20) + b"PAR1", r"not readable as Parquet \(.*\); is it whole\?"),
]


@pytest.mark.parametrize(("name", "content", "error"), WRONG)
def test_a_file_that_is_not_what_it_says(name: str, content: bytes, error: str, tmp_path: Path) -> None:
    path = made(tmp_path / name, content)
    with pytest.raises(ValueError, match=f"^{path}: {error}"):
        read(path)


@pytest.mark.parametrize("form", ["lines", "jsonl", "csv"])
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf16_is_refused(form: str, encoding: str, tmp_path: Path) -> None:
    """Its rows after the first would pass for UTF-8, with a NUL at each letter."""
    source = made(tmp_path / "a", '\ufefftext\n{"text": "a"}\n'.encode(encoding))
    with pytest.raises(ValueError, match="a: expected UTF-8, found the mark of UTF-16 at its first byte; convert it"):
        read(source, form=form)


@pytest.mark.parametrize("form", ["lines", "jsonl", "csv"])
def test_a_file_without_ends_of_lines_is_not_read_whole(form: str, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr("minibert.files.lines.LONGEST_LINE", 16)
    head = "text\n" if form == "csv" else '{"text": "abcd"}'[:15] + "\n"
    path = made(tmp_path / "a", head + "x" * 17)
    with pytest.raises(ValueError, match=f"^{path}: a line of more than 16 bytes begins at byte {len(head)}; is it in"):
        read(path, form=form)
    assert len(read(made(path, head + "x" * 15 + "\n"), form=form)) == (1 if form == "csv" else 2)


def test_empty_files_have_no_rows(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", [])
    assert good(tmp_path / "a.parquet") == []
    for name, content in (("a.txt", b""), ("b.txt", b"\xef\xbb\xbf"), ("a.jsonl", b"\n \n"), ("a.csv", b"text\n")):
        assert good(made(tmp_path / name, content)) == []


def test_columns_of_parquet_that_hold_no_texts(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    for column, kind in ((pa.array([b"a"]), "binary"), (pa.array([1]), "int64"), (pa.array([["a"]]), "list<")):
        parquet.write_table(pa.table({"text": column}), path)
        with pytest.raises(ValueError, match=f"{path}: column 'text' must hold texts, found {kind}.*; convert it"):
            read(path)
    parquet.write_table(pa.table({"id": [1.5], "text": ["a"]}), path)
    with pytest.raises(ValueError, match=f"{path}: column 'id' must hold integers or texts, found double"):
        read(path)


def test_names_that_are_no_files(tmp_path: Path) -> None:
    made(tmp_path / "a.json", "{}")
    for name, kind, error in (
        ("none.txt", FileNotFoundError, r"none\.txt"),
        ("", IsADirectoryError, r"is a folder; name the files in it, as in .*\*\.parquet"),
        ("a.json", ValueError, r"a\.json: the file must end in \.parquet, .*found '\.json'; input_format"),
    ):
        with pytest.raises(kind, match=error):
            Records([str(tmp_path / name)])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems allow no such names")
@pytest.mark.parametrize("name", [b"\xff.parquet", b"s3:/bucket/a.parquet", b"file:/a.parquet"])
def test_a_name_is_a_file_whatever_it_looks_like(name: bytes, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(os.fsdecode(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_parquet(tmp_path / "a", [("x", "a")])
    (tmp_path / "a").rename(path)
    spelled = os.fsdecode(name).replace(":/", "://")
    assert [record[:2] for record in Records([spelled])] == [("x", "a")]


# -- any bytes ---------------------------------------------------------------------------------------------------------


def read_any(path: Path, form: str) -> list[Record] | None:
    """The records of any bytes; None where the error is one that says which file."""
    try:
        return read(path, form=form)
    except (ValueError, OSError) as error:
        if type(error) in (ValueError, OSError) and str(path) in str(error):
            return None
        raise


def well_formed(found: list[Record] | None) -> None:
    """A record is a text that can be written, or a problem."""
    for record in found or ():
        assert record.row >= 1 and isinstance(record.id, int | str | None)
        if record.problem:
            assert record.text is None and record.id is None
        else:
            assert record.id is not None and isinstance(record.text, str)
            assert (record.text + str(record.id)).encode()


PIECES = [
    b'"', b",", b"\n", b"\r", b"text", b"id", b"\xff", b"\xef\xbb\xbf", b"{", b"}", b'{"text":', b'"a"', b"\0",
    b"1", b":", b"[", b"\xed\xa0\x80", b"\\ud800", b"null", b"text\n",
]  # fmt: skip
BYTES = st.binary() | st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join)


@pytest.mark.parametrize("form", FORMATS)
@given(content=BYTES)
def test_any_bytes(place: Path, form: str, content: bytes) -> None:
    found = read_any(made(place / "any", content), form)
    well_formed(found)
    if form == "lines" and found is not None:
        lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        assert len(found) == len(lines) - (lines[-1] == b"")


@pytest.fixture(scope="module")
def whole(place: Path) -> list[bytes]:
    """Parquet files of ten rows, one for each way to write them."""
    table = pa.table({"id": [f"a{i}" for i in range(10)], "text": [f"we lived {i} ä" for i in range(10)]})
    ways: list[dict[str, Any]] = [{}, {"compression": "none"}, {"row_group_size": 3, "use_dictionary": False}]
    found = []
    for way in ways:
        parquet.write_table(table, place / "whole.parquet", **way)
        found.append((place / "whole.parquet").read_bytes())
    return found


def test_parquet_whose_end_says_another_number_of_rows(place: Path, whole: list[bytes]) -> None:
    ten, eleven = b"\x16\x14", b"\x16\x16"  # a field of 64 bits, its number doubled
    path, content, at = place / "counted.parquet", whole[0], len(whole[0])
    while (at := content.rfind(ten, 0, at)) > 0:
        made(path, content[:at] + eleven + content[at + 2 :])
        if parquet.read_metadata(path).num_rows == 11:
            break
    with pytest.raises(ValueError, match=f"{path}: expected 11 rows, as its end says, found 10; is it whole"):
        read(path)


def test_parquet_with_a_name_that_is_no_text(place: Path, whole: list[bytes]) -> None:
    path = made(place / "named.parquet", whole[0].replace(b"text", b"t\xe1xt"))
    with pytest.raises(ValueError, match=f"^{path}: not readable as Parquet .*utf-8"):
        read(path)


@given(way=st.integers(0, 2), at=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), min_size=1, max_size=4))
def test_parquet_with_damaged_bytes(place: Path, whole: list[bytes], way: int, at: list[tuple[float, int]]) -> None:
    content = bytearray(whole[way])
    for where, byte in at:
        content[int(where * len(content))] = byte
    found = read_any(made(place / "damaged.parquet", bytes(content)), "parquet")
    well_formed(found)
    assert found is None or [record.row for record in found] == list(range(1, len(found) + 1))


def test_parquet_with_a_damaged_page_that_has_a_checksum(place: Path) -> None:
    """Without one, the text would be another one, and no reader could know."""
    path = place / "checked.parquet"
    parquet.write_table(pa.table({"text": ["we lived"]}), path, compression="none", write_page_checksum=True)
    content = path.read_bytes()
    assert good(path) == [(0, "we lived")] and content.count(b"we lived") > 1  # the smallest and the largest one too
    at = content.index(b"we lived")
    made(path, content[:at] + b"he lived" + content[at + 8 :])
    with pytest.raises(ValueError, match=f"^{path}: not readable as Parquet .*checksum"):
        read(path)


# -- memory, and how far ---------------------------------------------------------------------------------------------

PEAK = """
import sys
from minibert.bulk.records import Records

def peak():  # getrusage counts the process that started this one, too
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

few, many = sys.argv[1:]
list(Records([few]))  # what is imported, and held for some rows
before = peak()
print(sum(1 for _ in Records([many])), peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a process's peak of memory is Linux's to say")
@pytest.mark.parametrize(
    "ending", [pytest.param(".parquet", marks=pytest.mark.slow), pytest.param(".csv", marks=pytest.mark.slow), ".txt"]
)
def test_memory_does_not_grow_with_the_file(ending: str, tmp_path: Path) -> None:
    rows = [(str(i), f"{i} {'we lived ' * 100}") for i in range(LARGE // 900)]
    path, few = tmp_path / f"a{ending}", tmp_path / f"few{ending}"
    for name, some in ((path, rows), (few, rows[: 4 * ROWS])):
        if ending == ".parquet":  # one row group, in which nothing is shorter than it is in memory
            table = pa.table({"id": [ident for ident, _ in some], "text": [text for _, text in some]})
            parquet.write_table(table, name, row_group_size=len(some), use_dictionary=False, compression="none")
        elif ending == ".csv":
            write_csv(name, some)
        else:
            made(name, "\n".join(text for _, text in some))
    assert path.stat().st_size > LARGE
    done = subprocess.run([sys.executable, "-c", PEAK, few, path], capture_output=True, text=True, check=True)
    count, kilobytes = map(int, done.stdout.split())
    assert count == len(rows) and kilobytes << 10 < HELD, kilobytes
