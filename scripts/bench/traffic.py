"""Measure traffic: 200 callers of `minibert serve` with mixed, slow, aborted and hostile requests."""

from __future__ import annotations

import itertools
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from socket import create_connection
from typing import Any

import numpy as np

import minibert

from .children import at_once, ended, server
from .machine import ROOT
from .measure import Row, Settings, most
from .memory import kibibytes
from .models import real_model, short_texts

CROWD, QUERIES, NAME = 200, 2, "minilm"  # callers, who take kinds of requests in turn; queries; the first model
NEAR = 1e-5  # measured 2.9e-6 in the small sparse folder, whose weights are larger
LENGTH, QUICK, LOOK = 45.0, 15.0, 0.5  # seconds in all, and between two readings
SPARSE, RERANKER = (ROOT / "tests" / "reference" / name for name in ("uses-sparse", "uses-reranker"))


def traffic(settings: Settings) -> Iterator[Row]:
    """Compare every answer, and the memory (Pss_Anon), files and threads of the last third with those of the second."""
    seconds = QUICK if settings.quick else LENGTH
    wanted, count, looks, wrong = Wanted(), Counter[str](), list[dict[str, float]](), list[str]()

    with server(real_model(), SPARSE, "--reranker", RERANKER, "--name", NAME) as (port, pid):
        end = time.monotonic() + seconds

        def one(number: int) -> None:
            chosen = random.Random(number)
            for kind in itertools.islice(itertools.cycle(KINDS), number % len(KINDS), None):
                if time.monotonic() > end:
                    return
                try:
                    KINDS[kind](port, chosen, wanted)
                    count[kind] += 1
                except (OSError, HTTPException, AssertionError, ValueError, KeyError) as error:
                    wrong.append(f"{kind}: {type(error).__name__}: {error}"[:200])

        callers = at_once(one, CROWD)
        while time.monotonic() < end:
            time.sleep(LOOK)
            looks.append(held(pid))
        ended(callers)
    requests = ", ".join(f"{number} {kind}" for kind, number in sorted(count.items()))
    yield Row(f"{seconds:.0f} s of {CROWD} callers", f"{sum(count.values())} requests", limit="every answer as due",
              met=not wrong, note="; ".join([requests, *wrong[:3]]))  # fmt: skip
    third = len(looks) // 3
    parts = looks[third:-third], looks[-third:]
    for key, limit in (("MiB of memory", most(1.05)), ("files", most(1.1)), ("threads", most(1.1))):
        before, after = (statistics.median(look[key] for look in part) for part in parts)
        yield Row(f"its {key}", f"{after:.4g}", f"{before:.4g} in the second third", f"**{after / before:.2f}** x",
                  limit=str(limit), met=limit.met(after / before))  # fmt: skip


def held(pid: int) -> dict[str, float]:
    """The memory, files and threads of a server."""
    files, threads = (len([*Path(f"/proc/{pid}/{what}").iterdir()]) for what in ("fd", "task"))
    return {"MiB of memory": kibibytes("smaps_rollup", "Pss_Anon", pid) / 2**20, "files": files, "threads": threads}


class Wanted:
    """The right answer of each request, computed by `encode`, `encode_sparse` and `predict` before all requests."""

    def __init__(self) -> None:
        self.texts = short_texts(600)
        self.vectors = minibert.load_encoder(real_model()).encode(self.texts)
        self.sparse = minibert.load_encoder(SPARSE).encode_sparse(self.texts)
        pairs = [(query, text) for query in self.texts[:QUERIES] for text in self.texts]
        self.scores = minibert.load_encoder(RERANKER).predict(pairs).reshape(QUERIES, -1)


def asked(port: str, path: str, body: Any, *, status: int = 200) -> Any:
    """Send one request as OpenAI's client does, again after 503; return the answer if its status is right."""
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    while True:
        with closing(HTTPConnection("127.0.0.1", int(port))) as connection:
            connection.request("POST", path, sent)
            answer = connection.getresponse()
            got = answer.read()
        if answer.status != 503:
            assert answer.status == status, f"{answer.status} {got[:100]!r}"
            return json.loads(got)
        assert answer.headers["Retry-After"] == "1"
        time.sleep(1)


def embeddings(port: str, some: random.Random, wanted: Wanted) -> None:
    chosen = some.sample(range(len(wanted.texts)), some.randint(1, 20))
    found = asked(port, "/v1/embeddings", {"input": [wanted.texts[i] for i in chosen], "model": NAME})["data"]
    assert near([each["embedding"] for each in found], wanted.vectors[chosen])


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
    """Send a request byte by byte for a while, and read its answer byte by byte."""
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
    """Close the connection before the answer, or in the middle of the request."""
    body = json.dumps({"input": some.sample(wanted.texts, 20)}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with create_connection(("127.0.0.1", int(port))) as client:
        client.sendall((head + body)[: some.choice([9, len(head) + 9, None])])


def hostile(port: str, some: random.Random, wanted: Wanted) -> None:
    """Send bytes that are no HTTP, the host name of a website, and a length that is too large."""
    named = b"GET /info HTTP/1.1\r\nHost: evil.com\r\n\r\n"
    large = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n"
    sent, status = some.choice([(some.randbytes(200) + b"\r\n\r\n", 400), (named, 403), (large, 413)])
    with create_connection(("127.0.0.1", int(port))) as client:
        client.sendall(sent)
        assert client.recv(1000)[9:12] in (b"%d" % status, b"503")


def refused(path: str, body: Any, status: int, port: str, *_: object) -> None:
    assert asked(port, path, body, status=status)["error"]["message"]


KINDS: dict[str, Callable[[str, random.Random, Wanted], object]] = {
    "embeddings": embeddings, "rerank": rerank, "sparse": sparse, "slow": slow, "left": left, "hostile": hostile,
    "no JSON": partial(refused, "/rerank", b"{" * 1000, 400),
    "no such field": partial(refused, "/v1/embeddings", {"inputs": "a"}, 400),
    "too many": partial(refused, "/embed", {"inputs": ["a"] * 3000}, 413),
}  # fmt: skip


def near(found: Any, want: Any) -> bool:
    """Compare the numbers of a text that was computed in another batch."""
    return len(found) == len(want) and bool(np.abs(np.array(found) - np.array(want)).max() <= NEAR)
