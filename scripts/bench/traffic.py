"""The sections served and traffic: `minibert serve` beside sentence-transformers, and under load. Linux only."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from .children import ROOT, at_once, child, ended, kibibytes, there, waiting
from .measure import OURS, Figures, Limit, Row, Settings, in_turn
from .models import once, real_model, short_texts
from .serve import server

PEER = "sentence-transformers"
CALLERS, ROUNDS, SECONDS, QUICK = (1, 8, 64), 6, 10.0, 3.0
CROWD, EACH = 200, 5  # callers at once, and the requests that each sends
RETRIES = 2  # of OpenAI's client, which waits as Retry-After says; tests/live/test_adapters.py asks the client itself
MIXED, MINUTE = 8, 60.0  # clients of the mixed load, each with its turn of the kinds
LENGTH, LOOK = 10 * MINUTE, 2.0  # seconds of the mixed load, and between two looks
SPARSE = ROOT / "tests" / "reference" / "uses-sparse"


# -- beside sentence-transformers ----------------------------------------------------------------------------------


def served(settings: Settings) -> Iterable[Row]:
    """A text for each request, of 5 to 40 words, to the same application of starlette; one server at work at a time."""
    seconds = QUICK if settings.quick else SECONDS
    with ExitStack() as stack:
        asks = {}
        for who in filter(there, (OURS, PEER)):
            process, port = stack.enter_context(waiting("traffic.answering", who))
            os.kill(process, signal.SIGSTOP)
            stack.callback(os.kill, process, signal.SIGCONT)  # one that is stopped would never end
            asks[who] = partial(awake, process, port)
        for callers in CALLERS:
            takes = {who: partial(ask, callers, seconds) for who, ask in asks.items()}
            found = in_turn(takes, settings.rounds(ROUNDS))
            each, last = (Figures({who: [one[key] for one in found[who]] for who in found}) for key in ("each", "last"))
            what = f"{callers} caller{'s' * (callers > 1)}"
            texts = statistics.median(1 / one for one in each[OURS])
            theirs = f", theirs {statistics.median(1 / one for one in each[PEER]):.0f}" if PEER in each else ""
            note = f"time for each text; {texts:.0f} texts a second{theirs}"
            yield each.row(what, PEER, faster=True, note=note)
            yield last.row(f"{what}: the 99th percentile", PEER, note="of the time until an answer")


def awake(process: int, port: int, callers: int, seconds: float) -> dict[str, float]:
    """Let a server work for one round: torch's threads would go on spinning afterwards."""
    os.kill(process, signal.SIGCONT)
    try:
        return dict(child("traffic.clients", port, callers, seconds))
    finally:
        os.kill(process, signal.SIGSTOP)


def clients(port: str, callers: str, seconds: str) -> dict[str, float]:
    from .serve import asking, together

    return together(asking(port), int(callers), float(seconds))


def answering(who: str) -> None:
    """Serve MiniLM; of sentence-transformers its `encode` stands in the same application, for the same steps."""
    import sys

    import minibert
    from minibert.serve.app import Server
    from minibert.serve.kinds import model_of
    from minibert.serve.run import listen, run
    from minibert.serve.worker import Kind, Prepared

    model: Any = model_of(minibert.load_encoder(real_model()), [real_model().name])
    if who == PEER:
        from sentence_transformers import SentenceTransformer

        encode = partial(SentenceTransformer(str(real_model()), device="cpu").encode, show_progress_bar=False)
        model.kinds = {None: Kind(lambda texts, start: Prepared(texts), encode, len)}
    with listen("127.0.0.1", 0) as listening:

        def ready(end: Callable[[], None]) -> None:
            print(json.dumps(listening.getsockname()[1]), flush=True)
            threading.Thread(target=lambda: (sys.stdin.read(), end()), daemon=True).start()

        run(Server([model]), listening, ready)


# -- under load ----------------------------------------------------------------------------------------------------


def traffic(settings: Settings) -> Iterable[Row]:
    """200 callers at once, who come again as OpenAI's client does; then mixed requests for ten minutes, or one."""
    seconds = MINUTE if settings.quick else LENGTH
    reranker = once(settings.models / "minilm-reranker", "write_reranker", real_model())
    for workers in (1, 2):
        options = str(SPARSE), "--reranker", str(reranker), "--workers", str(workers)
        with server(*options) as (port, pid):
            yield crowd(port, workers)
            yield from mixed(port, pid, workers, seconds)


