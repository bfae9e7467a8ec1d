"""A run that ends early, however it ends, is continued to the same bytes; what is not its folder it leaves alone."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import Patch, Printed, failure, ran
from killed_runs import KILLED, Runs, content
from many_texts import many_texts

from minibert.bulk import job

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="each run is a fork")

ROWS, SHARD = 48, 12


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    with Runs() as made:
        yield made


@pytest.fixture(scope="module")
def source(place: Path) -> Path:
    """Rows, some of them bad, two at a shard's end; all short."""
    texts = [" ".join(text.split())[:60] for text in many_texts(ROWS, seed=1)]
    rows = [{"id": i, "text": None if i in (5, 22, 23, 42) else text} for i, text in enumerate(texts)]
    path = place / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def command(model: Path, source: Path, *more: object) -> list[str]:
    skip = ["--bad-rows", "skip", "--rows-per-shard", SHARD]
    return [*map(str, ["bulk", source, "-m", model, *skip, *more, "-o"])]


@pytest.mark.parametrize(("form", "precision"), [("arrow", "int8"), ("parquet", "float32")])
def test_killed_at_each_renaming(
    form: str, precision: str, runs: Runs, model: Path, source: Path, tmp_path: Path
) -> None:
    """Before a shard gets its name and after it, and at each of the runs that go on in one folder."""
    argv = command(model, source, "--format", form, "--precision", precision)
    assert runs.run([*argv, str(tmp_path / "whole")])[0] == 0
    whole = content(tmp_path / "whole")
    assert set(whole) == {f"vectors-{i:05}.{form}" for i in range(ROWS // SHARD)}
    for at in range(1, len(whole) + 1):
        for after in (False, True):
            folder = tmp_path / f"{at}{after}"
            assert runs.run([*argv, str(folder)], at, after)[0] == KILLED
            assert len(list(folder.glob("vectors-*"))) == at - (not after)
            code, told = runs.run([*argv, str(folder)])
            assert code == 0 and content(folder) == whole, told
    folder = tmp_path / "often"
    for count in range(1, len(whole) + 1):  # each run gets one shard further
        assert runs.run([*argv, str(folder)], 1)[0] == runs.run([*argv, str(folder)], 1, True)[0] == KILLED
        assert len(list(folder.glob("vectors-*"))) == count
    assert runs.run([*argv, str(folder)])[0] == 0 and content(folder) == whole


# -- a full disk -----------------------------------------------------------------------------------------------------


def test_a_disk_that_fails_at_any_write(
    model: Path, source: Path, tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    """Each time that something is to be on the disk, there is no room: the error says so, and the next run goes on."""
    argv, whole = command(model, source), tmp_path / "whole"
    real, calls, full_at = os.fsync, [0], [-1]

    def fsync(file: int) -> None:
        calls[0] += 1
        if calls[0] == full_at[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    ran(capsys, *argv, whole)
    count = calls[0]
    assert count == 1 + 2 * ROWS // SHARD  # the folder; each shard, and its name
    for full_at[0] in range(1, count + 1):
        calls[0], folder = 0, tmp_path / f"full{full_at[0]}"
        message = failure(capsys, *argv, folder)
        assert str(folder) in message and "No space left on device" in message
        assert full_at[0] == 1 or "the shards before it are complete" in message
        full_at[0] = -1
        ran(capsys, *argv, folder)
        assert content(folder) == content(whole)


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_files_that_may_not_grow(form: str, runs: Runs, model: Path, source: Path, tmp_path: Path) -> None:
    """The system itself takes a part of a file, and no more."""
    argv = command(model, source, "--format", form)
    assert runs.run([*argv, str(tmp_path / "whole")])[0] == 0
    for largest in (0, 50, 2000, 4000):  # a shard has about 5 kB
        folder = tmp_path / str(largest)
        code, told = runs.run([*argv, str(folder)], largest=largest)
        assert code == 1 and "File too large" in told and told.count("\n") == 1, told
        assert not list(folder.iterdir())
        code, told = runs.run([*argv, str(folder)])
        assert (code, content(folder)) == (0, content(tmp_path / "whole")), told


# -- a folder that is not this run's any more ------------------------------------------------------------------------


def moved(folder: Path, other: Path) -> None:
    folder.rename(other)


def deleted(folder: Path, other: Path) -> None:
    shutil.rmtree(folder)


def finished(folder: Path, other: Path) -> None:
    """Another job's finished folder takes its place."""
    folder.rename(other)
    shutil.copytree(folder.with_name("finished"), folder)


def begun(folder: Path, other: Path) -> None:
    """Another job begins at the same path, and has its lock."""
    finished(folder, other)
    (folder / job.LOCK).touch()


@pytest.mark.parametrize("late", [False, True], ids=["before a shard", "before its renaming"])
@pytest.mark.parametrize("change", [moved, deleted, finished, begun])
def test_a_folder_that_is_taken_away(
    change: Callable[[Path, Path], None], late: bool, model: Path, source: Path, tmp_path: Path, monkeypatch: Patch,
    capsys: Printed,
) -> None:  # fmt: skip
    """The run stops with an error at the next shard, and what stands at the path then is left as it was."""
    argv, folder, other = command(model, source), tmp_path / "out", tmp_path / "other"
    ran(capsys, *argv, tmp_path / "finished", "--same-bits")
    ran(capsys, *argv, tmp_path / "whole")
    write, before = job.write_shard, dict[str, bytes]()

    def taken(path: Path, table: Any, about: Any, check: Any) -> Any:
        def act() -> None:
            change(folder, other)
            before.update(content(folder) if folder.exists() else {})

        if path.stem.endswith("2"):
            if late:
                return write(path, table, about, lambda: (check(), act())[0])
            act()
        return write(path, table, about, check)

    monkeypatch.setattr(job, "write_shard", taken)
    message = failure(capsys, *argv, folder)
    assert str(folder) in message and "moved or deleted while this run wrote" in message
    assert (content(folder) if folder.exists() else {}) == before
    monkeypatch.undo()
    if other.exists():  # put back, it goes on
        shutil.rmtree(folder, ignore_errors=True)
        other.rename(folder)
        ran(capsys, *argv, folder)
        assert content(folder) == content(tmp_path / "whole")


def test_two_runs_in_one_folder(model: Path, source: Path, tmp_path: Path, capsys: Printed) -> None:
    argv, folder = command(model, source), tmp_path / "out"
    with job.locked(folder):
        assert "another run is writing into this folder" in failure(capsys, *argv, folder)
    assert not list(folder.iterdir())
    ran(capsys, *argv, folder)
