"""A request's body -> checked values: the forms of OpenAI, Jina, Cohere and text-embeddings-inference.

A form is a table of fields, as in `http_guard`. A field that clients add and that changes nothing is ignored. A field
that would change the answer is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from minibert.http_guard import Field, Refusal, check_fields, read_json, wrong

from .options import Limits

ENCODINGS = ("float", "base64", "binary", "ubinary")  # how a vector is written
# the field's name in OpenAI's API, Jina's, LlamaIndex
ENCODING = ("encoding_format", "embedding_type", "encoding_type")
TASK = ("task", "prompt_name", "input_type")  # the field's name in Jina's API, TEI's and Cohere's


class Item(NamedTuple):
    """A text or a pair. `longest`: the last text is truncated after this many tokens; None: no truncation."""

    texts: tuple[str, ...]
    longest: int | None = None


class Parsed(NamedTuple):
    """A request: its items, the field that has them and the value of this field, and all fields by name."""

    items: list[Item]
    field: str
    sent: Any
    fields: Mapping[str, Any]

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the value of a field that has several names. Raises Refusal if two names have different values."""
        values = {name: self.fields[name] for name in names if name in self.fields}
        if any(value != next(iter(values.values())) for value in values.values()):
            raise Refusal(400, f"{' and '.join(values)} are names of one field here; send one of them", names[0])
        return next(iter(values.values()), default)


ANYTHING: Field = ("anything", lambda value: True)
STRING: Field = ("a string", lambda value: isinstance(value, str))
POSITIVE: Field = ("an integer >= 1", lambda value: type(value) is int and value >= 1)
FLAG: Field = ("true or false", lambda value: type(value) is bool)
ONE_ENCODING: Field = (f"one of {', '.join(map(repr, ENCODINGS))}", lambda value: value in ENCODINGS)
RIGHT: Field = ("'Right': the end of a text is cut off here", lambda value: str(value).lower() == "right")
ALWAYS: Field = ("true: special tokens are always added", lambda value: value is True)
NEVER: Field = ("false: each text is encoded alone", lambda value: value is False)
EMPTY: Field = (
    "an object without fields; raw_scores is sent beside inputs",
    lambda value: isinstance(value, dict) and not any(value.values()),
)
TOKENS: Field = ("-1 or an integer >= 1", lambda value: type(value) is int and (value == -1 or value >= 1))
ALL: Field = ("-1; to truncate documents send max_tokens_per_doc", lambda value: type(value) is int and value == -1)
PROMPT = "send prompt_name, or put the prompt before each text yourself"

COMMON: dict[str, Field] = {
    "model": STRING, "truncate": FLAG, "truncation_direction": RIGHT, "truncate_prompt_tokens": ALL, "user": ANYTHING,
    "return_len": ANYTHING, "add_special_tokens": ALWAYS,
}  # fmt: skip
SPARSE = COMMON | dict.fromkeys(TASK, STRING) | {
    "inputs": ANYTHING, "truncate_prompt_tokens": TOKENS, "prompt": PROMPT, "instruction": PROMPT,
}  # fmt: skip
TEI = SPARSE | {"normalize": FLAG, "dimensions": POSITIVE}
OPENAI = {name: field for name, field in SPARSE.items() if name != "inputs"} | dict.fromkeys(ENCODING, ONE_ENCODING) | {
    "input": ANYTHING, "dimensions": POSITIVE, "normalized": FLAG, "late_chunking": NEVER,
    "output_dimension": "send dimensions", "output_dtype": "send encoding_format",
    "embedding_types": "send encoding_format",
}  # fmt: skip
PREDICT = COMMON | {"inputs": ANYTHING, "raw_scores": FLAG, "parameters": EMPTY}
RERANK = COMMON | {
    "query": ANYTHING, "documents": ANYTHING, "texts": ANYTHING, "top_n": POSITIVE, "top_k": POSITIVE,
    "return_documents": FLAG, "return_text": FLAG, "raw_scores": FLAG, "max_tokens_per_doc": POSITIVE,
    "max_chunks_per_doc": POSITIVE, "priority": ANYTHING,  # a document is one chunk here
    "rank_fields": "send each document as one string", "instruction": "put it before the query yourself",
}  # fmt: skip


