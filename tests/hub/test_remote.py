"""Tables whose rows come by range, over a repository in memory: the same numbers, few bytes, few requests."""

from __future__ import annotations

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_repository import Memory
from safetensors.numpy import save

from minibert.errors import CheckpointError, HubError
from minibert.hub import remote
from minibert.hub.caches import Span
from minibert.hub.remote import RemoteCheckpoint, complete_rows, merge
from minibert.hub.transfer import Version

ROWS, WIDTH = 400, 320  # 512 kB as float32: large enough to come by rows


TABLE = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
FILE = save({"a": np.ones(3, np.float32), "table": TABLE, "z": np.zeros((7, 100), np.float32)})


def open_memory(memory: Memory, lazy: bool = True) -> RemoteCheckpoint:
    return RemoteCheckpoint(memory, None, lazy, mmap=True)


def table_in(folder: Path, kind: type[Memory] = Memory) -> tuple[Memory, Any]:
    memory = kind(folder, {"model.safetensors": FILE})
    return memory, open_memory(memory).table("table", np.dtype("float32"))


# -- which bytes -------------------------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 300)), st.integers(0, 5))
def test_runs_hold_all_rows_and_little_else(rows: set[int], gap: int) -> None:
    runs = merge(np.array(sorted(rows), np.int64), gap)
    covered = [row for first, stop in runs for row in range(first, stop)]
    assert rows <= set(covered)
    assert len(covered) == len(set(covered))
    for first, stop in runs:
        assert first in rows
        assert stop - 1 in rows
        inside = sorted(rows & set(range(first, stop)))
        assert all(b - a <= gap + 1 for a, b in itertools.pairwise(inside))
    # two runs are apart, else they would be one
    assert all(b[0] - a[1] > gap for a, b in itertools.pairwise(runs))


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 99), st.integers(1, 40), st.integers(0, 12))
def test_whole_rows_are_those_whose_bytes_are_all_there(a: int, b: int, start: int, row_bytes: int, rows: int) -> None:
    span = (min(a, b), max(a, b))
    first, stop = complete_rows(span, start, row_bytes, rows)
    expected = [
        row for row in range(rows) if span[0] <= start + row * row_bytes and start + (row + 1) * row_bytes <= span[1]
    ]
    assert list(range(first, stop)) == expected


# -- rows --------------------------------------------------------------------------------------------------------

ids = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=12)


@settings(max_examples=40)
@given(asks=st.lists(ids, min_size=1, max_size=5), again=ids)
def test_rows_by_range_are_the_rows(
    tmp_path_factory: pytest.TempPathFactory, asks: list[list[int]], again: list[int]
) -> None:
    memory, table = table_in(tmp_path_factory.mktemp("ranges"))
    memory.asked.clear()
    for ask in asks:
        assert np.array_equal(table.rows(np.array(ask)), TABLE[ask])
    wanted = {row for ask in asks for row in ask}
    fetched = sum(stop - start for start, stop in memory.asked)
    gaps = remote.MERGE_BYTES * sum(len(set(ask)) - 1 for ask in asks)
    assert fetched <= len(wanted) * WIDTH * 4 + gaps
    assert len(memory.asked) <= len(wanted)
    # another process: what is there needs no Hub, whatever pieces it came in
    memory.reachable = False
    table = open_memory(memory).table("table", np.dtype("float32"))
    known = sorted(wanted)
    assert np.array_equal(table.rows(np.array(known)), TABLE[known])
    new = set(again) - wanted
    if not any(_covered(memory, row) for row in new) and new:
        with pytest.raises(HubError, match="no answer"):
            table.rows(np.array(again))


def _covered(memory: Memory, row: int) -> bool:
    start = FILE.index(TABLE[0].tobytes()) + row * WIDTH * 4
    return any(a <= start and start + WIDTH * 4 <= b for a, b in memory.asked)


