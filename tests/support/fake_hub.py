"""A Hub on 127.0.0.1 that counts what it sends and misbehaves on command.

    with FakeHub() as hub:
        hub.add("org/tiny", {"config.json": b"{}"})
        hub.misbehave("config.json", status(500), times=2)
        ...  # a client with endpoint=hub.endpoint
        assert hub.sent < 1000

It answers what the client's own functions ask: `/api/models/{name}/revision/{revision}`, and `HEAD` and `GET`
of `/{name}/resolve/{revision}/{file}` with ETag, X-Repo-Commit, Content-Length and byte ranges. A second server
on another port (`hub.second`) plays the host to which large files are redirected.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import math
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import sleep  # the Hub's own slowness; `quick_pauses` shortens time.sleep, which its clients call
from typing import Any
from urllib.parse import unquote, urlsplit

from limits import CHILD_SECONDS

CHUNK = 1 << 16
PATIENCE = 20.0  # seconds that a client waits for the first answer: a busy machine is no Hub that is absent


def commit_of(text: str) -> str:
    """Make forty hexadecimal digits of any text, as a commit has."""
    return hashlib.sha1(text.encode()).hexdigest()


@dataclass
class Repository:
    """One model on the Hub: its files (bytes, or the path of a large one) and who may see it."""

    files: Mapping[str, bytes | Path]
    commit: str
    revisions: dict[str, str]
    private: bool = False  # without the right token it does not exist
    gated: bool = False  # without the right token it is seen, but its files are not given
    renamed: str | None = None  # every request is sent on to this name


@dataclass
class Request:
    """A request, and how many bytes of its answer's head and body went out."""

    method: str
    path: str
    range: str | None
    authorization: str | None
    host: str
    agent: str | None
    head: int = 0
    sent: int = 0


@dataclass
class Answer:
    """An answer as it would go out; a fault changes it, or does something to the connection."""

    status: int
    headers: dict[str, str]
    start: int = 0
    stop: int = 0
    content: bytes | Path = b""
    closed: bool = False  # close the connection after the body
    silent: bool = False  # keep the connection open and say nothing


Fault = Callable[["FakeHub", Request, Answer], Answer]


@dataclass
class Rule:
    """Apply `fault` to requests whose path matches, `times` times, after letting `skip` of them pass."""

    pattern: str
    fault: Fault
    times: float
    skip: int

    def applies(self, request: Request) -> bool:
        if not re.search(self.pattern, request.path):
            return False
        self.skip -= 1
        self.times -= self.skip < 0
        return self.skip < 0 <= self.times


def _ranged(answer: Answer, start: int, stop: int, size: int) -> Answer:
    """An answer with these bytes of a file that it says has this size."""
    named = {"Content-Range": f"bytes {start}-{stop - 1}/{size}", "Content-Length": str(stop - start)}
    return replace(answer, start=start, stop=stop, headers=answer.headers | named)


def wrong_content_range(hub: FakeHub, request: Request, answer: Answer) -> Answer:
    if answer.status != 206:
        return answer
    answer = _ranged(answer, answer.start + 1, answer.stop + 1, _size(answer.content))
    # at the end of a file there is no such byte
    return replace(answer, closed=True, headers=answer.headers | {"Connection": "close"})


def total(size: int) -> Fault:
    """Announce this size of the file, and send no byte beyond it."""
    return lambda hub, request, answer: (
        _ranged(answer, answer.start, min(answer.stop, size), size) if answer.status == 206 else answer
    )


def with_header(name: str, value: str) -> Fault:
    return lambda hub, request, answer: replace(answer, headers={**answer.headers, name: value})


