"""The way of a request through the server: who may ask, how many at once, how much is read; and back in pieces."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

from minibert.errors import MinibertError

from .fields import Limits, Refusal
from .record import INSIDE, Record
from .worker import Job, Kind, Worker

LOCAL = ("127.0.0.1", "localhost", "::1")
PATIENCE = 30  # seconds that a client has to send a request's head, then its body, and to read a piece of the answer
PIECE = 1 << 18  # bytes of a piece
RETRY = 1  # seconds after which a refused client may try again
ADVICE = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": str(RETRY)}}  # headers of a refusal, by its status
Handler = Callable[[Any], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Gate:
    """What every request passes: the checks, the limits, the worker.

    token  what a client must send as `Authorization: Bearer TOKEN`, except to /health; None: nothing
    """

    def __init__(self, token: str | None, limits: Limits, record: Record) -> None:
        self.token = None if token is None else token.encode()
        self.limits, self.record = limits, record
        self.undone = 0  # requests that were not computed, or whose answer was not read, when the grace was over

    @cached_property
    def worker(self) -> Worker:
        """The thread that computes, made when it is first needed: a fork would lose it."""
        return Worker()

    @property
    def inside(self) -> int:
        """How many requests are accepted and not yet answered, by all workers together."""
        return int(self.record.total(*INSIDE))

    def guarded(self, handler: Handler) -> Handler:
        async def through(request: Any) -> Any:
            self._check_host(request)
            self._check_token(request)

            async def answered(_: Any, __: Any, send: Send) -> None:
                with self._admitted():  # until the answer is read: unread answers would fill the memory
                    try:
                        answer = await handler(request)
                    except asyncio.CancelledError:  # the server ends
                        self.undone += 1
                        answer = refused(Refusal(503, "the server ends before this was done; try again"))
                    try:
                        await send_pieces(answer, send)
                    except asyncio.CancelledError:  # it was not read in time
                        self.undone += 1

            return answered

        return through

    def _check_host(self, request: Any) -> None:
        """Reject foreign Host headers (DNS rebinding): in a browser such a page could read the answers."""
        host = request.headers.get("host", "")
        if self.token is None and is_public(host):
            raise Refusal(
                403,
                f"without a token this server answers at names of this machine, found {host!r:.80}; ask 127.0.0.1, or "
                "start it with a token",
            )

    def _check_token(self, request: Any) -> None:
        if self.token is None:
            return
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        same = hmac.compare_digest(sent.strip().encode("utf-8", "replace"), self.token)
        if not (same and scheme.lower() == "bearer"):
            raise Refusal(401, "this server needs its token: Authorization: Bearer TOKEN", code="invalid_api_key")

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        if self.inside >= self.limits.waiting:
            raise Refusal(503, f"{self.inside} requests are waiting; try again in {RETRY} s")
        self.record.add(*INSIDE)
        try:
            yield
        finally:
            self.record.add(*INSIDE, number=-1)

    async def body(self, request: Any) -> bytes:
        """Read the body, up to the limit. Raises Refusal."""
        most = self.limits.body
        too_large = Refusal(
            413,
            f"the request has more than {most} bytes; send fewer or shorter texts at once, or start the server with "
            "another --max-body",
        )
        length = request.headers.get("content-length", "")
        if length.isascii() and length.isdigit() and len(length) < 20 and int(length) > most:
            raise too_large
        parts, size = [], 0

        async def read() -> None:
            nonlocal size
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise too_large
                parts.append(part)

        try:
            await asyncio.wait_for(read(), PATIENCE)
        except asyncio.TimeoutError:
            raise Refusal(408, f"the request did not come within {PATIENCE} s") from None
        return b"".join(parts)

    async def computed(self, request: Any, kind: Kind, items: Sequence[Any]) -> Job:
        """Have the worker compute items. Raises Refusal if it cannot, ClientDisconnect if the client leaves first."""
        from starlette.requests import ClientDisconnect

        loop, ended = asyncio.get_running_loop(), asyncio.Event()

        def tell(_: Job) -> None:
            with suppress(RuntimeError):  # the loop has closed
                loop.call_soon_threadsafe(ended.set)

        job = Job(kind, items, tell)
        self.worker.take(job)
        done, gone = asyncio.ensure_future(ended.wait()), asyncio.ensure_future(_left(request))
        try:
            await asyncio.wait({done, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            job.left = True
            done.cancel()
            gone.cancel()
        if not ended.is_set():
            raise ClientDisconnect
        if job.error is not None:
            raise _in_words(job.error)
        return job


def refused(refusal: Refusal, headers: Mapping[str, str] | None = None) -> Any:
    """Answer with a refusal, in OpenAI's form."""
    kind = "server_error" if refusal.status >= 500 else "invalid_request_error"
    # half of a pair of surrogates in a field's name would be JSON that many clients cannot read
    param = refusal.param and refusal.param.encode("utf-8", "replace").decode()
    error = {"message": str(refusal), "type": kind, "param": param, "code": refusal.code}
    return as_json({"error": error}, refusal.status, {**(headers or {}), **ADVICE.get(refusal.status, {})})


def _in_words(error: BaseException) -> Refusal:
    if isinstance(error, MinibertError | ValueError | TypeError):
        return Refusal(400, str(error))
    return Refusal(500, f"the texts could not be computed: {type(error).__name__}")


async def _left(request: Any) -> None:
    """Wait until the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def send_pieces(response: Any, send: Send) -> None:
    """Send an answer in pieces, each after the client has read the one before."""
    body = response.body
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    for start in range(0, len(body), PIECE):
        piece, more = body[start : start + PIECE], start + PIECE < len(body)
        await send({"type": "http.response.body", "body": piece, "more_body": more})


def as_json(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Any:
    """Make an answer in ASCII."""
    from starlette.responses import Response

    body = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    return Response(body, status, headers, "application/json")


def is_public(host: str) -> bool:
    """Say whether a Host header has a public name, which its owner could point at this machine (DNS rebinding).

    >>> [is_public(host) for host in ("localhost:8000", "127.0.0.1:8000", "[::1]", "host.docker.internal", "a.com:80")]
    [False, False, False, False, True]
    """
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    last = name.rstrip(".").lower().rpartition(".")[2]
    return not (name.startswith("[") or "." not in name or last.isdigit() or last in ("localhost", "local", "internal"))