@pytest.mark.parametrize("stored", ["F32", "F64", "F16", "BF16", "F8_E4M3"])
def test_narrow_tables_come_by_rows_too(tmp_path: Path, stored: str) -> None:
    held = remote.NUMPY_DTYPE[stored]
    raw = np.random.default_rng(1).integers(0, 100, ROWS * 1000 * held.itemsize, np.uint8)
    entry = {"dtype": stored, "shape": [ROWS, 1000], "data_offsets": [0, len(raw)]}
    header = json.dumps({"t": entry}).encode()
    memory = Memory(tmp_path, {"model.safetensors": len(header).to_bytes(8, "little") + header + raw.tobytes()})
    dtype = np.dtype("float64" if stored == "F64" else "float32")  # random bits are too large for the other
    lazy = open_memory(memory).table("t", dtype)
    asked = np.array([[399, 0], [17, 17]])
    by_rows = lazy.rows(asked)
    whole = open_memory(memory, lazy=False).table("t", dtype)
    assert by_rows.dtype == dtype
    assert np.array_equal(by_rows, whole.rows(asked))
    assert sum(stop - start for start, stop in memory.asked[1:-1]) == 3 * 1000 * held.itemsize
    assert np.array_equal(lazy.array(), whole.array())


def test_a_table_is_not_writable_and_out_is_filled(tmp_path: Path) -> None:
    _, table = table_in(tmp_path)
    out = np.empty((2, WIDTH), np.float32)
    assert table.rows(np.array([3, 5]), out=out) is out
    assert np.array_equal(out, TABLE[[3, 5]])
    with pytest.raises(ValueError, match="read-only"):
        table.rows(slice(3, 6))[0, 0] = 1.0
    assert np.array_equal(table.rows(slice(3, 6)), TABLE[3:6])
    with pytest.raises(ValueError, match="read-only"):
        table.array()[0, 0] = 1.0


def test_ids_outside_the_table_and_no_ids_cost_no_request(tmp_path: Path) -> None:
    memory, table = table_in(tmp_path)
    before = len(memory.asked)
    with pytest.raises(IndexError, match=f"is {ROWS}, but the table has rows 0..{ROWS - 1}"):
        table.rows(np.array([1, ROWS]))
    with pytest.raises(IndexError, match="is -1"):
        table.rows(np.array([-1]))
    assert table.rows(np.empty((0,), np.int64)).shape == (0, WIDTH)
    assert len(memory.asked) == before


def test_many_scattered_rows_fetch_the_table_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MOST_REQUESTS", 10)
    memory, table = table_in(tmp_path)
    memory.asked.clear()
    scattered = np.arange(0, 200, 10)
    assert np.array_equal(table.rows(scattered), TABLE[scattered])
    assert len(memory.asked) == 1
    assert np.array_equal(table.array(), TABLE)
    assert len(memory.asked) == 1
    # call by call, as tiles ask
    elsewhere = Memory(tmp_path / "elsewhere", memory.files)
    table = open_memory(elsewhere).table("table", np.dtype("float32"))
    for row in range(0, 200, 10):
        assert np.array_equal(table.rows(np.array([row])), TABLE[[row]])
    assert len(elsewhere.asked) == 1 + 10 + 1
    memory.reachable = False  # the next process finds it whole, also for a table that is not lazy
    assert np.array_equal(open_memory(memory, lazy=False).table("table", np.dtype("float32")).array(), TABLE)


def test_more_than_half_of_the_rows_are_all_of_them(tmp_path: Path) -> None:
    memory = Memory(tmp_path, {"model.safetensors": FILE})
    for rows, fetched in ((200, 200), (201, ROWS)):
        table = open_memory(memory).table("table", np.dtype("float32"))
        memory.asked.clear()
        memory.folder = tmp_path / f"{rows}"
        table._file.cache = memory.cache("model.safetensors")
        assert np.array_equal(table.rows(np.arange(rows)), TABLE[:rows])
        assert [stop - start for start, stop in memory.asked] == [fetched * WIDTH * 4]


