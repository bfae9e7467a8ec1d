"""The models of a server: the names that requests may use, what each is for, and its kinds of work.

A new use of a model is a class of `Model` with `uses` and its kinds of work, and a line of `model_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from minibert.equations.activations import sigmoid
from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array
from minibert.equations.sentences import normalized
from minibert.files.tokenizer import Encoded
from minibert.hub.names import full_name
from minibert.models.encoder import Encoder
from minibert.models.heads.labels import SEVERAL, best_labels
from minibert.models.heads.reranker import shortened, usual_activation
from minibert.models.sentences.folder import PAIRS, SPARSE

from .fields import Refusal
from .requests import Item
from .worker import Kind, Prepared

TASKS = ("query", "document")  # a folder may set their longest length apart
VECTORS, SPARSE_VECTORS, SCORES, LABELS = "vectors", "sparse vectors", "scores of documents", "labels"
LETTERS, SOME = 4, "a"  # about how many letters a token stands for; a text, to see what the tokenizer gives
T = TypeVar("T")


class Model:
    """An encoder of the server. `names`: what requests may call it, the first in answers; `path`: its main route."""

    uses: tuple[str, ...] = ()
    path = ""

    def __init__(self, encoder: Encoder, names: Sequence[str]) -> None:
        self.encoder, self.names = encoder, tuple(names)

    def about(self) -> dict[str, Any]:
        """What /info says of it."""
        encoder = self.encoder
        return {
            "model": self.names[0],
            "gives": list(self.uses),
            "max_seq_length": encoder.max_seq_length,
            "tasks": dict(encoder.prompts),
        }

    def _by_task(self, make: Callable[[str | None, str | None], T]) -> Mapping[str | None, T]:
        """Make something for no task and for each prompt: from the prompt's name, and the task if it is one."""
        return {name: make(name, name if name in TASKS else None) for name in (None, *self.encoder.prompts)}


class Embedder(Model):
    """A model of vectors.

    Raises ValueError for a folder that is not for sentence vectors.
    """

    uses: tuple[str, ...] = (VECTORS,)
    path = "/v1/embeddings"

    def __init__(self, encoder: Encoder, names: Sequence[str]) -> None:
        super().__init__(encoder, names)
        self.dim = encoder.get_embedding_dimension()
        self.kinds = self._by_task(partial(vectors, encoder))
        self.normalizes = encoder.sentence_config.ends_normalized

    def about(self) -> dict[str, Any]:
        own = self.encoder.sentence_config
        return super().about() | {
            "dimension": self.dim,
            "pooling": list(own.poolings),
            "normalized": self.normalizes,
            "similarity": own.measure,
        }

    def shortened(self, found: Array, dimensions: int | None, normalize: bool = False) -> Array:
        """Keep the first `dimensions` numbers of each vector; normalize if it is asked for or if the model does."""
        if dimensions is None:
            return normalized(found) if normalize and not self.normalizes else found
        if dimensions > self.dim:
            raise Refusal(400, f"dimensions must be at most {self.dim}, found {dimensions}", "dimensions")
        short = found[:, :dimensions]
        return normalized(short) if normalize or self.normalizes else short


class SparseEmbedder(Model):
    """A model of sparse vectors (SPLADE)."""

    uses, path = (SPARSE_VECTORS,), "/embed_sparse"

    def __init__(self, encoder: Encoder, names: Sequence[str]) -> None:
        super().__init__(encoder, names)
        self.sparse = self._by_task(partial(sparse_vectors, encoder))


