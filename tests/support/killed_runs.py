"""Runs of the command line that end early: killed at a file's renaming, or on a full disk.

    with Runs() as runs:
        code, told = runs.run(["bulk", "texts.txt", "-o", "vectors"], at=3)      code -9, or 0 if it renamed fewer files

One process has imported everything and forks for each run, so that twenty of them take seconds.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

KILLED = -signal.SIGKILL


class Runs:
    def __enter__(self) -> Runs:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, __file__], stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout is not None and self.process.stdout.readline() == "ready\n"
        return self

    def run(self, argv: list[str], at: int = 0, after: bool = False, largest: int | None = None) -> tuple[int, str]:
        """Return the exit code and the output.

        It is killed before the renaming `at` of a file, counted from 1, or `after` it; no file gets more than `largest`
        bytes.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([argv, at, after, largest]) + "\n")
        self.process.stdin.flush()
        code, told = json.loads(self.process.stdout.readline())
        return code, told

    def __exit__(self, *_: object) -> None:
        self.process.communicate()


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _run(argv: list[str], at: int, after: bool, largest: int | None) -> list[Any]:
    told, telling = os.pipe()
    process = os.fork()
    if not process:
        _child(argv, telling, at, after, largest)
    os.close(telling)
    with open(told, errors="replace") as pipe:
        text = pipe.read()
    _, status = os.waitpid(process, 0)
    return [os.waitstatus_to_exitcode(status), text]


def _child(argv: list[str], told: int, at: int, after: bool, largest: int | None) -> None:
    from minibert.cli import main

    os.dup2(told, 2)
    os.dup2(told, 1)
    if largest is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
    replace, count = Path.replace, 0

    def killed(self: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count == at and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        made = replace(self, target)
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    Path.replace = killed  # type: ignore[method-assign, assignment]
    os._exit(main(argv))


def _serve() -> None:
    import filelock  # noqa: F401
    import numpy.ma  # noqa: F401  this and pyarrow.compute take most of a short run
    import pyarrow.compute
    import pyarrow.json
    import pyarrow.parquet  # noqa: F401
    import safetensors  # noqa: F401
    import threadpoolctl  # noqa: F401
    import tokenizers  # noqa: F401
    import tqdm.auto  # noqa: F401

    import minibert.bulk.job
    import minibert.commands.bulk
    import minibert.models.encoder
    import minibert.models.open.load_encoder  # noqa: F401

    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(_run(*json.loads(line))), flush=True)


if __name__ == "__main__":
    _serve()
