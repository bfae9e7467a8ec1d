"""The routes of a Router: queries or documents are looked up in a table, the others go through a whole model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array, check_ids
from minibert.errors import CheckpointError
from minibert.families.parts.config import LARGEST
from minibert.files.reading import read_object
from minibert.files.tokenizer import Encoded, Tokenizer
from minibert.files.tokenizer_files import Find, open_tokenizer

from .comparing import SparseVector
from .folder import FAMILY, STATIC_MODULE, FolderFiles, Module, leaves, listed_modules

FILES = ("router_config.json", "config.json")  # the second is its older name
TASKS = ["document", "query"]  # the routes
ROUTER, WEIGHTS = "Router", "SparseStaticEmbedding"


class TokenWeights:
    """A weight for each token: of a text those of its tokens, each counted once, however often the text has it."""

    def __init__(self, weights: Array, tokenizer: Callable[[], Tokenizer], longest: int | None) -> None:
        """`longest`: how many tokens of a text count; None: all."""
        self.weights, self._open, self.longest = weights, tokenizer, longest

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """What makes ids of a text, with no special token around it."""
        return self._open()

    def vectors(self, encoded: Sequence[Encoded]) -> list[SparseVector]:
        """Give texts' sparse vectors. Raises IndexError for an id beyond the table."""
        found = []
        for each in encoded:
            ids = np.unique(check_ids(np.array(each.input_ids, np.int64), len(self.weights), "input_ids"))
            ids = ids[self.weights[ids] != 0]
            found.append(SparseVector(ids, self.weights[ids]))
        return found


class Router(NamedTuple):
    """What a Router's file says."""

    model: list[Module]  # the modules of the route through a model
    default: str | None  # the route of a text without a task; None: there is none
    tables: Mapping[str, TokenWeights] = {}  # of the other route

    def table(self, task: str | None) -> TokenWeights | None:
        """The table that a text's weights are looked up in, None for the model. Raises ValueError without a route."""
        if task is None and self.default is None:
            raise ValueError("this model has no default route; use encode_query or encode_document")
        return self.tables.get(task or self.default or "")


class SentenceRoutes(NamedTuple):
    """The routes of a SentenceTransformer's Router, each with the modules that stand behind the Router."""

    models: Mapping[str, list[Module]]  # task -> the modules of its route, all with the same transformer first
    default: str | None  # as of `Router`
    tables: Mapping[str, list[Module]]  # task -> the modules of its route, a static table first


def read_sentence_routes(find: Find, where: str) -> SentenceRoutes | None:
    """Read which route has which modules; None where there is no Router.

    Raises CheckpointError for routes through two models.
    """
    modules = listed_modules(find, where)
    if not modules or modules[0].kind != ROUTER:
        return None
    files, routes, default = _read(find, modules[0], where)
    tables = {task: [*own, *modules[1:]] for task, own in routes.items() if own[0].kind == STATIC_MODULE}
    models = {task: [*own, *modules[1:]] for task, own in routes.items() if task not in tables}
    if len({own[0] for own in models.values()}) != 1:
        raise files.refuse(_two_models(routes, f"{STATIC_MODULE} first"))
    return SentenceRoutes(models, default, tables)


def read_router(find: Find, where: str, dtype: np.dtype[Any] | None = None) -> Router | None:
    """Read which route has which modules, and with a dtype the tables of weights; None where there is no Router.

    Raises CheckpointError for what is not computed here.
    """
    modules = listed_modules(find, where)
    if not modules or modules[0].kind != ROUTER:
        return None
    files, routes, default = _read(find, modules[0], where)
    own = [task for task, modules in routes.items() if [module.kind for module in modules] == [WEIGHTS]]
    known = all(routes[task][0].type.startswith(FAMILY) for task in own)
    others = [modules for task, modules in routes.items() if task not in own]
    if not known or not others or others[0] != others[-1]:
        raise files.refuse(_two_models(routes, f"{WEIGHTS} alone"))
    tables = {}
    if dtype is not None:
        tables = {task: _weights(FolderFiles(find, routes[task][0].path, where), dtype) for task in own}
    return Router(others[0], default, tables)


