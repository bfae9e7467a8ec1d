"""The server, an ASGI application: the routes, the middleware that every request passes, the log and the metrics.

The answers have OpenAI's, Cohere's or text-embeddings-inference's (TEI's) form.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.quantization import BITS, quantized
from minibert.errors import MinibertError
from minibert.http_guard import LOCAL, Refusal, has_token, host_name

from . import options
from .options import DEFAULTS, Limits
from .requests import ENCODING, OPENAI, SPARSE, TEI, Parsed, read_prediction, read_rerank, read_texts
from .worker import LABELS, SCORES, SPARSE_VECTORS, VECTORS, Job, Kind, Model, Worker, open_models

HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "1"}}  # a refusal's status -> extra headers
CLIENT_LEFT = 499  # a status of the log: the client has closed the connection
BOOT_FAILURE = 3  # after this exit code gunicorn and uvicorn start no other worker
WSGI = {"gunicorn.workers.sync", "gunicorn.workers.gthread"}  # gunicorn imports one of these without -k
LOG = logging.getLogger("minibert.serve")
LONGEST_PATH = 200  # characters of a path in the log
BUCKETS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)  # seconds, of the histogram


# -- answers ---------------------------------------------------------------------------------------------------------


def embeddings(model: Model, request: Parsed, job: Job) -> Any:
    """Return vectors in OpenAI's form."""
    encoding = request.get(*ENCODING, default="float")
    vectors = _finite(model.shortened(job.result(), request.get("dimensions"), request.get("normalized")))
    vectors = quantized(vectors, encoding) if encoding in BITS else vectors.astype("<f4")
    as_bytes = encoding == "base64"
    rows = [base64.b64encode(row.tobytes()).decode() for row in vectors] if as_bytes else vectors.tolist()
    data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
    return {"object": "list", "data": data, "model": model.names[0], **_usage(job)}


def embed(model: Model, request: Parsed, job: Job) -> Any:
    """Return vectors as lists of numbers."""
    normalize = request.get("normalize", default=True)
    return _finite(model.shortened(job.result(), request.get("dimensions"), normalize)).tolist()


def embed_sparse(model: Model, request: Parsed, job: Job) -> Any:
    """Return the entries of each sparse vector."""
    rows = [zip(row.ids.tolist(), _finite(row.weights).tolist(), strict=True) for row in job.result()]
    return [[{"index": index, "value": value} for index, value in row] for row in rows]


def predict(model: Model, request: Parsed, job: Job) -> Any:
    """Return labels, the likeliest first: a list of lists if a list of lists was sent."""
    labels = model.labels(_finite(job.result()), request.get("raw_scores"))
    return labels if isinstance(request.sent, list) and isinstance(request.sent[0], list) else labels[0]


def rerank(model: Model, request: Parsed, job: Job) -> Any:
    """Return documents sorted by their scores, the best first; equal scores keep their order."""
    tei = request.field == "texts"
    scores = _finite(model.scores(job.result(), request.get("raw_scores"))).tolist()
    order = sorted(range(len(scores)), key=lambda i: -scores[i])[: request.get("top_n", "top_k")]
    results = [{"index": i, "score" if tei else "relevance_score": scores[i]} for i in order]
    for result in results if request.get("return_text") or request.get("return_documents") else ():
        text = {"text": request.sent[result["index"]]}
        result.update(text if tei else {"document": text})
    return results if tei else {"model": model.names[0], "results": results, **_usage(job)}


def _usage(job: Job) -> dict[str, Any]:
    """Return the tokens, the number of truncated texts, and of each its index and the tokens that were left out."""
    tokens = {"prompt_tokens": job.tokens, "total_tokens": job.tokens}
    texts = [{"index": i, "tokens_left_out": count} for i, count in sorted(job.truncated.items())]
    return {"usage": tokens, "truncated": len(texts), "truncated_texts": texts}


def _finite(numbers: Array) -> Array:
    """Refuse NaN and infinity, which JSON cannot write. Raises Refusal."""
    if not np.isfinite(numbers).all():
        raise Refusal(500, "the model computes NaN or infinity: a weight in its file is NaN, or too large")
    return numbers


