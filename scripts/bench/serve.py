"""The section serve: eight clients of `minibert serve` for a minute, beside eight callers of `encode`. Linux only."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from typing import Any

import minibert

from .children import ROOT, at_once, child, ended, environment, kibibytes
from .measure import OURS, Figures, Limit, Row, Settings, in_turn
from .models import real_model, short_texts

CLIENTS, TEXTS = 8, 600
ROUNDS, SECONDS = 6, 10.0  # together a minute of each side; --quick: three rounds


def serve(settings: Settings) -> Iterable[Row]:
    """A text for each request, of 5 to 40 words; each client sends the next one when it has its answer."""
    what, other = f"{CLIENTS} clients, a text each", f"encode, {CLIENTS} callers"
    with server() as (port, pid):
        takes: dict[str, Callable[[], Any]] = {
            OURS: partial(child, "serve.clients", port), other: partial(child, "serve.callers"),
            "memory": lambda: float(kibibytes("smaps_rollup", "Anonymous", pid)),
        }  # fmt: skip
        found = in_turn(takes, settings.rounds(ROUNDS))
    each, last = (
        Figures({side: [one[key] for one in found[side]] for side in (OURS, other)}) for key in ("each", "last")
    )
    yield each.row(what, other, faster=True, limit=Limit(">=", 0.9), note="time for each text")
    yield last.row(f"{what}: the 99th percentile", other, note="of the time until an answer")
    memory, first = Figures({OURS: found["memory"][-1:], "first": found["memory"][:1]}), "after the first round"
    note = f"{sum(one['texts'] for one in found[OURS])} requests"
    yield memory.row(f"{what}: memory at the end", "first", against=first, unit="B", limit=Limit("<=", 1.05), note=note)


@contextmanager
def server(*options: str) -> Iterator[tuple[str, int]]:
    """Start the command: its port, and the number of its process."""
    command = [sys.executable, "-m", "minibert", "serve", str(real_model()), "--port", "0", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(), cwd=ROOT) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            yield line.partition("127.0.0.1:")[2].partition("/")[0], process.pid
        finally:
            process.terminate()


# -- one side of a round -------------------------------------------------------------------------------------------


def together(
    make: Callable[[], Callable[[str], object]], callers: int = CLIENTS, seconds: float = SECONDS
) -> dict[str, float]:
    """Have some threads work text by text for some seconds.

    Gives how many texts, the seconds for each, and the 99th percentile of the time that one took.
    """
    took: list[float] = []
    texts, begin = short_texts(real_model(), TEXTS, 5, 40), threading.Barrier(callers)

    def one(number: int) -> None:
        work, own = make(), texts[number::callers]
        for text in own[:3]:
            work(text)
        begin.wait()
        end, i = time.monotonic() + seconds, 0
        while (before := time.monotonic()) < end:
            work(own[i % len(own)])
            took.append(time.monotonic() - before)
            i += 1

    ended(at_once(one, callers))
    return {"texts": len(took), "each": seconds / len(took), "last": sorted(took)[int(len(took) * 0.99)]}


def clients(port: str) -> dict[str, float]:
    return together(asking(port))


def asking(port: str) -> Callable[[], Callable[[str], object]]:
    """Ask as OpenAI's client does: a connection that is kept, vectors as base64."""

    def make() -> Callable[[str], object]:
        connection = HTTPConnection("127.0.0.1", int(port))

        def work(text: str) -> object:
            body = json.dumps({"input": text, "encoding_format": "base64"})
            connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            found = answer.read()
            assert answer.status == 200, found
            return found

        return work

    return make


def callers() -> dict[str, float]:
    encoder = minibert.load_encoder(real_model())
    return together(lambda: encoder.encode)
