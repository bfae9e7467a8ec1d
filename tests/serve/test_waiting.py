"""What waits, for the worker or for its client: how much there may be of it, how long, and what the end makes of it."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from command_line import Patch, Printed
from reference_files import REFERENCE
from served import SECONDS, needs_server, opened, served, straight

from minibert.serve import gate, run, worker
from minibert.serve.app import Server
from minibert.serve.fields import Limits

installed = pytest.fixture(scope="module", autouse=True)(needs_server)

WHOLE = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def server(**options: Any) -> Server:
    return Server([opened(REFERENCE / "sentences-last-token")], **options)


class Held:
    """A server whose worker waits before each step until it is let go, and notes the steps."""

    def __init__(self, monkeypatch: Patch, **options: Any) -> None:
        self.go, self.steps = threading.Event(), list[int]()
        compute = worker.compute_shares

        def held(shares: Any) -> None:
            assert self.go.wait(SECONDS)
            self.steps.append(len(shares))
            compute(shares)

        monkeypatch.setattr(worker, "compute_shares", held)
        self.server = server(**options)


def inside(server: Server, count: int) -> None:
    """Wait until `count` requests are inside."""
    end = time.monotonic() + SECONDS
    while server.gate.inside != count:
        assert time.monotonic() < end, f"{server.gate.inside} requests are inside, expected {count}"
        time.sleep(0.01)


def test_work_waiting_is_bounded_and_the_rest_told_to_come_again(monkeypatch: Patch) -> None:
    held = Held(monkeypatch, limits=Limits(waiting=3))
    with served(held.server) as address, ThreadPoolExecutor(3) as pool:
        for _ in range(2):  # the places are given back
            held.go.clear()
            waiting = [pool.submit(address.embed, "dog") for _ in range(3)]
            inside(held.server, 3)
            answer = address.embed("dog")
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert (answer.json["error"]["type"], answer.error) == (
                "server_error", "3 requests are waiting; try again in 1 s",
            )  # fmt: skip
            assert address.ask("/health").status == 200
            held.go.set()
            assert [each.result().status for each in waiting] == [200] * 3
            inside(held.server, 0)
    assert sum(held.steps) == 6
    assert len(held.steps) <= 4, "what gathered behind the first step of a round was computed together"


def test_a_client_that_leaves_gives_its_place_back(monkeypatch: Patch) -> None:
    """One leaves while its work waits, one in the middle of its request; their work is dropped."""
    held = Held(monkeypatch)
    with served(held.server) as address:
        body = json.dumps({"input": ["x" * worker.STEP] * 3}).encode()
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        clients = [socket.create_connection(("127.0.0.1", address.port)) for _ in range(2)]
        clients[0].sendall(head + body)
        inside(held.server, 1)
        clients[1].sendall(head + body[:5])
        inside(held.server, 2)
        for client in clients:
            client.close()
        inside(held.server, 0)
        held.go.set()
        assert address.embed("dog").status == 200
    assert held.steps == [1, 1], "the one that was under way, and the dog's"


def test_half_a_request_is_answered_after_a_while(monkeypatch: Patch) -> None:
    monkeypatch.setattr(gate, "PATIENCE", 0.2)
    with served(server()) as address, socket.create_connection(("127.0.0.1", address.port), SECONDS) as client:
        client.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{")
        assert client.recv(1000).startswith(b"HTTP/1.1 408 ")
        assert address.embed("dog").status == 200


def test_a_connection_without_a_whole_head_is_closed(monkeypatch: Patch) -> None:
    """Each connection costs a file of the process; the first request has a bound, and so have later ones."""
    monkeypatch.setattr(run, "PATIENCE", 0.5)
    with served(server()) as address:
        for sent in (b"", WHOLE[:30], WHOLE + WHOLE[:30]):
            with socket.create_connection(("127.0.0.1", address.port), SECONDS) as client:
                client.sendall(sent)
                got = b""
                with suppress(ConnectionResetError):
                    while part := client.recv(4096):
                        got += part
                assert got.startswith(b"HTTP/1.1 200") == sent.startswith(WHOLE)
        slow = http.client.HTTPConnection("127.0.0.1", address.port, timeout=SECONDS)
        for _ in range(3):  # one connection lives longer than the bound, if its requests are whole
            slow.request("GET", "/health")
            assert slow.getresponse().read() == b'{"status":"ok"}'
            time.sleep(0.3)
        slow.close()


def test_connections_wait_while_nothing_is_accepted(monkeypatch: Patch) -> None:
    """200 callers at once: a queue of 32, which is what is accepted at a time, would let the next ones in no more."""
    held, go = server(), threading.Event()

    async def busy(request: Any) -> Any:
        go.wait(SECONDS)
        return gate.as_json({})

    monkeypatch.setattr(held, "health", busy)
    with served(held) as address, ExitStack() as opened:
        where = "127.0.0.1", address.port
        clients = []
        for _ in range(200):
            clients.append(opened.enter_context(socket.create_connection(where, SECONDS / 3)))
            clients[-1].sendall(WHOLE)
        go.set()
        for client in clients:
            assert client.recv(12) == b"HTTP/1.1 200"


@pytest.mark.parametrize(("spare", "files"), [(4, -1), (400, 10)])
def test_silent_connections_lock_no_client_out(spare: int, files: int, monkeypatch: Patch, capsys: Printed) -> None:
    """Those that have waited longest are closed; what is at work is not. files: how many the system allows."""
    monkeypatch.setattr(run, "SPARE", spare)
    monkeypatch.setattr(run, "PATIENCE", 10 * SECONDS)
    known = os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda name: files if name == "SC_OPEN_MAX" else known(name))
    held = Held(monkeypatch, limits=Limits(waiting=1))
    with served(held.server) as address, ThreadPoolExecutor(1) as pool, ExitStack() as opened:
        at_work = pool.submit(address.embed, "dog")
        inside(held.server, 1)
        idle = []
        for _ in range(4):
            address.ask("/health")  # a closed connection is not counted
        for i in range(40):
            client = opened.enter_context(socket.create_connection(("127.0.0.1", address.port), SECONDS))
            client.sendall(WHOLE if i % 2 else WHOLE[:20])  # half of them have been answered before
            while i % 2 and not client.recv(4096).endswith(b"}"):
                pass
            idle.append(client)
        assert address.ask("/health").status == 200
        for client in idle[:36]:
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""
        held.go.set()
        assert at_work.result().status == 200
    assert capsys.readouterr().err.count("\n") == 1


def test_a_body_behind_its_answer_is_read_for_a_while_only(monkeypatch: Patch) -> None:
    monkeypatch.setattr(run, "REST", 100_000)
    with served(server()) as address:
        for head in ("POST /v1/embeddings HTTP/1.1\r\nHost: evil.com", "GET /health HTTP/1.1\r\nHost: x"):
            with socket.create_connection(("127.0.0.1", address.port), SECONDS) as client:
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
    full = server(limits=Limits(waiting=1))

    async def large(request: Any) -> Any:
        return gate.as_json("x" * 30_000_000)

    monkeypatch.setitem(full.told, "/info", large)
    with served(full) as address:
        for leaves in (True, False):
            monkeypatch.setattr(run, "PATIENCE", SECONDS if leaves else 0.5)
            with socket.socket() as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.connect(("127.0.0.1", address.port))
                client.sendall(b"GET /info HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert client.recv(12) == b"HTTP/1.1 200"
                assert address.embed("dog").status == 503
                if not leaves:
                    inside(full, 0)
            inside(full, 0)
            assert address.embed("dog").status == 200
        with socket.socket() as slow:  # a slow reader gets all of it, though that takes longer than one piece may take
            slow.connect(("127.0.0.1", address.port))
            slow.sendall(b"GET /info HTTP/1.1\r\nHost: localhost\r\n\r\n")
            read, times = bytearray(), 0
            while not read.endswith(b'x"'):
                if len(read) >= times * 3_000_000:
                    times += 1
                    time.sleep(0.1)
                read += slow.recv(1 << 20) or pytest.fail("cut off")
        assert len(read) > 30_000_002


def test_at_the_end_what_was_taken_is_answered(monkeypatch: Patch) -> None:
    held = Held(monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        with served(held.server) as address:
            waiting = pool.submit(address.embed, "dog")
            inside(held.server, 1)
            threading.Timer(0.3, held.go.set).start()  # after the end was asked for
        assert waiting.result().status == 200
        with pytest.raises(ConnectionError):
            address.ask("/health")


def test_what_is_not_done_in_time_is_told_so(monkeypatch: Patch, capsys: Printed) -> None:
    held = Held(monkeypatch, limits=Limits(grace=1))
    with ThreadPoolExecutor(1) as pool:
        with served(held.server) as address:
            waiting = pool.submit(address.embed, "dog")
            waiting.add_done_callback(lambda _: held.go.set())
            inside(held.server, 1)
        answer = waiting.result()
    assert (answer.status, answer.headers["retry-after"], held.server.gate.undone) == (503, "1", 1)
    assert answer.error == "the server ends before this was done; try again"
    assert capsys.readouterr().err == "ERROR:    Cancel 1 running task(s), timeout graceful shutdown exceeded\n"
    slow = server()
    cut = straight(slow, "/v1/embeddings", b'{"input": "dog"}', events_read=1)
    assert (cut.status, cut.body) == (200, b""), "it does not read its answer when the time is over"
    assert slow.gate.undone == 1, "which the exit code says"
