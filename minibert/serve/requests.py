"""A request's body -> checked values: OpenAI's form, Jina's, Cohere's and that of text-embeddings-inference.

A form is a table of field -> what it must be. A field that clients add and that changes nothing is ignored; one that
would change the answer, is unknown or is given twice is refused. A field that is null counts as left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from minibert.errors import nearest_name

LONGEST_TEXT, LONGEST_QUERY = 200_000, 10_000  # characters: a query is read again with each document
FORMS = ("float", "base64", "binary", "ubinary")  # of a vector
FORM = ("encoding_format", "embedding_type", "encoding_type")  # OpenAI's name of it, Jina's, and that of LlamaIndex
TASK = ("task", "prompt_name", "input_type")  # Jina's name of it, that of TEI, and Cohere's


class Refusal(Exception):  # noqa: N818  an answer to a client, and no fault of this program
    """A request that is refused: a status of HTTP and a message for the client. `param` names the field."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


class Limits(NamedTuple):
    """Limits: requests not yet answered, bytes and texts of a request, seconds for accepted requests at the end."""

    waiting: int = 256
    body: int = 1 << 24
    texts: int = 2048
    grace: int = 60


USUAL = Limits()


class Item(NamedTuple):
    """A text or a pair. `most`: how many tokens of its last text are kept."""

    texts: tuple[str, ...]
    most: int | None = None


class Asked(NamedTuple):
    """A request: its items, the field that has them and its value, and all fields by their names."""

    items: list[Item]
    field: str
    sent: Any
    given: Mapping[str, Any]

    def get(self, *names: str, default: Any = None) -> Any:
        """Give the value of a field that has several names. Raises Refusal where two of them have different values."""
        found = {name: self.given[name] for name in names if name in self.given}
        if any(value != next(iter(found.values())) for value in found.values()):
            raise Refusal(400, f"{' and '.join(found)} are names of one field here; send one of them", names[0])
        return next(iter(found.values()), default)


# what a field must be: in words, and a check; or, of one that is not computed here, what to send instead
Field = tuple[str, Callable[[Any], bool]] | str

ANYTHING: Field = ("anything", lambda value: True)
STRING: Field = ("a string", lambda value: isinstance(value, str))
POSITIVE: Field = ("an integer >= 1", lambda value: type(value) is int and value >= 1)
FLAG: Field = ("true or false", lambda value: type(value) is bool)
A_FORM: Field = (f"one of {', '.join(map(repr, FORMS))}", lambda value: value in FORMS)
RIGHT: Field = ("'Right': texts lose their end here", lambda value: str(value).lower() == "right")
ALWAYS: Field = ("true: they are always added", lambda value: value is True)
NEVER: Field = ("false: each text has a vector of its own", lambda value: value is False)
EMPTY: Field = (
    "an object without fields, as raw_scores stands beside inputs",
    lambda value: isinstance(value, dict) and not any(value.values()),
)
FIRST: Field = ("-1 or an integer >= 1", lambda value: type(value) is int and (value == -1 or value >= 1))
ALL: Field = ("-1; of documents send max_tokens_per_doc", lambda value: type(value) is int and value == -1)
WORDS = "send prompt_name, or put the words before each text yourself"

COMMON: dict[str, Field] = {
    "model": STRING, "truncate": FLAG, "truncation_direction": RIGHT, "truncate_prompt_tokens": ALL, "user": ANYTHING,
    "return_len": ANYTHING, "add_special_tokens": ALWAYS,
}  # fmt: skip
SPARSE = COMMON | dict.fromkeys(TASK, STRING) | {
    "inputs": ANYTHING, "truncate_prompt_tokens": FIRST, "prompt": WORDS, "instruction": WORDS,
}  # fmt: skip
TEI = SPARSE | {"normalize": FLAG, "dimensions": POSITIVE}
OPENAI = {name: field for name, field in SPARSE.items() if name != "inputs"} | dict.fromkeys(FORM, A_FORM) | {
    "input": ANYTHING, "dimensions": POSITIVE, "normalized": FLAG, "late_chunking": NEVER,
    "output_dimension": "send dimensions", "output_dtype": "send encoding_format",
    "embedding_types": "send encoding_format",
}  # fmt: skip
PREDICT = COMMON | {"inputs": ANYTHING, "raw_scores": FLAG, "parameters": EMPTY}
RERANK = COMMON | {
    "query": ANYTHING, "documents": ANYTHING, "texts": ANYTHING, "top_n": POSITIVE, "top_k": POSITIVE,
    "return_documents": FLAG, "return_text": FLAG, "raw_scores": FLAG, "max_tokens_per_doc": POSITIVE,
    "max_chunks_per_doc": POSITIVE, "priority": ANYTHING,  # a document is one chunk here
    "rank_fields": "send each document as one string", "instruction": "put its words before the query yourself",
}  # fmt: skip


