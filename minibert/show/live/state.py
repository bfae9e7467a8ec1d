"""A live page's request: a text and the changes to its run. Read from JSON, and checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from minibert.show.terms import PARTS

LONGEST = 4_000  # letters of a text
MOST = 600  # changes of one kind
STREAM, ATTENTION, FEED_FORWARD = "stream", "attention", "feed-forward"
PATCHED = (STREAM, ATTENTION, FEED_FORWARD)

V = TypeVar("V")


class Patch(NamedTuple):
    """Values of the other text that replace this one's.

    what    `stream`: the rows that enter block `block`, or leave the last one; else those its attention or feed-forward
            adds
    place   which token gets them, and `source`, whose they are; both None: every token the one at its own place
    """

    what: str
    block: int
    place: int | None
    source: int | None


class State(NamedTuple):
    """The settings of a live page.

    replaced  (position, token): another token at that place; heads: (block, head)
    terms     (query's part, key's part), in the order of `terms.PARTS`: taken out of block 0's scores
    """

    text: str
    beside: str = ""
    replaced: tuple[tuple[int, str], ...] = ()
    heads: tuple[tuple[int, int], ...] = ()
    feed_forwards: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    terms: tuple[tuple[int, int], ...] = ()
    patches: tuple[Patch, ...] = ()

    @property
    def typed(self) -> State:
        """Give the state of the typed text, without a change."""
        return State(self.text)

    @property
    def as_json(self) -> dict[str, Any]:
        """Give the state in the form that `read_state` reads."""
        return {**self._asdict(), "patches": [patch._asdict() for patch in self.patches]}


def read_state(given: Any) -> State:
    """Read and check a state. Raises ValueError that names the field."""
    fields = read_object(given, "the state", State._fields)
    return State(
        _text(fields, "text"),
        _text(fields, "beside"),
        _some(fields, "replaced", _replacement),
        _some(fields, "heads", _head),
        _some(fields, "feed_forwards", integer),
        _some(fields, "blocks", integer),
        _some(fields, "terms", _term),
        _some(fields, "patches", _patch),
    )


def read_object(given: Any, what: str, known: tuple[str, ...]) -> dict[str, Any]:
    """Check that a value is a JSON object with known names alone. Raises ValueError."""
    if not isinstance(given, dict) or (set(given) - set(known)):
        found = f"the names {', '.join(map(str, given))}" if isinstance(given, dict) else repr(given)
        raise ValueError(f"{what} must be an object with {', '.join(known)}, found {found:.200}")
    return given


def integer(value: Any, what: str) -> int:
    """Check a number that counts from 0. Raises ValueError."""
    if type(value) is not int or not 0 <= value < 1 << 31:
        raise ValueError(f"{what} must be an integer from 0 on, found {value!r:.40}")
    return value


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, found {value!r:.40}")
    if len(value) > LONGEST:
        raise ValueError(f"{name} has {len(value)} letters, and a page shows at most {LONGEST}; shorten it")
    return value


def _some(fields: dict[str, Any], name: str, read: Callable[[Any, str], V]) -> tuple[V, ...]:
    values = fields.get(name, [])
    if not isinstance(values, list) or len(values) > MOST:
        raise ValueError(f"{name} must be a list of at most {MOST}, found {values!r:.80}")
    return tuple(read(value, f"{name}[{i}]") for i, value in enumerate(values))


def _pair(value: Any, what: str, says: str) -> Any:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"{what} must be {says}, found {value!r:.40}")
    return value


def _replacement(value: Any, what: str) -> tuple[int, str]:
    place, token = _pair(value, what, "[position, token]")
    # a lone surrogate is no character, and no tokenizer can read it
    if not isinstance(token, str) or not 0 < len(token) <= LONGEST or any("\ud800" <= x <= "\udfff" for x in token):
        raise ValueError(f"{what} must name a token, found {token!r:.40}")
    return integer(place, what), token


def _head(value: Any, what: str) -> tuple[int, int]:
    block, head = _pair(value, what, "[block, head]")
    return integer(block, what), integer(head, what)


def _term(value: Any, what: str) -> tuple[int, int]:
    says = f"two of the numbers 0..{len(PARTS) - 1}, for {', '.join(PARTS)}"
    query, key = _pair(value, what, says)
    if any(integer(each, what) >= len(PARTS) for each in (query, key)):
        raise ValueError(f"{what} must be {says}, found {value!r:.40}")
    return query, key


def _patch(value: Any, what: str) -> Patch:
    fields = read_object(value, what, Patch._fields)
    if fields.get("what") not in PATCHED:
        raise ValueError(f"{what} must be of {', '.join(PATCHED)}, found {fields.get('what')!r:.40}")
    places = [fields.get(name) for name in ("place", "source")]
    own, other = (None, None) if places == [None, None] else (integer(each, what) for each in places)
    return Patch(fields["what"], integer(fields.get("block"), what), own, other)