def crowd(port: str, workers: int) -> Row:
    texts, first, ends = short_texts(real_model(), CROWD * EACH, 5, 40), Counter[int](), Counter[int]()

    def one(number: int) -> None:
        for text in texts[number * EACH : (number + 1) * EACH]:
            statuses = [asked(port, "/v1/embeddings", {"input": text})]
            while statuses[-1] == 503 and len(statuses) <= RETRIES:
                time.sleep(1)
                statuses.append(asked(port, "/v1/embeddings", {"input": text}))
            first[statuses[0]] += 1
            ends[statuses[-1]] += 1

    began = time.monotonic()
    ended(at_once(one, CROWD))
    other = f"{first[503]} of them 503 at first"
    note = f"{time.monotonic() - began:.0f} s; other answers: {sum(ends.values()) - ends[200] - ends[503]}"
    ours = f"{ends[200]} answers, {ends[503]} refused to the end"
    done = ends[200] + ends[503] == CROWD * EACH
    what = f"{CROWD} callers at once, {CROWD * EACH} texts, workers: {workers}"
    return Row(what, ours, other, limit="200 or 503", met=done, note=note)


def mixed(port: str, pid: int, workers: int, seconds: float) -> Iterator[Row]:
    """Memory, files and threads of all its processes: the last third of the time beside the second."""
    end, count, looks = time.monotonic() + seconds, Counter[str](), list[dict[str, float]]()
    texts = short_texts(real_model(), 600, 5, 40)

    def one(number: int) -> None:
        chosen = random.Random(number)
        for kind in itertools.islice(itertools.cycle(KINDS), number, None):
            if time.monotonic() > end:
                return
            path, body, want = KINDS[kind](chosen, texts)
            count[kind if asked(port, path, body, waits=want > 0) == want else "another status"] += 1

    callers = at_once(one, MIXED)
    while time.monotonic() < end:
        time.sleep(LOOK)
        looks.append(held(pid))
    ended(callers)
    third = len(looks) // 3
    what = f"{seconds / MINUTE:.0f} min of mixed requests, workers: {workers}"
    requests = ", ".join(f"{number} {kind}" for kind, number in sorted(count.items()))
    yield Row(what, f"{sum(count.values())} requests", limit="no other status", met=not count["another status"],
              note=requests)  # fmt: skip
    for key, unit in (("memory", "B"), ("files", ""), ("threads", "")):
        before, after = (
            statistics.median(look[key] for look in part) for part in (looks[third:-third], looks[-third:])
        )
        limit = Limit("<=", 1.05) if unit else Limit("<=", 1.0)
        said = [f"{each / 2**20:.1f} MiB" if unit else f"{each:g}" for each in (after, before)]
        yield Row(f"its {key}", said[0], f"{said[1]} in the second third", after / before, reading=f"x the {key}",
                  limit=str(limit), met=limit.met(after / before), figures=(after, before))  # fmt: skip


Kind = Callable[[random.Random, list[str]], tuple[str, Any, int]]  # -> path, body, the status that is due
KINDS: dict[str, Kind] = {
    "embeddings": lambda some, texts: ("/v1/embeddings", {"input": some.sample(texts, some.randint(1, 20))}, 200),
    "one text": lambda some, texts: ("/embed", {"inputs": some.choice(texts)}, 200),
    "rerank": lambda some, texts: ("/rerank", {"query": some.choice(texts), "documents": some.sample(texts, 10)}, 200),
    "sparse": lambda some, texts: ("/embed_sparse", {"inputs": some.sample(texts, 5)}, 200),
    "no JSON": lambda some, texts: ("/rerank", b"{" * some.randint(1, 1000), 400),
    "no such field": lambda some, texts: ("/v1/embeddings", {"inputs": some.choice(texts)}, 400),
    "too many": lambda some, texts: ("/embed", {"inputs": ["a"] * 3000}, 413),
    "left": lambda some, texts: ("/v1/embeddings", {"input": some.sample(texts, 20)}, 0),
}


def asked(port: str, path: str, body: Any, waits: bool = True) -> int:
    """Send one request on a connection of its own: its status, 0 where it is not waited for, -1 without an answer."""
    connection = HTTPConnection("127.0.0.1", int(port), timeout=120)
    try:
        connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body))
        if not waits:
            return 0
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except (OSError, HTTPException):
        return -1
    finally:
        connection.close()


def held(pid: int) -> dict[str, float]:
    """Say what a server and its workers hold together."""
    workers = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    found = [
        (
            kibibytes("smaps_rollup", "Pss_Anon", each),
            len([*Path(f"/proc/{each}/fd").iterdir()]),
            len([*Path(f"/proc/{each}/task").iterdir()]),
        )
        for each in (pid, *workers)
    ]
    return dict(zip(("memory", "files", "threads"), map(float, map(sum, zip(*found, strict=True))), strict=True))
