"""Requests that wait for the worker or for their client: how many, how long, and what happens at the end."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest.mock import Mock

import pytest
from command_line import Patch, Printed
from limits import until
from reference_files import REFERENCE
from served import SECONDS, Address, needs_server, opened, served, straight

from minibert.serve import app, worker
from minibert.serve.app import Server
from minibert.serve.options import DEFAULTS, Limits

installed = pytest.fixture(scope="module", autouse=True)(needs_server)

WHOLE = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def watched(**options: Any) -> Server:
    return Server([opened(REFERENCE / "sentences-last-token")], **options)


def until_inside(server: Server, count: int) -> None:
    until(lambda: server.inside == count)


class Held:
    """A server whose worker waits before each step until it is let go, and notes the steps and the jobs it is given."""

    def __init__(self, monkeypatch: Patch, **options: Any) -> None:
        self.began, self.go, self.steps, self.given = threading.Event(), threading.Event(), list[int](), list[int]()
        compute, take = worker.compute_shares, worker.Worker.take

        def held(shares: Any) -> None:
            self.began.set()
            assert self.go.wait(SECONDS)
            self.steps.append(len(shares))
            compute(shares)

        monkeypatch.setattr(worker, "compute_shares", held)
        monkeypatch.setattr(worker.Worker, "take", lambda own, job: (take(own, job), self.given.append(1)))
        self.server = watched(**options)


class Timers:
    """Timers of connections that are no clock's: the test says when their time is over."""

    def __init__(self, monkeypatch: Patch) -> None:
        self.running: dict[object, Callable[[], object]] = {}
        self.lock, self.ending = threading.Lock(), False  # the loop's thread begins and cancels, the test's ends
        known = asyncio.BaseEventLoop.call_later

        def call_later(loop: Any, delay: float, call: Any, *given: Any, **options: Any) -> Any:
            if delay not in (DEFAULTS.patience, 5):  # ours, and uvicorn's between two requests
                return known(loop, delay, call, *given, **options)

            def cancel() -> object:
                with self.lock:
                    return self.running.pop(timer, None)

            def end() -> object:  # on the loop's thread: one that was cancelled meanwhile does nothing
                return cancel() and call(*given)

            timer = Mock(cancel=cancel)
            with self.lock:
                self.running[timer] = lambda: loop.call_soon_threadsafe(end)
                if self.ending:
                    self.running[timer]()
            return timer

        monkeypatch.setattr(asyncio.BaseEventLoop, "call_later", call_later)

    @contextmanager
    def over(self) -> Iterator[None]:
        """End the running jobs, and the jobs that begin meanwhile."""
        with self.lock:
            self.ending = True
            for call in self.running.values():
                call()
        yield
        with self.lock:
            self.ending = False


def connected(address: Address) -> socket.socket:
    return socket.create_connection(("127.0.0.1", address.port), SECONDS)


def read_all(client: socket.socket) -> bytes:
    got = bytearray()
    with suppress(ConnectionResetError):
        while part := client.recv(1 << 20):
            got += part
    return bytes(got)


def test_work_waiting_is_bounded_and_the_rest_told_to_come_again(monkeypatch: Patch) -> None:
    held = Held(monkeypatch, limits=Limits(waiting=3))
    with served(held.server) as address, ThreadPoolExecutor(3) as pool:
        for count in (3, 6):  # the places are given back
            held.go.clear()
            waiting = [pool.submit(address.embed, "dog") for _ in range(3)]
            until(lambda count=count: len(held.given) == count)  # a request is inside before its body has come
            answer = address.embed("dog")
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert answer.json["error"]["type"] == "server_error"
            assert answer.error == "3 requests are waiting; try again in 1 s"
            assert address.ask("/health").status == 200
            held.go.set()
            assert [each.result().status for each in waiting] == [200] * 3
            until_inside(held.server, 0)
    assert sum(held.steps) == 6 and len(held.steps) <= 4, (
        "what gathered behind the first step of a round was computed together"
    )


def test_a_client_that_leaves_gives_its_place_back(monkeypatch: Patch) -> None:
    """One leaves while its work waits, one in the middle of its request; their work is dropped."""
    held = Held(monkeypatch)
    with served(held.server) as address:
        body = json.dumps({"input": ["x" * DEFAULTS.step] * 3}).encode()
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        with connected(address) as whole, connected(address) as half:
            whole.sendall(head + body)
            assert held.began.wait(SECONDS)
            half.sendall(head + body[:5])
            until_inside(held.server, 2)
        until_inside(held.server, 0)
        held.go.set()
        assert address.embed("dog").status == 200
    assert held.steps == [1, 1], "the one that was under way, and the dog's"


def test_half_a_request_is_answered_after_a_while() -> None:
    answer = straight(watched(limits=Limits(patience=0.01)), "/v1/embeddings", b"{", more_body=True)
    assert (answer.status, answer.error) == (408, "the request did not come within 0.01 s")


def test_a_connection_without_a_whole_head_is_closed(monkeypatch: Patch) -> None:
    """Each connection costs a file of the process; the first request has a bound, and so have later ones."""
    timers = Timers(monkeypatch)
    with served(watched()) as address:
        for sent in (b"", WHOLE[:30], WHOLE + WHOLE[:30]):
            with connected(address) as client:
                client.sendall(sent)
                got = client.recv(4096) if sent.startswith(WHOLE) else b""
                assert got.startswith(b"HTTP/1.1 200") == sent.startswith(WHOLE)
                with timers.over():
                    assert b"HTTP/1.1" not in read_all(client)


