"""Requests: the bytes of a body -> checked values, or a `Refusal` in words.

An unknown field is refused: a mistyped "dimension" would otherwise be answered with another vector.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from minibert.errors import nearest_name

LONGEST_TEXT = 200_000  # characters
LONGEST_QUERY = 10_000  # characters: a query is read again with each document


class Refusal(Exception):  # noqa: N818  an answer to a client, and no fault of this program
    """A request that is refused: a status of HTTP and a message for the client. `param` names the field."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


class Limits(NamedTuple):
    """Limits of requests.

    waiting  requests that are accepted and not yet answered
    body     bytes of a request
    texts    texts or documents of a request
    grace    seconds for the accepted requests when the server ends
    """

    waiting: int = 64
    body: int = 1 << 21
    texts: int = 2048
    grace: int = 60


class Embedding(NamedTuple):
    """A request for vectors. `dimensions`: how many numbers of each to keep; `truncate`: truncate long texts."""

    model: str | None
    texts: list[str]
    base64: bool
    dimensions: int | None
    task: str | None
    truncate: bool


class Rerank(NamedTuple):
    """A request for scores. `plain`: answered in text-embeddings-inference's form, else in Cohere's."""

    model: str | None
    query: str
    documents: list[str]
    top_n: int | None
    with_text: bool
    raw: bool
    plain: bool


def read_embedding(body: bytes, limits: Limits) -> Embedding:
    """Read the body of /v1/embeddings. Raises Refusal."""
    fields = _fields(body, ("input", "model", "encoding_format", "dimensions", "user", "task", "truncate"))
    form = fields.get("encoding_format", "float")
    if form not in ("float", "base64"):
        raise _wrong("encoding_format", "'float' or 'base64'", form)
    given = fields.get("input")
    texts = _texts([given] if isinstance(given, str) else given, "input", limits)
    return Embedding(
        _string(fields, "model"),
        texts,
        form == "base64",
        _positive(fields, "dimensions"),
        _string(fields, "task"),
        _flag(fields, "truncate", True),
    )


def read_rerank(body: bytes, limits: Limits) -> Rerank:
    """Read the body of /rerank: `documents` as in Cohere's form, or `texts` as in text-embeddings-inference's.

    Raises Refusal.
    """
    known = ("model", "query", "documents", "texts", "top_n", "return_documents", "return_text", "raw_scores")
    fields = _fields(body, (*known, "truncate"))
    plain = "texts" in fields
    if plain == ("documents" in fields):
        raise Refusal(400, "expected 'documents' or 'texts', one of them, with the texts to be ordered", "documents")
    query = fields.get("query")
    if not isinstance(query, str):
        raise _wrong("query", "a string", query)
    _check_text(query, "query", LONGEST_QUERY)
    if not _flag(fields, "truncate", True):
        raise Refusal(400, "pairs that are too long are always truncated here; leave 'truncate' out", "truncate")
    name = "texts" if plain else "documents"
    return Rerank(
        _string(fields, "model"),
        query,
        _texts(fields[name], name, limits),
        _positive(fields, "top_n"),
        _flag(fields, "return_text", False) or _flag(fields, "return_documents", False),
        _flag(fields, "raw_scores", False),
        plain,
    )


def is_public(host: str) -> bool:
    """Say whether a Host header has a public name, which its owner could point at this machine (DNS rebinding).

    >>> [is_public(host) for host in ("localhost:8000", "127.0.0.1:8000", "[::1]", "host.docker.internal", "a.com:80")]
    [False, False, False, False, True]
    """
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    last = name.rstrip(".").lower().rpartition(".")[2]
    return not (name.startswith("[") or "." not in name or last.isdigit() or last in ("localhost", "local", "internal"))


def _fields(body: bytes, known: Sequence[str]) -> dict[str, Any]:
    """Read a JSON object of known fields; null counts as left out."""
    try:
        found = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError too
        raise Refusal(400, f"expected a body of JSON in UTF-8: {error}"[:200]) from None
    if not isinstance(found, dict):
        raise Refusal(400, f"expected a JSON object, found {_named(found)}")
    for name in found:
        if name not in known:
            near = nearest_name(name[:40], known)
            advice = f"; did you mean {near!r}?" if near else f"; known are {', '.join(known)}"
            raise Refusal(400, f"there is no field {name[:40]!r}{advice}", name[:40])
    return {name: value for name, value in found.items() if value is not None}


def _texts(given: Any, name: str, limits: Limits) -> list[str]:
    if not isinstance(given, list):
        raise _wrong(name, "a string or a list of strings" if name == "input" else "a list of strings", given)
    if not given:
        raise Refusal(400, f"{name!r} is empty; send at least one text", name)
    if isinstance(given[0], int | list):
        raise Refusal(
            400,
            f"{name!r} must be text, found token ids: those of another tokenizer would give wrong vectors; send the "
            "texts (LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False)",
            name,
        )
    if len(given) > limits.texts:
        raise Refusal(413, f"{name!r} has {len(given)} texts, at most {limits.texts} go into one request", name)
    for i, text in enumerate(given):
        _check_text(text, f"{name}[{i}]", LONGEST_TEXT)
    return given


def _check_text(text: Any, where: str, longest: int) -> None:
    if not isinstance(text, str):
        raise _wrong(where, "a string", text)
    if len(text) > longest:
        raise Refusal(400, f"{where} has {len(text)} characters, at most {longest} are read; send it in parts", where)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        found = f"a lone surrogate U+{ord(text[error.start]):04X} at index {error.start}"
        raise Refusal(400, f"{where} has {found}, which is no character", where) from None


def _checked(fields: dict[str, Any], name: str, right: bool, expected: str) -> Any:
    value = fields.get(name)
    if value is not None and not right:
        raise _wrong(name, expected, value)
    return value


def _string(fields: dict[str, Any], name: str) -> Any:
    return _checked(fields, name, isinstance(fields.get(name), str), "a string")


def _positive(fields: dict[str, Any], name: str) -> Any:
    value = fields.get(name)
    return _checked(fields, name, type(value) is int and value >= 1, "an integer >= 1")


def _flag(fields: dict[str, Any], name: str, default: bool) -> bool:
    value = _checked(fields, name, type(fields.get(name)) is bool, "true or false")
    return default if value is None else bool(value)


def _wrong(name: str, expected: str, found: Any) -> Refusal:
    return Refusal(400, f"{name} must be {expected}, found {_named(found)}", name)


def _named(value: Any) -> str:
    """Say what a value of JSON is, for an error.

    >>> [_named(value) for value in (None, [1], {}, "x" * 99, 7)]
    ['nothing', 'a list', 'an object', "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", '7']
    """
    kinds: dict[type, str] = {type(None): "nothing", list: "a list", dict: "an object"}
    return kinds.get(type(value)) or f"{value!r:.40}"
