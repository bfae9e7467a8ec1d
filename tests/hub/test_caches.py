"""Our cache of ranges: what it gives is right or absent; and which commit a revision stood for. No network, no Hub."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from fake_hub import use
from hypothesis import given
from hypothesis import strategies as st

from minibert.hub import caches
from minibert.hub.caches import Caches, RangeCache
from minibert.hub.errors import Address


@pytest.fixture
def cache(tmp_path: Path) -> RangeCache:
    return RangeCache(tmp_path / "commit" / "file", "endpoint name commit file")


def test_what_is_stored_is_found(cache: RangeCache) -> None:
    content = np.arange(100, dtype=np.uint8)
    cache.store((7, 107), content)
    cache.store("header", b"text")
    found = cache.load((7, 107))
    assert found is not None
    assert np.array_equal(found, content)
    assert not found.flags.writeable
    assert cache.spans() == [(7, 107)]
    assert cache.load((7, 106)) is None
    header = cache.load("header")
    assert header is not None and header.tobytes() == b"text"


@pytest.mark.parametrize("mmap", [True, False])
def test_a_large_entry_is_mapped_or_read(cache: RangeCache, mmap: bool) -> None:
    content = np.random.default_rng(0).integers(0, 256, caches.LARGE + 5, np.uint8)
    cache.store((0, len(content)), content)
    found = cache.load((0, len(content)), mmap)
    assert found is not None and found.base is not None
    assert isinstance(found.base.base, bytes) != mmap
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


def test_a_folder_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = RangeCache(tmp_path / "file" / "below", "mine")  # also root cannot write below a file
    cache.store("entry", b"content")
    assert cache.load("entry") is None
    assert cache.spans() == []


def test_what_a_killed_process_left_is_swept_a_day_later(cache: RangeCache) -> None:
    cache.store((0, 3), b"abc")
    fresh, old, profile = (cache.folder / name for name in (f".0-3.{'a' * 16}", f".0-3.{'b' * 16}", ".profile"))
    for path in (fresh, old, profile):
        path.write_bytes(b"ab")
    os.utime(old, (0, 0))
    os.utime(profile, (0, 0))
    assert cache.spans() == [(0, 3)]
    assert fresh.exists() and profile.exists()
    assert not old.exists()


@pytest.mark.parametrize("other", ["name", "commit", "file", "endpoint", "span"])
def test_an_entry_from_elsewhere_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    monkeypatch.setenv("MINIBERT_CACHE", str(tmp_path))
    own = {"name": "org/model", "endpoint": "https://hub.example", "commit": "a" * 40, "file": "x", "span": "0-3"}

    def opened(**changed: str) -> RangeCache:
        parts = own | changed
        return Caches(Address(parts["name"], "main", parts["endpoint"])).range_cache(parts["commit"], parts["file"])

    opened().store("0-3", b"abc")
    moved = opened() if other == "span" else opened(**{other: own[other].replace("a", "b") + "c"})
    moved.folder.mkdir(parents=True, exist_ok=True)
    label = "3-6" if other == "span" else "0-3"
    shutil.copy(opened().folder / "0-3", moved.folder / label)
    assert opened().load("0-3") is not None
    assert moved.load(label) is None


# -- the commit of a revision ------------------------------------------------------------------------------------


@pytest.mark.parametrize("noted", [b"../../x", b"main", b"\xff" * 40, b"", b"A" * 40])
@pytest.mark.parametrize("by", ["the client", "us"])
def test_a_note_that_is_no_commit_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noted: bytes, by: str
) -> None:
    use(monkeypatch, "https://hub.example", tmp_path)
    kept = Caches(Address("org/model", "v1", "https://hub.example"))
    if by == "us":
        kept.range_cache().store("revision-v1", noted)
    else:
        refs = tmp_path / "hub" / "models--org--model" / "refs"
        refs.mkdir(parents=True)
        (refs / "v1").write_bytes(noted)
    assert kept.last_known() is None


def test_the_last_commit_of_a_revision_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "https://hub.example", tmp_path)
    kept = Caches(Address("org/model", "refs/pr/7", "https://hub.example"))
    for commit in ("a" * 40, "b" * 40):
        kept.remember(commit)
        assert kept.last_known() == commit
