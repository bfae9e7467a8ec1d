"""The fields of a request: the bytes of a body -> checked values of JSON, or a `Refusal` in words.

An unknown field is refused: a mistyped "dimension" would otherwise be answered with another vector. So is one that is
given twice, of which readers of JSON take the first or the last. A field that is null counts as left out: some clients
send it for every field that they know.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from minibert.errors import nearest_name

LONGEST_TEXT = 200_000  # characters
TEXT_BYTES = 1 << 13  # of a request for each text that it may have: 16 for each of 512 tokens
ESCAPED = 12  # bytes of a character in JSON at most, as two escapes


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

    waiting: int = 256
    body: int = 1 << 24
    texts: int = 2048
    grace: int = 60


def body_for(texts: int) -> int:
    """Give the bytes of a request that may have so many texts; one of the longest always fits.

    >>> body_for(2048) == Limits().body, body_for(1)
    (True, 2408192)
    """
    return max(texts * TEXT_BYTES, ESCAPED * LONGEST_TEXT + TEXT_BYTES)


class Fields:
    """The fields of a JSON object, each of a known name and none of them null. Every method raises Refusal."""

    def __init__(self, values: dict[str, Any], known: Sequence[str]) -> None:
        self.values = {name: value for name, value in values.items() if value is not None}
        for name in self.values:
            if name not in known:
                near = nearest_name(name[:40], known)
                known_here = f"known are {', '.join(known)}" if known else "leave it out"
                advice = f"; did you mean {near!r}?" if near else f"; {known_here}"
                raise Refusal(400, f"there is no field {name[:40]!r}{advice}", name[:40])

    @classmethod
    def read(cls, body: bytes, known: Sequence[str]) -> Fields:
        """Read the body of a request."""
        try:
            found = json.loads(body.decode("utf-8"), object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError too
            raise Refusal(400, f"expected a body of JSON in UTF-8: {error}"[:200]) from None
        if not isinstance(found, dict):
            raise Refusal(400, f"expected a JSON object, found {_named(found)}")
        return cls(found, known)

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str, default: Any = None) -> Any:
        """Give a value as it was sent."""
        return self.values.get(name, default)

    def object(self, name: str, known: Sequence[str]) -> Fields:
        """Give an object; without it one without fields."""
        found = self.get(name, {})
        if not isinstance(found, dict):
            raise wrong(name, f"an object{' with ' * bool(known)}{' and '.join(known)}", found)
        return Fields(found, known)

    def string(self, name: str) -> Any:
        """Give a string or None."""
        return self._checked(name, isinstance(self.get(name), str), "a string")

    def positive(self, name: str) -> Any:
        """Give an integer >= 1 or None."""
        value = self.get(name)
        return self._checked(name, type(value) is int and value >= 1, "an integer >= 1")

    def flag(self, name: str, default: bool) -> bool:
        """Give true or false."""
        value = self._checked(name, type(self.get(name)) is bool, "true or false")
        return default if value is None else bool(value)

    def choice(self, names: Sequence[str], known: Sequence[str]) -> Any:
        """Give the string that was sent by one of several names of a field, or the first that is known."""
        given = {name: self.get(name) for name in names if name in self}
        for name, value in given.items():
            if value not in known:
                raise wrong(name, f"one of {', '.join(map(repr, known))}", value)
        if len({*given.values()}) > 1:
            raise Refusal(400, f"{' and '.join(given)} are names of one field here; send one of them", names[0])
        return next(iter(given.values()), known[0])

    def text(self, name: str, longest: int = LONGEST_TEXT) -> str:
        """Give a text that must be there."""
        return checked_text(self.get(name), name, longest)

    def texts(self, name: str, limits: Limits, or_one: bool = False, inside: str | None = None) -> list[str]:
        """Give a list of at least one text; `or_one`: one text alone may be sent too.

        inside: the field of the text, where an object may be sent in place of one; all its fields are texts.
        """
        given = self.get(name)
        if or_one and isinstance(given, str):
            given = [given]
        if not isinstance(given, list):
            raise wrong(name, f"{'a string or ' * or_one}a list of strings", given)
        if not given:
            raise Refusal(400, f"{name!r} is empty; send at least one text", name)
        if _is_ids(given[0]):
            raise Refusal(
                400,
                f"{name!r} must be text, found token ids: those of another tokenizer would give wrong vectors; send "
                "the texts (LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False). For those of the model's "
                "own tokenizer /v1/embeddings takes them if the server was started with --token-ids",
                name,
            )
        check_count(given, name, limits)
        return [_text_of(each, f"{name}[{i}]", inside) for i, each in enumerate(given)]

    def token_ids(self, name: str, limits: Limits) -> list[list[int]] | None:
        """Give lists of token ids, where one or several were sent; None where it is anything else."""
        given = self.get(name)
        if not isinstance(given, list) or not given or not _is_ids(given[0]):
            return None
        rows = given if isinstance(given[0], list) else [given]
        check_count(rows, name, limits)
        for i, ids in enumerate(rows):
            if not isinstance(ids, list) or not ids or not all(type(each) is int and each >= 0 for each in ids):
                raise Refusal(400, f"{name}[{i}] must be a list of token ids, integers >= 0 and at least one", name)
        return rows

    def _checked(self, name: str, right: bool, expected: str) -> Any:
        value = self.get(name)
        if value is not None and not right:
            raise wrong(name, expected, value)
        return value


def check_count(given: list[Any], name: str, limits: Limits) -> None:
    """Refuse more texts than one request may have."""
    if len(given) > limits.texts:
        raise Refusal(413, f"{name!r} has {len(given)} texts, at most {limits.texts} go into one request", name)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its fields. Raises ValueError where two have the same name."""
    found = dict(pairs)
    if len(found) != len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the field {twice[:40]!r} is given twice; send it once")
    return found


def _text_of(given: Any, where: str, inside: str | None) -> str:
    """Give a text, or that of an object, whose other fields are checked: an answer may repeat them."""
    if inside is None or not isinstance(given, dict):
        return checked_text(given, where)
    for name, text in given.items():
        checked_text(name, f"the name of a field of {where}")
        if text is not None:
            checked_text(text, f"{where}.{name[:40]}")
    return checked_text(given.get(inside), f"{where}.{inside[:40]}")


def checked_text(text: Any, where: str, longest: int = LONGEST_TEXT) -> str:
    """Refuse what is no text, or too long a one."""
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


def _is_ids(given: Any) -> bool:
    """Say whether an item of a list is a token id, or begins a list of them."""
    first = given[0] if isinstance(given, list) and given else given
    return type(first) is int or first == []


def wrong(name: str, expected: str, found: Any) -> Refusal:
    """Say that a field is of another kind than it must be."""
    return Refusal(400, f"{name} must be {expected}, found {_named(found)}", name)


def _named(value: Any) -> str:
    """Say what a value of JSON is, for an error.

    >>> [_named(value) for value in (None, [1], {}, "x" * 99, 7)]
    ['nothing', 'a list', 'an object', "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", '7']
    """
    kinds: dict[type, str] = {type(None): "nothing", list: "a list", dict: "an object"}
    return kinds.get(type(value)) or f"{value!r:.40}"
