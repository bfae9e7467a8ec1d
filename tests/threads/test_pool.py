"""The threads that help: Ctrl-C may come anywhere, stopping waits for no pipe, and without threads all is done too."""

from __future__ import annotations

import subprocess
import sys
import threading
from queue import SimpleQueue
from typing import Any
from unittest import mock

import numpy as np
import pytest
from limits import CHILD_SECONDS
from reference_files import REFERENCE

import minibert
from minibert.threads import pool
from minibert.threads.pool import parallel_for, prefetch

MODEL = REFERENCE / "sentences-dense"


def said(code: str, *arguments: object) -> tuple[str, str, int]:
    """Run it in a process of its own, which must end by itself: its stdout, stderr and exit code."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_SECONDS)
    return done.stdout, done.stderr, done.returncode


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "start_new_thread", mock.Mock(side_effect=RuntimeError("can't start new thread")))


@pytest.mark.usefixtures("no_thread")
def test_a_waiting_caller_does_what_no_thread_does() -> None:
    done: list[int] = []
    parallel_for(done.append, range(5), 3)
    assert sorted(done) == [0, 1, 2, 3, 4]
    assert list(prefetch(map(str, range(5)), at_once=True)) == ["0", "1", "2", "3", "4"]


def test_no_more_threads_than_blocks_and_none_for_a_single_text() -> None:
    """A user may set MINIBERT_THREADS=1000000."""
    done: list[int] = []
    with mock.patch.object(pool, "start_new_thread", side_effect=pool.start_new_thread) as started:
        parallel_for(done.append, range(3), 1_000_000)
        assert sorted(done) == [0, 1, 2] and started.call_count == 2  # the caller takes part
        with minibert.load_encoder(MODEL, threads=1) as encoder:
            encoder.encode("we lived", threads=2)
        assert started.call_count == 2
        parallel_for(str, range(1000), 1_000_000)
    assert started.call_count == 2 + pool.MOST_THREADS - 1


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """It is set once the caller has computed its blocks and waits for a helper."""
    begun = threading.Event()

    class Ended(SimpleQueue[None]):
        def get(self, block: bool = True, timeout: float | None = None) -> None:
            begun.set()
            super().get(block, timeout)

    monkeypatch.setattr(pool, "SimpleQueue", Ended)
    return begun


def test_an_error_waits_for_what_is_under_way_and_begins_no_more(waits: threading.Event) -> None:
    """Ctrl-C and a `prefetch` that is closed wait for nothing: WITH_HELPERS_THAT_WAIT."""
    main, began, ended = threading.get_ident(), threading.Event(), list[int]()

    def work(block: int) -> None:
        if threading.get_ident() == main:
            began.wait()
            raise ValueError
        began.set()
        waits.wait(CHILD_SECONDS)
        ended.append(block)

    with pytest.raises(ValueError):
        parallel_for(work, range(9), 2)
    assert ended == [8]


def test_a_late_helper_ends_no_wait_for_another(monkeypatch: pytest.MonkeyPatch, waits: threading.Event) -> None:
    """The second helper begins while the caller waits for the block of the first."""
    main, start, late = threading.get_ident(), pool.start_new_thread, list[Any]()
    begun, returned, done = threading.Event(), threading.Event(), list[int]()
    started = lambda *given: late.append(given) if begun.is_set() else start(*given)  # noqa: E731
    monkeypatch.setattr(pool, "start_new_thread", started)

    def work(block: int) -> None:
        if threading.get_ident() != main:
            begun.set()
            waits.wait(CHILD_SECONDS)
            for run, arguments in late:
                run(*arguments)
            returned.wait(0.1)  # time for a wrong return
        done.append(block)

    help_ = pool._help
    monkeypatch.setattr(pool, "_help", lambda work: help_(work) and begun.wait())
    parallel_for(work, range(3), 3)
    assert sorted(done) == [0, 1, 2] and len(late) == 1
    returned.set()


@pytest.mark.parametrize("over", ["ignore", "raise"])
def test_a_helper_has_the_callers_errstate_and_its_error_reaches_the_caller(over: str) -> None:
    """Both threads take a block, since each waits for the other."""
    main, both, seen = threading.get_ident(), threading.Barrier(2), list[str]()

    def work(_: int) -> None:
        both.wait()
        seen.append(np.geterr()["over"])
        if threading.get_ident() != main:
            raise ValueError("a helper's")

    with np.errstate(over=over), pytest.raises(ValueError, match="a helper's"):
        parallel_for(work, range(2), 2)
    assert seen == [over] * 2


def test_an_error_comes_after_what_was_made_before_it() -> None:
    found = prefetch((1 // key for key in [1, 1, 0, 1]), at_once=True)
    assert [next(found), next(found)] == [1, 1]
    with pytest.raises(ZeroDivisionError):
        next(found)
    assert list(found) == []


WITH_HELPERS_THAT_WAIT = """
import threading
from minibert.threads.pool import parallel_for, prefetch
main, never, waits = threading.get_ident(), threading.Lock(), threading.Semaphore(0)
never.acquire()
def wait():
    waits.release()
    never.acquire()
def work(block):
    if threading.get_ident() != main:
        wait()
    waits.acquire()
    raise KeyboardInterrupt
def keys():
    yield "read"
    wait()
found = prefetch(map(str, keys()), True)
print(next(found))
waits.acquire()
found.close()
try:
    parallel_for(work, range(3), 3)
except KeyboardInterrupt:
    print("pressed")
"""


def test_a_process_ends_while_helpers_wait() -> None:
    assert said(WITH_HELPERS_THAT_WAIT) == ("read\npressed\n", "", 0)


AFTER_THE_MAIN_THREAD = """
import itertools, sys, threading, minibert
encoder, texts = minibert.load_encoder(sys.argv[1]), [*map(" ".join, itertools.product(["we", "lived"], repeat=10))]
def work():
    threading.main_thread().join()
    print(encoder.encode(texts).shape)
threading.Thread(target=work).start()
"""


def test_a_thread_encodes_after_the_main_one_has_ended() -> None:
    assert said(AFTER_THE_MAIN_THREAD, MODEL) == ("(1024, 6)\n", "", 0)