def read_texts(known: Mapping[str, Field], body: bytes, limits: Limits) -> Parsed:
    """Read a request for vectors. Raises Refusal."""
    fields = check_fields(known, read_json(body))
    field, longest = "input" if "input" in known else "inputs", fields.get("truncate_prompt_tokens", -1)
    sent = fields.get(field)
    if isinstance(sent, dict) and "source_sentence" in sent:
        raise Refusal(400, f"no similarities are computed here; send all texts as {field!r} and compare the vectors")
    sent = [sent] if isinstance(sent, str) else sent
    texts = _texts(sent, field, "a string or a list of strings", limits)
    return Parsed([Item((text,), None if longest == -1 else longest) for text in texts], field, sent, fields)


def read_prediction(body: bytes, limits: Limits) -> Parsed:
    """Read a request for labels. Raises Refusal."""
    fields = check_fields(PREDICT, read_json(body))
    sent = fields.get("inputs")
    rows = [sent] if isinstance(sent, str) else sent
    rows = [rows] if isinstance(rows, list) and rows and all(isinstance(text, str) for text in rows) else rows
    expected = "a text, a pair [text, text], or a list of [text] and [text, text]"
    if not isinstance(rows, list) or not all(isinstance(row, list) and 1 <= len(row) <= 2 for row in rows):
        raise wrong("inputs", expected, sent)
    _check_count(rows, "inputs", limits)
    items = [Item(tuple(_text(text, f"inputs[{i}]", limits.characters) for text in row)) for i, row in enumerate(rows)]
    return Parsed(items, "inputs", sent, fields)


def read_rerank(body: bytes, limits: Limits) -> Parsed:
    """Read a request for scores: `documents` in Cohere's form, `texts` in TEI's. Raises Refusal."""
    fields = check_fields(RERANK, read_json(body))
    if ("texts" in fields) == ("documents" in fields):
        fields_sent = "both" if "texts" in fields else "neither"
        raise Refusal(400, f"expected 'documents' or 'texts', with the texts to sort, found {fields_sent}", "documents")
    field = "texts" if "texts" in fields else "documents"
    query = _text(fields.get("query"), "query", limits.query)
    texts, longest = _texts(fields[field], field, "a list of strings", limits), fields.get("max_tokens_per_doc")
    return Parsed([Item((query, text), longest) for text in texts], field, fields[field], fields)


def _check_count(items: list[Any], name: str, limits: Limits) -> None:
    if not items:
        raise Refusal(400, f"{name!r} is empty; send at least one text", name)
    if len(items) > limits.texts:
        raise Refusal(413, f"{name!r} has {len(items)} texts, a request may have {limits.texts}", name)


def _texts(sent: Any, name: str, expected: str, limits: Limits) -> list[str]:
    if not isinstance(sent, list):
        raise wrong(name, expected, sent)
    _check_count(sent, name, limits)
    if type(sent[0][0] if isinstance(sent[0], list) and sent[0] else sent[0]) is int:
        advice = "ids of another tokenizer would give wrong vectors; send the texts"
        langchain = "(LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False)"
        raise Refusal(400, f"{name!r} must be text, found token ids: {advice} {langchain}", name)
    return [_text(text, f"{name}[{i}]", limits.characters) for i, text in enumerate(sent)]


def _text(text: Any, field: str, most: int) -> str:
    if not isinstance(text, str):
        raise wrong(field, "a string", text)
    if len(text) > most:
        why = f"at most {most} are allowed; send it in parts"
        raise Refusal(400, f"{field} has {len(text)} characters, {why}", field)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        surrogate = f"a lone surrogate U+{ord(text[error.start]):04X} at index {error.start}"
        raise Refusal(400, f"{field} has {surrogate}, which is no character", field) from None
    return text
