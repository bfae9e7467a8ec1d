"""How a file is written: whole or not at all, where the user means it, with nothing left beside it."""

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from limits import CHILD_SECONDS

from minibert.files.reading import note_model_file
from minibert.files.writing import atomic_write, output_ending, refuse_model_file, same_file, write_output

Write = Callable[..., None]

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="modes of files and pipes with a name are POSIX")
WRITERS = pytest.mark.parametrize("write", [atomic_write, write_output], ids=["atomic_write", "write_output"])


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "made.bin"


@WRITERS
def test_pieces_follow_each_other_and_a_name_may_be_the_longest_that_there_is(write: Write, tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    write(path, b"one ", memoryview(b"two "), bytearray(b"three"))
    assert path.read_bytes() == b"one two three"
    write(str(path))
    assert path.read_bytes() == b"" and list(tmp_path.iterdir()) == [path]


@WRITERS
def test_many_threads_write_one_path(write: Write, path: Path) -> None:
    threads, rounds, size = 4, 20, 100_000
    start = threading.Barrier(threads)

    def work(letter: int) -> set[tuple[int, int]]:
        start.wait(CHILD_SECONDS)
        seen = set()
        for _ in range(rounds):
            write(path, *[bytes([letter]) * (size // 2)] * 2)
            content = path.read_bytes()
            seen.add((len(content), len(set(content))))
        return seen

    with ThreadPoolExecutor(threads) as pool:
        assert set.union(*pool.map(work, range(97, 97 + threads))) == {(size, 1)}
    assert list(path.parent.iterdir()) == [path]


# -- errors ------------------------------------------------------------------------------------------------------


@WRITERS
@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("sizes", [(5000,), (10, 5000), (200,)])  # written at once, then, and as the file is closed
def test_a_full_disk_names_the_file_and_keeps_the_old_one(write: Write, sizes: tuple[int, ...], path: Path) -> None:
    for before in (None, b"before"):
        if before is not None:
            path.write_bytes(before)
        with pytest.raises(OSError) as caught:
            write(path, *(b"x" * size for size in sizes))
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
        assert list(path.parent.iterdir()) == ([] if before is None else [path])
    assert path.read_bytes() == b"before"


@WRITERS
def test_an_error_of_the_disk_names_the_file_that_was_asked_for(write: Write, tmp_path: Path) -> None:
    for path, kind in ((tmp_path / "absent" / "made.bin", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(kind) as caught:
            write(path, b"x")
        assert caught.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []


# -- where a person wants it -------------------------------------------------------------------------------------


def test_a_link_stays_and_its_target_is_written_but_for_our_own_name(tmp_path: Path) -> None:
    target, link, second = tmp_path / "data" / "target", tmp_path / "link", tmp_path / "second"
    target.parent.mkdir()
    link.symlink_to("data/target")
    second.symlink_to(link)
    for content in (b"first", b"after"):  # into a link to nothing, and over a file
        write_output(second, content)
        assert target.read_bytes() == content and not target.is_symlink()
        assert link.is_symlink() and second.is_symlink()
        assert list(target.parent.iterdir()) == [target] and len(list(tmp_path.iterdir())) == 3
    atomic_write(link, b"own")
    assert target.read_bytes() == b"after" and link.read_bytes() == b"own" and not link.is_symlink()


@POSIX
@pytest.mark.parametrize("kept", [0o600, 0o640, 0o666, 0o755, 0o444])
def test_the_mode_of_a_file_that_is_there_stays(kept: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(b"before")
    path.chmod(kept)
    changed, seen = Path.chmod, [kept]

    def chmod(self: Path, to: int) -> None:
        seen.append(mode(self))
        changed(self, to)

    monkeypatch.setattr(Path, "chmod", chmod)
    write_output(path, b"after")
    assert mode(path) == kept and path.read_bytes() == b"after"
    assert not any(before & ~kept for before in seen)  # nor could others read it for a moment in between


@POSIX
@WRITERS
def test_the_umask_gives_a_new_file_its_mode(write: Write, tmp_path: Path) -> None:
    for mask, expected in ((0o022, 0o644), (0o077, 0o600)):
        before = os.umask(mask)
        try:
            write(tmp_path / str(mask), b"x")
        finally:
            os.umask(before)
        assert mode(tmp_path / str(mask)) == expected


@POSIX
def test_a_pipe_and_a_device_are_written_to(tmp_path: Path) -> None:
    pipe, kept = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: kept.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write_output(pipe, b"one ", b"two")
    reader.join(CHILD_SECONDS)
    assert kept == [b"one two"] and pipe.is_fifo()
    link = tmp_path / "null"
    link.symlink_to(os.devnull)
    write_output(link, b"x")
    assert link.is_symlink() and link.is_char_device()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["null", "pipe"]


def test_a_loop_of_links_is_an_error_of_its_name(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(OSError, match="loop") as caught:
        write_output(loop, b"x")
    assert caught.value.errno == errno.ELOOP
    assert loop.is_symlink() and list(tmp_path.iterdir()) == [loop]


@POSIX
def test_the_ending_says_the_format_and_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    both, link = (".npy", ".safetensors"), tmp_path / "null.safetensors"
    assert output_ending(os.devnull, both) == ".npy"  # a device without an ending gets the first format
    link.symlink_to(os.devnull)
    for name, ending in ((link, both[1]), (tmp_path / "a.NPY", both[0]), ("a.safetensors", both[1])):
        assert output_ending(name, both) == ending
    assert list(tmp_path.iterdir()) == [link]
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "link.npy").symlink_to("folder.npy")
    (tmp_path / "lost.npy").symlink_to("absent/target.npy")
    for name in ("folder.npy", "link.npy"):
        with pytest.raises(IsADirectoryError, match=name):
            output_ending(tmp_path / name, both)
    for name in ("absent/a.npy", "lost.npy"):
        with pytest.raises(FileNotFoundError):
            output_ending(tmp_path / name, both)
    with pytest.raises(ValueError, match=r"\.npy.*\.svg.*'\.txt'"):
        output_ending("a.txt", (".npy", ".svg"))


def test_one_file_under_several_names(tmp_path: Path) -> None:
    path, other, link, hard = (tmp_path / name for name in ("path", "other", "link", "hard"))
    path.write_bytes(b"x")
    other.write_bytes(b"x")
    link.symlink_to(path)
    hard.hardlink_to(path)
    for name in (path, link, hard, tmp_path / "." / "path"):
        assert same_file(path, name) and same_file(name, path)
    assert not same_file(path, other) and not same_file(path, tmp_path / "absent")


@WRITERS
def test_a_file_of_a_model_is_not_written_over_under_any_name(write: Write, tmp_path: Path) -> None:
    path, link, second, hard = (tmp_path / name for name in ("path", "link", "second", "hard"))
    (tmp_path / "sub").mkdir()
    path.write_bytes(b"weights")
    link.symlink_to(path)
    second.symlink_to("link")
    hard.hardlink_to(path)
    note_model_file(second)  # opened through a link
    before = sorted(tmp_path.iterdir())
    for name in (path, link, second, hard, tmp_path / "sub" / ".." / "path"):
        with pytest.raises(ValueError):
            write(name, b"x")
    assert path.read_bytes() == hard.read_bytes() == b"weights" and sorted(tmp_path.iterdir()) == before
    hard.unlink()
    path.rename(tmp_path / "moved")
    for other in (path, tmp_path / "other"):  # what has taken the place of a model's file is no model's
        write(other, b"x")
        assert other.read_bytes() == b"x" and (tmp_path / "moved").read_bytes() == b"weights"
    note_model_file(tmp_path / "absent")
    refuse_model_file(tmp_path / "absent")
