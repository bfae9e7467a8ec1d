"""A run that ends early, however it ends, is continued to the same bytes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from command_line import Printed, failure, ran
from killed_runs import KILLED, Runs, content, whole_shards
from many_texts import many_texts

from minibert.bulk.shards import ShardFolder
from minibert.cli import INTERRUPTED, main
from minibert.threads import pool

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="each run is a fork")

KILLS, BETWEEN = 20, 5


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    with Runs() as made:
        yield made


def texts_file(path: Path, count: int) -> Path:
    """Rows, some of them bad, all short."""
    texts = [" ".join(text.split())[:60] for text in many_texts(count, seed=1)]
    rows = [{"id": i, "text": None if i % 37 == 5 else text} for i, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def command(model: Path, source: Path, *more: str) -> list[str]:
    return ["bulk", str(source), "-m", str(model), "--truncate", "--bad-rows", "skip", *more]


@pytest.mark.parametrize(
    ("vectors", "form", "precision"), [("input", "npy", "int8"), ("sentence", "parquet", "float32")]
)
def test_killed_at_twenty_moments(
    vectors: str, form: str, precision: str, runs: Runs, model: Path, tmp_path: Path
) -> None:
    """At random moments: each folder that is finished in the end is equal to one of a run that was not killed.

    It ends when twenty runs were really killed, and at five numbers of shards at least between none and all.
    """
    argv = command(model, texts_file(tmp_path / "a.jsonl", 240), "--vectors", vectors, "--format", form)
    argv += ["--rows-per-shard", "12", "--precision", precision, "-o"]
    began = time.monotonic()
    assert runs.run([*argv, str(tmp_path / "whole")])[0] == 0
    seconds, whole = time.monotonic() - began, content(tmp_path / "whole")
    shards = whole_shards(tmp_path / "whole")
    random, seen, folder = Random(shards), list[int](), tmp_path / "killed"
    while len(seen) < KILLS or len({count for count in seen if 0 < count < shards}) < BETWEEN:
        assert len(seen) < 10 * KILLS, seen
        code, told = runs.run([*argv, str(folder)], random.uniform(0, seconds))
        if code == KILLED:
            seen.append(whole_shards(folder))
            seconds *= 1.1 if not seen[-1] else 1  # the machine has become slower
            continue
        assert code == 0 and content(folder) == whole, told
        shutil.rmtree(folder)
        seconds *= 0.9
    code, told = runs.run([*argv, str(folder)])
    assert code == 0 and content(folder) == whole, told


@pytest.mark.usefixtures("heard")
def test_ctrl_c(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a shard is written: it is still written, the run ends as a shell expects, and goes on later."""
    argv = command(model, texts_file(tmp_path / "a.jsonl", 400), "--rows-per-shard", "20", "--vectors", "input", "-o")
    assert main([*argv, str(tmp_path / "whole")]) == 0
    folder, add = tmp_path / "folder", ShardFolder.add

    def pressed(self: ShardFolder, *given: Any) -> None:
        if len(self.shards) == at:
            os.kill(os.getpid(), signal.SIGINT)
        add(self, *given)

    for at in (0, 3):  # the first run of the folder, and one that continues it
        with monkeypatch.context() as change:
            change.setattr(ShardFolder, "add", pressed)
            assert main([*argv, str(folder)]) == INTERRUPTED
        assert at < whole_shards(folder) < 20 and not list(folder.glob(".[!l]*"))
    assert main([*argv, str(folder)]) == 0
    assert content(folder) == content(tmp_path / "whole")


@pytest.mark.parametrize("at", ["start", "wait"])
def test_a_write_under_way_is_waited_for_after_ctrl_c(at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the folder would be unlocked while something is written into it: Ctrl-C comes while a job starts, or later.

    On a busy machine a new thread may run long before the call that starts it returns.
    """
    ended: list[int] = []

    def interrupted(*given: Any) -> None:
        monkeypatch.undo()
        if at == "start":
            pool._Pool.start(*given)
        raise KeyboardInterrupt

    def work(number: int) -> None:
        time.sleep(0.05)
        ended.append(number)

    def write() -> None:
        with pool.behind(work) as submit:
            submit(1)
            submit(2)

    monkeypatch.setattr(*((pool._Pool, "start") if at == "start" else (pool.Job, "wait")), interrupted)
    with pytest.raises(KeyboardInterrupt):
        write()
    assert ended == [1]


# -- a full disk -----------------------------------------------------------------------------------------------------


def test_a_disk_that_fails_at_any_write(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Printed
) -> None:
    """Each time that something is to be on the disk, there is no room: the error says so, and the next run goes on."""
    source, whole = texts_file(tmp_path / "a.jsonl", 90), tmp_path / "whole"
    argv = command(model, source, "--vectors", "input", "--format", "npy", "--rows-per-shard", "30", "-o")
    real, calls, full_at = os.fsync, [0], [-1]

    def fsync(file: int) -> None:
        calls[0] += 1
        if calls[0] == full_at[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    ran(capsys, *argv, whole)
    count = calls[0]
    # the folder; meta.json twice; ids, vectors, bad rows and the line of each shard; the folder after a file that is
    # new in it
    assert count == 1 + 2 * 2 + 3 * (2 * 2 + 2) + 2
    for full_at[0] in range(1, count + 1):
        calls[0], folder = 0, tmp_path / f"full{full_at[0]}"
        message = failure(capsys, *argv, folder)
        assert str(folder) in message and "No space left on device" in message
        assert "same command goes on" in message or full_at[0] in (1, 2, 3, count - 1, count)
        full_at[0] = -1
        ran(capsys, *argv, folder)
        assert content(folder) == content(whole)


@pytest.mark.parametrize("form", ["parquet", "npy"])
def test_files_that_may_not_grow(form: str, runs: Runs, model: Path, tmp_path: Path) -> None:
    """The system itself takes a part of a line, and no more."""
    source = texts_file(tmp_path / "a.jsonl", 240)
    argv = command(model, source, "--vectors", "input", "--format", form, "--rows-per-shard", "12", "-o")
    assert runs.run([*argv, str(tmp_path / "whole")])[0] == 0
    for largest in (50, 700, 950, 1500, 2000):  # vectors have 896 bytes as npy, about 1,700 as Parquet
        folder = tmp_path / str(largest)
        code, told = runs.run([*argv, str(folder)], largest=largest)
        assert code == 1 and "File too large" in told and told.count("\n") == 1, told
        lines = (folder / "shards.jsonl").read_bytes() if (folder / "shards.jsonl").exists() else b""
        assert not lines or lines.endswith(b"\n")
        code, told = runs.run([*argv, str(folder)])
        assert (code, content(folder)) == (0, content(tmp_path / "whole")), told
