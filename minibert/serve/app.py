"""The routes of the server: requests in, answers in OpenAI's, Cohere's or text-embeddings-inference's form out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import answers, requests
from .fields import Limits, Refusal
from .gate import Gate, as_json, refused
from .kinds import LABELS, SCORES, SPARSE_VECTORS, VECTORS, Model
from .record import GONE, TYPE, Record
from .worker import Job, Kind

INLINE = 32  # vectors that the event loop encodes itself; more would delay other requests


class Server:
    """The server: its models, and the gate that every request passes.

    models  at least one; a request that names none gets the first that can do it
    token   what a client must send as `Authorization: Bearer TOKEN`, except to /health; None: nothing
    workers  how many processes will answer with it
    token_ids  whether a request for vectors may have them instead of texts
    """

    def __init__(
        self,
        models: Sequence[Model],
        token: str | None = None,
        limits: Limits | None = None,
        version: str = "",
        workers: int = 1,
        token_ids: bool = False,
    ) -> None:
        self.models, self.limits, self.version = list(models), limits or Limits(), version
        self.token_ids = token_ids
        self.started = int(time.time())
        self.asked = {
            "/v1/embeddings": self.embeddings, "/embed": self.embed, "/embed_sparse": self.embed_sparse,
            "/similarity": self.similarity, "/predict": self.predict, "/rerank": self.rerank,
        }  # fmt: skip
        self.told = {"/v1/models": self.list_models, "/info": self.info, "/metrics": self.metrics}
        root = {VECTORS: self.embed, SPARSE_VECTORS: self.embed_sparse, SCORES: self.rerank, LABELS: self.predict}
        # Cohere's clients put the version before it; text-embeddings-inference answers at / and without /v1 too
        self.also = {
            "/v1/rerank": self.rerank, "/v2/rerank": self.rerank, "/embeddings": self.embeddings,
            "/": root[self.models[0].uses[0]],
        }  # fmt: skip
        paths = {*self.asked, *self.told, *self.also, "/health"}
        self.record = Record(paths, {model.names[0] for model in self.models}, workers)
        self.gate = Gate(token, self.limits, self.record)

    def app(self) -> Any:
        """The application, for uvicorn or any server of ASGI."""
        from starlette.applications import Starlette
        from starlette.exceptions import HTTPException
        from starlette.requests import ClientDisconnect
        from starlette.responses import Response
        from starlette.routing import Route

        posted = self.asked | self.also
        own = "; ".join(f"{method} {', '.join(paths)}" for method, paths in (("POST", self.asked), ("GET", self.told)))

        def unknown(_: Any, error: Any) -> Any:
            return refused(Refusal(error.status_code, f"{error.detail}: this server has {own}, /health"), error.headers)

        def fault(_: Any, error: Exception) -> Any:
            return refused(Refusal(500, f"an error of the server: {type(error).__name__}"))

        guarded = self.gate.guarded
        app = Starlette(
            routes=[
                *(Route(path, guarded(handler), methods=["POST"]) for path, handler in posted.items()),
                *(Route(path, guarded(handler), methods=["GET"]) for path, handler in self.told.items()),
                Route("/v1/models/{name:path}", guarded(self.one_model), methods=["GET"]),
                Route("/health", self.health, methods=["GET"]),
            ],
            exception_handlers={
                Refusal: lambda _, error: refused(error),
                HTTPException: unknown,
                ClientDisconnect: lambda *_: Response(status_code=GONE),
                Exception: fault,
            },
        )  # fmt: skip
        app.router.redirect_slashes = False  # a redirect would name the host that the client has sent
        return self.record.watched(app)

    # -- routes ----------------------------------------------------------------------------------------------

    async def embeddings(self, request: Any) -> Any:
        """POST /v1/embeddings."""
        asked = requests.read_embedding(await self.gate.body(request), self.limits, self.token_ids)
        model, job = await self._vectors(request, asked)
        return await _answer(
            lambda: answers.embeddings(asked, _finished(model, asked, job), job, model.names[0]), len(asked.texts)
        )

    async def embed(self, request: Any) -> Any:
        """POST /embed."""
        asked = requests.read_embed(await self.gate.body(request), self.limits)
        model, job = await self._vectors(request, asked)
        return await _answer(lambda: answers.listed(_finished(model, asked, job)), len(asked.texts))

    async def similarity(self, request: Any) -> Any:
        """POST /similarity."""
        asked = requests.read_similarity(await self.gate.body(request), self.limits)
        model, job = await self._vectors(request, asked)
        found = _finished(model, asked, job)
        return as_json(answers.listed(found[1:] @ found[0]))

    async def embed_sparse(self, request: Any) -> Any:
        """POST /embed_sparse."""
        asked = requests.read_embed(await self.gate.body(request), self.limits, sparse=True)
        model = self._model(asked.model, SPARSE_VECTORS)
        job = await self._job(request, model, _of_task(model.sparse, asked), asked.texts, asked)
        return await _answer(lambda: answers.sparse(job.results), len(asked.texts))

    async def predict(self, request: Any) -> Any:
        """POST /predict."""
        asked = requests.read_prediction(await self.gate.body(request), self.limits)
        model = self._model(asked.model, LABELS)
        job = await self._job(request, model, model.kind, asked.items, asked)
        found = model.labels(answers.check_finite(job.results), asked.raw)
        return as_json(found[0] if asked.single else found)

    async def rerank(self, request: Any) -> Any:
        """POST /rerank."""
        asked = requests.read_rerank(await self.gate.body(request), self.limits)
        model = self._model(asked.model, SCORES)
        job = await self._job(request, model, model.kind, asked.items, asked)
        return await _answer(
            lambda: answers.ranked(asked, model.scores(job.results, asked.raw), job, model.names[0]), len(asked.items)
        )

    async def health(self, request: Any) -> Any:
        """GET /health."""
        return as_json({"status": "ok"})

    async def info(self, request: Any) -> Any:
        """GET /info: of the first model, and in `models` of all."""
        about = [model.about() for model in self.models]
        own = {"limits": self.limits._asdict(), "requests_inside": self.gate.inside, "version": self.version}
        return as_json({**about[0], "models": about, **own})

    async def metrics(self, request: Any) -> Any:
        """GET /metrics, in Prometheus' text form."""
        from starlette.responses import Response

        return Response(self.record.metrics(), media_type=TYPE)

    async def list_models(self, request: Any) -> Any:
        """GET /v1/models."""
        return as_json({"object": "list", "data": [self._named(model.names[0]) for model in self.models]})

    async def one_model(self, request: Any) -> Any:
        """GET /v1/models/NAME."""
        name = request.path_params["name"]
        self._model(name)
        return as_json(self._named(name))

    def _named(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self.started, "owned_by": "minibert"}

    # -- a request's way -------------------------------------------------------------------------------------

    def _model(self, name: str | None, use: str | None = None) -> Any:
        """Give the model of a name, or the first for a use. Raises Refusal."""
        able = [model for model in self.models if use is None or use in model.uses]
        named = next((model for model in self.models if name is None or name in model.names), None)
        if name is None and able:
            return able[0]
        known = " and ".join(repr(model.names[0]) for model in self.models)
        if named is None:
            missing = f"this server has {known}, and not the model {name!r:.80}"
            raise Refusal(404, missing, "model", code="model_not_found")
        if named not in able:
            other = f"ask {able[0].names[0]!r}" if able else f"it was started with {known}"
            what = "no model of this server gives" if name is None else f"the model {name!r:.80} does not give"
            raise Refusal(404, f"{what} {use}; {other}", "model", code="model_not_found")
        return named

    async def _vectors(self, request: Any, asked: requests.Embedding) -> tuple[Any, Job]:
        model = self._model(asked.model, VECTORS)
        model.shortened(np.empty((0, model.dim), np.float32), asked.dimensions)  # refuses first of all
        return model, await self._job(request, model, _of_task(model.kinds, asked), asked.texts, asked)

    async def _job(self, request: Any, model: Model, kind: Kind, items: Sequence[Any], asked: Any) -> Job:
        job = await self.gate.computed(request, kind, items)
        self.record.done(request.scope, model.names[0], job)
        if job.truncated and not asked.truncate:
            where = f"{asked.field}[{job.truncated[0]}]"
            raise Refusal(
                400, f"{where} has more tokens than this model takes; shorten it, or leave 'truncate' out", asked.field
            )
        return job


def _of_task(kinds: Mapping[str | None, Kind], asked: requests.Embedding) -> Kind:
    if asked.task not in kinds:
        known = ", ".join(repr(name) for name in kinds if name is not None)
        field = "task" if asked.field == "input" else "prompt_name"
        raise Refusal(400, f"{field} must be one of this model's {known}, found {asked.task!r:.40}", field)
    return kinds[asked.task]


def _finished(model: Any, asked: requests.Embedding, job: Job) -> Any:
    return answers.check_finite(model.shortened(job.results, asked.dimensions, asked.normalize))


async def _answer(make: Callable[[], object], size: int) -> Any:
    if size <= INLINE:
        return as_json(make())
    return await asyncio.to_thread(lambda: as_json(make()))