def short_body(hub: FakeHub, request: Request, answer: Answer) -> Answer:
    """Announce and send half of the bytes that Content-Range promises."""
    half = max((answer.stop - answer.start) // 2, 1)
    return replace(answer, stop=answer.start + half, headers=answer.headers | {"Content-Length": str(half)})


def cut(after: int) -> Fault:
    return lambda hub, request, answer: replace(answer, stop=min(answer.stop, answer.start + after), closed=True)


def status(code: int, **headers: str) -> Fault:
    """Answer with an error status and nothing else; `retry_after="1"` becomes the header Retry-After."""
    named = {key.replace("_", "-").title(): value for key, value in headers.items()}
    return lambda hub, request, answer: Answer(code, {**named, "Content-Length": "0"})


def redirect_to_second(hub: FakeHub, request: Request, answer: Answer) -> Answer:
    """Send the client to the second host, as the Hub does for large files."""
    if answer.status not in (200, 206) or request.host == "second":
        return answer
    linked = {"X-Linked-Etag": answer.headers["ETag"], "X-Linked-Size": str(_size(answer.content))}
    own = {"Location": hub.second + request.path, "X-Repo-Commit": answer.headers["X-Repo-Commit"]}
    return Answer(302, {**own, **linked, "Content-Length": "0"})


def silent(hub: FakeHub, request: Request, answer: Answer) -> Answer:
    return replace(answer, silent=True)


def garbage(hub: FakeHub, request: Request, answer: Answer) -> Answer:
    """Send a page of HTML with status 200, as a captive portal does."""
    return _page(b"<html>please accept the conditions of this network</html>", "text/html")


def late(seconds: float) -> Fault:
    def fault(hub: FakeHub, request: Request, answer: Answer) -> Answer:
        sleep(seconds)
        return answer

    return fault


def _size(content: bytes | Path) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size


def _pieces(answer: Answer) -> Iterator[bytes]:
    """The bytes of the body, piece by piece, a large file never whole in memory."""
    left, content = answer.stop - answer.start, answer.content
    with io.BytesIO(content) if isinstance(content, bytes) else open(content, "rb") as file:
        file.seek(answer.start)
        while piece := file.read(min(CHUNK, left)):
            left -= len(piece)
            yield piece


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that hung up: it may, and what a server prints would stand among its own words."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class FakeHub:
    """The two servers, the models they hold, and a record of every request."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.rules: list[Rule] = []
        self.requests: list[Request] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._servers = [self._serve("first"), self._serve("second")]
        self.endpoint, self.second = (f"http://127.0.0.1:{server.server_address[1]}" for server in self._servers)

    def __enter__(self) -> FakeHub:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def add(self, name: str, files: Mapping[str, bytes | Path], commit: str = "", **options: Any) -> Repository:
        """Put a model on the Hub; `main` is its newest commit. Returns it, so that a test can change it."""
        commit = commit or commit_of(name)
        self.repositories[name] = Repository(files, commit, {"main": commit}, **options)
        return self.repositories[name]

    def misbehave(self, pattern: str, fault: Fault, times: float = math.inf, skip: int = 0) -> None:
        """From now on apply `fault` to requests whose path matches the pattern."""
        self.rules.append(Rule(pattern, fault, times, skip))

    def forget(self) -> None:
        """Count from zero again and behave well again."""
        self.requests.clear()
        self.rules.clear()

    @property
    def sent(self) -> int:
        """All bytes that left both servers, headers included."""
        return sum(request.head + request.sent for request in list(self.requests))

    def asked(self, pattern: str) -> list[Request]:
        return [request for request in list(self.requests) if re.search(pattern, request.path)]

    def _serve(self, host: str) -> ThreadingHTTPServer:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # else each answer waits 40 ms for the client's acknowledgement

            def do_GET(self) -> None:
                hub._handle(self, host)

            do_HEAD = do_GET  # noqa: N815 - the standard library calls it so

            def log_message(self, *args: object) -> None:
                pass

        server = _Server(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return server

    def _handle(self, handler: BaseHTTPRequestHandler, host: str) -> None:
        header = handler.headers
        asks = header["Range"], header["Authorization"], host, header["User-Agent"]
        request = Request(handler.command, handler.path, *asks)
        with self._lock:
            self.requests.append(request)
            rules = [rule for rule in self.rules if rule.applies(request)]
        answer = self._answer(request)
        for rule in rules:
            answer = rule.fault(self, request, answer)
        with contextlib.suppress(OSError):  # a client that hangs up is no error here
            self._send(handler, request, answer)

    def _send(self, handler: BaseHTTPRequestHandler, request: Request, answer: Answer) -> None:
        if answer.silent:
            self._closing.wait(60)
            handler.close_connection = True
            return
        head = f"HTTP/1.1 {answer.status} -\r\n" + "".join(f"{k}: {v}\r\n" for k, v in answer.headers.items()) + "\r\n"
        request.head = len(head)  # before it goes out: the client must not be faster than the count
        handler.wfile.write(head.encode("latin-1"))
        if request.method == "HEAD":
            return
        handler.close_connection = answer.closed
        for piece in _pieces(answer):
            request.sent += len(piece)
            handler.wfile.write(piece)

    def _answer(self, request: Request) -> Answer:
        path = unquote(urlsplit(request.path).path)
        if found := re.fullmatch(r"/api/models/(.+?)(?:/revision/(.+))?", path):
            name, revision, file = found[1], found[2] or "main", None
        elif found := re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path):
            name, revision, file = found.groups()
        elif path == "/api/agent-harnesses":
            return _page(b"{}", "application/json")
        else:
            return _error(404, "EntryNotFound")
        repository = self.repositories.get(name)
        if repository is not None and repository.renamed is not None:
            new = request.path.replace(name, repository.renamed, 1)
            return Answer(307, {"Location": new, "Content-Length": "0"})
        # the second host's addresses are signed: it asks for no token
        known = request.authorization == "Bearer hf_right"
        if repository is None or (repository.private and not known and request.host == "first"):
            return _error(404 if request.authorization else 401, "RepoNotFound")
        commit = repository.revisions.get(revision, revision if revision == repository.commit else None)
        if commit is None:
            return _error(404, "RevisionNotFound")
        if file is None:
            model = {"id": name, "sha": commit, "siblings": [{"rfilename": name} for name in repository.files]}
            return _page(json.dumps(model).encode(), "application/json")
        if repository.gated and not known and request.host == "first":
            return _error(403 if request.authorization else 401, "GatedRepo")
        if file not in repository.files:
            return _error(404, "EntryNotFound", commit)
        return _content(repository.files[file], commit, file, request.range)


def _page(body: bytes, kind: str) -> Answer:
    return Answer(200, {"Content-Type": kind, "Content-Length": str(len(body))}, 0, len(body), body)


def _error(code: int, error: str, commit: str | None = None) -> Answer:
    headers = {"X-Error-Code": error, "X-Error-Message": error, "Content-Length": "0"}
    return Answer(code, headers | ({"X-Repo-Commit": commit} if commit else {}))


def _content(content: bytes | Path, commit: str, file: str, asked: str | None) -> Answer:
    """A file, or the one range of it that was asked for."""
    size = _size(content)
    etag = hashlib.sha1(content if isinstance(content, bytes) else f"{commit}{file}{size}".encode()).hexdigest()
    headers = {"ETag": f'"{etag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", asked or "")
    if not found:
        return Answer(200, headers | {"Content-Length": str(size)}, 0, size, content)
    start, stop = int(found[1]), min(int(found[2]) + 1 if found[2] else size, size)
    if start >= size:
        return Answer(416, {"Content-Range": f"bytes */{size}", "Content-Length": "0"})
    return _ranged(Answer(206, headers, content=content), start, stop, size)


@functools.cache
def refused() -> str:
    deaf = socket.socket()
    deaf.bind(("127.0.0.1", 0))
    port = deaf.getsockname()[1]
    deaf.detach()  # never closed, so that no other process gets the port
    return f"http://127.0.0.1:{port}"


def use(monkeypatch: Any, endpoint: str, home: Path) -> None:
    """Point the client of this process, which reads its variables only once, at an endpoint and an empty home."""
    from huggingface_hub import constants

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "MINIBERT_CACHE", "SENTENCE_TRANSFORMERS_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "ENDPOINT": endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_ASSETS_CACHE": str(home / "assets"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_ETAG_TIMEOUT": PATIENCE,
        "HF_HUB_DOWNLOAD_TIMEOUT": PATIENCE,
        "HF_HUB_DISABLE_TELEMETRY": True,  # no request that only says who is asking
        "HF_HUB_DISABLE_XET": True,
    }.items():
        monkeypatch.setattr(constants, name, value)


def files_of(folder: Path) -> dict[str, Path]:
    """The files of a model's folder, without the values that tests/reference keeps beside them."""
    files = (path for path in folder.rglob("*") if path.is_file())
    beside = ("calls.json", "vectors.safetensors")
    return {path.relative_to(folder).as_posix(): path for path in files if path.name not in beside}


@contextlib.contextmanager
def hub_of(monkeypatch: Any, home: Path, name: str, folder: Path) -> Iterator[FakeHub]:
    with FakeHub() as hub:
        hub.add(name, files_of(folder))
        use(monkeypatch, hub.endpoint, home)
        yield hub


def quick_pauses(monkeypatch: Any) -> None:
    """Shorten a client's pauses before a retry to a thousandth."""
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(seconds / 1000))


def environment(endpoint: str, home: Path, **more: str) -> dict[str, str]:
    """The environment for a process of its own, with nothing of this machine's settings of the Hub in it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING", "MINIBERT"))}
    own = {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    own |= dict.fromkeys(("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"), f"{PATIENCE:g}")
    root = str(Path(__file__).resolve().parents[2])
    return kept | own | {"PYTHONPATH": os.pathsep.join([root, *filter(None, [kept.get("PYTHONPATH")])])} | more


def run(code: str, env: dict[str, str], *arguments: str, **options: Any) -> str:
    """What a process of its own prints, without a word of complaint."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=CHILD_SECONDS, **options)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout
