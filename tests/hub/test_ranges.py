"""The cache of ranges and the choice of ranges: no network, no Hub."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fake_hub import environment, use
from hypothesis import given
from hypothesis import strategies as st

from minibert.hub import ranges
from minibert.hub.caches import Caches
from minibert.hub.errors import Address
from minibert.hub.ranges import RangeCache, complete_rows, merge

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="limits of file sizes and SIGKILL are POSIX")


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


# -- a cache that is right or absent -----------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path) -> RangeCache:
    return RangeCache(tmp_path / "commit" / "file", "endpoint name commit file")


def test_what_is_stored_is_found(cache: RangeCache) -> None:
    content = np.arange(100, dtype=np.uint8)
    cache.store_span((7, 107), content)
    cache.store("header", b"text")
    found = cache.load_span((7, 107))
    assert found is not None
    assert np.array_equal(found, content)
    assert not found.flags.writeable
    assert cache.spans() == [(7, 107)]
    assert cache.load_span((7, 106)) is None
    header = cache.load("header")
    assert header is not None and header.tobytes() == b"text"


@pytest.mark.parametrize("mmap", [True, False])
def test_a_large_entry_is_mapped_or_read(cache: RangeCache, mmap: bool) -> None:
    content = np.random.default_rng(0).integers(0, 256, ranges.LARGE + 5, np.uint8)
    cache.store_span((0, len(content)), content)
    found = cache.load_span((0, len(content)), mmap)
    assert found is not None
    shutil.rmtree(cache.folder)  # deleting is always safe
    assert np.array_equal(found, content)


@given(content=st.binary(max_size=40), data=st.data())
def test_a_torn_or_changed_entry_is_absent(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, data: st.DataObject
) -> None:
    cache = RangeCache(tmp_path_factory.mktemp("cache"), "mine")
    cache.store("entry", content)
    path = cache.folder / "entry"
    whole = path.read_bytes()
    if data.draw(st.booleans(), "torn"):
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1), "length")])
    else:
        changed = bytearray(whole)
        changed[data.draw(st.integers(0, len(whole) - 1), "where")] ^= data.draw(st.integers(1, 255), "bits")
        path.write_bytes(changed)
    assert cache.load("entry") is None


def test_an_entry_from_elsewhere_is_absent(cache: RangeCache, tmp_path: Path) -> None:
    cache.store("0-3", b"abc")
    for folder, label, belongs_to in [
        (tmp_path / "other", "0-3", "endpoint name another-commit file"),
        (cache.folder, "3-6", "endpoint name commit file"),
    ]:
        other = RangeCache(folder, belongs_to)
        folder.mkdir(exist_ok=True)
        shutil.copy(cache.folder / "0-3", folder / label)
        assert other.load(label) is None
    assert cache.load("0-3") is not None


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = RangeCache(tmp_path / "file" / "below", "mine")  # also root cannot write below a file
    cache.store("entry", b"content")
    assert cache.load("entry") is None
    assert cache.spans() == []


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from minibert.hub.ranges import RangeCache
cache = RangeCache(Path(sys.argv[1]), "mine")
cache.store("small", b"x" * 500)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # the kernel writes 1000 bytes, then refuses
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
cache.store("entry", b"y" * 5000)
cache.store("small", b"z" * 5000)
"""


@POSIX
def test_a_full_disk_leaves_no_half_entry(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], check=True, env=environment("", tmp_path), timeout=60
    )
    assert [path.name for path in tmp_path.iterdir()] == ["small"]
    small = RangeCache(tmp_path, "mine").load("small")
    assert small is not None and small.tobytes() == b"x" * 500


WRITER = """
import sys
from pathlib import Path
from minibert.hub.ranges import RangeCache
cache = RangeCache(Path(sys.argv[1]), "mine")
print("writing", flush=True)
while True:
    for i in range(5):
        cache.store(f"{i}-{i + 300_000}", bytes([i]) * 300_000)
"""


@POSIX
def test_writers_at_once_and_killed_leave_right_entries_or_none(tmp_path: Path) -> None:
    cache = RangeCache(tmp_path, "mine")
    seen = 0
    for _ in range(2):
        command, env = [sys.executable, "-c", WRITER, str(tmp_path)], environment("", tmp_path)
        writers = [subprocess.Popen(command, stdout=subprocess.PIPE, env=env) for _ in range(2)]
        for writer in writers:
            assert writer.stdout is not None
            writer.stdout.readline()
        began = time.monotonic()
        # for 0.3 seconds, and on a busy machine until there was something to see
        while time.monotonic() < began + 0.3 or (seen == 0 and time.monotonic() < began + 30):
            for span in cache.spans():
                found = cache.load_span(span)
                if found is not None:
                    assert (found == span[0]).all()
                    seen += 1
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.communicate(timeout=30)
    assert seen > 0
    for span in cache.spans():  # with all writers dead, what has a name is whole
        found = cache.load_span(span)
        assert found is not None and (found == span[0]).all()