class Classifier(Model):
    """A model with a head of classes: of one label it is a reranker too.

    Raises ValueError for a folder of another use, CheckpointError for a file without that head.
    """

    path = "/predict"

    def __init__(self, encoder: Encoder, names: Sequence[str]) -> None:
        super().__init__(encoder, names)
        self.kind, self.id2label = logits(encoder), encoder.head("classes").id2label
        single, several = len(self.id2label) == 1, encoder.config.get("problem_type") == SEVERAL
        self.likely = sigmoid if single or several else softmax
        self.uses = (LABELS,)
        if single:
            self.uses, self.path = (SCORES, *self.uses), "/rerank"
            self.usual = usual_activation(encoder.sentence_config.activation, encoder.config, 1)

    def scores(self, found: Array, raw: bool) -> Array:
        """Give scores as `predict` does, or the logits: (n, 1) -> (n,)."""
        return found[:, 0] if raw else self.usual(found)[:, 0]

    def labels(self, found: Array, raw: bool) -> list[list[dict[str, Any]]]:
        """Give each text's labels with their probabilities as `classify` does, or the logits; the largest first."""
        each = [best_labels(row, self.id2label) for row in (found if raw else self.likely(found))]
        return [[{"score": number, "label": label} for label, number in row] for row in each]


class LateInteraction(Model):
    """A model of a vector for each token (ColBERT): it orders documents by the similarity of those."""

    uses, path = (SCORES,), "/rerank"

    def __init__(self, encoder: Encoder, names: Sequence[str]) -> None:
        super().__init__(encoder, names)
        self.kind = by_tokens(encoder)

    def about(self) -> dict[str, Any]:
        own = self.encoder.sentence_config
        return super().about() | {"dimension": self.encoder.get_embedding_dimension(), "similarity": own.measure}

    def scores(self, found: Array, raw: bool) -> Array:
        """Give the similarities, which are raw."""
        return found


def model_of(encoder: Encoder, names: Sequence[str]) -> Model:
    """Take a model for what its folder was saved for; without modules.json for its head of classes, if it has one."""
    own = encoder.sentence_config
    if own.late:
        return LateInteraction(encoder, names)
    if own.kind == SPARSE:
        return SparseEmbedder(encoder, names)
    if own.kind == PAIRS or (not own.kind and "classes" in encoder.heads):
        return Classifier(encoder, names)
    return Embedder(encoder, names)


def reranker_of(encoder: Encoder, names: Sequence[str]) -> Model:
    """Take a model for scores of documents. Raises ValueError for a model of several labels, or of another use."""
    encoder.rank("", [])
    return LateInteraction(encoder, names) if encoder.sentence_config.late else Classifier(encoder, names)


def names_of(typed: str, given: Sequence[str] = ()) -> tuple[str, ...]:
    """Give the names of a model: those that were given, its folder's, its name on the Hub and its full path.

    >>> names_of("sentence-transformers/all-MiniLM-L6-v2", ["small"])
    ('small', 'all-MiniLM-L6-v2', 'sentence-transformers/all-MiniLM-L6-v2')
    >>> names_of("all-MiniLM-L6-v2")
    ('all-MiniLM-L6-v2', 'sentence-transformers/all-MiniLM-L6-v2')
    >>> names_of("/cache/models--org--name/snapshots/c0ffee")
    ('name', 'org/name', '/cache/models--org--name/snapshots/c0ffee')
    """
    path, found = Path(typed), [typed]
    if path.is_absolute() or path.is_dir():
        found += [str(path.absolute()), str(path.resolve())]
        cached = path.absolute().parts[-3:]
        if len(cached) == 3 and cached[0].startswith("models--") and cached[1] == "snapshots":
            found.insert(0, cached[0].removeprefix("models--").replace("--", "/", 1))
    else:
        found.append(full_name(typed))
    last = found[0].rstrip("/").rpartition("/")[2] if found[0].strip("./") else path.resolve().name
    return tuple(dict.fromkeys([*given, last, *found]))


# -- kinds of work -----------------------------------------------------------------------------------------------


def vectors(encoder: Encoder, name: str | None, task: str | None) -> Kind:
    """Vectors as `encode` gives them; with a task as `encode_query`, `encode_document` or with the prompt so named.

    An item may be the ids of a text's tokens too: a list of integers.
    """
    steps = encoder.pipeline(name, task=task)

    def tokenize(items: list[Any], start: int) -> list[Encoded]:
        ids = isinstance(items[0], list)  # then all of a request are
        return tokens_of(encoder, name, task, items, start) if ids else steps.tokenize(items, start)

    return Kind(prepared(tokenize), steps.vectors, lambda item: len(item) * (LETTERS if isinstance(item, list) else 1))


