"""The routes of the server: requests in, answers in OpenAI's, Cohere's or text-embeddings-inference's form out."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.quantization import BITS, quantized
from minibert.errors import MinibertError

from . import options
from .gate import read_body, send_pieces
from .kinds import LABELS, SCORES, SPARSE_VECTORS, VECTORS, Model
from .metrics import ACCESS, Record, start_logging
from .requests import FORM, OPENAI, SPARSE, TEI, USUAL, Asked, Limits, Refusal, read_prediction, read_rerank, read_texts
from .worker import Job, Kind, Worker

INLINE = 32  # vectors that the event loop encodes itself; more would delay other requests
ADVICE = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}  # headers of a refusal, by its status
BOOT_FAILURE = 3  # exit code after which gunicorn and uvicorn start no other worker
WSGI = {"gunicorn.workers.sync", "gunicorn.workers.gthread"}  # what gunicorn imports where no -k is given


def embeddings(model: Model, asked: Asked, job: Job) -> Any:
    """Give vectors in OpenAI's form; `truncated`: how many texts were."""
    form = asked.get(*FORM, default="float")
    found = _finite(model.shortened(job.result(), asked.get("dimensions"), asked.get("normalized")))
    found = quantized(found, form) if form in BITS else found.astype("<f4")
    in_bytes = form == "base64"
    rows = [base64.b64encode(row.tobytes()).decode() for row in found] if in_bytes else found.tolist()
    data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
    return {"object": "list", "data": data, "model": model.names[0], **_usage(job)}


def embed(model: Model, asked: Asked, job: Job) -> Any:
    """Give vectors as lists of numbers."""
    found = model.shortened(job.result(), asked.get("dimensions"), asked.get("normalize", default=True))
    return _finite(found).tolist()


def embed_sparse(model: Model, asked: Asked, job: Job) -> Any:
    """Give the entries of each sparse vector."""
    rows = [zip(each.ids.tolist(), _finite(each.weights).tolist(), strict=True) for each in job.result()]
    return [[{"index": index, "value": value} for index, value in row] for row in rows]


def predict(model: Model, asked: Asked, job: Job) -> Any:
    """Give labels, the likeliest first: a list of lists if a list of lists was sent."""
    found = model.labels(_finite(job.result()), asked.get("raw_scores"))
    return found if isinstance(asked.sent, list) and isinstance(asked.sent[0], list) else found[0]


def rerank(model: Model, asked: Asked, job: Job) -> Any:
    """Order documents by their scores, the best first; equal scores keep their order."""
    plain = asked.field == "texts"
    values = _finite(model.scores(job.result(), asked.get("raw_scores"))).tolist()
    order = sorted(range(len(values)), key=lambda i: -values[i])[: asked.get("top_n", "top_k")]
    results = [{"index": i, "score" if plain else "relevance_score": values[i]} for i in order]
    for result in results if asked.get("return_text") or asked.get("return_documents") else ():
        sent = {"text": asked.sent[result["index"]]}
        result.update(sent if plain else {"document": sent})
    return results if plain else {"model": model.names[0], "results": results, **_usage(job)}


def _usage(job: Job) -> dict[str, Any]:
    tokens = {"prompt_tokens": job.tokens, "total_tokens": job.tokens}
    return {"usage": tokens, "truncated": len(job.truncated)}


def _finite(found: Array) -> Array:
    """Refuse NaN and infinity, which JSON cannot write. Raises Refusal."""
    if not np.isfinite(found).all():
        raise Refusal(500, "the model gives NaN or infinity: a weight in its file is NaN, or too large")
    return found


class Work(NamedTuple):
    """A route with an answer that is computed: which use of a model, how the request is read, and the answer."""

    use: str
    read: Callable[[bytes, Limits], Asked]
    answer: Callable[[Model, Asked, Job], Any]


WORK = {
    "/v1/embeddings": Work(VECTORS, partial(read_texts, OPENAI), embeddings),
    "/embed": Work(VECTORS, partial(read_texts, TEI), embed),
    "/embed_sparse": Work(SPARSE_VECTORS, partial(read_texts, SPARSE), embed_sparse),
    "/rerank": Work(SCORES, read_rerank, rerank),
    "/predict": Work(LABELS, read_prediction, predict),
}
# Cohere's clients put the version before it; text-embeddings-inference answers without /v1 too
ALSO = {"/v1/rerank": "/rerank", "/v2/rerank": "/rerank", "/embeddings": "/v1/embeddings"}


class Server:
    """The server.

    models  at least one; a request that names none gets the first that can do it
    token   what a client must send as `Authorization: Bearer TOKEN`, except to /health; None: nothing
    ranks   the model for scores of a request that names none; None: the first that can
    """

    def __init__(
        self, models: Sequence[Model], token: str | None = None, limits: Limits = USUAL, ranks: Model | None = None
    ) -> None:
        self.models, self.token, self.limits, self.ranks = list(models), token, limits, ranks
        self.started, self.inside = int(time.time()), 0
        self.undone = 0  # requests that were not computed, or whose answer was not read, when the grace was over
        self.told = {
            "/v1/models": self.list_models, "/v1/models/{name:path}": self.list_models, "/info": self.info,
            "/metrics": self.metrics,
        }  # fmt: skip
        main = [path for path, work in WORK.items() if work.use == next(iter(models[0].work))]
        self.path = main[0]  # of the first model; at / as text-embeddings-inference has it
        self.work = WORK | {path: WORK[other] for path, other in (ALSO | {"/": main[-1]}).items()}
        self.record = Record({*self.work, *self.told, "/health"})

    @cached_property
    def worker(self) -> Worker:
        """The thread that computes, made when it is first needed: a fork would lose it."""
        return Worker()

    def close(self) -> None:
        """Do all that waits, and remove the last files of the metrics."""
        self.worker.close()
        self.record.close()

    def app(self) -> Any:
        """The application, for uvicorn or any server of ASGI."""
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.routing import Route

        def unknown(request: Any, error: Any) -> Any:
            told = ", ".join(self.told).replace("{name:path}", "NAME")
            known = f"this server has POST {', '.join(WORK)}; GET {told}, /health"
            return refused(Refusal(error.status_code, f"{error.detail}: {known}"), error.headers)

        @asynccontextmanager
        async def life(_: Any) -> AsyncIterator[None]:
            self.record.open()
            yield
            await asyncio.to_thread(self.close)

        posted = {path: partial(self._computed, work) for path, work in self.work.items()}
        routes = [Route(path, self._guarded(handler), methods=["POST"]) for path, handler in posted.items()]
        routes += [Route(path, self._guarded(handler), methods=["GET"]) for path, handler in self.told.items()]
        handlers: dict[Any, Any] = {
            Refusal: lambda _, error: refused(error),
            HTTPException: unknown,
            Exception: lambda _, error: refused(Refusal(500, f"an error of the server: {type(error).__name__}")),
        }
        app = Starlette(routes=[*routes, Route("/health", self.health)], exception_handlers=handlers, lifespan=life)
        app.router.redirect_slashes = False  # a redirect would name the host that the client has sent
        return self.record.watched(app)

    # -- routes ----------------------------------------------------------------------------------------------

    async def _computed(self, work: Work, request: Any) -> Any:
        """Answer a request for work."""
        asked = work.read(await read_body(request, self.limits.body), self.limits)
        model = self._model(asked.get("model"), work.use)
        job = await self._job(request, model.kind(work.use, asked), asked.items)
        self.record.done(request.scope, model.names[0], job)
        if job.truncated and not asked.get("truncate", default=True):
            advice = "has more tokens than this model takes; shorten it, or leave 'truncate' out"
            raise Refusal(400, f"{asked.field}[{job.truncated[0]}] {advice}", asked.field)
        if len(asked.items) <= INLINE:
            return as_json(work.answer(model, asked, job))
        return await asyncio.to_thread(lambda: as_json(work.answer(model, asked, job)))

    async def health(self, request: Any) -> Any:
        """GET /health."""
        return as_json({"status": "ok"})

    async def info(self, request: Any) -> Any:
        """GET /info: of the first model, and in `models` of all."""
        about = [model.about() for model in self.models]
        own = {"limits": self.limits._asdict(), "requests_inside": self.inside}
        return as_json({**about[0], "models": about, **own, "version": sys.modules["minibert"].__version__})

    async def list_models(self, request: Any) -> Any:
        """GET /v1/models, or of one of them /v1/models/NAME."""
        own = {"object": "model", "created": self.started, "owned_by": "minibert"}
        if name := request.path_params.get("name"):
            self._model(name)
            return as_json({"id": name, **own})
        return as_json({"object": "list", "data": [{"id": model.names[0], **own} for model in self.models]})

    async def metrics(self, request: Any) -> Any:
        """GET /metrics, in Prometheus' text form."""
        from starlette.responses import Response

        return Response(self.record.text(), media_type="text/plain; version=0.0.4")

    # -- a request's way -------------------------------------------------------------------------------------

    def _guarded(self, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
        from starlette.requests import ClientDisconnect

        async def through(request: Any) -> Any:
            self._check_caller(request)

            async def answered(_: Any, __: Any, send: Any) -> None:
                if self.inside >= self.limits.waiting:
                    raise Refusal(503, f"{self.inside} requests are waiting; try again in 1 s")
                self.inside += 1  # until the answer is read: unread answers would fill the memory
                try:
                    try:
                        answer = await handler(request)
                    except asyncio.CancelledError:  # the server ends
                        self.undone += 1
                        answer = refused(Refusal(503, "the server is shutting down; try again"))
                    await send_pieces(answer, send)
                except ClientDisconnect:
                    pass
                except asyncio.CancelledError:  # it was not read in time
                    self.undone += 1
                finally:
                    self.inside -= 1

            return answered

        return through

    def _check_caller(self, request: Any) -> None:
        """Refuse who lacks the token; without one, a name of the web and an address that other machines reach."""
        host, at = request.headers.get("host", ""), (request.scope.get("server") or ("",))[0]
        if self.token is not None:
            scheme, _, sent = request.headers.get("authorization", "").partition(" ")
            same = hmac.compare_digest(sent.strip().encode("utf-8", "replace"), self.token.encode())
            if not (same and scheme.lower() == "bearer"):
                raise Refusal(401, "this server needs its token: Authorization: Bearer TOKEN", code="invalid_api_key")
        elif options.is_public(host) or not (at.startswith(("127.", "/")) or at in ("", *options.LOCAL)):
            found = f"found {host!r:.80} at {at or 'a socket'}"
            raise Refusal(
                403,
                f"without a token this server answers at names of this machine, {found}; ask 127.0.0.1, or start it "
                "with a token",
            )

    def _model(self, name: str | None, use: str | None = None) -> Any:
        """Give the model of a name, or the first for a use. Raises Refusal."""
        able = [model for model in self.models if use is None or use in model.work]
        usual = [self.ranks] if use == SCORES and self.ranks else able
        found = usual if name is None else [model for model in self.models if name in model.names]
        if found and found[0] in able:
            return found[0]
        known = " and ".join(repr(model.names[0]) for model in self.models)
        said = f"this server has {known}, and not the model {name!r:.80}"
        if found or name is None:
            who = f"the model {name!r:.80} does not give" if name else "no model of this server gives"
            said = f"{who} {use}; " + (f"ask {able[0].names[0]!r}" if able else f"it was started with {known}")
        raise Refusal(404, said, "model", code="model_not_found")

    async def _job(self, request: Any, kind: Kind, items: Sequence[Any]) -> Job:
        """Have the worker compute items. Raises Refusal if it cannot, ClientDisconnect if the client leaves first."""
        from starlette.requests import ClientDisconnect

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            job.fail(ClientDisconnect())  # so the worker drops it

        job = Job(kind, items)
        self.worker.take(job)
        watching = asyncio.ensure_future(watch())
        try:
            await asyncio.wrap_future(job)
            return job
        except ClientDisconnect:
            raise
        except (MinibertError, ValueError, TypeError) as error:
            raise Refusal(400, str(error)) from None
        except Exception as error:  # noqa: BLE001
            raise Refusal(500, f"the texts could not be computed: {type(error).__name__}") from None
        finally:
            watching.cancel()


def refused(refusal: Refusal, headers: Mapping[str, str] | None = None) -> Any:
    """Answer with a refusal, in OpenAI's form."""
    kind = "server_error" if refusal.status >= 500 else "invalid_request_error"
    # half of a pair of surrogates in a field's name would be JSON that many clients cannot read
    param = refusal.param and refusal.param.encode("utf-8", "replace").decode()
    error = {"message": str(refusal), "type": kind, "param": param, "code": refusal.code}
    return as_json({"error": error}, refusal.status, {**(headers or {}), **ADVICE.get(refusal.status, {})})


def as_json(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Any:
    """Make an answer in ASCII."""
    from starlette.responses import Response

    return Response(json.dumps(content, allow_nan=False, separators=(",", ":")), status, headers, "application/json")


def create() -> Any:
    """Make the application from the variables MINIBERT_SERVE_...: a factory for gunicorn's and uvicorn's workers."""
    try:
        if wsgi := sorted(WSGI & sys.modules.keys()):  # they would call it as app(environ, start_response)
            advice = "start gunicorn with -k uvicorn_worker.UvicornWorker"
            raise ValueError(f"{wsgi[0]} calls WSGI applications, and this one is ASGI; {advice}")
        chosen = SimpleNamespace(**options.from_variables())
        start_logging(chosen.log_level)
        for name in sorted(chosen.unknown - {chosen.token_env}):
            ACCESS.warning(f"no option has the variable {name}: it is ignored")
        models, ranks = options.open_models(chosen, ExitStack())
        return Server(models, options.read_token(chosen), options.limits_of(chosen), ranks).app()
    except (MinibertError, ValueError, OSError, ImportError) as error:
        ACCESS.error(f"minibert: error: {error}")
        raise SystemExit(BOOT_FAILURE) from None