class Endpoint(NamedTuple):
    """A route that computes: the use of a model, how the request is read, and the answer."""

    use: str
    read: Callable[[bytes, Limits], Parsed]
    answer: Callable[[Model, Parsed, Job], Any]


ENDPOINTS = {
    "/v1/embeddings": Endpoint(VECTORS, partial(read_texts, OPENAI), embeddings),
    "/embed": Endpoint(VECTORS, partial(read_texts, TEI), embed),
    "/embed_sparse": Endpoint(SPARSE_VECTORS, partial(read_texts, SPARSE), embed_sparse),
    "/rerank": Endpoint(SCORES, read_rerank, rerank),
    "/predict": Endpoint(LABELS, read_prediction, predict),
}
# Cohere's clients put the version before the path; TEI answers without /v1 too
ALIASES = {"/v1/rerank": "/rerank", "/v2/rerank": "/rerank", "/embeddings": "/v1/embeddings"}


# -- the server ------------------------------------------------------------------------------------------------------


class Server:
    """The application: `await server(scope, receive, send)` answers one request.

    models    at least one; a request without a model's name gets the first that can answer it
    token     a client must send it as `Authorization: Bearer TOKEN`, except to /health; None: no token
    reranker  the model of a request for scores without a model's name; None: the first that can answer it
    """

    def __init__(
        self,
        models: Sequence[Model],
        token: str | None = None,
        limits: Limits = DEFAULTS,
        reranker: Model | None = None,
    ) -> None:
        self.models, self.token, self.limits, self.reranker = list(models), token, limits, reranker
        self.started, self.inside = int(time.time()), 0
        self.unanswered = 0  # requests that were not computed, or whose answer was not read, before the server ended
        self.get_routes = {
            "/v1/models": self.list_models, "/v1/models/{name:path}": self.list_models, "/info": self.info,
            "/metrics": self.metrics,
        }  # fmt: skip
        main = [path for path, endpoint in ENDPOINTS.items() if endpoint.use == next(iter(models[0].kinds))]
        self.path = main[0]  # the first model's route, in OpenAI's form if it has one; / is the same in TEI's form
        aliases = {path: ENDPOINTS[other] for path, other in (ALIASES | {"/": main[-1]}).items()}
        self.post_routes = ENDPOINTS | aliases
        self.record = Record({*self.post_routes, *self.get_routes, "/health"})

    @cached_property
    def worker(self) -> Worker:
        """The thread that computes; it starts with the first request, because a fork would lose it."""
        return Worker(self.limits.step)

    def close(self) -> None:
        """Compute all jobs that wait, and remove the last files of the metrics."""
        self.worker.close()
        self.record.close()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The middleware: check the caller, limit open requests, send the answer in pieces, log the request."""
        if scope["type"] != "http":
            await self.routes(scope, receive, send)
            return
        began, status = time.perf_counter(), CLIENT_LEFT
        guarded = scope["path"] != "/health"

        async def send_pieces(event: dict[str, Any]) -> None:
            """Send the body in pieces, each after the client has read the one before."""
            nonlocal status
            status = event.get("status", status)
            body, size = event.get("body", b""), self.limits.piece
            last = max(len(body) - 1, 0) // size * size  # the start of the last piece
            for begin in range(0, last, size):
                await send({**event, "body": body[begin : begin + size], "more_body": True})
            await send({**event, "body": body[last:]} if last else event)

        try:
            if guarded:
                self._check_caller(scope)
                if self.inside >= self.limits.waiting:
                    raise Refusal(503, f"{self.inside} requests are waiting; try again in 1 s")
            self.inside += guarded  # until the answer is read: unread answers would fill the memory
            try:
                await self.routes(scope, receive, send_pieces)
            finally:
                self.inside -= guarded
        except Refusal as refusal:
            await refused(refusal)(scope, receive, send_pieces)
        except asyncio.CancelledError:  # the time for accepted requests is over
            self.unanswered += guarded
            if status == CLIENT_LEFT:
                await refused(Refusal(503, "the server is shutting down; try again"))(scope, receive, send_pieces)
        finally:
            self.record.note(scope, status, time.perf_counter() - began)

    @cached_property
    def routes(self) -> Any:
        """The routes, and the answers to errors."""
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.requests import ClientDisconnect
        from starlette.responses import Response
        from starlette.routing import Route

        def unknown(_: Any, error: Any) -> Any:
            known = ", ".join(self.get_routes).replace("{name:path}", "NAME")
            message = f"{error.detail}: this server has POST {', '.join(ENDPOINTS)}; GET {known}, /health"
            return refused(Refusal(error.status_code, message), error.headers)

        @asynccontextmanager
        async def lifespan(_: Any) -> AsyncIterator[None]:
            self.record.open()
            yield
            await asyncio.to_thread(self.close)

        posts = {path: partial(self.compute, endpoint) for path, endpoint in self.post_routes.items()}
        routes = [Route(path, handler, methods=["POST"]) for path, handler in posts.items()]
        routes += [Route(path, handler) for path, handler in {**self.get_routes, "/health": self.health}.items()]
        handlers: dict[Any, Any] = {
            Refusal: lambda _, error: refused(error),
            ClientDisconnect: lambda _, error: Response(status_code=CLIENT_LEFT),
            HTTPException: unknown,
            Exception: lambda _, error: refused(Refusal(500, f"an error of the server: {type(error).__name__}")),
        }
        app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
        app.router.redirect_slashes = False  # a redirect would name the host that the client has sent
        return app

    def _check_caller(self, scope: Any) -> None:
        """Check the token. Without a token, check that name and address are this machine's. Raises Refusal."""
        from starlette.datastructures import Headers

        headers, address = Headers(scope=scope), (scope.get("server") or ("",))[0]
        host = headers.get("host", "")
        if self.token is not None:
            if not has_token(headers.get("authorization", ""), self.token):
                raise Refusal(401, "this server needs its token: Authorization: Bearer TOKEN", code="invalid_api_key")
        elif is_public(host) or not (address.startswith(("127.", "/")) or address in ("", *LOCAL)):
            caller = f"found {host!r:.80} at {address or 'a socket'}; ask 127.0.0.1, or start the server with a token"
            raise Refusal(403, f"without a token this server answers at names of this machine, {caller}")

    # -- handlers ----------------------------------------------------------------------------------------------

    async def compute(self, endpoint: Endpoint, request: Any) -> Any:
        """Compute the answer of an endpoint."""
        parsed = endpoint.read(await read_body(request, self.limits), self.limits)
        model = self._model(parsed.get("model"), endpoint.use)
        job = await self._job(request, model.kind(endpoint.use, parsed), parsed.items)
        request.scope["minibert"] = {  # for the log
            "model": model.names[0], "texts": len(job.items), "tokens": job.tokens, "truncated": len(job.truncated),
        }  # fmt: skip
        if job.truncated and not parsed.get("truncate", default=True):
            advice = "has more tokens than this model allows; shorten it, or leave 'truncate' out"
            raise Refusal(400, f"{parsed.field}[{min(job.truncated)}] {advice}", parsed.field)

        def answer() -> Any:
            content = endpoint.answer(model, parsed, job)
            return as_json(content, headers=job.headers() if isinstance(content, list) else {})

        return answer() if len(parsed.items) <= self.limits.inline else await asyncio.to_thread(answer)

    async def health(self, request: Any) -> Any:
        """GET /health."""
        return as_json({"status": "ok"})

    async def info(self, request: Any) -> Any:
        """GET /info: about the first model, and in `models` about all."""
        about = await asyncio.to_thread(lambda: [model.about() for model in self.models])  # reads weights
        server = {"limits": self.limits._asdict(), "requests_inside": self.inside}
        return as_json({**about[0], "models": about, **server, "version": sys.modules["minibert"].__version__})

    async def list_models(self, request: Any) -> Any:
        """GET /v1/models, or one of them: /v1/models/NAME."""
        requested = request.path_params.get("name")
        common_fields = {"object": "model", "created": self.started, "owned_by": "minibert"}
        models = {requested: self._model(requested)} if requested else {model.names[0]: model for model in self.models}
        entries = [
            {"id": name, **common_fields, "identity": await asyncio.to_thread(getattr, model.encoder, "identity")}
            for name, model in models.items()
        ]
        return as_json(entries[0] if requested else {"object": "list", "data": entries})

    async def metrics(self, request: Any) -> Any:
        """GET /metrics, in Prometheus' text form."""
        from starlette.responses import Response

        return Response(self.record.text(), media_type="text/plain; version=0.0.4")

    def _model(self, name: str | None, use: str | None = None) -> Any:
        """Return the model with a name, or the first with a use. Raises Refusal."""
        able = [model for model in self.models if use is None or use in model.kinds]
        usual = [self.reranker] if use == SCORES and self.reranker else able
        models = usual if name is None else [model for model in self.models if name in model.names]
        if models and models[0] in able:
            return models[0]
        known = " and ".join(repr(model.names[0]) for model in self.models)
        message = f"this server does not have the model {name!r:.80}; it has {known}"
        if models or name is None:
            subject = f"the model {name!r:.80} does not compute" if name else "no model of this server computes"
            message = f"{subject} {use}; " + (f"ask {able[0].names[0]!r}" if able else f"it was started with {known}")
        raise Refusal(404, message, "model", code="model_not_found")

    async def _job(self, request: Any, kind: Kind, items: Sequence[Any]) -> Job:
        """Queue items for the worker and wait for the results.

        Raises Refusal for an error, ClientDisconnect if the client leaves first.
        """
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


