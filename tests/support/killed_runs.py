"""Runs of the command line that end early: killed at a file's renaming, or on a full disk.

    code, told = run(["bulk", "texts.txt", "-o", "vectors"], at=3)      code -9, or 0 if it renamed fewer files

One process has imported everything and forks for each run, so that twenty of them take seconds.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

KILLED = -signal.SIGKILL
IMPORTED = (  # some of these take most of a short run
    "filelock", "numpy.ma", "pyarrow.compute", "pyarrow.json", "pyarrow.parquet", "safetensors", "threadpoolctl",
    "tokenizers", "tqdm.auto", "minibert.bulk.job", "minibert.commands.bulk", "minibert.models.encoder",
    "minibert.models.open.load_encoder",
)  # fmt: skip


def run(argv: list[str], at: int = 0, after: bool = False, largest: int | None = None) -> tuple[int | None, str]:
    """Return the exit code and the output.

    It is killed before the renaming `at` of a file, counted from 1, or `after` it; no file gets more than `largest`
    bytes.
    """
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload([*IMPORTED])
    told, telling = forks.Pipe(duplex=False)
    process = forks.Process(target=_child, args=(argv, telling, at, after, largest))
    process.start()
    telling.close()
    with told, open(told.fileno(), errors="replace", closefd=False) as pipe:
        text = pipe.read()
    process.join()
    return process.exitcode, text


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _child(argv: list[str], telling: Connection, at: int, after: bool, largest: int | None) -> None:
    from minibert.cli import main

    os.dup2(telling.fileno(), 2)
    os.dup2(telling.fileno(), 1)
    if largest is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    replace, count = Path.replace, 0

    def killed(self: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        made = replace(self, target) if after or count != at else self
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    Path.replace = killed  # type: ignore[method-assign, assignment]
    sys.exit(main(argv))
