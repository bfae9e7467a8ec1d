"""What a request may say, in OpenAI's, Cohere's and text-embeddings-inference's form: its body -> checked values."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

from .fields import Fields, Limits, Refusal, check_count, checked_text, wrong

LONGEST_QUERY = 10_000  # characters: a query is read again with each document
TRUNCATION = ("truncate", "truncation_direction")  # fields of text-embeddings-inference
FORMS = ("float", "base64", "binary", "ubinary")  # of a vector
FORM = ("encoding_format", "embedding_type", "encoding_type")  # OpenAI's name of it, Jina's, and that of LlamaIndex


class Embedding(NamedTuple):
    """A request for vectors.

    texts       or, for each of them, the ids of its tokens
    field       of the texts, for messages
    task        whose prompt is put before the texts
    truncate    truncate long texts; otherwise they are refused
    dimensions  how many numbers of each vector to keep
    normalize   give vectors of length 1, whatever the model gives
    form        one of FORMS
    """

    model: str | None
    texts: list[Any]
    field: str
    task: str | None
    truncate: bool
    dimensions: int | None = None
    normalize: bool = False
    form: str = FORMS[0]


class Item(NamedTuple):
    """A text or a pair to be scored; of a pair's second text at most so many tokens are kept."""

    texts: tuple[str, ...]
    second_at_most: int | None = None


class Prediction(NamedTuple):
    """A request for labels. `single`: it was one item, and no list of them."""

    model: str | None
    items: list[Item]
    single: bool
    raw: bool
    truncate: bool
    field: str = "inputs"


class Rerank(NamedTuple):
    """A request for scores. `plain`: answered in text-embeddings-inference's form, else in Cohere's.

    sent  the documents as they came: texts, or objects with one
    """

    model: str | None
    query: str
    documents: list[str]
    sent: list[Any]
    tokens: int | None  # of each document
    top_n: int | None
    with_text: bool
    raw: bool
    truncate: bool
    plain: bool

    @property
    def field(self) -> str:
        return "texts" if self.plain else "documents"

    @property
    def items(self) -> list[Item]:
        return [Item((self.query, text), self.tokens) for text in self.documents]


def read_embedding(body: bytes, limits: Limits, token_ids: bool = False) -> Embedding:
    """Read the body of /v1/embeddings, in OpenAI's form or Jina's; with `token_ids` those too. Raises Refusal."""
    known = ("input", "model", *FORM, "dimensions", "user", "task", "truncate", "normalized", "late_chunking")
    fields = Fields.read(body, known)
    if fields.flag("late_chunking", False):
        raise Refusal(400, "late_chunking is not computed here: each text has a vector of its own", "late_chunking")
    texts = partial(fields.texts, "input", limits, or_one=True, inside="text")
    return Embedding(
        fields.string("model"),
        (token_ids and fields.token_ids("input", limits)) or texts(),
        "input",
        fields.string("task"),
        fields.flag("truncate", True),
        fields.positive("dimensions"),
        fields.flag("normalized", False),
        fields.choice(FORM, FORMS),
    )


def read_embed(body: bytes, limits: Limits, sparse: bool = False) -> Embedding:
    """Read the body of /embed or /embed_sparse, in text-embeddings-inference's form. Raises Refusal."""
    own = () if sparse else ("normalize", "dimensions")
    fields = Fields.read(body, ("inputs", "model", "prompt_name", *TRUNCATION, *own))
    return Embedding(
        fields.string("model"),
        fields.texts("inputs", limits, or_one=True),
        "inputs",
        fields.string("prompt_name"),
        _truncate(fields),
        fields.positive("dimensions"),
        normalize=fields.flag("normalize", True),
    )


def read_similarity(body: bytes, limits: Limits) -> Embedding:
    """Read the body of /similarity: the first of the texts is to be compared with the others. Raises Refusal."""
    fields = Fields.read(body, ("inputs", "model", "parameters"))
    inputs = fields.object("inputs", ("source_sentence", "sentences"))
    asked = fields.object("parameters", ("prompt_name", *TRUNCATION))
    return Embedding(
        fields.string("model"),
        [inputs.text("source_sentence"), *inputs.texts("sentences", limits)],
        "inputs",
        asked.string("prompt_name"),
        _truncate(asked),
        normalize=True,
    )


def read_prediction(body: bytes, limits: Limits) -> Prediction:
    """Read the body of /predict: a text, a pair [text, text], or a list of [text] and [text, text]. Raises Refusal."""
    fields = Fields.read(body, ("inputs", "model", "raw_scores", "parameters", *TRUNCATION))
    fields.object("parameters", ())  # huggingface_hub's client sends it, empty unless it is asked for more
    given = fields.get("inputs")
    one = [given] if isinstance(given, str) else given
    single = isinstance(one, list) and bool(one) and all(isinstance(text, str) for text in one)
    rows = [one] if single else one
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) and 1 <= len(row) <= 2 for row in rows):
        raise wrong("inputs", "a text, a pair [text, text], or a list of [text] and [text, text]", given)
    check_count(rows, "inputs", limits)
    items = [Item(tuple(checked_text(text, f"inputs[{i}]") for text in row)) for i, row in enumerate(rows)]
    return Prediction(fields.string("model"), items, single, fields.flag("raw_scores", False), _truncate(fields))


def read_rerank(body: bytes, limits: Limits) -> Rerank:
    """Read the body of /rerank: `documents` as in Cohere's form, or `texts` as in text-embeddings-inference's.

    Raises Refusal.
    """
    known = ("model", "query", "documents", "texts", "top_n", "return_documents", "return_text", "raw_scores")
    of_cohere = ("max_tokens_per_doc", "priority", "rank_fields", "max_chunks_per_doc")
    fields = Fields.read(body, (*known, *TRUNCATION, *of_cohere))
    plain = "texts" in fields
    if plain == ("documents" in fields):
        raise Refusal(400, "expected 'documents' or 'texts', one of them, with the texts to be ordered", "documents")
    name, inside = ("texts", None) if plain else ("documents", _ranked_field(fields))
    fields.positive("max_chunks_per_doc")  # a document is one piece here
    return Rerank(
        fields.string("model"),
        fields.text("query", LONGEST_QUERY),
        fields.texts(name, limits, inside=inside),
        fields.get(name),
        fields.positive("max_tokens_per_doc"),
        fields.positive("top_n"),
        fields.flag("return_text", False) or fields.flag("return_documents", False),
        fields.flag("raw_scores", False),
        _truncate(fields),
        plain,
    )


def _ranked_field(fields: Fields) -> str:
    """Read which field of a document that is an object is scored, in the form of Cohere's first version."""
    given = fields.get("rank_fields", ["text"])
    if not isinstance(given, list) or len(given) != 1 or not isinstance(given[0], str):
        raise wrong("rank_fields", "a list of one field's name; join the texts of several fields yourself", given)
    return given[0]


def _truncate(fields: Fields) -> bool:
    """Read whether long texts are truncated, in text-embeddings-inference's form."""
    side = fields.get("truncation_direction", "right")
    if not isinstance(side, str) or side.lower() not in ("left", "right"):
        raise wrong("truncation_direction", "'Right'", side)
    if side.lower() == "left":
        raise Refusal(
            400,
            "truncation_direction 'Left' is not computed here: texts lose their end, 'Right'",
            "truncation_direction",
        )
    return fields.flag("truncate", True)
