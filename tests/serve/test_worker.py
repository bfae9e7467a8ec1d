"""The worker: what waits together is computed together, and no request waits for the whole of another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from served import SECONDS

from minibert.equations.input_layer import Array
from minibert.serve.options import DEFAULTS
from minibert.serve.worker import EACH, Job, Kind, Prepared, Worker

STEP = DEFAULTS.step


class Steps:
    """Work whose result for a text is its number of characters, and which keeps what each call computed.

    The first call waits until `go` is set: meanwhile jobs can gather. A text "bad" cannot be prepared; one "worse"
    fails when it is computed, alone or with others.
    """

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.began, self.go = threading.Event(), threading.Event()
        self.kind = Kind(self.prepare, self.compute, len)

    def prepare(self, items: list[Any], start: int) -> Prepared:
        if "bad" in items:
            raise ValueError(f"text {start + items.index('bad')} is bad")
        return Prepared(items, len(items), {start + i: 1 for i, item in enumerate(items) if item == "long"})

    def compute(self, items: list[Any]) -> Array:
        self.calls.append(items)
        self.began.set()
        assert self.go.wait(SECONDS)
        if "worse" in items:
            raise RuntimeError("worse")
        return np.array([[len(item), 1] for item in items], np.float32)


class Waiting(Job):
    def __init__(self, steps: Steps, *items: str) -> None:
        super().__init__(steps.kind, items)

    def lengths(self) -> list[float]:
        return list(self.result(SECONDS)[:, 0])


steps = pytest.fixture(lambda: Steps())


@pytest.fixture
def worker(steps: Steps) -> Iterator[Worker]:
    made = Worker()
    yield made
    steps.go.set()
    made.close()


def taken(worker: Worker, *jobs: Waiting) -> tuple[Waiting, ...]:
    for job in jobs:
        worker.take(job)
    return jobs


def busy(worker: Worker, steps: Steps) -> Waiting:
    """Have the worker at work, so that what comes now waits."""
    (first,) = taken(worker, Waiting(steps, "first"))
    assert steps.began.wait(SECONDS)
    return first


def test_what_waits_together_is_computed_together_and_other_work_in_another_step(worker: Worker, steps: Steps) -> None:
    first, other = busy(worker, steps), Steps()
    other.go.set()
    jobs = taken(worker, Waiting(steps, "a"), Waiting(other, "bb"), Waiting(steps, "ccc", "dddd"), Waiting(steps, "e"))
    steps.go.set()
    assert [job.lengths() for job in (first, *jobs)] == [[5], [1], [2], [3, 4], [1]]
    assert (steps.calls, other.calls) == ([["first"], ["a", "ccc", "dddd", "e"]], [["bb"]])
    assert all(part.base is None for job in jobs for part in job._parts), "a part keeps the whole step alive"


def test_a_large_request_lets_others_in_between(worker: Worker, steps: Steps) -> None:
    first = busy(worker, steps)
    count = 40
    large, small = taken(worker, Waiting(steps, *["x" * (STEP // 10 - EACH)] * count), Waiting(steps, "small"))
    steps.go.set()
    assert (first.lengths(), small.lengths(), len(large.lengths())) == ([5], [5], count)
    sizes = [sum(EACH + len(text) for text in call) for call in steps.calls[1:]]
    assert max(sizes) <= STEP + STEP // 10 and len(sizes) >= 4
    assert "small" in steps.calls[2], "it waits for one step of the large request, not for four"


@pytest.mark.parametrize("bad", ["bad", "worse"])
def test_one_that_fails_fails_alone(worker: Worker, steps: Steps, bad: str) -> None:
    busy(worker, steps)
    good, wrong, other = taken(worker, Waiting(steps, "a"), Waiting(steps, "bb", bad), Waiting(steps, "ccc"))
    steps.go.set()
    assert [job.lengths() for job in (good, other)] == [[1], [3]]
    assert str(wrong.exception(SECONDS)) == ("text 1 is bad" if bad == "bad" else "worse")
    (later,) = taken(worker, Waiting(steps, "later"))
    assert later.lengths() == [5], "the worker goes on"


def test_a_job_that_fails_late_is_dropped(worker: Worker, steps: Steps) -> None:
    steps.go.set()
    (job,) = taken(worker, Waiting(steps, "x" * STEP, "bad", "y" * STEP, "z"))
    assert str(job.exception(SECONDS)) == "text 1 is bad"
    taken(worker, Waiting(steps, "after"))[0].lengths()
    assert [len(call[0]) for call in steps.calls] == [STEP, 5], "nothing of it is computed after its error"


def test_a_job_whose_client_has_left_is_dropped(worker: Worker, steps: Steps) -> None:
    """One that waits is not computed; one that is at work ends as it has ended, and the worker goes on."""
    working = busy(worker, steps)
    gone, stays = taken(worker, Waiting(steps, "gone"), Waiting(steps, "stays"))
    gone.cancel()
    working.fail(ConnectionError())
    steps.go.set()
    assert stays.lengths() == [5]
    assert steps.calls == [["first"], ["stays"]]
    assert isinstance(working.exception(), ConnectionError)


def test_at_the_end_what_waits_is_done(steps: Steps) -> None:
    worker = Worker()
    first, last = busy(worker, steps), *taken(worker, Waiting(steps, "last"))
    ending = threading.Thread(target=worker.close)
    ending.start()
    steps.go.set()
    ending.join(SECONDS)
    assert not ending.is_alive()
    assert (first.lengths(), last.lengths()) == ([5], [4])
