"""Several threads of ours with BLAS on one: who holds it, who gives it back, and how many compute at once."""

from __future__ import annotations

import _thread
import contextlib
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any
from unittest import mock

import numpy as np
import pytest
from command_line import Patch, Printed, failure
from limits import CHILD_SECONDS
from needed import missing
from reference_files import REFERENCE

import minibert
from minibert.cli import main
from minibert.models.open.load_encoder import open_vectors
from minibert.models.run.pipeline import chunked
from minibert.threads import computing, pool
from minibert.threads.computing import BlasPolicy, compute
from minibert.threads.kernels import kernel
from minibert.threads.pool import parallel_for, prefetch

MODEL = REFERENCE / "sentences-dense"
SAME = 1e-6  # of a vector's length: what other rows in a product may change; measured here: 2e-7


class Blas:
    """What threadpoolctl gives for a BLAS on eight threads; its number is of the whole process."""

    user_api, internal_api, threading_layer, filepath = "blas", "openblas", "pthreads", "/site-packages/numpy.libs/x.so"

    def __init__(self) -> None:
        self.num_threads = 8
        self.told: list[int] = []
        self.owner: threading.Thread | None = None

    def clear_controlling_thread(self, force: bool = False) -> None:
        if force or self.owner is threading.current_thread():
            self.owner = None

    def set_num_threads(self, number: int) -> None:
        """As theirs: the first thread alone is obeyed, while it lives."""
        if self.owner is None or not self.owner.is_alive():
            self.owner = threading.current_thread()
        if self.owner is threading.current_thread():
            self.num_threads = number
            self.told.append(number)


@pytest.fixture
def blas(monkeypatch: Patch) -> Iterator[Blas]:
    """A BLAS whose number is looked at, on a machine of two cores."""
    made = Blas()
    monkeypatch.setattr(computing, "libraries", lambda: (made,))
    for name, number in {"cores": 2, "blas_takes": 2, "running": 1, "affinity": 2}.items():
        monkeypatch.setattr(computing, name, lambda number=number: number)
    monkeypatch.setattr(computing, "_policy", BlasPolicy())
    monkeypatch.setattr(computing, "_work", computing._Work())
    yield made
    assert made.num_threads == 8, "it was not given its threads back"
    assert made.owner is None, "no other thread can set its number now"


# -- held and given back -----------------------------------------------------------------------------------------------


def numbers_in_tiles(library: Blas, count: int = 1, **options: Any) -> list[int]:
    seen: list[int] = []
    compute(lambda tile: seen.append(library.num_threads), range(count), **options)
    return seen


def test_while_tiles_are_computed_blas_has_one_thread(blas: Blas) -> None:
    assert numbers_in_tiles(blas, 5) == [1] * 5
    assert numbers_in_tiles(blas, threads=1) == numbers_in_tiles(blas, blas="held") == [1]


def test_alone_and_small_it_keeps_its_threads_until_a_second_begins(blas: Blas) -> None:
    seen: list[int] = []

    def first(tile: int) -> None:
        seen.append(blas.num_threads)
        with taken_elsewhere(2):
            seen.append(blas.num_threads)
        seen.append(blas.num_threads)  # two were at work: it stays so until the last one has ended

    compute(first, [0])
    assert seen == [8, 1, 1]


