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
from socket import create_connection
from typing import Any

import numpy as np

from .children import ROOT, at_once, child, ended, kibibytes, there, waiting
from .measure import OURS, Figures, Limit, Row, Settings, in_turn
from .models import once, real_model, short_texts
from .serve import server

PEER = "sentence-transformers"
CALLERS, ROUNDS, SECONDS, QUICK = (1, 8, 64), 6, 10.0, 3.0
CROWD, QUERIES, NAME = 200, 2, "minilm"  # callers, each with its turn of the kinds; different queries; the first model
NEAR = 1e-5  # measured 2.9e-6, of the small sparse folder, whose weights are larger
MINUTE = 60.0
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
    from minibert.commands.serve import answer, listen
    from minibert.serve.app import Server
    from minibert.serve.worker import VECTORS, Kind, Prepared, model_of

    model = model_of(minibert.load_encoder(real_model()), [real_model().name])
    if who == PEER:
        from sentence_transformers import SentenceTransformer

        encode = partial(SentenceTransformer(str(real_model()), device="cpu").encode, show_progress_bar=False)

        def prepare(items: list[Any], start: int) -> Prepared:
            return Prepared([item.texts[0] for item in items])

        kind = Kind(prepare, encode, lambda item: len(item.texts[0]))
        model = model._replace(kinds={VECTORS: {None: kind}})
    with listen("127.0.0.1", 0) as listening:

        def ready(end: Callable[[], None]) -> None:
            print(json.dumps(listening.getsockname()[1]), flush=True)
            threading.Thread(target=lambda: (sys.stdin.read(), end()), daemon=True).start()

        answer(Server([model]), listening, ready)


# -- under load ----------------------------------------------------------------------------------------------------


def traffic(settings: Settings) -> Iterable[Row]:
    """200 callers for ten minutes, or one: mixed, slow, aborted and hostile requests; every answer is compared."""
    seconds = MINUTE if settings.quick else LENGTH
    reranker = once(settings.models / "minilm-reranker", "write_reranker", real_model())
    with server(str(SPARSE), "--reranker", str(reranker), "--name", NAME) as (port, pid):
        yield from mixed(port, pid, Wanted(reranker), seconds)


class Wanted:
    """What is due for each request, computed once by `encode`, `encode_sparse` and `predict` before any is sent."""

    def __init__(self, reranker: Path) -> None:
        import minibert

        self.texts = short_texts(real_model(), 600, 5, 40)
        self.vectors = minibert.load_encoder(real_model()).encode(self.texts)
        self.sparse = minibert.load_encoder(SPARSE).encode_sparse(self.texts)
        pairs = [(query, text) for query in self.texts[:QUERIES] for text in self.texts]
        self.scores = minibert.load_encoder(reranker).predict(pairs).reshape(QUERIES, -1)


def mixed(port: str, pid: int, wanted: Wanted, seconds: float) -> Iterator[Row]:
    """Memory, files and threads of its process: the last third of the time beside the second."""
    end, count, looks = time.monotonic() + seconds, Counter[str](), list[dict[str, float]]()
    wrong: list[str] = []

    def one(number: int) -> None:
        chosen = random.Random(number)
        for kind in itertools.islice(itertools.cycle(KINDS), number % len(KINDS), None):
            if time.monotonic() > end:
                return
            try:
                said = KINDS[kind](port, chosen, wanted)
            except (OSError, HTTPException, AssertionError, ValueError, KeyError) as error:
                said = f"{kind}: {type(error).__name__}: {error}"[:200]
                wrong.append(said)
            count[kind if said is None else "wrong"] += 1

    callers = at_once(one, CROWD)
    while time.monotonic() < end:
        time.sleep(LOOK)
        looks.append(held(pid))
    ended(callers)
    third = len(looks) // 3
    requests = ", ".join(f"{number} {kind}" for kind, number in sorted(count.items()))
    yield Row(f"{seconds / MINUTE:.0f} min of {CROWD} callers", f"{sum(count.values())} requests",
              limit="every answer as due", met=not wrong, note="; ".join([requests, *wrong[:3]]))  # fmt: skip
    for key, unit in (("memory", "B"), ("files", ""), ("threads", "")):
        before, after = (
            statistics.median(look[key] for look in part) for part in (looks[third:-third], looks[-third:])
        )
        limit = Limit("<=", 1.05 if unit else 1.1)
        said = [f"{each / 2**20:.1f} MiB" if unit else f"{each:g}" for each in (after, before)]
        yield Row(f"its {key}", said[0], f"{said[1]} in the second third", after / before, reading=f"x the {key}",
                  limit=str(limit), met=limit.met(after / before), figures=(after, before))  # fmt: skip


def asked(port: str, path: str, body: Any, *, status: int = 200) -> Any:
    """Send one request as OpenAI's client does, which comes again after 503: the answer, of the status that is due."""
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    while True:
        connection = HTTPConnection("127.0.0.1", int(port))
        try:
            connection.request("POST", path, sent)
            answer = connection.getresponse()
            got = answer.read()
        finally:
            connection.close()
        if answer.status != 503:
            assert answer.status == status, f"{answer.status} {got[:100]!r}"
            return json.loads(got)
        assert answer.headers["Retry-After"] == "1"
        time.sleep(1)


