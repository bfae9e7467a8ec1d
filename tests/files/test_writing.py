"""How a file is written: whole or not at all, where the user means it, with nothing left beside it."""

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
from collections.abc import Callable
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
def test_pieces_follow_each_other(write: Write, path: Path) -> None:
    write(path, b"one ", memoryview(b"two "), bytearray(b"three"))
    assert path.read_bytes() == b"one two three"
    write(str(path))
    assert path.read_bytes() == b"" and list(path.parent.iterdir()) == [path]


@WRITERS
def test_many_threads_write_one_path(write: Write, path: Path) -> None:
    threads, rounds, size = 4, 20, 100_000
    start, failures, seen = threading.Barrier(threads), [], set()

    def work(letter: bytes) -> None:
        try:
            start.wait(CHILD_SECONDS)
            for _ in range(rounds):
                write(path, letter * (size // 2), letter * (size // 2))
                content = path.read_bytes()
                seen.add((len(content), len(set(content))))
        except OSError as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(bytes([97 + i]),)) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(CHILD_SECONDS)
    assert failures == []
    assert seen == {(size, 1)}
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
    absent = tmp_path / "absent" / "made.bin"
    with pytest.raises(FileNotFoundError) as caught:
        write(absent, b"x")
    assert caught.value.filename == str(absent)
    with pytest.raises(IsADirectoryError) as folder:
        write(tmp_path, b"x")
    assert folder.value.filename == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


@WRITERS
def test_the_longest_name_that_there_is(write: Write, tmp_path: Path) -> None:
    write(tmp_path / ("n" * 255), b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["n" * 255]


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
def test_the_umask_gives_a_new_file_its_mode(tmp_path: Path) -> None:
    for mask, expected in ((0o022, 0o644), (0o077, 0o600)):
        before = os.umask(mask)
        try:
            for write in (atomic_write, write_output):
                write(tmp_path / f"{write.__name__}{mask}", b"x")
                assert mode(tmp_path / f"{write.__name__}{mask}") == expected
        finally:
            os.umask(before)


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


# -- before anything is computed ---------------------------------------------------------------------------------


@POSIX
def test_a_device_without_an_ending_gets_the_first_format(tmp_path: Path) -> None:
    assert output_ending(os.devnull, (".npy", ".safetensors")) == ".npy"
    link = tmp_path / "null.safetensors"
    link.symlink_to(os.devnull)
    assert output_ending(link, (".npy", ".safetensors")) == ".safetensors"


def test_the_ending_says_the_format_and_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    assert output_ending(tmp_path / "a.NPY", (".npy", ".safetensors")) == ".npy"
    assert output_ending("a.safetensors", (".npy", ".safetensors")) == ".safetensors"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "link.npy").symlink_to("folder.npy")
    (tmp_path / "lost.npy").symlink_to("absent/target.npy")
    for name in ("folder.npy", "link.npy"):
        with pytest.raises(IsADirectoryError, match=name):
            output_ending(tmp_path / name, (".npy",))
    for name in ("absent/a.npy", "lost.npy"):
        with pytest.raises(FileNotFoundError):
            output_ending(tmp_path / name, (".npy",))
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


# -- a model's own files -----------------------------------------------------------------------------------------


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
    write(tmp_path / "other", b"x")
    assert (tmp_path / "other").read_bytes() == b"x"


def test_a_file_that_has_taken_the_place_of_a_model_s_is_no_model_s(tmp_path: Path) -> None:
    path, moved = tmp_path / "path", tmp_path / "moved"
    path.write_bytes(b"weights")
    note_model_file(path)
    path.rename(moved)
    path.write_bytes(b"another")
    write_output(path, b"x")  # what was opened lies elsewhere
    assert path.read_bytes() == b"x" and moved.read_bytes() == b"weights"
    note_model_file(tmp_path / "absent")
    refuse_model_file(tmp_path / "absent")
