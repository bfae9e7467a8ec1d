"""The Router of a SparseEncoder: queries are looked up in a table of weights, documents go through the model.

That is SPLADE without a model for queries, as OpenSearch's folders have it. Any other Router is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.fast import check_ids
from minibert.equations.input_layer import Array
from minibert.families.parts.steps import Inputs
from minibert.files.tokenizer import Encoded, Tokenizer
from minibert.files.tokenizer_files import open_tokenizer
from minibert.models.run.packing import Packed

from .folder import FAMILY, TOKENIZER, FolderFiles, Module, leaves

FILE, ROUTER, WEIGHTS = "router_config.json", "Router", "SparseStaticEmbedding"


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
        files.check_keys(files.object("config.json"), ("frozen",))
        told = files.length(TOKENIZER, files.object(TOKENIZER), "model_max_length")
        longest = told[0][0] if told else None
        tokenizer = cache(lambda: open_tokenizer(files.path, None, None, files.place).without_special_tokens())
        return TokenWeights(files.tensors({"weight": None}, dtype)[0], tokenizer, longest)


def read_router(files: FolderFiles) -> Router:
    """Read a Router's routes. Raises CheckpointError for other routes than a table of queries and a model."""
    data = files.object(FILE)
    try:
        types, structure, more = (data[key] for key in ("types", "structure", "parameters"))
        routes = [[_module(files, name, types[name]) for name in structure[task]] for task in ("query", "document")]
        default = next(iter(structure)) if more.get("default_route") is None else more["default_route"]
        odd = default not in structure or more.get("route_mappings") or not more.get("allow_empty_key", True)
        (query,), document = routes
    except (AttributeError, KeyError, TypeError, ValueError):  # no such table, no such name, or no folder inside
        odd = True
    if odd or not document or len(structure) != 2 or query.kind != WEIGHTS or not query.type.startswith(FAMILY):
        raise files.refuse(
            f"{FILE} must have the routes query, {WEIGHTS} alone, and document, a model, in folders that 'types' has, "
            f"and no other 'parameters' than a 'default_route'; found {data!r:.600}"
        )
    return Router(document, files.inside(query.path), default)


def _module(files: FolderFiles, name: str, kind: str) -> Module:
    if leaves(name):
        raise ValueError(name)
    return Module(kind.rpartition(".")[2], "/".join(filter(None, (files.folder, name))), kind)