def embeddings(port: str, some: random.Random, wanted: Wanted) -> None:
    chosen = some.sample(range(len(wanted.texts)), some.randint(1, 20))
    found = asked(port, "/v1/embeddings", {"input": [wanted.texts[i] for i in chosen], "model": NAME})["data"]
    assert near([each["embedding"] for each in found], wanted.vectors[chosen])


def one_text(port: str, some: random.Random, wanted: Wanted) -> None:
    i = some.randrange(len(wanted.texts))
    assert near(asked(port, "/embed", {"inputs": wanted.texts[i]}), wanted.vectors[i : i + 1])


def rerank(port: str, some: random.Random, wanted: Wanted) -> None:
    query, chosen = some.randrange(QUERIES), some.sample(range(len(wanted.texts)), 10)
    documents = [wanted.texts[i] for i in chosen]
    found = asked(port, "/rerank", {"query": wanted.texts[query], "documents": documents})["results"]
    scores = [each["relevance_score"] for each in found]
    assert near(scores, [wanted.scores[query, chosen[each["index"]]] for each in found])
    assert scores == sorted(scores, reverse=True)


def sparse(port: str, some: random.Random, wanted: Wanted) -> None:
    i = some.randrange(len(wanted.texts))
    (found,) = asked(port, "/embed_sparse", {"inputs": wanted.texts[i]})
    assert [each["index"] for each in found] == wanted.sparse[i].ids.tolist()
    assert near([each["value"] for each in found], wanted.sparse[i].weights)


def slow(port: str, some: random.Random, wanted: Wanted) -> None:
    """Send a request byte by byte for a while, and read its answer so."""
    i = some.randrange(len(wanted.texts))
    body = json.dumps({"inputs": wanted.texts[i]}).encode()
    with create_connection(("127.0.0.1", int(port))) as client:
        client.sendall(f"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n".encode())
        for part in (b"Connection: close\r\n\r\n", body[:9], body[9:]):
            time.sleep(some.uniform(0, 2))
            client.sendall(part)
        got = bytearray()
        while part := client.recv(1000):
            got += part
            time.sleep(0.01)
    head, _, answer = bytes(got).partition(b"\r\n\r\n")
    assert b" 503 " in head[:20] or near(json.loads(answer), wanted.vectors[i : i + 1])


def left(port: str, some: random.Random, wanted: Wanted) -> None:
    """Leave before the answer, or in the middle of the request."""
    body = json.dumps({"input": some.sample(wanted.texts, 20)}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with create_connection(("127.0.0.1", int(port))) as client:
        client.sendall((head + body)[: some.choice([9, len(head) + 9, None])])


def silent(port: str, some: random.Random, wanted: Wanted) -> None:
    with create_connection(("127.0.0.1", int(port))):
        time.sleep(some.uniform(0, 5))


def hostile(port: str, some: random.Random, wanted: Wanted) -> None:
    """Send no HTTP, a name of the web, and a length that is too large."""
    named = b"GET /info HTTP/1.1\r\nHost: evil.com\r\n\r\n"
    large = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n"
    sent, status = some.choice([(some.randbytes(200) + b"\r\n\r\n", 400), (named, 403), (large, 413)])
    with create_connection(("127.0.0.1", int(port))) as client:
        client.sendall(sent)
        assert client.recv(1000)[9:12] in (b"%d" % status, b"503")


KINDS: dict[str, Callable[[str, random.Random, Wanted], object]] = {
    "embeddings": embeddings, "one text": one_text, "rerank": rerank, "sparse": sparse, "slow": slow, "left": left,
    "silent": silent, "hostile": hostile,
    "no JSON": lambda port, some, _: refuse(port, "/rerank", b"{" * some.randint(1, 1000), 400),
    "no such field": lambda port, some, _: refuse(port, "/v1/embeddings", {"inputs": "a"}, 400),
    "too many": lambda port, some, _: refuse(port, "/embed", {"inputs": ["a"] * 3000}, 413),
    "no model": lambda port, some, _: refuse(port, "/embed", {"inputs": "a", "model": "b"}, 404),
}  # fmt: skip


def refuse(port: str, path: str, body: Any, status: int) -> None:
    assert asked(port, path, body, status=status)["error"]["message"]


def near(found: Any, want: Any) -> bool:
    """Compare numbers of a text beside other neighbours than it had."""
    return len(found) == len(want) and bool(np.abs(np.array(found) - np.array(want)).max() <= NEAR)


def held(pid: int) -> dict[str, float]:
    """Say what a server holds."""
    files, threads = (len([*Path(f"/proc/{pid}/{what}").iterdir()]) for what in ("fd", "task"))
    return {"memory": kibibytes("smaps_rollup", "Pss_Anon", pid), "files": files, "threads": threads}
