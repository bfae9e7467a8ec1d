"""The server of a page that computes (`minibert explain --live`): the page, and the questions that its script asks.

Only who has the URL may ask: its token opens the page, and the script sends it with each question. A request to a name
that is not this machine's is refused, and one that a page of another origin sends; no answer lets such a page read it.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from minibert.errors import MinibertError

from .fields import Limits, Refusal
from .gate import LOCAL, Gate, as_json, refused
from .record import Record

LIMITS = Limits(waiting=16, body=1 << 18, texts=1, grace=5)
HEADERS = [
    (b"cache-control", b"no-store"), (b"referrer-policy", b"no-referrer"), (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"), (b"cross-origin-resource-policy", b"same-origin"),
]  # fmt: skip


class LiveServer:
    """The server; `run.run` runs it.

    page     gives the page, as HTML
    answers  name of a question -> what answers it: an object of JSON to another; misuse is a ValueError in words
    """

    def __init__(self, page: Callable[[], str], answers: Mapping[str, Callable[[Any], Any]]) -> None:
        self.page, self.answers, self.limits = page, answers, LIMITS
        self.token = secrets.token_urlsafe(16)
        self.gate = Gate(self.token, LIMITS, Record(answers, ()))
        self.one = asyncio.Semaphore(1)  # computes at a time: each takes all cores

    def app(self) -> Any:
        """The application, for uvicorn or any server of ASGI."""
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route

        def unknown(_: Any, error: Any) -> Any:
            return refused(Refusal(error.status_code, f"{error.detail}: this server has its page and no more"))

        def fault(_: Any, error: Exception) -> Any:
            return refused(Refusal(500, f"an error of the server: {type(error).__name__}"))

        app = Starlette(
            routes=[
                Route("/", self.opened, methods=["GET"]),
                *(Route(f"/{name}", self._answering(name), methods=["POST"]) for name in self.answers),
            ],
            exception_handlers={
                Refusal: lambda _, error: refused(error), HTTPException: unknown, Exception: fault
            },
        )  # fmt: skip

        async def headed(scope: Any, receive: Any, send: Any) -> None:
            async def sending(event: Any) -> None:
                if event["type"] == "http.response.start":  # of a refusal or a fault too
                    event["headers"] = [*event["headers"], *HEADERS]
                await send(event)

            await app(scope, receive, sending)

        return headed

    async def opened(self, request: Any) -> Any:
        """GET /?token=...: the page."""
        from starlette.responses import Response

        check_name(request)
        if not secrets.compare_digest(request.query_params.get("token", "").encode(), self.token.encode()):
            raise Refusal(401, "open this page by the whole address that `minibert explain --live` has printed")
        return Response(await self._computed(self.page), media_type="text/html")

    def _answering(self, name: str) -> Callable[[Any], Any]:
        answer = self.answers[name]

        async def handler(request: Any) -> Any:
            check_name(request)
            body = await self.gate.body(request)
            try:
                given = json.loads(body)
            except (ValueError, RecursionError):
                raise Refusal(400, "the question must be JSON") from None
            return as_json(await self._computed(lambda: answer(given)))

        return self.gate.guarded(handler)

    async def _computed(self, work: Callable[[], Any]) -> Any:
        async with self.one:
            try:
                return await asyncio.to_thread(work)
            except (MinibertError, ValueError, IndexError) as error:
                raise Refusal(400, str(error)) from None


def check_name(request: Any) -> None:
    """Reject foreign Host headers (DNS rebinding) and foreign origins. Raises Refusal."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    if name.strip("[]").lower() not in LOCAL:
        raise Refusal(403, f"this page answers at 127.0.0.1 and localhost alone, found {host!r:.80}")
    if origin is not None and origin != f"http://{host}":
        raise Refusal(403, f"another page asks, of {origin!r:.80}; this server answers its own page alone")
