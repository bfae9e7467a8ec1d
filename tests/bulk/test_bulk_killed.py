"""A run that ends early, however it ends, is continued to the same bytes; what is not its folder it leaves alone."""

from __future__ import annotations

import errno
import os
import shutil
from itertools import chain, product, repeat
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from command_line import Patch, Printed, failure, ran
from killed_runs import KILLED, content, run
from many_texts import many_texts
from record_files import jsonl

from minibert.bulk import job

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="each run is a fork")

ROWS, SHARD = 48, 12


@pytest.fixture(scope="module")
def source(place: Path) -> Path:
    """Rows, some of them bad, two at a shard's end; all short."""
    texts = [" ".join(text.split())[:60] for text in many_texts(ROWS, seed=1)]
    rows = [{"id": i, "text": None if i in (5, 22, 23, 42) else text} for i, text in enumerate(texts)]
    return jsonl(place / "a.jsonl", rows)


def command(model: Path, source: Path, *more: object) -> list[str]:
    skip = ["--bad-rows", "skip", "--rows-per-shard", SHARD]
    return [*map(str, ["bulk", source, "-m", model, *skip, *more, "-o"])]


@pytest.mark.parametrize(("form", "precision"), [("arrow", "int8"), ("parquet", "float32")])
def test_killed_at_each_renaming_and_where_no_file_may_grow(
    form: str, precision: str, model: Path, source: Path, tmp_path: Path
) -> None:
    """Before a shard gets its name and after it; and the system itself takes a part of a file, and no more."""
    argv = command(model, source, "--format", form, "--precision", precision)
    assert run([*argv, str(tmp_path / "whole")])[0] == 0
    whole = content(tmp_path / "whole")
    assert set(whole) == {f"vectors-{i:05}.{form}" for i in range(ROWS // SHARD)}
    often = str(tmp_path / "often")
    for at, after in product(range(1, len(whole) + 1), (False, True)):
        folder = tmp_path / f"{at}{after}"
        assert run([*argv, str(folder)], at, after)[0] == run([*argv, often], 1, after)[0] == KILLED
        # each of the runs that go on in one folder gets one shard further
        assert len(list(folder.glob("vectors-*"))) == len(list(Path(often).glob("vectors-*"))) == at - (not after)
        code, told = run([*argv, str(folder)])
        assert code == 0 and content(folder) == whole, told
    assert run([*argv, often])[0] == 0 and content(Path(often)) == whole
    for largest in (0, 50, 2000, 4000):  # a shard has about 5 kB
        folder = tmp_path / str(largest)
        code, told = run([*argv, str(folder)], largest=largest)
        assert code == 1 and "File too large" in told and told.count("\n") == 1, told
        assert not list(folder.iterdir())
        code, told = run([*argv, str(folder)])
        assert (code, content(folder)) == (0, whole), told


def test_a_full_disk(model: Path, source: Path, tmp_path: Path, capsys: Printed) -> None:
    """Each time that something is to be on the disk, there is no room: the error says so, and the next run goes on."""
    argv, whole, full = command(model, source), tmp_path / "whole", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with mock.patch.object(os, "fsync") as synced:
        ran(capsys, *argv, whole)
    assert synced.call_count == 1 + 2 * ROWS // SHARD  # the folder; each shard, and its name
    for before in range(synced.call_count):
        folder = tmp_path / f"full{before}"
        with mock.patch.object(os, "fsync", side_effect=chain([None] * before, [full], repeat(None))):
            message = failure(capsys, *argv, folder)
        assert str(folder) in message and "No space left on device" in message
        assert before == 0 or "the shards before it are complete" in message
        ran(capsys, *argv, folder)
        assert content(folder) == content(whole)


@pytest.mark.parametrize("late", [False, True], ids=["before a shard", "before its renaming"])
@pytest.mark.parametrize("change", ["moved", "deleted", "another finished", "another begun"])
def test_a_folder_that_is_taken_away(
    change: str, late: bool, model: Path, source: Path, tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    """The run stops with an error at the next shard, and what stands at the path then is left as it was."""
    argv, folder, other = command(model, source), tmp_path / "out", tmp_path / "other"
    ran(capsys, *argv, tmp_path / "finished", "--same-bits")
    ran(capsys, *argv, tmp_path / "whole")
    write, before = job.write_shard, dict[str, bytes]()

    def taken(path: Path, table: Any, about: Any, check: Any) -> Any:
        def act() -> None:
            shutil.rmtree(folder) if change == "deleted" else folder.rename(other)
            if "another" in change:  # job at the same path; the one that begins has its lock
                shutil.copytree(tmp_path / "finished", folder)
                if "begun" in change:
                    (folder / job.LOCK).touch()
                before.update(content(folder))

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
