"""Several processes that answer at one address, forked after the models are opened: all share their weights.

uvicorn's own workers are started anew, and each would open the models: mapped files are shared so too, but weights that
are converted once (bfloat16) would be there once for each. And a fork that takes the place of another is there at once.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from threading import Thread

from minibert.errors import Option, error_of
from minibert.threads.cores import OURS, cores
from minibert.threads.pool import checked_threads

from .app import Server
from .record import ACCESS, start_logging
from .run import run

ENDING = (signal.SIGTERM, signal.SIGINT)
READY = 0  # what a worker writes among the numbers of signals, and then its own in two bytes
TRIES = 3  # workers that may end one after the other before any of them listens


def check_workers(count: int) -> None:
    """Raises ValueError for less than one, and for more on a system without a fork that is safe beside its BLAS."""
    if count < 1:
        raise error_of(ValueError, Option("workers"), f" must be an integer >= 1, found {count}")
    if count > 1 and sys.platform != "linux":
        raise error_of(ValueError, Option("workers"), f" above 1 is for Linux, found {sys.platform}; leave it out")


def run_workers(
    server: Server,
    listening: socket.socket,
    ready: Callable[[], object],
    count: int,
    threads: int | None = None,
    log_level: str = "warning",
    log_format: str = "text",
) -> bool:
    """Answer requests with `count` processes until SIGTERM or Ctrl-C, as `run` does; say whether all were answered.

    threads: of all workers together, None is as many as there are cores; each gets its share, at least one.
    """
    total = checked_threads(threads) or cores()

    def work(number: int, listens: Callable[[], None]) -> bool:
        os.environ[OURS] = os.environ["RAYON_NUM_THREADS"] = str(max((total + number) // count, 1))
        server.record.begin(number)
        return not run(server, listening, lambda _: listens(), log_level, log_format)

    start_logging(log_level, log_format)
    return _Workers(work, listening).run(count, ready)


class _Workers:
    """The process that starts workers and waits for them. It sleeps until a byte comes: a signal's number, or READY."""

    def __init__(self, work: Callable[[int, Callable[[], None]], bool], listening: socket.socket) -> None:
        self.work, self.listening = work, listening
        self.running: dict[int, int] = {}  # number of a process -> of the worker
        self.coming, self.telling = os.pipe()
        os.set_blocking(self.telling, False)  # as signals need it
        self.parent_ends, self.parent_lives = os.pipe()  # the second end is open in this process alone
        self.ending, self.all_done = False, True
        self.starting: set[int] = set()  # numbers of workers that do not listen yet
        self.failed = 0  # workers in a row that have ended before they listened

    def run(self, count: int, ready: Callable[[], object]) -> bool:
        for each in (*ENDING, signal.SIGCHLD):
            signal.signal(each, lambda *_: None)
        signal.set_wakeup_fd(self.telling)
        gc.freeze()  # the collector of a worker would write to what is shared, and so copy it
        for number in range(count):
            self.start(number)
        told, interrupted = False, False
        while self.running:
            (event,) = os.read(self.coming, 1)
            if event == READY:
                self.starting.discard(int.from_bytes(os.read(self.coming, 2), "big"))
                self.failed = 0
                if not self.starting and not told:
                    told = True
                    ready()
            elif event == signal.SIGCHLD:
                self.reap()
            elif event in ENDING:
                interrupted |= event == signal.SIGINT
                self.end(event)
        if interrupted:
            raise KeyboardInterrupt
        return self.all_done

    def start(self, number: int) -> None:
        """Fork a worker. It gets a signal to end when it can end well, and not before."""
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        process = os.fork()
        if not process:
            self.be_worker(number)
        self.running[process] = number
        self.starting.add(number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    def be_worker(self, number: int) -> None:
        """Answer requests in the forked process, and end it: nothing of its parent's way back is its own."""
        done = False
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setpgid(0, 0)  # a terminal sends Ctrl-C to the whole group, and a second one does not wait
            os.close(self.parent_lives)
            Thread(target=self.end_with_parent, daemon=True).start()
            done = self.work(number, lambda: self.listens(number))
        except BaseException:  # noqa: BLE001  it ends here, whatever it was
            traceback.print_exc()
        finally:
            os._exit(not done)

    def listens(self, number: int) -> None:
        os.write(self.telling, bytes([READY]) + number.to_bytes(2, "big"))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    def end_with_parent(self) -> None:
        os.read(self.parent_ends, 1)  # nothing is written: it returns when the parent has ended, however that was
        os.kill(os.getpid(), signal.SIGTERM)

    def end(self, asked: int) -> None:
        self.ending = True
        self.listening.close()
        for process in self.running:
            os.kill(process, asked)

    def reap(self) -> None:
        """Take note of workers that have ended. Until the end another one takes the place of each, unless the last
        few have ended before they listened: then all end.
        """
        while self.running:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            number = self.running.pop(process, None)
            if number is None:  # a shell's that has become this process, or one that a container's first process gets
                continue
            code = os.waitstatus_to_exitcode(status)
            if self.ending:
                self.all_done &= not code
                continue
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            said = f"worker {number} (process {process}) ended {how}"
            self.failed += number in self.starting
            if self.failed == TRIES:
                ACCESS.error(f"{said}, the last of {TRIES} that ended before they listened; the server ends")
                self.all_done = False
                self.end(signal.SIGTERM)
            else:
                ACCESS.warning(f"{said}; another one takes its place")
                self.start(number)
