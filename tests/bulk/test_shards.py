"""A folder of vectors: shards appear whole, and it is continued only by what has made it."""

from __future__ import annotations

import json
import os
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet
from shard_folders import BAD, SETTINGS, add, begin, files, opened

from minibert.bulk.shards import ShardFolder

# -- what stands in it -------------------------------------------------------------------------------------------


def test_a_folder_of_parquet(path: Path) -> None:
    folder = begin(path)
    assert set(files(path)) == {"meta.json", "shards.jsonl", "bad_rows.jsonl", "vectors-00000.parquet",
                                "vectors-00001.parquet"}  # fmt: skip
    table = parquet.read_table(path / "vectors-00001.parquet")
    assert [str(field.type) for field in table.schema] == ["int64", "fixed_size_list<element: float>[4]"]
    assert table["id"].to_pylist() == [10, 11, 12] and table["vector"].to_pylist() == [[1.0] * 4] * 3
    assert opened(path) == folder.shards
    assert [json.loads(line) for line in (path / "shards.jsonl").read_text().splitlines()][1] == {
        "files": {"vectors-00001.parquet": {
            "bytes": (path / "vectors-00001.parquet").stat().st_size,
            "sha256": sha256((path / "vectors-00001.parquet").read_bytes()).hexdigest(),
        }},
        "read": 4, "rows": 3, "cut": 1, "input_sha256": "sha1", "bad_bytes": (path / "bad_rows.jsonl").stat().st_size,
        "bad_sha256": sha256((path / "bad_rows.jsonl").read_bytes()).hexdigest(),
        "line_sha256": folder.shards[1].line_sha256,
    }  # fmt: skip
    assert [json.loads(line) for line in (path / "bad_rows.jsonl").read_text("utf-8").splitlines()] == BAD


def test_a_folder_of_npy(path: Path) -> None:
    folder = ShardFolder(path, "npy")
    with folder.opened(SETTINGS):
        folder.add(["ä", "b"], [np.eye(2, dtype=np.float32)], 2, 0, "", [])
        folder.add([], [], 1, 0, "", BAD)  # nothing but bad rows
    assert set(files(path)) == {"meta.json", "shards.jsonl", "bad_rows.jsonl", "ids-00000.json", "vectors-00000.npy"}
    assert json.loads((path / "ids-00000.json").read_text("utf-8")) == ["ä", "b"]
    mapped = np.load(path / "vectors-00000.npy", mmap_mode="r")
    assert isinstance(mapped, np.memmap) and np.array_equal(mapped, np.eye(2, dtype=np.float32))
    with folder.opened(SETTINGS):
        assert {name: folder.finish()[name] for name in ("shards", "skipped")} == {"shards": 1, "skipped": 1}


@pytest.mark.skipif(sys.platform != "linux", reason="Linux says which file a descriptor is of")
def test_a_shard_is_on_the_disk_before_it_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink().name))
    begin(path, 1)
    # the new folder's name; then each file, and the folder's names if the file is new
    starts = [path.parent.name, ".meta.json.", path.name, ".vectors-00000.parquet.", path.name]
    starts += ["bad_rows.jsonl", path.name, "shards.jsonl", path.name]
    assert len(synced) == len(starts) and all(map(str.startswith, synced, starts))
    synced.clear()
    with ShardFolder(path, "parquet").opened(SETTINGS) as folder:
        add(folder, 1, bad=BAD)
    assert len(synced) == 4 and all(
        map(str.startswith, synced, [".vectors-00001", path.name, "bad_rows.jsonl", "shards.jsonl"])
    )


# -- what a killed run leaves ----------------------------------------------------------------------------------


def test_what_a_killed_run_leaves_is_cut_off(path: Path) -> None:
    begin(path, 2)
    before = files(path)
    for name, torn in (("shards.jsonl", b'{"files": {"vect'), ("bad_rows.jsonl", b'{"file": "a"}\n{"fi')):
        with open(path / name, "ab") as file:
            file.write(torn)
    for name in (".vectors-00002.parquet", ".meta.json", ".ids-00002.json", ".vectors-123456.npy"):
        (path / f"{name}.0123456789abcdef").write_bytes(b"half")
    (path / ".meta.json.0123456789abcdef.kept").write_bytes(b"another")
    assert len(opened(path)) == 2
    assert files(path) == before | {".meta.json.0123456789abcdef.kept": b"another"}


def test_a_run_that_was_killed_before_its_first_shard(path: Path) -> None:
    path.mkdir()
    (path / ".lock").touch()
    (path / ".meta.json.0123456789abcdef").write_bytes(b"{")
    assert opened(path) == [] and set(files(path)) == {"meta.json"}
    (path / "bad_rows.jsonl").write_bytes(b'{"file"')
    (path / "shards.jsonl").write_bytes(b'{"file"')
    assert opened(path) == [] and files(path)["bad_rows.jsonl"] == files(path)["shards.jsonl"] == b""


def test_a_shard_without_a_line_is_written_again_or_goes(path: Path) -> None:
    begin(path, 2)
    (path / "vectors-00002.parquet").write_bytes(b"whole, but not in shards.jsonl")
    (path / "vectors-00003.parquet").write_bytes(b"of rows that this run has not read")
    with ShardFolder(path, "parquet").opened(SETTINGS) as folder:
        add(folder, 2)
        folder.finish()
    assert parquet.read_table(path / "vectors-00002.parquet")["id"].to_pylist() == [20, 21, 22]
    assert not (path / "vectors-00003.parquet").exists()


# -- names and formats ----------------------------------------------------------------------------------------------


def test_names_that_are_not_utf8(path: Path) -> None:
    odd = os.fsdecode(b"a\xff.csv")
    settings = {"input": [{"name": odd, "bytes": 1}]}
    with ShardFolder(path, "npy").opened(settings) as folder:
        folder.add([], [], 1, 0, "", [{"file": odd, "row": 1, "problem": "ä"}])
    assert len(opened(path, "npy", settings)) == 1
    assert json.loads((path / "bad_rows.jsonl").read_text("utf-8"))["file"] == odd
    assert "ä" in (path / "bad_rows.jsonl").read_text("utf-8")


def test_a_format_that_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="format must be 'parquet' or 'npy', found 'csv'"):
        ShardFolder(path, "csv")


def test_files_in_the_folder_itself_are_refused_as_input(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.mkdir()
    monkeypatch.chdir(path.parent)
    for name, folder in ((f"{path.name}/a.txt", path), ("./vectors/../vectors/a.txt", Path("vectors")), ("a", Path())):
        with pytest.raises(ValueError, match=r"lies in .*, which is to be written; choose another folder"):
            ShardFolder(folder, "npy").refuse_sources(["-", name])
    monkeypatch.chdir(path)
    ShardFolder(Path(), "npy").refuse_sources(["-", str(path.parent / "a.txt")])  # stdin lies nowhere