def is_public(host: str) -> bool:
    """Return whether a Host header has a public name, which its owner could point at this machine (DNS rebinding).

    >>> [is_public(host) for host in ("localhost:8000", "127.0.0.1:8000", "[::1]", "host.docker.internal", "a.com:80")]
    [False, False, False, False, True]
    """
    name = host_name(host)
    last = name.rpartition(".")[2]
    return "." in name and not (last.isdigit() or last in ("localhost", "local", "internal"))


async def read_body(request: Any, limits: Limits) -> bytes:
    """Read the body, up to the bytes and the seconds of the limits. Raises Refusal."""
    advice = "send fewer or shorter texts at once, or start the server with another --max-body"
    too_large = Refusal(413, f"the request has more than {limits.body} bytes; {advice}")

    async def read() -> bytes:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > limits.body:
                raise too_large
        return bytes(body)

    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limits.body:
        raise too_large
    try:
        return await asyncio.wait_for(read(), limits.patience)
    except asyncio.TimeoutError:
        raise Refusal(408, f"the request did not come within {limits.patience} s") from None


def refused(refusal: Refusal, headers: Mapping[str, str] | None = None) -> Any:
    """Return the answer of a refusal, in OpenAI's form."""
    error_type = "server_error" if refusal.status >= 500 else "invalid_request_error"
    # many clients cannot read JSON with half of a surrogate pair, which a field's name may have
    param = refusal.param and refusal.param.encode("utf-8", "replace").decode()
    error = {"message": str(refusal), "type": error_type, "param": param, "code": refusal.code}
    return as_json({"error": error}, refusal.status, {**(headers or {}), **HEADERS.get(refusal.status, {})})