def test_connections_wait_while_nothing_is_accepted(monkeypatch: Patch) -> None:
    """200 callers at once: a queue of 32, which is what is accepted at a time, would let the next ones in no more."""
    held, go = watched(), threading.Event()

    async def busy(request: Any) -> Any:
        return go.wait(SECONDS) and app.as_json({})

    monkeypatch.setattr(held, "health", busy)
    with served(held) as address, ExitStack() as stack:
        clients = []
        for _ in range(200):  # the first one keeps the server busy
            clients.append(stack.enter_context(connected(address)))
            clients[-1].sendall(WHOLE)
        go.set()
        for client in clients:
            assert client.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize(("spare", "files"), [(4, -1), (400, 20)])
def test_silent_connections_lock_no_client_out(spare: int, files: int, monkeypatch: Patch, capsys: Printed) -> None:
    """The connections that have waited longest are closed, active ones are not. files: how many the system allows."""
    known = os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda name: files if name == "SC_OPEN_MAX" else known(name))
    Timers(monkeypatch)  # no time is over
    held = Held(monkeypatch, limits=Limits(waiting=1, spare=spare))
    with served(held.server) as address, ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        at_work = pool.submit(address.embed, "dog")
        until_inside(held.server, 1)
        idle = []
        for _ in range(4):
            address.ask("/health")  # a closed connection is not counted
        for i in range(40):
            client = stack.enter_context(connected(address))
            client.sendall(WHOLE if i % 2 else WHOLE[:20])  # half of them have been answered before
            while i % 2 and not client.recv(4096).endswith(b"}"):
                pass
            idle.append(client)
        assert address.ask("/health").status == 200
        for client in idle[:36]:
            assert read_all(client) == b""
        held.go.set()
        assert at_work.result().status == 200
    assert capsys.readouterr().err.count("\n") == 1


def test_a_body_behind_its_answer_is_read_for_a_while_only(monkeypatch: Patch) -> None:
    Timers(monkeypatch)  # no time is over
    with served(watched(limits=Limits(rest=100_000))) as address:
        for head in ("POST /v1/embeddings HTTP/1.1\r\nHost: evil.com", "GET /health HTTP/1.1\r\nHost: x"):
            with connected(address) as client:
                client.sendall(f"{head}\r\nContent-Length: 99999999\r\n\r\n".encode())
                assert client.recv(4096).startswith(b"HTTP/1.1 ")
                with pytest.raises(ConnectionError):
                    client.sendall(bytes(1 << 26))
        kept = http.client.HTTPConnection("127.0.0.1", address.port, timeout=SECONDS)
        for _ in range(4):  # of each request anew
            kept.request("POST", "/v1/embeddings", bytes(60_000), {"Host": "evil.com"})
            assert kept.getresponse().read().startswith(b'{"error"')
        kept.close()


def test_an_answer_that_is_not_read_keeps_one_place_for_a_while(monkeypatch: Patch) -> None:
    """Its answer waits in pieces; all of it in the system's hands would be memory without bound."""
    timers, full = Timers(monkeypatch), watched(limits=Limits(waiting=1))

    async def large(request: Any) -> Any:
        return app.as_json("x" * 30_000_000)

    monkeypatch.setitem(full.get_routes, "/info", large)
    asked = b"GET /info HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served(full) as address:
        for leaves in (True, False):
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.settimeout(SECONDS)
                client.connect(("127.0.0.1", address.port))
                client.sendall(asked)
                assert client.recv(12) == b"HTTP/1.1 200"
                assert address.embed("dog").status == 503
                if not leaves:
                    with timers.over():
                        until_inside(full, 0)
            until_inside(full, 0)
            assert address.embed("dog").status == 200
        with connected(address) as slow:  # who reads each piece gets all of it, with a new time for each
            slow.sendall(asked)
            got = bytearray()
            while not got.endswith(b'x"'):
                got += slow.recv(1 << 20) or pytest.fail("cut off")
        assert len(got) > 30_000_002


def test_at_the_end_what_was_taken_is_answered(monkeypatch: Patch) -> None:
    held = Held(monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        with served(held.server) as address:
            waiting = pool.submit(address.embed, "dog")
            assert held.began.wait(SECONDS)
            silent = connected(address)
            silent.sendall(WHOLE)
            assert silent.recv(12) == b"HTTP/1.1 200"  # the server knows of it
            # the end closes the silent connection, and only then the work goes on
            going = pool.submit(lambda: (read_all(silent), silent.close(), held.go.set()))
        assert waiting.result().status == 200
        going.result()
        with pytest.raises(ConnectionError):
            address.ask("/health")


def test_what_is_not_done_in_time_is_told_so(monkeypatch: Patch, capsys: Printed) -> None:
    held = Held(monkeypatch, limits=Limits(grace=1))
    with ThreadPoolExecutor(1) as pool:
        with served(held.server) as address:
            waiting = pool.submit(address.embed, "dog")
            waiting.add_done_callback(lambda _: held.go.set())
            assert held.began.wait(SECONDS)
        answer = waiting.result()
    assert (answer.status, answer.headers["retry-after"], held.server.unanswered) == (503, "1", 1)
    assert answer.error == "the server is shutting down; try again"
    assert capsys.readouterr().err == "ERROR:    Cancel 1 running task(s), timeout graceful shutdown exceeded\n"
    slow = watched()
    cut = straight(slow, "/v1/embeddings", b'{"input": "dog"}', events_read=1)
    assert (cut.status, cut.body) == (200, b""), "it does not read its answer when the time is over"
    assert slow.unanswered == 1, "which the exit code says"