def tokens_of(
    encoder: Encoder, name: str | None, task: str | None, items: list[list[int]], start: int
) -> list[Encoded]:
    """Take a client's token ids as they are. Raises ValueError where they cannot be those of a text alone."""
    own, tokenizer = encoder.sentence_config, encoder.sentence_tokenizer
    if own.prompt(name, None):
        said = "without a task this model's default prompt" if name is None else f"with the task {name!r} a prompt"
        raise ValueError(f"{said} stands before each text, and none is put before token ids; send the texts")
    if tokenizer.encode([SOME])[0].token_type_ids is not None:
        raise ValueError("this model needs each token's segment beside its id; send the texts")
    longest = own.lengths.get(task or "", own.longest)
    for i, ids in enumerate(items, start):
        if longest is not None and len(ids) > longest:
            raise ValueError(f"input[{i}] has {len(ids)} token ids, at most {longest} are read; truncate it")
        if max(ids) >= tokenizer.size:
            raise ValueError(
                f"input[{i}] has the token id {max(ids)}, and those of this model end at {tokenizer.size - 1}; it "
                "takes those of its own tokenizer, or the texts"
            )
    return [Encoded(ids, None) for ids in items]


def sparse_vectors(encoder: Encoder, name: str | None, task: str | None) -> Kind:
    """Vectors as `encode_sparse` gives them."""
    steps = encoder.sparse_steps(name, task=task)
    return Kind(prepared(steps.tokenize), steps.vectors, len)


def logits(encoder: Encoder) -> Kind:
    """Logits of texts and pairs, from which `predict` and `classify` make theirs: (n, labels)."""
    steps = encoder.logits_pipeline()

    def prepare(items: list[Item], start: int) -> Prepared:
        asked = encoder.logits_pipeline(second_at_most=items[0].second_at_most)  # the same for all of a request
        return prepared(asked.tokenize)([item.texts for item in items], start)

    return Kind(prepare, lambda encoded: np.array(steps.vectors(encoded)), lambda item: sum(map(len, item.texts)))


def by_tokens(encoder: Encoder) -> Kind:
    """Similarities of a query's and a document's tokens, as `rank` gives them."""
    queries, documents = (encoder.pipeline(task, task=task) for task in TASKS)

    def prepare(items: list[Item], start: int) -> Prepared:
        pairs, most = [(item.texts[0], item.texts[1]) for item in items], items[0].second_at_most
        pairs = pairs if most is None else shortened(pairs, encoder.sentence_tokenizer, most)
        (query,) = queries.tokenize([pairs[0][0]], start)  # the same for all of a request
        found = prepared(documents.tokenize)([second for _, second in pairs], start)
        truncated = range(start, start + len(pairs)) if query.truncated else found.truncated
        return Prepared([(query, each) for each in found.items], found.tokens + len(query.input_ids), truncated)

    def compute(pairs: list[tuple[Encoded, Encoded]]) -> Array:
        different = {tuple(query.input_ids): query for query, _ in pairs}
        wanted = dict(zip(different, queries.vectors([*different.values()]), strict=True))
        firsts = [wanted[tuple(query.input_ids)] for query, _ in pairs]
        return np.asarray(encoder.similarity_pairwise(firsts, documents.vectors([each for _, each in pairs])))

    return Kind(prepare, compute, lambda item: sum(map(len, item.texts)))


def prepared(tokenize: Callable[[list[Any], int], Sequence[Any]]) -> Callable[[list[Any], int], Prepared]:
    """Count the tokens, and the texts that were truncated."""

    def prepare(texts: list[Any], start: int) -> Prepared:
        encoded = tokenize(texts, start)
        truncated = [i for i, each in enumerate(encoded, start) if each.truncated]
        return Prepared(encoded, sum(len(each.input_ids) for each in encoded), truncated)

    return prepare