def as_json(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Any:
    """Return an answer of JSON in ASCII."""
    from starlette.responses import Response

    return Response(json.dumps(content, allow_nan=False, separators=(",", ":")), status, headers, "application/json")


# -- the log and the metrics -----------------------------------------------------------------------------------------


def start_logging(level: str) -> None:
    """Write the log of this server to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    LOG.handlers, LOG.propagate = [handler], False
    LOG.setLevel(level.upper())


class Record:
    """Logs each request in one line, and counts requests, texts and tokens for Prometheus.

    Several workers count in one folder if PROMETHEUS_MULTIPROC_DIR names it. Each worker holds a shared lock of the
    folder. The only worker removes the files: at the start the files of a killed run, at the end all files.

    paths: the paths of the server; any other path counts as "other".
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths, self.folder = frozenset(paths), os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        self.counts: dict[str, Any] = {}  # empty without prometheus-client
        self.lock: int | None = None

    def open(self) -> None:
        """Begin to count, in the process that answers."""
        if self.counts or not find_spec("prometheus_client"):
            return
        if self.folder:
            import fcntl

            Path(self.folder).mkdir(parents=True, exist_ok=True)
            self.lock = os.open(self.folder, os.O_RDONLY)
            self.close()
            fcntl.flock(self.lock, fcntl.LOCK_SH)
        from prometheus_client import CollectorRegistry, Counter, Histogram

        in_registry: dict[str, Any] = {"registry": CollectorRegistry()}
        for name in ("texts", "tokens", "truncated"):
            self.counts[name] = Counter(f"minibert_{name}", f"{name} of each model", ["model"], **in_registry)
        self.counts["requests"] = Counter("minibert_requests", "requests", ["path", "status"], **in_registry)
        seconds = "time until the answer"
        self.counts["seconds"] = Histogram(
            "minibert_request_seconds", seconds, ["path"], buckets=BUCKETS, **in_registry
        )
        self.registry = in_registry["registry"]
        if self.folder:
            self.registry = CollectorRegistry()
            self.registry.register(self)

    def close(self) -> None:
        """Remove the folder's files if no other worker is counting."""
        if self.lock is not None:
            import fcntl

            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            for file in Path(self.folder or "").glob("*.db"):
                file.unlink()

    def text(self) -> bytes:
        """Return the numbers in Prometheus' text form, of all workers that share a folder. Raises Refusal."""
        if not self.counts:
            raise Refusal(501, "metrics need the package prometheus-client: pip install 'prometheus-client>=0.21'")
        from prometheus_client import generate_latest

        return bytes(generate_latest(self.registry))

    def collect(self) -> Iterable[Any]:
        """Add up the numbers of all workers; prometheus-client calls this method of a collector.

        The file of a worker that has just started is empty for a moment.
        """
        from prometheus_client.multiprocess import MultiProcessCollector

        files = [str(file) for file in Path(self.folder or "").glob("*.db") if file.stat().st_size]
        return MultiProcessCollector.merge(files)  # type: ignore[no-any-return]

    def note(self, scope: Any, status: int, seconds: float) -> None:
        """Count a request and what was computed for it, and write its line of the log."""
        path = scope["path"] if scope["path"] in self.paths else "other"
        computed = scope.get("minibert", {})
        if self.counts:
            self.counts["requests"].labels(path, str(status)).inc()
            self.counts["seconds"].labels(path).observe(seconds)
            for name in ("texts", "tokens", "truncated") if computed else ():
                self.counts[name].labels(computed["model"]).inc(computed[name])
        raw = scope["raw_path"].decode("ascii", "backslashreplace")[:LONGEST_PATH]
        line = dict(client=(scope.get("client") or [""])[0], method=scope["method"], path=raw, status=status)
        line |= dict(ms=round(seconds * 1000, 1), **computed)
        level = logging.DEBUG if path == "/health" else logging.INFO
        LOG.log(level, " ".join(f"{name}={value}" for name, value in line.items()))


def create() -> Any:
    """Create the application from the variables MINIBERT_SERVE_...: a factory for gunicorn's and uvicorn's workers."""
    try:
        if wsgi := sorted(WSGI & sys.modules.keys()):  # they would call it as app(environ, start_response)
            advice = "start gunicorn with -k uvicorn_worker.UvicornWorker"
            raise ValueError(f"{wsgi[0]} calls WSGI applications, and this one is ASGI; {advice}")
        chosen = SimpleNamespace(**options.from_variables())
        start_logging(chosen.log_level)
        for name in sorted(chosen.unknown - {chosen.token_env}):
            LOG.warning(f"no option has the variable {name}: it is ignored")
        models, reranker = open_models(chosen, ExitStack())
        return Server(models, options.read_token(chosen), options.limits_of(chosen), reranker)
    except (MinibertError, ValueError, OSError, ImportError) as error:
        LOG.error(f"minibert: error: {error}")
        raise SystemExit(BOOT_FAILURE) from None