def test_what_a_killed_process_left_is_swept_a_day_later(cache: RangeCache) -> None:
    cache.store("0-3", b"abc")
    fresh, old = cache.folder / ".0-3.aaaa", cache.folder / ".0-3.bbbb"
    fresh.write_bytes(b"ab")
    old.write_bytes(b"ab")
    os.utime(old, (0, 0))
    assert cache.spans() == [(0, 3)]
    assert fresh.exists()
    assert not old.exists()


def test_an_entry_of_another_length_than_its_name_says_is_absent(cache: RangeCache) -> None:
    cache.store("0-3", b"ab")
    assert cache.load("0-3") is not None
    assert cache.load_span((0, 3)) is None


@pytest.mark.parametrize("other", ["name", "commit", "file", "endpoint"])
def test_an_entry_of_another_model_commit_or_file_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    monkeypatch.setenv("MINIBERT_CACHE", str(tmp_path))
    own = {"name": "org/model", "endpoint": "https://hub.example", "commit": "a" * 40, "file": "x"}

    def opened(**changed: str) -> RangeCache:
        parts = own | changed
        return Caches(Address(parts["name"], "main", parts["endpoint"])).range_cache(parts["commit"], parts["file"])

    opened().store("0-3", b"abc")
    moved = opened(**{other: own[other].replace("a", "b") + "c"})
    moved.folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(opened().folder, moved.folder)
    assert opened().load("0-3") is not None
    assert moved.load("0-3") is None


# -- the commit of a revision ------------------------------------------------------------------------------------


@pytest.mark.parametrize("noted", [b"../../x", b"main", b"\xff" * 40, b"", b"A" * 40])
@pytest.mark.parametrize("by", ["the client", "us"])
def test_a_note_that_is_no_commit_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: bytes, by: str
) -> None:
    use(monkeypatch, "https://hub.example", tmp_path)
    caches = Caches(Address("org/model", "v1", "https://hub.example"))
    if by == "us":
        caches.range_cache().store("revision-v1", noted)
    else:
        refs = tmp_path / "hub" / "models--org--model" / "refs"
        refs.mkdir(parents=True)
        (refs / "v1").write_bytes(noted)
    assert caches.last_known() is None


def test_a_commit_is_noted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "https://hub.example", tmp_path)
    caches = Caches(Address("org/model", "refs/pr/7", "https://hub.example"))
    for commit in ("a" * 40, "b" * 40):
        caches.remember(commit)
        assert caches.last_known() == commit
    written = (caches.range_cache().folder / "revision-refs%2Fpr%2F7").stat().st_ino
    caches.remember("b" * 40)
    assert (caches.range_cache().folder / "revision-refs%2Fpr%2F7").stat().st_ino == written


# -- links in our own folder ---------------------------------------------------------------------------------------


def test_an_entry_that_is_a_link_is_neither_read_nor_written_through(cache: RangeCache, tmp_path: Path) -> None:
    cache.store("0-3", b"abc")
    elsewhere = tmp_path / "elsewhere"
    (cache.folder / "0-3").rename(elsewhere)
    (cache.folder / "0-3").symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    assert cache.load("0-3") is None  # right bytes, but who keeps them so?
    cache.store("0-3", b"xyz")
    assert elsewhere.read_bytes() == before
    found = cache.load("0-3")
    assert found is not None and found.tobytes() == b"xyz"
    assert not (cache.folder / "0-3").is_symlink()


@pytest.mark.parametrize("linked", ["model", "model/commit", "model/commit/file"])
def test_a_folder_that_is_a_link_is_done_without(linked: str, tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    folder = root / "model" / "commit" / "file"
    reached = elsewhere / folder.relative_to(root / linked)
    reached.mkdir(parents=True)
    (root / linked).parent.mkdir(parents=True)
    (root / linked).symlink_to(elsewhere)
    RangeCache(reached, "mine").store("0-3", b"abc")
    old = reached / ".profile"
    old.write_bytes(b"mine")
    os.utime(old, (0, 0))
    cache = RangeCache(folder, "mine", root)
    cache.store("3-6", b"def")
    assert cache.load("0-3") is None and cache.spans() == []
    assert sorted(path.name for path in reached.iterdir()) == [".profile", "0-3"]


def test_the_folder_that_a_person_names_may_be_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "named").symlink_to("disk")
    monkeypatch.setenv("MINIBERT_CACHE", str(tmp_path / "named"))
    caches = Caches(Address("org/model", "main", "https://hub.example"))
    for cache in (caches.range_cache(), caches.range_cache("commit"), caches.range_cache("commit", "file")):
        cache.store("entry", b"content")
        assert cache.load("entry") is not None
        assert (tmp_path / "disk") in cache.folder.resolve().parents
    (model,) = (tmp_path / "disk").glob("*/org--model")
    model.rename(tmp_path / "elsewhere")
    model.symlink_to(tmp_path / "elsewhere")
    assert all(cache.load("entry") is None for cache in (caches.range_cache(), caches.range_cache("commit", "file")))