def read_texts(known: Mapping[str, Field], body: bytes, limits: Limits) -> Asked:
    """Read a request for vectors. Raises Refusal."""
    given = read_fields(known, body)
    field, most = "input" if "input" in known else "inputs", given.get("truncate_prompt_tokens", -1)
    sent = given.get(field)
    if isinstance(sent, dict) and "source_sentence" in sent:
        raise Refusal(400, f"no similarities are computed here; send all texts as {field!r} and compare the vectors")
    sent = [sent] if isinstance(sent, str) else sent
    texts = _texts(sent, field, "a string or a list of strings", limits)
    return Asked([Item((text,), None if most == -1 else most) for text in texts], field, sent, given)


def read_prediction(body: bytes, limits: Limits) -> Asked:
    """Read a request for labels. Raises Refusal."""
    given = read_fields(PREDICT, body)
    sent = given.get("inputs")
    rows = [sent] if isinstance(sent, str) else sent
    rows = [rows] if isinstance(rows, list) and rows and all(isinstance(text, str) for text in rows) else rows
    expected = "a text, a pair [text, text], or a list of [text] and [text, text]"
    if not isinstance(rows, list) or not all(isinstance(row, list) and 1 <= len(row) <= 2 for row in rows):
        raise wrong("inputs", expected, sent)
    _check_count(rows, "inputs", limits)
    items = [Item(tuple(_text(text, f"inputs[{i}]") for text in row)) for i, row in enumerate(rows)]
    return Asked(items, "inputs", sent, given)


def read_rerank(body: bytes, limits: Limits) -> Asked:
    """Read a request for scores: `documents` in Cohere's form, or `texts` in text-embeddings-inference's.

    Raises Refusal.
    """
    given = read_fields(RERANK, body)
    if ("texts" in given) == ("documents" in given):
        raise Refusal(400, "expected 'documents' or 'texts', one of them, with the texts to be ordered", "documents")
    field = "texts" if "texts" in given else "documents"
    query = _text(given.get("query"), "query", LONGEST_QUERY)
    texts = _texts(given[field], field, "a list of strings", limits)
    return Asked([Item((query, text), given.get("max_tokens_per_doc")) for text in texts], field, given[field], given)


def read_fields(known: Mapping[str, Field], body: bytes) -> dict[str, Any]:
    """Read the fields of a request, none of them null. Raises Refusal."""
    try:
        found = json.loads(body.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError too
        raise Refusal(400, f"expected a body of JSON in UTF-8: {error}"[:200]) from None
    if not isinstance(found, dict):
        raise Refusal(400, f"the body must be a JSON object, found {_shown(found)}")
    given = {name: value for name, value in found.items() if value is not None}
    for name, value in given.items():
        field = known.get(name)
        if field is None:
            right = [each for each, its in known.items() if not isinstance(its, str)]
            near = nearest_name(name[:40], known)
            advice = f"did you mean {near!r}?" if near else f"known are {', '.join(right)}"
            raise Refusal(400, f"there is no field {name[:40]!r}; {advice}", name[:40])
        if isinstance(field, str):
            raise Refusal(400, f"{name} is not known here, and would change the answer; {field}", name)
        expected, fits = field
        if not fits(value):
            raise wrong(name, expected, value)
    return given


def wrong(name: str, expected: str, found: Any) -> Refusal:
    """Say that a field is of another kind than it must be."""
    return Refusal(400, f"{name} must be {expected}, found {_shown(found)}", name)


def _shown(found: Any) -> str:
    if isinstance(found, dict) and found:
        return f"an object with {', '.join(map(repr, found)):.40}"
    kinds: dict[type, str] = {type(None): "nothing", list: "a list", dict: "an object"}
    return kinds.get(type(found)) or f"{found!r:.40}"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its fields. Raises ValueError where two have the same name."""
    found = dict(pairs)
    if len(found) != len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the field {twice[:40]!r} is given twice; send it once")
    return found


def _check_count(given: list[Any], name: str, limits: Limits) -> None:
    if not given:
        raise Refusal(400, f"{name!r} is empty; send at least one text", name)
    if len(given) > limits.texts:
        raise Refusal(413, f"{name!r} has {len(given)} texts, at most {limits.texts} go into one request", name)


def _texts(given: Any, name: str, expected: str, limits: Limits) -> list[str]:
    """Check a list of texts. Raises Refusal."""
    if not isinstance(given, list):
        raise wrong(name, expected, given)
    _check_count(given, name, limits)
    if type(given[0][0] if isinstance(given[0], list) and given[0] else given[0]) is int:
        advice = "those of another tokenizer would give wrong vectors; send the texts"
        langchain = "(LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False)"
        raise Refusal(400, f"{name!r} must be text, found token ids: {advice} {langchain}", name)
    return [_text(each, f"{name}[{i}]") for i, each in enumerate(given)]


def _text(text: Any, where: str, longest: int = LONGEST_TEXT) -> str:
    """Check a text. Raises Refusal."""
    if not isinstance(text, str):
        raise wrong(where, "a string", text)
    if len(text) > longest:
        raise Refusal(400, f"{where} has {len(text)} characters, at most {longest} are read; send it in parts", where)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        found = f"a lone surrogate U+{ord(text[error.start]):04X} at index {error.start}"
        raise Refusal(400, f"{where} has {found}, which is no character", where) from None
    return text