@pytest.mark.parametrize(
    ("wanting", "takes", "since", "pays"),
    [  # 0: the system does not say; 64: --cpus=2
        (1, 2, 9.0, True), (2, 2, 9.0, False), (3, 2, 9.0, False), (0, 2, 9.0, False), (3, 1, 9.0, True),
        (1, 64, 9.0, False), (1, 2, 0.01, True), (2, 2, 0.01, True), (3, 2, 0.01, False),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("blas")
def test_others_who_want_the_cores(wanting: int, takes: int, since: float, pays: bool, monkeypatch: Patch) -> None:
    """Threads of BLAS that still spin are not counted as others."""
    for name, found in {"running": wanting, "blas_takes": takes}.items():
        monkeypatch.setattr(computing, name, lambda found=found: found)
    monkeypatch.setattr(computing, "ENOUGH", 0.0)  # however busy this machine is
    alone, now = BlasPolicy(), time.monotonic()
    with alone.watched():
        pass
    monkeypatch.setattr(computing, "monotonic", lambda: now + since)
    assert alone.pays() == pays


@pytest.mark.usefixtures("blas")
def test_after_a_text_that_waited_for_its_core_it_is_held_for_a_while(monkeypatch: Patch) -> None:
    now = [100.0, 0.0]  # of the clock, of the processor
    for name in ("monotonic", "perf_counter"):
        monkeypatch.setattr(computing, name, lambda: now[0])
    monkeypatch.setattr(computing, "thread_time", lambda: now[1])
    alone = BlasPolicy()

    def text(own: float) -> None:
        with alone.watched():
            now[0] += 0.01
            now[1] += own

    for pause in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0):
        assert alone.pays()
        text(0.005)
        now[0] += pause - 0.01
        assert not alone.pays()
        now[0] += 0.02
    text(0.01)  # it had its core: what was is forgotten
    assert alone.pays()
    text(0.005)
    now[0] += 1.01
    assert alone.pays()


def test_a_single_tile_is_watched(blas: Blas, monkeypatch: Patch) -> None:
    monkeypatch.setattr(computing, "thread_time", lambda: 0.0)  # it waited for its core all the time
    monkeypatch.setattr(computing, "monotonic", lambda: 0.0)  # and the while lasts
    assert (numbers_in_tiles(blas), numbers_in_tiles(blas)) == ([8], [1])


@contextmanager
def taken_elsewhere(count: int) -> Iterator[threading.Event]:
    """Have a slot on another thread until the event is set; the thread itself lives on meanwhile."""
    inside, ends, lives = (threading.Event() for _ in range(3))

    def other() -> None:
        compute(lambda _: [inside.set(), ends.wait()], [0], count)
        lives.wait()

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    yield ends
    ends.set()
    lives.set()
    thread.join()


def test_the_last_to_end_gives_it_back_though_another_thread_has_held_it(blas: Blas) -> None:
    """threadpoolctl obeys one thread alone while that lives, and here it lives on."""
    with taken_elsewhere(2) as ends:

        def last(_: int) -> None:
            ends.set()
            while len(computing._work.slots) > 1:
                time.sleep(0.001)
            assert blas.num_threads == 1

        compute(last, [0], 2, blas="held")
        assert blas.num_threads == 8


def test_after_an_error_on_any_thread_it_is_given_back(blas: Blas) -> None:
    with pytest.raises(ZeroDivisionError):
        compute(lambda tile: 1 / 0, range(5))
    assert blas.told == [1, 8] or blas.told == [1, 8, 1, 8]  # once for each thread that was there in time


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------

FILES = {module.__file__ for module in (computing, pool, contextlib)}
CALLS, EACH = ("compute", "nested", "parallel_for", "prefetch", "stopped"), 170  # 850 in all, beside each of one tile


def steps_of(work: Callable[[], object], pressed_at: int | None = None) -> int:
    """Run it and count the places of ours at which Python hears a signal; at the given one Ctrl-C is pressed.

    Python hears it where a function begins and where one written in C ends, but not between two instructions.
    """
    count = 0

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        if frame.f_code.co_filename in FILES and event in {"call", "c_return"}:
            count += 1
            if count == pressed_at:
                raise KeyboardInterrupt

    sys.setprofile(profile)  # which ends with an error
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def called(name: str) -> list[int]:
    """Let one of the calls turn 0 to 5 into a list of the same numbers, on one thread, two or three."""
    done: list[int] = []
    if name == "one tile":
        compute(lambda _: done.extend(range(6)), [0], 1)
    elif name == "compute":
        compute(done.append, range(6), 2)
    elif name == "nested":
        compute(lambda i: compute(done.append, [2 * i, 2 * i + 1], 2), range(3), 2)
    elif name == "parallel_for":
        parallel_for(done.append, range(6), 3)
    else:
        with contextlib.closing(prefetch(map(int, range(6 if name == "prefetch" else 9)), at_once=True)) as made:
            done.extend(islice(made, 6))  # type: ignore[arg-type]
    return sorted(done)


@pytest.mark.parametrize("name", ["one tile", *CALLS])
def test_ctrl_c_at_any_step(name: str, blas: Blas, monkeypatch: Patch) -> None:
    """A call gives all its numbers or raises KeyboardInterrupt; its threads end, and the next call is right.

    At each step of a call for one tile, and at random ones of the others.
    """
    ends, unraisable = list[threading.Lock](), list[object]()

    def started(work: Callable[..., object], given: tuple[Any, ...]) -> None:
        ends.append(end := threading.Lock())
        end.acquire()
        _thread.start_new_thread(lambda: [work(*given), end.release()], ())

    monkeypatch.setattr(pool, "start_new_thread", started)
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    random, pressed = Random(name), 0
    count = max(steps_of(partial(called, name)) for _ in range(5))  # how often threads wait depends on the machine
    assert count > 10
    while pressed < (count if name == "one tile" else EACH):
        step = pressed + 1 if name == "one tile" else random.randint(1, count)
        try:
            heard = steps_of(lambda: called(name) == [*range(6)] or pytest.fail("a number is missing"), step)
        except KeyboardInterrupt:
            pressed += 1
        else:  # a call whose threads waited less often has fewer steps: another step is tried
            assert heard < step and name != "one tile", f"Ctrl-C at step {step} is lost"
        for end in ends:
            assert end.acquire(timeout=CHILD_SECONDS), f"a thread goes on after step {step}"
        ends.clear()
        assert (blas.num_threads, computing._work.slots, unraisable) == (8, {}, []), f"step {step}"
        assert called(name) == [*range(6)]


def test_ctrl_c_while_a_slot_is_waited_for(blas: Blas, monkeypatch: Patch) -> None:
    monkeypatch.setattr(computing, "cores", lambda: 1)
    with taken_elsewhere(1):
        with monkeypatch.context() as meanwhile:
            turn = mock.Mock(get=mock.Mock(side_effect=KeyboardInterrupt))
            meanwhile.setattr(computing, "SimpleQueue", lambda: turn)
            with pytest.raises(KeyboardInterrupt):
                compute(lambda _: pytest.fail("there was no slot for it"), [0], 1)
        assert len(computing._work.slots) == 1
    assert numbers_in_tiles(blas, threads=1) == [1]


# -- forks -------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_the_threads_of_its_blas_and_threads_and_slots_of_its_own(blas: Blas) -> None:
    parallel_for(str, range(3), 3)
    made = computing._work

    def child_is_right() -> bool:
        together = threading.Barrier(2)
        fresh = blas.num_threads == 8 and computing._work is not made
        compute(lambda _: together.wait(), range(2), 2)
        return fresh and numbers_in_tiles(blas, 2, threads=1) == [1, 1] and blas.num_threads == 8

    def forks(_: int) -> None:
        child = os.fork()
        if not child:
            os._exit(0 if child_is_right() else 7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert blas.num_threads == 1

    compute(forks, [0], 1)
    assert made == computing._work


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_no_child_is_made_while_another_thread_sets_the_number(blas: Blas, monkeypatch: Patch) -> None:
    """threadpoolctl has a lock there, which the child would find closed for ever."""
    theirs, inside, goes_on = threading.Lock(), threading.Event(), threading.Event()
    real, codes = Blas.set_num_threads, list[int]()

    def slow(self: Blas, number: int) -> None:
        with theirs:
            inside.set()
            goes_on.wait()
            real(self, number)

    def forks() -> None:
        child = os.fork()
        if not child:
            os._exit(7 * theirs.locked())
        codes.append(os.waitpid(child, 0)[1])

    monkeypatch.setattr(Blas, "set_num_threads", slow)
    threads = [threading.Thread(target=compute, args=(lambda _: None, [0], 1)), threading.Thread(target=forks)]
    threads[0].start()
    inside.wait()
    threads[1].start()
    threads[1].join(0.05)
    assert codes == []  # it waits
    goes_on.set()
    for thread in threads:
        thread.join()
    assert codes == [0]
    assert computing._work.lock.acquire(blocking=False), "the parent has not opened it again"
    computing._work.lock.release()


# -- no more than there are cores --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("blas")
@pytest.mark.parametrize("count", [None, 1, 2])
def test_many_callers_compute_on_no_more_threads_than_cores(count: int | None) -> None:
    """And in the end BLAS has its threads, which the fixture looks at."""
    busy, seen = set[int](), list[int]()

    def work(tile: int) -> None:
        busy.add(threading.get_ident())
        seen.append(len(busy))
        time.sleep(0)  # others go on
        busy.remove(threading.get_ident())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda tiles: compute(work, range(tiles), count), [1, 4] * 8))
    assert max(seen) <= 2


