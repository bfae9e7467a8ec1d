"""The threads that help: stopping waits for no pipe, no process hangs, and without threads all is done too."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from limits import CHILD_SECONDS
from reference_files import REFERENCE

from minibert.threads import computing, pool
from minibert.threads.pool import behind, parallel_for, prefetch

MODEL = REFERENCE / "sentences-dense"


def script(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run it in a process of its own, which must end by itself."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=CHILD_SECONDS
    )


def all_idle() -> None:
    """Wait until no thread of the pool has a job."""
    while len(pool._pool._idle) < pool._pool._count:
        time.sleep(0.001)


# -- without a thread, and with too many jobs --------------------------------------------------------------------------


def fails(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


@pytest.fixture(params=["none can be started", "all are taken"])
def no_thread(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_pool", pool._Pool())
    if request.param == "all are taken":
        monkeypatch.setattr(pool, "MOST_THREADS", 0)
    else:
        monkeypatch.setattr(threading.Thread, "start", fails)


@pytest.mark.usefixtures("no_thread")
def test_a_waiting_caller_does_what_no_thread_does() -> None:
    done: list[int] = []
    parallel_for(done.append, range(5), 3)
    assert sorted(done) == [0, 1, 2, 3, 4]
    assert list(prefetch(str, range(5), at_once=True)) == ["0", "1", "2", "3", "4"]
    with behind(done.append) as write:
        write(5)
        write(6)
    assert done[5:] == [5, 6]


def test_a_thread_that_could_not_be_started_takes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MOST_THREADS", 1)
    monkeypatch.setattr(pool, "_pool", pool._Pool())
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", fails)
        parallel_for(str, range(2), 2)
    together = threading.Barrier(2)
    parallel_for(lambda _: together.wait(), range(2), 2)


def test_threads_are_used_again_and_are_no_more_than_jobs_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    start = threading.Thread.start

    def counted(self: threading.Thread) -> None:
        started.append(self.name)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", counted)
    monkeypatch.setattr(pool, "_pool", pool._Pool())
    for _ in range(50):
        together = threading.Barrier(3)  # which three at once pass, and no fewer
        parallel_for(lambda _, together=together: together.wait(), range(3), 3)
        all_idle()
    assert len(started) == 2


def test_no_more_jobs_than_blocks() -> None:
    """A user may set MINIBERT_THREADS=1000000."""
    done: list[int] = []
    with mock.patch.object(pool, "_started", side_effect=pool._started) as started:
        parallel_for(done.append, range(3), 1_000_000)
    assert sorted(done) == [0, 1, 2] and started.call_count == 2  # the caller takes part


# -- stopping early -----------------------------------------------------------------------------------------------


def test_stopping_waits_for_no_key_that_is_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_pool", pool._Pool())
    reading, goes_on, made = threading.Event(), threading.Event(), list[int]()

    def keys() -> Iterator[int]:
        yield 0
        reading.set()
        goes_on.wait()
        yield 1

    def make(key: int) -> int:
        made.append(key)
        return key

    found = prefetch(make, keys(), at_once=True)
    assert next(found) == 0
    assert reading.wait()
    found.close()  # type: ignore[attr-defined]  # a generator
    assert not goes_on.is_set()
    goes_on.set()
    all_idle()
    assert made == [0]  # what comes afterwards is left


def test_stopping_waits_for_what_is_being_made() -> None:
    begun, goes_on, ended = threading.Event(), threading.Event(), list[int]()

    def make(key: int) -> int:
        if key:
            begun.set()
            goes_on.wait()
        ended.append(key)
        return key

    found = prefetch(make, [0, 1], at_once=True)
    assert next(found) == 0
    begun.wait()
    closer = threading.Thread(target=found.close)  # type: ignore[attr-defined]  # a generator
    closer.start()
    closer.join(0.05)
    assert closer.is_alive()
    goes_on.set()
    closer.join()
    assert ended == [0, 1]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_ctrl_c_waits_for_nothing_and_another_error_for_what_is_under_way(error: type[BaseException]) -> None:
    main, began, goes_on, ended = threading.get_ident(), threading.Event(), threading.Event(), list[int]()

    def work(block: int) -> None:
        if threading.get_ident() == main:
            began.wait()
            if error is ValueError:
                threading.Timer(0.05, goes_on.set).start()
            raise error
        began.set()
        goes_on.wait()
        ended.append(block)

    with pytest.raises(error):
        parallel_for(work, range(9), 2)
    assert ended == ([8] if error is ValueError else [])  # and no further one was begun
    goes_on.set()


def test_ctrl_c_leaves_no_lock_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Condition.__enter__` has its lock a step before its `with` statement knows: none of ours is used so."""
    monkeypatch.setattr(pool, "_pool", pool._Pool())
    enter, together = threading.Condition.__enter__, threading.Barrier(6)
    parallel_for(lambda _: together.wait(), range(6), 6)  # so that no thread is to be started
    all_idle()

    def used(condition: threading.Condition) -> Any:
        if threading.current_thread().name.startswith(("MainThread", "minibert_")):
            pytest.fail("a Condition's lock is taken by its own `with`")
        return enter(condition)

    monkeypatch.setattr(threading.Condition, "__enter__", used)
    assert list(prefetch(str, range(3), at_once=True)) == ["0", "1", "2"]
    all_idle()
    computing.compute(str, range(3), 2)
    all_idle()
    with behind(str) as submit:
        submit(1)
        submit(2)


