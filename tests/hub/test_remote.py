"""Tables whose rows are fetched by range from a repository in memory: equal numbers, few bytes, few requests."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from minibert.errors import CheckpointError, HubError
from minibert.hub import remote
from minibert.hub.remote import FETCH_BYTES, Span, merge

ROWS, WIDTH = 400, 320  # 512 kB as float32: large enough to come by rows
TABLE = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float32)
FILE = save({"a": np.ones(3, np.float32), "table": TABLE, "z": np.zeros((7, 100), np.float32)})


class Memory:
    """A repository whose files are bytes; it records the spans that are requested."""

    def __init__(self, folder: Path, files: dict[str, bytes]) -> None:
        self.folder, self.files = folder, files
        self.asked: list[Span] = []
        self.reachable = True

    def cached(self, name: str) -> Path | None:
        return None

    def ranges(self, name: str) -> Path:
        return self.folder / name

    def part(self, name: str, span: Span) -> tuple[bytes, int]:
        if not self.reachable:
            raise HubError("no answer")
        self.asked.append(span)
        return self.files[name][span[0] : span[1]], len(self.files[name])

    def describe(self, name: str) -> str:
        return name


def open_memory(memory: Any, lazy: bool = True) -> Any:
    return remote.RemoteCheckpoint(memory, None, lazy, True, False, "")


def open_table(memory: Memory, lazy: bool = True) -> Any:
    return open_memory(memory, lazy).table("table", np.dtype("float32"))


def table_in(folder: Path, kind: type[Memory] = Memory) -> tuple[Memory, Any]:
    memory = kind(folder, {"model.safetensors": FILE})
    table = open_table(memory)
    memory.asked.clear()
    return memory, table


@given(st.sets(st.integers(0, 300)), st.integers(0, 5))
def test_runs_hold_all_rows_and_gaps_of_few_others(rows: set[int], gap: int) -> None:
    want: list[list[int]] = []
    for row in sorted(rows):
        if want and row - want[-1][1] <= gap:
            want[-1][1] = row + 1
        else:
            want.append([row, row + 1])
    assert [[*run] for run in merge(np.array(sorted(rows), np.int64), gap)] == want


ids = st.lists(st.integers(0, ROWS - 10), min_size=1, max_size=12)


@settings(max_examples=40)
@given(asks=st.lists(ids, min_size=1, max_size=5))
def test_rows_by_range_are_the_rows(tmp_path_factory: pytest.TempPathFactory, asks: list[list[int]]) -> None:
    memory, table = table_in(tmp_path_factory.mktemp("ranges"))
    for ask in asks:
        assert np.array_equal(table.rows(np.array(ask)), TABLE[ask])
    wanted = sorted({row for ask in asks for row in ask})
    gaps = remote.GAP * FETCH_BYTES * sum(len(set(ask)) for ask in asks)
    assert sum(stop - start for start, stop in memory.asked) <= len(wanted) * (WIDTH * 4 + 2 * FETCH_BYTES) + gaps
    assert len(memory.asked) <= len(wanted)
    # another process: fetched bytes need no Hub, in whatever pieces they were fetched
    memory.reachable = False
    table = open_table(memory)
    assert np.array_equal(table.rows(np.array(wanted)), TABLE[wanted])
    with pytest.raises(HubError):
        table.rows(np.array([*wanted, ROWS - 1]))


def test_ranges_of_files_of_two_sizes_are_fetched_again(tmp_path: Path) -> None:
    memory, table = table_in(tmp_path)
    table.rows(np.array([3]))
    (memory.ranges("model.safetensors") / f"0-8-{len(FILE) + 1}").write_bytes(bytes(8))
    memory.asked.clear()
    assert np.array_equal(open_table(memory).rows(np.array([3])), TABLE[[3]])
    assert memory.asked


@pytest.mark.parametrize("stored", ["F32", "F64", "F16", "BF16"])
def test_narrow_tables_come_by_rows_too(tmp_path: Path, stored: str) -> None:
    held = remote.NUMPY_DTYPE[stored]
    raw = np.random.default_rng(1).integers(0, 100, ROWS * 1000 * held.itemsize, np.uint8)
    entry = {"dtype": stored, "shape": [ROWS, 1000], "data_offsets": [0, len(raw)]}
    header = json.dumps({"t": entry}).encode()
    memory = Memory(tmp_path, {"model.safetensors": len(header).to_bytes(8, "little") + header + raw.tobytes()})
    dtype = np.dtype("float64" if stored == "F64" else "float32")  # random bits are too large for the other
    lazy, whole = (open_memory(memory, lazy=kind).table("t", dtype) for kind in (True, False))
    for asked in (np.array([[399, 0], [17, 17]]), np.array([5, 200])):  # each request is checked by itself
        memory.asked.clear()
        by_rows = lazy.rows(asked)
        assert sum(b - a for a, b in memory.asked) <= 3 * (1000 * held.itemsize + 2 * FETCH_BYTES)
        assert by_rows.dtype == dtype and np.array_equal(by_rows, whole.rows(asked))
    assert np.array_equal(lazy.array(), whole.array())


def test_what_a_table_hands_out_and_refuses_without_a_request(tmp_path: Path) -> None:
    memory, table = table_in(tmp_path)
    out = np.empty((2, WIDTH), np.float32)
    assert table.rows(np.array([3, 5]), out=out) is out
    assert np.array_equal(out, TABLE[[3, 5]])
    for held in (table.rows(slice(3, 6)), table.array()):
        with pytest.raises(ValueError):
            held[0, 0] = 1.0
    assert np.array_equal(table.rows(slice(3, 6)), TABLE[3:6])
    memory.asked.clear()
    table = open_table(memory)
    for wrong in ([1, ROWS], [-1]):
        with pytest.raises(IndexError, match=rf" is ({ROWS}|-1), "):
            table.rows(np.array(wrong))
    assert table.rows(np.empty((0,), np.int64)).shape == (0, WIDTH)
    assert memory.asked == []


def test_many_scattered_rows_fetch_the_table_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MOST_REQUESTS", 10)
    memory, table = table_in(tmp_path)
    scattered = np.arange(0, 200, 10)
    assert np.array_equal(table.rows(scattered), TABLE[scattered])
    assert np.array_equal(table.array(), TABLE)
    assert len(memory.asked) == 1
    # call by call, as tiles ask
    elsewhere, table = table_in(tmp_path / "elsewhere")
    for row in scattered:
        assert np.array_equal(table.rows(np.array([row])), TABLE[[row]])
    assert len(elsewhere.asked) == 10 + 1
    memory.reachable = False  # the next process finds it whole, also for a table that is not lazy
    assert np.array_equal(open_table(memory, lazy=False).array(), TABLE)


def test_a_fetch_that_fails_stops_the_others(tmp_path: Path) -> None:
    class Failing(Memory):
        def part(self, name: str, span: Span) -> tuple[bytes, int]:
            part = super().part(name, span)
            if len(self.asked) > 1:
                raise HubError("no more")
            return part

    memory, table = table_in(tmp_path, Failing)
    with pytest.raises(HubError):
        table.rows(np.arange(0, ROWS, 10))
    assert len(memory.asked) < 30  # 40 rows are wanted, far from each other


def test_what_is_no_table_of_rows_comes_whole_and_read_only(tmp_path: Path) -> None:
    flat = np.random.default_rng(2).normal(size=70_000).astype(np.float32)
    memory = Memory(tmp_path, {"model.safetensors": save({"flat": flat, "none": np.zeros((0, 4), np.float32)})})
    checkpoint = open_memory(memory)
    assert checkpoint.table("none").array().shape == (0, 4) and len(memory.asked) == 1  # a Hub refuses to send nothing
    raw = checkpoint._file("model.safetensors").raw(checkpoint.tensor("flat"))
    assert np.array_equal(raw, flat)
    assert not raw.flags.writeable
    table = checkpoint.table("flat", np.dtype("float32"))
    assert not isinstance(table, remote.RowTable)
    assert np.array_equal(table.array(), flat)


def test_a_header_larger_than_the_guess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "HEADER_GUESS", FETCH_BYTES)
    tensors = {f"tensor-{i:03}": np.full(3, i, np.float32) for i in range(100)}
    memory = Memory(tmp_path, {"model.safetensors": save(tensors)})
    checkpoint = open_memory(memory)
    assert list(checkpoint.names) == list(tensors) and len(memory.asked) == 2
    assert np.array_equal(checkpoint.table("tensor-099").array(), tensors["tensor-099"])
    memory.reachable = False
    assert list(open_memory(memory).names) == list(tensors)


LIES = {
    "empty": b"", "short": b"abc", "huge header": b"\xff" * 100, "past the end": (10**6).to_bytes(8, "little") + b"{}",
    "cut": FILE[:-1], "longer": FILE + b"x", "a page": b"<html>" * 50,
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_file_that_lies_is_refused(tmp_path: Path, lie: str) -> None:
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        open_memory(Memory(tmp_path, {"model.safetensors": LIES[lie]}))


def test_a_header_larger_than_the_format_allows_is_not_fetched(tmp_path: Path) -> None:
    memory = Memory(tmp_path, {})
    begins = (150_000_000).to_bytes(8, "little") + b"{}".ljust(remote.HEADER_GUESS - 8)
    with mock.patch.object(memory, "part", return_value=(begins, 10**9)) as part, pytest.raises(CheckpointError):
        open_memory(memory)
    part.assert_called_once_with("model.safetensors", (0, remote.HEADER_GUESS))


@pytest.mark.parametrize("damage", ["gone", "cut", "empty", "longer"])
def test_a_span_that_is_damaged_on_the_disk_is_fetched_again(tmp_path: Path, damage: str) -> None:
    memory, table = table_in(tmp_path)
    assert np.array_equal(table.rows(np.array([300])), TABLE[[300]])
    header, kept = sorted((tmp_path / "model.safetensors").iterdir(), key=lambda path: int(path.name.split("-")[0]))
    content = kept.read_bytes()
    damaged = {"cut": content[: len(content) // 2], "empty": b"", "longer": content + bytes(10**6)}
    kept.unlink() if damage == "gone" else kept.write_bytes(damaged[damage])
    header.write_bytes(header.read_bytes() if damage in ("gone", "longer") else b"")
    memory.asked.clear()
    assert np.array_equal(open_table(memory).rows(np.array([300])), TABLE[[300]]) and memory.asked


def test_threads_share_a_table_and_fetch_no_row_twice(tmp_path: Path) -> None:
    memory, table = table_in(tmp_path)
    asks = [np.random.default_rng(seed % 8).integers(0, ROWS, 10) for seed in range(32)]
    with ThreadPoolExecutor(8) as pool:
        for ask, rows in zip(asks, pool.map(table.rows, asks), strict=True):
            assert np.array_equal(rows, TABLE[ask])
    assert len(memory.asked) == len(set(memory.asked))