@pytest.mark.usefixtures("blas")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_call_takes_as_many_threads_as_it_is_told(count: int) -> None:
    together, seen = threading.Barrier(count), set[int]()

    def work(_: int) -> None:
        together.wait()  # all of them at once
        seen.add(threading.get_ident())

    compute(work, range(count * 2), count)
    assert len(seen) == count


@pytest.mark.usefixtures("blas")
@pytest.mark.parametrize("most", [1, 2])
def test_a_call_inside_a_tile_waits_for_no_other_turn(most: int, monkeypatch: Patch) -> None:
    monkeypatch.setattr(computing, "cores", lambda: most)
    done: list[tuple[int, int, bool]] = []

    def outer(outside: int) -> None:
        thread = threading.get_ident()
        compute(lambda tile: done.append((outside, tile, threading.get_ident() == thread)), range(4), 2)

    # a daemon: a hanging one does not keep the process alive
    thread = threading.Thread(target=compute, args=(outer, range(4)), daemon=True)
    thread.start()
    thread.join()
    assert sorted(done) == [(outside, tile, True) for outside in range(4) for tile in range(4)]


def test_a_blas_that_cannot_be_held_leaves_one_thread_of_ours(monkeypatch: Patch) -> None:
    monkeypatch.setattr(computing, "libraries", lambda: ())
    owners: list[int] = []

    def work(_: int) -> None:
        time.sleep(0.01)  # long enough for another thread to take a tile
        owners.append(threading.get_ident())

    compute(work, range(8), 4)
    assert owners == [threading.get_ident()] * 8


