"""The kinds of work of a server: vectors with each of a model's prompts, and scores of pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.sentences import normalized
from minibert.models.encoder import Encoder

from .requests import Refusal
from .worker import Kind, Prepared

TASKS = ("query", "document")  # a folder may set their longest length apart


class Model:
    """An encoder of the server: the names that requests may use, and its kinds of work.

    One that gives a vector for each token orders documents alone. Raises ValueError for a folder of another use.
    """

    def __init__(self, encoder: Encoder, name: str) -> None:
        self.encoder, self.names = encoder, names_of(name)
        self.dim = encoder.get_embedding_dimension()
        self.late = encoder.sentence_config.late is not None
        tasks = () if self.late else (None, *encoder.prompts)
        self.kinds: Mapping[str | None, Kind] = {task: vectors(encoder, task) for task in tasks}
        self.normalizes = encoder.sentence_config.ends_normalized

    def kind(self, task: str | None) -> Kind:
        if self.late:
            raise Refusal(404, "this model gives a vector for each token, not a text; POST /rerank orders documents")
        if task not in self.kinds:
            known = ", ".join(repr(name) for name in self.kinds if name is not None)
            raise Refusal(400, f"task must be one of this model's {known}, found {task!r:.40}", "task")
        return self.kinds[task]

    def shortened(self, found: Array, dimensions: int | None) -> Array:
        """Keep the first `dimensions` numbers of each vector; normalize again if the model normalizes."""
        if dimensions is None:
            return found
        if dimensions > self.dim:
            raise Refusal(400, f"dimensions must be at most {self.dim}, found {dimensions}", "dimensions")
        short = found[:, :dimensions]
        return normalized(short) if self.normalizes else short


def names_of(name: str) -> tuple[str, str]:
    """Give the names of a model: its folder or name on the Hub, and the last part of it.

    >>> names_of("sentence-transformers/all-MiniLM-L6-v2")
    ('sentence-transformers/all-MiniLM-L6-v2', 'all-MiniLM-L6-v2')
    """
    return name, name.rstrip("/").rpartition("/")[2]


def vectors(encoder: Encoder, task: str | None) -> Kind:
    """Vectors as `encode` gives them; with a task as `encode_query`, `encode_document` or with the prompt so named."""
    steps = encoder.pipeline(task, task=task if task in TASKS else None)

    def prepare(texts: list[Any], start: int) -> Prepared:
        encoded = steps.tokenize(texts, start)
        truncated = [i for i, each in enumerate(encoded, start) if each.truncated]
        return Prepared(encoded, sum(len(each.input_ids) for each in encoded), truncated)

    return Kind(prepare, steps.vectors, len)


def scores(reranker: Encoder, raw: bool) -> Kind:
    """Scores of pairs as `predict` gives them; `raw`: the logits. Late interaction has its similarity for both.

    Raises ValueError for a model that is no reranker.
    """
    reranker.rank("", [])  # of several labels, or of another use
    activation = (lambda logits: logits) if raw else None

    def compute(pairs: list[Any]) -> Array:
        return np.asarray(reranker.predict(pairs, activation_fn=activation))

    def by_tokens(pairs: list[Any]) -> Array:
        queries, documents = (list(dict.fromkeys(texts)) for texts in zip(*pairs, strict=True))
        wanted = dict(zip(queries, reranker.encode_query(queries), strict=True))
        found = dict(zip(documents, reranker.encode_document(documents), strict=True))
        firsts, seconds = [wanted[query] for query, _ in pairs], [found[document] for _, document in pairs]
        return np.asarray(reranker.similarity_pairwise(firsts, seconds))

    if reranker.sentence_config.late:
        compute = by_tokens
    return Kind(lambda pairs, start: Prepared(pairs), compute, lambda pair: len(pair[0]) + len(pair[1]))