def test_an_error_of_a_helper_reaches_the_caller() -> None:
    main, both = threading.get_ident(), threading.Barrier(2)

    def work(block: int) -> None:
        both.wait()
        if threading.get_ident() != main:
            raise ValueError("a helper's")

    with pytest.raises(ValueError, match="a helper's"):
        parallel_for(work, range(2), 2)


def test_an_error_comes_after_what_was_made_before_it() -> None:
    found = prefetch(lambda key: 1 // key, [1, 1, 0, 1], at_once=True)
    assert [next(found), next(found)] == [1, 1]
    with pytest.raises(ZeroDivisionError):
        next(found)
    assert list(found) == []


# -- at a process's beginning and end --------------------------------------------------------------------------------

PRESSED_WHILE_A_THREAD_STARTS = """
import os, signal, sys, threading
from minibert.threads.pool import behind, prefetch, parallel_for
signal.signal(signal.SIGINT, signal.default_int_handler)
start = threading.Thread.start
def pressed(self):
    start(self)
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000): pass
threading.Thread.start = pressed
def write():
    with behind(print) as submit:
        submit("x")
def many():
    parallel_for(lambda _: None, range(9), 3)
try:
    {"parallel_for": many, "ahead": lambda: list(prefetch(str, "abc", True)), "behind": write}[sys.argv[1]]()
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal of POSIX")
@pytest.mark.parametrize("way", ["parallel_for", "ahead", "behind"])
def test_ctrl_c_while_the_first_thread_starts(way: str) -> None:
    assert script(PRESSED_WHILE_A_THREAD_STARTS, way).returncode == 130


AFTER_THE_MAIN_THREAD = """
import itertools, sys, threading, minibert
encoder, texts = minibert.load_encoder(sys.argv[1]), [*map(" ".join, itertools.product(["we", "lived"], repeat=10))]
def work():
    threading.main_thread().join()
    print(encoder.encode(texts).shape)
threading.Thread(target=work).start()
"""


def test_a_thread_encodes_after_the_main_one_has_ended() -> None:
    done = script(AFTER_THE_MAIN_THREAD, MODEL)
    assert (done.stdout, done.stderr) == ("(1024, 6)\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_threads_and_slots_of_its_own() -> None:
    parallel_for(str, range(3), 3)
    made = pool._pool, computing._work
    child = os.fork()
    if not child:
        new = pool._pool is not made[0] and computing._work is not made[1]
        together = threading.Barrier(2)
        computing.compute(lambda _: together.wait(), range(2), 2)  # on threads that are there
        os._exit(0 if new else 7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert made == (pool._pool, computing._work)


def test_helping_threads_have_the_callers_errstate() -> None:
    """Both threads take a block, since each waits for the other."""
    met = threading.Barrier(2)
    seen: list[tuple[int, str]] = []

    def work(_: int) -> None:
        met.wait()
        seen.append((threading.get_ident(), np.geterr()["over"]))

    for over in ("ignore", "raise"):
        seen.clear()
        with np.errstate(over=over):
            parallel_for(work, range(2), 2)
        assert len(dict(seen)) == 2 and {each for _, each in seen} == {over}
