"""`minibert serve` as a process of a test."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from reference_files import REFERENCE
from served import SECONDS, Address

MODEL, RERANKER = str(REFERENCE / "sentences-last-token"), str(REFERENCE / "uses-reranker")
HALF = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"


@contextmanager
def serving(
    *arguments: str,
    models: tuple[str, ...] = (MODEL,),
    said: str = "sentences-last-token",
    path: str = "/v1/embeddings",
    before: tuple[str, ...] = (),
) -> Iterator[tuple[subprocess.Popen[str], Address]]:
    """Start the command and wait until it says where it is. `before`: a command that becomes it."""
    command = [*before, sys.executable, "-m", "minibert", "serve", *models, "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stderr.readline()
            ready = rf"minibert: {said} at http://127\.0\.0\.1:(\d+){path}; Ctrl-C ends it\n"
            found = re.fullmatch(ready, line)
            assert found, line
            yield process, Address(int(found[1]))
        finally:
            process.kill()


@contextmanager
def half_a_request(address: Address) -> Iterator[socket.socket]:
    """Be a client that the server waits for, for longer than the test."""
    with socket.create_connection(("127.0.0.1", address.port), SECONDS) as client:
        client.sendall(HALF)
        while address.ask("/info").json["requests_inside"] < 2:
            time.sleep(0.01)
        yield client
        assert client.recv(1000).startswith(b"HTTP/1.1 503 ")
