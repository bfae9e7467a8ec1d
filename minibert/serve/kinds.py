"""The models of a server: the names that requests may use, what each is for, and its kinds of work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.activations import sigmoid
from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array
from minibert.equations.sentences import normalized
from minibert.files.tokenizer import Encoded, Tokenizer
from minibert.hub.names import full_name
from minibert.models.encoder import Encoder
from minibert.models.heads.labels import SEVERAL, best_labels, usual_activation

from .requests import TASK, Asked, Item, Refusal
from .worker import Kind, Prepared

VECTORS, SPARSE_VECTORS, SCORES, LABELS = "vectors", "sparse vectors", "scores of documents", "labels"
OWN = ("query", "document")  # tasks that a folder may give a longest length or a way of their own
# what clients call these two; a prompt of the model that has such a name goes before
CALLED = {
    "passage": "document", "search_document": "document", "retrieval.passage": "document", "search_query": "query",
    "retrieval.query": "query",
}  # fmt: skip


class Model(NamedTuple):
    """An encoder of the server.

    names   what requests may call it, the first in answers
    work    what it gives -> a prompt's name, or None -> its kind of work; the main use comes first
    scores  labels: results of that work, and whether raw ones are wanted -> a number or its labels for each
    """

    names: tuple[str, ...]
    encoder: Encoder
    work: Mapping[str, Mapping[str | None, Kind]]
    scores: Callable[[Array, bool], Array] = lambda found, raw: found
    labels: Callable[[Array, bool], list[list[dict[str, Any]]]] = lambda found, raw: []

    def about(self) -> dict[str, Any]:
        """Describe it for /info."""
        encoder, own = self.encoder, self.encoder.sentence_config
        told = {
            "model": self.names[0], "gives": [*self.work], "max_seq_length": encoder.max_seq_length,
            "tasks": dict(encoder.prompts),
        }  # fmt: skip
        if VECTORS in self.work or encoder.result == "tokens":
            told |= {"dimension": encoder.get_embedding_dimension(), "similarity": own.measure}
            told |= {"pooling": list(own.poolings), "normalized": own.ends_normalized}
        return told

    def kind(self, use: str, asked: Asked) -> Kind:
        """Give the work of a request. Raises Refusal for a task that the model does not have."""
        if use == VECTORS:
            self.shortened(np.empty((0, 1)), asked.get("dimensions"))  # refuses before anything is computed
        kinds, task = self.work[use], asked.get(*TASK)
        task = task if task in kinds else CALLED.get(task, task)
        if task not in kinds:
            field, known = next(name for name in TASK if name in asked.given), ", ".join(map(repr, filter(None, kinds)))
            raise Refusal(400, f"{field} must be one of this model's {known}, found {task!r:.40}", field)
        return kinds[task]

    def shortened(self, found: Array, dimensions: int | None, normalize: bool = False) -> Array:
        """Keep the first `dimensions` numbers of each vector; normalize if it is asked for or if the model does."""
        width, always = self.encoder.get_embedding_dimension(), self.encoder.sentence_config.ends_normalized
        if dimensions is None:
            return normalized(found) if normalize and not always else found
        if dimensions > width:
            raise Refusal(400, f"dimensions must be at most {width}, found {dimensions}", "dimensions")
        return normalized(found[:, :dimensions]) if normalize or always else found[:, :dimensions]


def model_of(encoder: Encoder, names: Sequence[str]) -> Model:
    """Take a model for what its folder was saved for; without modules.json for its head of classes, if it has one.

    Raises ValueError for a folder of another use, CheckpointError for a file without that head.
    """
    own = encoder.sentence_config
    if encoder.result == "tokens":  # of late interaction (ColBERT) there is no vector of a text
        return Model(tuple(names), encoder, {SCORES: {None: _by_tokens(encoder)}})
    if encoder.result == "scores" or (not own.kind and "classes" in encoder.heads):
        return _classifier(encoder, names)
    use = SPARSE_VECTORS if encoder.result == "sparse" else VECTORS
    return Model(tuple(names), encoder, {use: _by_task(encoder)})


def _classifier(encoder: Encoder, names: Sequence[str]) -> Model:
    steps, id2label = encoder.logits_pipeline(), encoder.head("classes").id2label
    single = len(id2label) == 1
    likely = sigmoid if single or encoder.config.get("problem_type") == SEVERAL else softmax
    usual = usual_activation(encoder.sentence_config.activation, encoder.config, 1) if single else likely

    def prepare(items: list[Item], start: int) -> Prepared:
        return _counted(steps.tokenize(_cut(items, encoder.sentence_tokenizer), start), start)

    def labels(found: Array, raw: bool) -> list[list[dict[str, Any]]]:
        each = [best_labels(row, id2label) for row in (found if raw else likely(found))]
        return [[{"score": number, "label": label} for label, number in row] for row in each]

    kinds: Mapping[str | None, Kind] = {None: Kind(prepare, steps.vectors, _size)}
    work = {SCORES: kinds, LABELS: kinds} if single else {LABELS: kinds}
    return Model(tuple(names), encoder, work, lambda found, raw: (found if raw else usual(found))[:, 0], labels)


def names_of(typed: str, given: Sequence[str] = ()) -> tuple[str, ...]:
    """Give the names of a model: those that were given, its folder's, its name on the Hub and its full path.

    >>> names_of("sentence-transformers/all-MiniLM-L6-v2", ["small"])
    ('small', 'all-MiniLM-L6-v2', 'sentence-transformers/all-MiniLM-L6-v2')
    """
    path, found = Path(typed), [typed]
    if path.is_absolute() or path.is_dir():
        found.append(str(path.absolute()))
    else:
        found.append(full_name(typed))
    last = found[0].rstrip("/").rpartition("/")[2] if found[0].strip("./") else path.resolve().name
    return tuple(dict.fromkeys([*given, last, *found]))


# -- kinds of work -------------------------------------------------------------------------------------------------


def _by_task(encoder: Encoder) -> Mapping[str | None, Kind]:
    """Make the work of texts for no task and for each prompt: from its name, and the task if it is one."""
    names = (None, *encoder.prompts)
    return {name: _of_texts(encoder, encoder.pipeline(name, task=name if name in OWN else None)) for name in names}


def _of_texts(encoder: Encoder, steps: Any) -> Kind:
    def prepare(items: list[Item], start: int) -> Prepared:
        return _counted(steps.tokenize([text for (text,) in _cut(items, encoder.sentence_tokenizer)], start), start)

    return Kind(prepare, steps.vectors, _size)


def _by_tokens(encoder: Encoder) -> Kind:
    """Make the work of similarities of a query's and a document's tokens, as `rank` gives them."""
    queries, documents = (encoder.pipeline(task, task=task) for task in OWN)

    def prepare(items: list[Item], start: int) -> Prepared:
        texts = [document for _, document in _cut(items, encoder.sentence_tokenizer)]
        (query,) = queries.tokenize([items[0].texts[0]], start)  # the same for all of a request
        found = _counted(documents.tokenize(texts, start), start)
        truncated = range(start, start + len(texts)) if query.truncated else found.truncated
        return Prepared([(query, each) for each in found.items], found.tokens + len(query.input_ids), truncated)

    def compute(pairs: list[tuple[Encoded, Encoded]]) -> Array:
        firsts, seconds = ([*each] for each in zip(*pairs, strict=True))
        return np.asarray(encoder.similarity_pairwise(queries.vectors(firsts), documents.vectors(seconds)))

    return Kind(prepare, compute, _size)


def _cut(items: list[Item], tokenizer: Tokenizer) -> list[tuple[str, ...]]:
    """Cut the last text of each item behind its first tokens, as many as the request keeps: of a text alone with the
    special ones. A tokenizer that reads a text as a whole reads letters again.
    """
    texts, most = [item.texts for item in items], items[0].most  # the same for all of a request
    if most is None:
        return texts
    most = most if len(texts[0]) > 1 else max(most - len(tokenizer.encode([""])[0].input_ids), 1)
    found, spans = [], tokenizer.encode_with_spans([each[-1] for each in texts])
    for (*before, last), (_, places) in zip(texts, spans, strict=True):
        inside = [place for place in places if place is not None]
        found.append((*before, last[: inside[most - 1][1]] if len(inside) > most else last))
    return found


def _size(item: Item) -> int:
    return sum(map(len, item.texts))


def _counted(encoded: Sequence[Encoded], start: int) -> Prepared:
    """Count the tokens, and the texts that were truncated."""
    truncated = [i for i, each in enumerate(encoded, start) if each.truncated]
    return Prepared(encoded, sum(len(each.input_ids) for each in encoded), truncated)
