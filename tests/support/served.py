"""A server of a test, at a free port of this machine: on a thread of its own, or a process; asked over real HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from limits import CHILD_SECONDS as SECONDS
from needed import absent, missing
from reference_files import REFERENCE

import minibert
from minibert.commands.serve import answer, listen
from minibert.serve.app import Server
from minibert.serve.worker import Model, model_of, names_of
from minibert.show.live import Live, LiveServer

MODEL, EMBEDDINGS = str(REFERENCE / "sentences-last-token"), "/v1/embeddings"


def needs_server() -> None:
    """Skip where its packages are not installed; in CI fail."""
    if absent("starlette", "uvicorn"):
        missing("starlette or uvicorn not installed; they are in the extra `serve`")


def opened(folder: Path | str, name: str | None = None, **options: Any) -> Model:
    """Open a model of a server; `name`: as it was typed."""
    return model_of(minibert.load_encoder(folder, **options), names_of(name or str(folder)))


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The message of a refusal in OpenAI's form."""
        error = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return str(error["message"])


class Address(NamedTuple):
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(self, path: str, body: Any = None, method: str | None = None, **headers: str) -> Answer:
        """Send one request: an object as JSON, bytes as they are."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            sent = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method or ("GET" if body is None else "POST"), path, sent, headers)
            got = connection.getresponse()
            return Answer(got.status, {name.lower(): value for name, value in got.getheaders()}, got.read())
        finally:
            connection.close()

    def embed(self, given: Any, **fields: Any) -> Answer:
        return self.ask("/v1/embeddings", {"input": given, **fields})


@contextmanager
def served(server: Server) -> Iterator[Address]:
    """Run it meanwhile, and end it as SIGTERM does."""
    told: queue.Queue[Any] = queue.Queue()
    with listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        thread = threading.Thread(target=answer, args=(server, listening, told.put), daemon=True)
        thread.start()
        end = told.get(timeout=SECONDS)
        try:
            yield Address(port)
        finally:
            end()
            thread.join(SECONDS)
        assert not thread.is_alive()


@contextmanager
def serving(
    *arguments: str, models: tuple[str, ...] = (MODEL,), said: str = "sentences-last-token", path: str = EMBEDDINGS
) -> Iterator[tuple[subprocess.Popen[str], Address]]:
    """Start the command and wait until it prints its address."""
    command = [sys.executable, "-m", "minibert", "serve", *models, "--port", "0", *arguments]
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
def live_served(live: Live, page: Callable[[], str]) -> Iterator[tuple[Address, LiveServer]]:
    """Serve a page that computes meanwhile."""
    with LiveServer(listen("127.0.0.1", 0), page, live.answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield Address(server.server_address[1]), server
        finally:
            server.shutdown()
            thread.join(SECONDS)


def straight(
    server: Server,
    path: str,
    body: bytes,
    events_read: int = 9,
    method: str = "POST",
    more_body: bool = False,
    **headers: str,
) -> Answer:
    """Ask the application without a socket: a hundred requests take no time.

    events_read: how many parts of the answer the client reads until the server ends and leaves it.
    """
    events: list[dict[str, Any]] = []
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "server": ("127.0.0.1", 1),
        "client": ("127.0.0.1", 2), "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip

    async def run_it() -> None:
        coming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        coming.put_nowait({"type": "http.request", "body": body, "more_body": more_body})

        async def send(event: Any) -> None:
            events.append(event)
            if len(events) == events_read:
                raise asyncio.CancelledError

        await server(scope, coming.get, send)

    asyncio.run(run_it())
    (start,) = [event for event in events if event["type"] == "http.response.start"]
    whole = b"".join(event.get("body", b"") for event in events if event["type"] == "http.response.body")
    return Answer(start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, whole)
