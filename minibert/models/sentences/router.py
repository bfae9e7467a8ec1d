"""The Router of a SparseEncoder: queries are looked up in a table of weights, documents go through the model.

That is SPLADE without a model for queries, as OpenSearch's folders have it. Any other Router is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array, check_ids
from minibert.errors import CheckpointError
from minibert.families.parts.config import LARGEST
from minibert.families.parts.steps import Inputs
from minibert.files.reading import read_object
from minibert.files.tokenizer import Encoded, Tokenizer
from minibert.files.tokenizer_files import open_tokenizer
from minibert.models.run.packing import Packed

from .folder import FAMILY, FolderFiles, Module, leaves

FILES = ("router_config.json", "config.json")  # the second is its older name
ROUTER, WEIGHTS, TASKS = "Router", "SparseStaticEmbedding", ("query", "document")


class TokenWeights(NamedTuple):
    """A weight for each token: of a text those of its tokens, each counted once, however often the text has it."""

    weights: Array
    tokenizer: Callable[[], Tokenizer]  # opens the tokenizer, which puts no special token around a text
    longest: int | None  # how many tokens of a text count; None: all

    def compute(self, encoded: Sequence[Encoded], put: Callable[[Packed, Array], None]) -> None:
        """Give each text as a tile of the tokens that weigh something. Raises IndexError for an id beyond the table."""
        for i, each in enumerate(encoded):
            ids = np.unique(check_ids(each.input_ids, len(self.weights), "input_ids"))
            ids = ids[self.weights[ids] != 0]
            inputs = Inputs(1, len(ids), {"input_ids": ids[None]})
            put(Packed(inputs, np.array([i]), np.array([len(ids)])), self.weights[ids])


class Router(NamedTuple):
    """The two routes of a Router's file."""

    model: list[Module]  # the modules that documents go through
    lookup: FolderFiles  # the table of queries
    default: str  # the task of a text without one

    def weights(self, dtype: np.dtype[Any]) -> TokenWeights:
        """Read the table of queries. Raises CheckpointError for another file than such a table."""
        files = self.lookup
        settings = files.object("config.json")
        files.check_keys(settings, ("frozen", "path"))
        longest, stored = files.object("tokenizer_config.json").get("model_max_length"), settings.get("path")
        longest = longest if type(longest) is int and 1 <= longest < 2**63 else None
        tokenizer = cache(lambda: open_tokenizer(files.path, None, None, files.place).without_special_tokens())
        if stored is not None:
            return TokenWeights(_from_json(files, stored, tokenizer(), dtype), tokenizer, longest)
        return TokenWeights(files.tensors({"weight": None}, dtype)[0], tokenizer, longest)


def read_router(files: FolderFiles) -> Router:
    """Read a Router's routes. Raises CheckpointError for other routes than a table of queries and a model."""
    data = next((found for name in FILES if (found := files.object(name))), {})
    types, structure, parameters = (data.get(key) or {} for key in ("types", "structure", "parameters"))
    plain = all(isinstance(each, dict) for each in (types, structure, parameters))
    query, document = (_modules(files, structure.get(task), types) if plain else [] for task in TASKS)
    known = [each.kind for each in query] == [WEIGHTS] and query[0].type.startswith(FAMILY)
    if not known or not document or len(structure) != len(TASKS):
        raise files.refuse(
            f"{FILES[0]} must have the routes query, {WEIGHTS} alone, and document, a model, in folders that 'types' "
            f"has; found {structure!r:.200} of {types!r:.400}"
        )
    default = parameters.get("default_route") or next(iter(structure))
    if default not in TASKS or parameters.get("route_mappings") or not parameters.get("allow_empty_key", True):
        raise files.refuse(f"{FILES[0]} has 'parameters' that are not known here: {parameters!r:.200}")
    return Router(document, files.inside(query[0].path), default)


def _modules(files: FolderFiles, names: Any, types: dict[str, Any]) -> list[Module]:
    """Give the modules of a route, whose list names folders; none where one is no folder inside the model's."""
    if not isinstance(names, list) or not all(isinstance(name, str) and not leaves(name) for name in names):
        return []
    found: list[Any] = [(types.get(name), "/".join(filter(None, (files.folder, name)))) for name in names]
    if not all(isinstance(kind, str) for kind, _ in found):
        return []
    return [Module(kind.rpartition(".")[2], path, kind) for kind, path in found]


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
