"""The routes of the server: requests in, answers in OpenAI's, Cohere's or text-embeddings-inference's form out."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import MinibertError
from minibert.models.encoder import Encoder

from .kinds import Model, names_of, scores
from .requests import Embedding, Limits, Refusal, Rerank, is_public, read_embedding, read_rerank
from .worker import Job, Kind, Worker

PATIENCE = 30  # seconds that a client has to send a request's head, then its body, and to read a piece of the answer
PIECE = 1 << 18  # bytes of a piece
RETRY = 1  # seconds after which a refused client may try again
ADVICE = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": str(RETRY)}}  # headers of a refusal, by its status
INLINE = 32  # vectors that the event loop encodes itself; more would delay other requests
RERANK = ("/rerank", "/v1/rerank", "/v2/rerank")  # Cohere's clients put the version before it
GONE = 499  # the client has closed the connection
Handler = Callable[[Any], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Server:
    """The server: its models, its worker, and the requests inside.

    token  what a client must send as `Authorization: Bearer TOKEN`, except to /health; None: nothing
    """

    def __init__(
        self,
        model: tuple[Encoder, str],
        reranker: tuple[Encoder, str] | None = None,
        token: str | None = None,
        limits: Limits | None = None,
        version: str = "",
    ) -> None:
        self.model = Model(*model)
        self.reranker = reranker = reranker or (model if self.model.late else None)
        self.scores = {raw: scores(reranker[0], raw) for raw in (False, True)} if reranker else {}
        self.token = None if token is None else token.encode()
        self.limits, self.version = limits or Limits(), version
        self.inside = 0
        self.undone = 0  # requests still inside when the grace was over
        self.worker = Worker()

    def app(self) -> Any:
        """The application, for uvicorn or any server of ASGI."""
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.requests import ClientDisconnect
        from starlette.responses import Response
        from starlette.routing import Route

        def unknown(_: Any, error: Any) -> Any:
            routes = "this server has POST /v1/embeddings, POST /rerank, GET /health and GET /info"
            return self._refused(Refusal(error.status_code, f"{error.detail}: {routes}"), error.headers or {})

        def fault(_: Any, error: Exception) -> Any:
            return self._refused(Refusal(500, f"an error of the server: {type(error).__name__}"))

        app = Starlette(
            routes=[
                Route("/v1/embeddings", self._guarded(self.embeddings), methods=["POST"]),
                *(Route(path, self._guarded(self.rerank), methods=["POST"]) for path in RERANK),
                Route("/health", self.health, methods=["GET"]),
                Route("/info", self._guarded(self.info), methods=["GET"]),
            ],
            exception_handlers={
                Refusal: lambda _, error: self._refused(error),
                HTTPException: unknown,
                ClientDisconnect: lambda *_: Response(status_code=GONE),
                Exception: fault,
            },
        )  # fmt: skip
        app.router.redirect_slashes = False  # a redirect would name the host that the client has sent
        return app

    # -- routes ----------------------------------------------------------------------------------------------

    async def embeddings(self, request: Any) -> Any:
        """POST /v1/embeddings."""
        asked = read_embedding(await self._body(request), self.limits)
        self._check_name(asked.model, self.model.names)
        kind = self.model.kind(asked.task)
        self.model.shortened(np.empty((0, self.model.dim), np.float32), asked.dimensions)  # refuses first of all
        job = await self._computed(request, kind, asked.texts)
        if job.truncated and not asked.truncate:
            raise Refusal(
                400,
                f"input[{job.truncated[0]}] has more tokens than this model takes; shorten it, or leave 'truncate' out",
                "input",
            )
        return await self._answer(lambda: self._embeddings(asked, job), len(asked.texts))

    async def rerank(self, request: Any) -> Any:
        """POST /rerank."""
        body = await self._body(request)
        if self.reranker is None:
            raise Refusal(404, "this server orders no documents: it was started without a reranker")
        asked = read_rerank(body, self.limits)
        self._check_name(asked.model, names_of(self.reranker[1]))
        pairs = [(asked.query, text) for text in asked.documents]
        job = await self._computed(request, self.scores[asked.raw], pairs)
        return await self._answer(lambda: ranked(asked, job.results), len(pairs))

    async def health(self, request: Any) -> Any:
        """GET /health."""
        return _json({"status": "ok"})

    async def info(self, request: Any) -> Any:
        """GET /info."""
        encoder, own = self.model.encoder, self.model.encoder.sentence_config
        return _json(
            {
                "model": self.model.names[1],
                "dimension": self.model.dim,
                "max_seq_length": encoder.max_seq_length,
                "pooling": list(own.poolings),
                "normalized": self.model.normalizes,
                "similarity": own.measure,
                "tasks": dict(encoder.prompts),
                "reranker": self.reranker and names_of(self.reranker[1])[1],
                "limits": self.limits._asdict(),
                "requests_inside": self.inside,
                "version": self.version,
            }
        )

    # -- a request's way -------------------------------------------------------------------------------------

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: Any) -> Any:
            self._check_host(request)
            self._check_token(request)

            async def answered(_: Any, __: Any, send: Send) -> None:
                with self._admitted():  # until the answer is read: unread answers would fill the memory
                    try:
                        answer = await handler(request)
                    except asyncio.CancelledError:  # the server ends
                        self.undone += 1
                        answer = self._refused(Refusal(503, "the server ends before this was done; try again"))
                    with suppress(asyncio.CancelledError):
                        await _send(answer, send)

            return answered

        return guarded

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
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1

    async def _body(self, request: Any) -> bytes:
        """Read the body, up to the limit. Raises Refusal."""
        most = self.limits.body
        too_large = Refusal(413, f"the request has more than {most} bytes; send fewer texts at once")
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

    def _check_name(self, name: str | None, names: Sequence[str]) -> None:
        if name is not None and name not in names:
            raise Refusal(
                404, f"this server has {names[-1]!r}, and not the model {name!r:.80}", "model", code="model_not_found"
            )

    async def _computed(self, request: Any, kind: Kind, items: Sequence[Any]) -> Job:
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

    async def _answer(self, make: Callable[[], object], size: int) -> Any:
        if size <= INLINE:
            return _json(make())
        return await asyncio.to_thread(lambda: _json(make()))

    def _embeddings(self, asked: Embedding, job: Job) -> dict[str, Any]:
        found = self.model.shortened(job.results, asked.dimensions).astype("<f4")
        check_finite(found)
        written = [base64.b64encode(vector.tobytes()).decode() for vector in found] if asked.base64 else found.tolist()
        return {
            "object": "list",
            "data": [{"object": "embedding", "index": i, "embedding": each} for i, each in enumerate(written)],
            "model": self.model.names[1],
            "usage": {"prompt_tokens": job.tokens, "total_tokens": job.tokens},
            "truncated": len(job.truncated),
        }

    def _refused(self, refusal: Refusal, headers: Mapping[str, str] = {}) -> Any:
        kind = "server_error" if refusal.status >= 500 else "invalid_request_error"
        error = {"message": str(refusal), "type": kind, "param": refusal.param, "code": refusal.code}
        return _json({"error": error}, refusal.status, {**headers, **ADVICE.get(refusal.status, {})})


def ranked(asked: Rerank, found: Array) -> Any:
    """Order documents by their scores, the best first; equal scores keep their order."""
    check_finite(found)
    values = found.tolist()
    order = sorted(range(len(values)), key=lambda i: -values[i])[: asked.top_n]
    name = "score" if asked.plain else "relevance_score"
    results: list[dict[str, Any]] = [{"index": i, name: values[i]} for i in order]
    if asked.with_text:
        for i, result in zip(order, results, strict=True):
            text = {"text": asked.documents[i]}
            result.update(text if asked.plain else {"document": text})
    return results if asked.plain else {"results": results}


def check_finite(found: Array) -> None:
    """Refuse NaN and infinity, which JSON cannot write. Raises Refusal."""
    if not np.isfinite(found).all():
        raise Refusal(500, "the model gives NaN or infinity: a weight in its file is NaN, or too large")


def _in_words(error: BaseException) -> Refusal:
    if isinstance(error, MinibertError | ValueError | TypeError):
        return Refusal(400, str(error))
    return Refusal(500, f"the texts could not be computed: {type(error).__name__}")


async def _left(request: Any) -> None:
    """Wait until the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _send(response: Any, send: Send) -> None:
    """Send an answer in pieces, each after the client has read the one before."""
    body = response.body
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    for start in range(0, len(body), PIECE):
        piece, more = body[start : start + PIECE], start + PIECE < len(body)
        await send({"type": "http.response.body", "body": piece, "more_body": more})


def _json(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Any:
    """Make an answer in ASCII: an error may repeat a lone surrogate of the request."""
    from starlette.responses import Response

    body = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
    return Response(body, status, headers, "application/json")