def test_which_libraries_can_be_held() -> None:
    own, other, openmp, of_loops = (Blas() for _ in range(4))
    other.filepath, openmp.threading_layer = "/site-packages/scipy.libs/x.so", "openmp"
    of_loops.user_api = of_loops.internal_api = "openmp"
    # NumPy's own is not in a folder of its own, as in conda
    for found, held in (([other, own, of_loops], (own,)), ([other], (other,)), ([openmp], ()), ([of_loops], ())):
        with mock.patch("threadpoolctl.ThreadpoolController") as controller:
            controller.return_value.lib_controllers = found
            assert computing.libraries.__wrapped__() == held


# -- real models -------------------------------------------------------------------------------------------------------


def test_the_real_blas_is_held_and_given_back() -> None:
    libraries = computing.libraries()
    if not libraries:
        missing("a BLAS of NumPy that threadpoolctl can hold")
    before, seen = [each.num_threads for each in libraries], set[int]()
    compute(lambda tile: seen.update(each.num_threads for each in libraries), range(3), 2)
    assert seen == {1}
    assert [each.num_threads for each in libraries] == before


TEXTS = [" ".join(["we lived", "above", "the clouds"][: 1 + i % 3] * (1 + i % 7)) for i in range(60)]


def test_vectors_keep_their_promise_and_those_of_bulk_their_bytes(minilm: Path) -> None:
    with minibert.load_encoder(minilm) as encoder:
        one = encoder.encode(TEXTS, threads=1)
        for count in (2, 3):
            assert np.abs(encoder.encode(TEXTS, threads=count) - one).max() <= SAME
    for some in (TEXTS, TEXTS[:1]):
        assert len({open_vectors(minilm, threads=count).pipeline.all(some).tobytes() for count in (1, 2, None)}) == 1


def test_a_call_with_a_batch_is_spread_too_and_a_copy_has_the_same_threads() -> None:
    with minibert.load_encoder(MODEL, threads=2) as encoder:
        with mock.patch("minibert.models.run.blocks.compute") as computed:
            encoder(np.full((64, 32), 5))
        assert [call.args[2] for call in computed.call_args_list] == [2]
        assert pickle.loads(pickle.dumps(encoder)).threads == 2


def test_what_comes_after_pooling_is_computed_with_its_tile_and_a_dropped_stream_holds_nothing() -> None:
    """A Dense layer multiplies too: on a thread of ours, while BLAS is held."""
    seen: list[int] = []
    with minibert.load_encoder(MODEL) as encoder:
        pipeline = encoder.pipeline(threads=1)
        whole, pool = pipeline.all(TEXTS), pipeline.pool
        watched = lambda *given: [seen.append(len(computing._work.slots)), pool(*given)][1]  # noqa: E731
        with mock.patch.object(pipeline, "pool", watched):
            assert np.array_equal(pipeline.all(TEXTS), whole)
        assert seen and set(seen) == {1}
        stream = encoder.pipeline(threads=2).stream(chunked(TEXTS, 40))
        next(stream)
        assert not computing._work.slots
        del stream
    assert not computing._work.slots


@pytest.mark.parametrize("command", ["encode", "similar", "bulk", "embed"])
def test_the_option_of_the_command_line_arrives(command: str, tmp_path: Path, capsys: Printed) -> None:
    (file := tmp_path / "texts.txt").write_text("we lived\nabove\n", encoding="utf-8")
    given = [str(file), "-o", str(tmp_path / "out")] if command == "bulk" else ["we lived", "above"]
    with (
        mock.patch("minibert.models.run.blocks.compute", side_effect=compute) as computed,
        mock.patch("minibert.models.run.blocks.spreads", return_value=True),
        mock.patch("minibert.models.input_layer.usable_threads", return_value=1) as asked,
    ):
        assert main([command, *given, "-m", str(MODEL), "--threads", "3"]) == 0
    capsys.readouterr()
    if command == "embed":
        assert {call.args[1] for call in asked.call_args_list} == {3}
    else:
        expected = "held" if command == "bulk" and not kernel().always else "own"
        assert {call.args[2:4] for call in computed.call_args_list} == {(3, expected)}
    wrong = failure(capsys, command, *given, "-m", str(MODEL), "--threads", "0")
    assert "threads must be an integer >= 1, found 0" in wrong