def _two_models(routes: Mapping[str, list[Module]], table: str) -> str:
    kinds = "; ".join(f"{task}: {', '.join(each.type for each in of)}" for task, of in routes.items())
    return f"{FILES[0]} has the routes {kinds}; expected one model, and {table} or the same model"


def _read(find: Find, router: Module, where: str) -> tuple[FolderFiles, dict[str, list[Module]], str | None]:
    """Give the Router's files, the modules of each route, and the route of a text without a task."""
    files = FolderFiles(find, router.path, where)
    data = next((found for name in FILES if (found := files.object(name))), {})
    types, structure, parameters = (data.get(key) or {} for key in ("types", "structure", "parameters"))
    if not all(isinstance(each, dict) for each in (types, structure, parameters)) or sorted(structure) != TASKS:
        raise files.refuse(f"{FILES[0]} must have the routes {' and '.join(TASKS)}, found {structure!r:.80}")
    if parameters.get("route_mappings"):
        raise files.refuse(f"{FILES[0]}: 'route_mappings' {parameters['route_mappings']!r:.80} are not known here")
    routes = {task: _modules(files, names, types) for task, names in structure.items()}
    default = parameters.get("default_route")
    if default is None and parameters.get("allow_empty_key", True):
        default = next(iter(routes))
    if default not in (None, *TASKS):
        raise files.refuse(f"{FILES[0]}: 'default_route' must be {' or '.join(TASKS)}, found {default!r}")
    return files, routes, default


def _modules(files: FolderFiles, names: Any, types: dict[str, Any]) -> list[Module]:
    """Give the modules of a route, which names folders; `types` has the class of each."""
    found = []
    for name in names if isinstance(names, list) else ():
        kind = types.get(name) if isinstance(name, str) and not leaves(name) else None
        if isinstance(kind, str):
            path = "/".join(filter(None, (files.folder, name)))
            found.append(Module(kind.rpartition(".")[2], path, kind))
    if not isinstance(names, list) or not 0 < len(found) == len(names):
        raise files.refuse(
            f"{FILES[0]}: a route must list folders inside the model's that 'types' has, found {names!r:.80}"
        )
    return found


def _weights(files: FolderFiles, dtype: np.dtype[Any]) -> TokenWeights:
    settings = files.object("config.json")
    files.check_keys(settings, ("frozen", "path"))
    longest = files.object("tokenizer_config.json").get("model_max_length")

    def tokenizer() -> Tokenizer:
        return open_tokenizer(files.path, None, None, files.place).without_special_tokens()

    stored = settings.get("path")
    if stored is None:
        (weights,) = files.tensors({"weight": None}, dtype)
    else:
        weights = _from_json(files, stored, tokenizer(), dtype)
    short = isinstance(longest, int) and not isinstance(longest, bool) and 1 <= longest < 2**63
    return TokenWeights(weights, tokenizer, longest if short else None)


def _from_json(files: FolderFiles, stored: Any, tokenizer: Tokenizer, dtype: np.dtype[Any]) -> Array:
    """Read token -> weight; tokens that the file does not have weigh nothing."""
    path = files.path(stored) or files.find(stored) if isinstance(stored, str) and not leaves(stored) else None
    if path is None:
        raise files.refuse(f"config.json says that the weights are in {stored!r}, expected a file of this model")
    weights = np.zeros(tokenizer.size, dtype)
    for token, weight in read_object(path).items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not -LARGEST <= weight <= LARGEST:
            raise CheckpointError(f"{path}: the weight of {token!r} must be a number, found {weight!r:.40}")
        i = tokenizer.id_of(token)
        if i is None:
            raise CheckpointError(f"{path}: the vocabulary has no token {token!r}; is this the right tokenizer?")
        weights[i] = weight
    return weights