def test_a_fetch_that_fails_stops_the_others(tmp_path: Path) -> None:
    class Failing(Memory):
        def part(self, *arguments: Any) -> bytearray:
            part = super().part(*arguments)
            if len(self.asked) > 1:
                raise HubError("no more")
            return part

    memory, table = table_in(tmp_path, Failing)
    with pytest.raises(HubError, match="no more"):
        table.rows(np.arange(0, ROWS, 10))
    assert len(memory.asked) < 30  # of 40 rows that are apart


def test_what_is_no_table_of_rows_comes_whole_and_read_only(tmp_path: Path) -> None:
    flat = np.random.default_rng(2).normal(size=70_000).astype(np.float32)
    memory = Memory(tmp_path, {"model.safetensors": save({"flat": flat, "none": np.zeros((0, 4), np.float32)})})
    checkpoint = open_memory(memory)
    assert checkpoint.table("none").array().shape == (0, 4) and len(memory.asked) == 1  # a Hub refuses to send nothing
    for _ in range(2):  # fetched, then from the cache
        raw = checkpoint._file("model.safetensors").raw(checkpoint.tensor("flat"))
        assert np.array_equal(raw, flat)
        assert not raw.flags.writeable
    table = checkpoint.table("flat", np.dtype("float32"))
    assert not isinstance(table, remote.RowTable)
    assert np.array_equal(table.array(), flat)


def test_a_header_larger_than_the_guess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "HEADER_GUESS", 20)
    memory = Memory(tmp_path, {"model.safetensors": FILE})
    assert list(open_memory(memory).names) == ["a", "table", "z"]
    assert [start for start, _ in memory.asked] == [0, 0]
    memory.asked.clear()
    open_memory(memory)
    assert memory.asked == []


@pytest.mark.parametrize(
    "content",
    [b"", b"abc", b"\xff" * 100, (10**6).to_bytes(8, "little") + b"{}", FILE[:-1], FILE + b"x", b"<html>" * 50],
    ids=["empty", "short", "huge header", "header past the end", "cut", "longer", "a page"],
)
def test_a_file_that_lies_is_refused_and_not_kept(tmp_path: Path, content: bytes) -> None:
    memory = Memory(tmp_path, {"model.safetensors": content})
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        open_memory(memory)
    assert memory.cache("model.safetensors").load("header") is None


def test_a_header_larger_than_the_format_allows_is_not_fetched(tmp_path: Path) -> None:
    class Large(Memory):
        def part(self, name: str, span: Span, version: Version, progress: Any) -> bytearray:
            self.asked.append(span)
            version.check(10**9)
            return bytearray((150_000_000).to_bytes(8, "little") + b"{}")

    memory = Large(tmp_path, {})
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        open_memory(memory)
    assert memory.asked == [(0, remote.HEADER_GUESS)]


def test_a_file_that_changes_under_its_commit_is_refused(tmp_path: Path) -> None:
    memory, table = table_in(tmp_path)
    memory.files["model.safetensors"] = FILE + b"more"
    with pytest.raises(HubError, match=r"changed the file under one commit.*delete"):
        table.rows(np.array([1]))


def test_many_fetches_leave_no_threads_behind(tmp_path: Path) -> None:
    _, table = table_in(tmp_path)
    before = threading.active_count()
    for row in range(0, 60, 3):
        table.rows(np.array([row]))
    assert threading.active_count() <= before + 1  # tqdm keeps one


def test_threads_share_a_table_and_fetch_no_row_twice(tmp_path: Path) -> None:
    memory, table = table_in(tmp_path)
    memory.asked.clear()
    asks = [np.random.default_rng(seed % 8).integers(0, ROWS, 10) for seed in range(32)]
    with ThreadPoolExecutor(8) as pool:
        for ask, rows in zip(asks, pool.map(table.rows, asks), strict=True):
            assert np.array_equal(rows, TABLE[ask])
    assert len(memory.asked) == len(set(memory.asked))
