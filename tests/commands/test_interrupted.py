"""Ctrl-C: one ends every command, with the code that a shell expects, and nothing half-written stays."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from command_line import SMALL_GPT2, Patch, Printed
from fake_hub import FakeHub, environment, files_of, silent
from limits import CHILD_SECONDS, until
from reference_files import REFERENCE
from served import Address

from minibert.cli import INTERRUPTED, main
from minibert.commands import explain

posix = pytest.mark.skipif(sys.platform == "win32", reason="sends a signal of POSIX")
pytestmark = [posix, pytest.mark.usefixtures("heard")]
MODEL = REFERENCE / "sentences-dense"


def _runs(monkeypatch: Patch, run: Callable[[Any], Any]) -> None:
    """Let `minibert info` call this function."""
    monkeypatch.setitem(explain.COMMANDS, "info", explain.COMMANDS["info"]._replace(run=run))


def test_an_error_that_a_library_makes_of_it(monkeypatch: Patch, capsys: Printed) -> None:
    """As "numpy._core.multiarray failed to import", which is C code's word for any error while NumPy is imported."""

    def run(arguments: Any) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(CHILD_SECONDS)
        except KeyboardInterrupt:
            raise ImportError("numpy._core.multiarray failed to import") from None

    _runs(monkeypatch, run)
    assert main(["info"]) == INTERRUPTED
    assert capsys.readouterr() == ("", "")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_handler_of_another_program_stays(monkeypatch: Patch) -> None:
    seen: list[Any] = []
    _runs(monkeypatch, lambda arguments: seen.append(signal.getsignal(signal.SIGINT)))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert main(["info"]) == 0 and seen == [signal.SIG_IGN]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    other = threading.Thread(target=main, args=(["info"],))  # where no handler can be set
    other.start()
    other.join(CHILD_SECONDS)
    assert seen[1:] == [signal.default_int_handler]


WRITERS = [
    "embed we -o a.npy", "encode we -o a.safetensors", "explain we --html a.html", "extract -o a", "distill -o a",
    "plot rows -o a.svg", "verify --save a.safetensors", "bulk texts.txt -o a",
]  # fmt: skip


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("command", WRITERS)
def test_while_a_file_is_named(
    command: str, number: int, code: int, tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("we lived\n")
    pressed: list[str] = []
    moved = Path.replace

    def replace(self: Path, target: Path) -> None:
        pressed.append(self.name)
        os.kill(os.getpid(), number)
        if threading.current_thread() is threading.main_thread():
            threading.Event().wait(CHILD_SECONDS)
            raise AssertionError("no KeyboardInterrupt")
        moved(self, target)  # bulk's writer may be another thread, which is waited for

    monkeypatch.setattr(Path, "replace", replace)
    assert main([*command.split(), "-m", str(MODEL)]) == code
    assert len(pressed) == 1 and "Traceback" not in capsys.readouterr().err
    whole = ("texts.txt", "a", "vectors-00000.arrow")
    assert [path.name for path in tmp_path.rglob("*") if path.name not in whole] == []
    assert not (tmp_path / "a").is_file()


@contextmanager
def started(*argv: str, stdin: str = "", **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a command; its stdin holds this and stays open."""
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a child may hear none
    code += "import sys; from minibert.cli import main; sys.exit(main(sys.argv[1:]))"
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", code, *argv], text=True, **pipes, **options) as process:
        try:
            process.stdin.write(stdin)
            process.stdin.flush()
            yield process
        finally:
            process.kill()


def asleep(process: subprocess.Popen[str]) -> bool:
    """Whether its main thread reads a pipe, or waits for the thread that does, where the system says so.

    A signal just before Python's read begins is seen only when the read ends.
    """
    reads = "pipe_read", "anon_pipe_read", "pipe_wait"  # the last one before Linux 5.5
    at = {path.parent.name: path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/wchan")}
    return not at or (at[str(process.pid)].startswith((*reads, "futex")) and not {*reads}.isdisjoint(at.values()))


def interrupted(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Send the signal, and give the exit code and stderr; the pipe to its stdin stays open until then."""
    process.send_signal(signal.SIGINT)
    return process.wait(CHILD_SECONDS), process.stderr.read()


@pytest.mark.parametrize("rows", [1, 30])
def test_bulk_at_an_idle_pipe(rows: int, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = "bulk", "-o", str(out), "-m", str(MODEL), "--rows-per-shard", "10"
    with started(*command, stdin="we lived\n" * rows) as process:
        shards = (rows - 1) // 10  # the last one is written when a row behind it has come

        def has_read() -> bool:
            """Whether the shards are there, the folder is locked, after which lines are read, and one is waited for."""
            import fcntl
            import termios

            there = len(list(out.glob("vectors-*"))) >= shards and (out / ".lock").exists()
            return there and not any(fcntl.ioctl(process.stdin, termios.FIONREAD, bytes(4))) and asleep(process)

        until(has_read, process)
        told = f"minibert: stopped: {out} keeps {shards * 10} rows, and the same command continues after them\n"
        assert interrupted(process) == (INTERRUPTED, told)
    assert not list(out.glob(".*"))


@pytest.mark.parametrize("command", ["embed", "encode"])
def test_a_line_at_a_time(command: str) -> None:
    with started(command, "-m", str(MODEL), stdin="we lived\n") as process:
        assert select.select([process.stdout], [], [], CHILD_SECONDS)[0]  # it has answered
        until(lambda: asleep(process), process)  # it waits again
        assert interrupted(process) == (INTERRUPTED, "")


def test_a_silent_hub(tmp_path: Path) -> None:
    with FakeHub() as hub:
        hub.add("org/model", files_of(MODEL))
        hub.misbehave("safetensors", silent)
        with started("embed", "we lived", "-m", "org/model", env=environment(hub.endpoint, tmp_path)) as process:
            until(lambda: len(hub.asked("safetensors")) > 0, process)
            assert interrupted(process)[0] == INTERRUPTED


def test_the_page_that_computes_says_where_it_is_and_ctrl_c_ends_it() -> None:
    with started("explain", "--live", "--no-browser", "-m", SMALL_GPT2, "beautifu") as process:
        line = process.stderr.readline()
        found = re.fullmatch(r"minibert: http://127\.0\.0\.1:(\d+)(/\?token=[\w-]{20,})  Ctrl-C ends it\n", line)
        assert found, line
        page = Address(int(found[1])).ask(found[2])
        assert page.status == 200 and b"beautifu" in page.body
        assert interrupted(process) == (INTERRUPTED, "") and process.stdout.read() == ""
