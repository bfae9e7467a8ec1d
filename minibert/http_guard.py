"""The checks of a request that both servers make (`minibert serve`, `minibert explain --live`): token, host, fields.

A form is a table of field -> what it must be. A field that is null counts as left out; a field that is unknown, or that
is given twice, is refused.
"""

from __future__ import annotations

import hmac
import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from minibert.errors import nearest_name

LOCAL = ("127.0.0.1", "localhost", "::1")
PATIENCE = 30  # seconds that a client has to send a request
REST = 1 << 24  # bytes of a refused request that are read: some clients read the answer only after sending all

# a field's value in words, and its check; or, for a field that is not computed here, what to send instead
Field = tuple[str, Callable[[Any], bool]] | str


class Refusal(ValueError):  # noqa: N818  an answer to a client, and no fault of this program
    """A refused request: an HTTP status and a message for the client. `param` names the field."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


def has_token(authorization: str, token: str) -> bool:
    """Check whether an Authorization header is `Bearer TOKEN`, in a time that tells nothing about the token."""
    scheme, _, sent = authorization.partition(" ")
    same = hmac.compare_digest(sent.strip().encode("utf-8", "replace"), token.encode())
    return same and scheme.lower() == "bearer"


def host_name(host: str) -> str:
    """Return the name of a Host header, without its port and brackets.

    >>> [host_name(host) for host in ("localhost:8000", "[::1]", "[::1]:80", "A.com.:80", "")]
    ['localhost', '::1', '::1', 'a.com', '']
    """
    name = host if host.endswith("]") else host.rpartition(":")[0] or host
    return name.strip("[]").rstrip(".").lower()


def read_json(body: bytes) -> Any:
    """Read the JSON of a body. Raises Refusal."""
    try:
        return json.loads(body.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError too
        raise Refusal(400, f"expected a body of JSON in UTF-8: {error}"[:200]) from None


def check_fields(known: Mapping[str, Field], sent: Any) -> dict[str, Any]:
    """Check the fields of a JSON object and return the fields that are not null. Raises Refusal."""
    if not isinstance(sent, dict):
        raise Refusal(400, f"expected a JSON object with {', '.join(known):.200}, found {_shown(sent)}")
    fields = {name: value for name, value in sent.items() if value is not None}
    for name, value in fields.items():
        field = known.get(name)
        if field is None:
            usable = [field_name for field_name, form in known.items() if not isinstance(form, str)]
            near = nearest_name(name[:40], known)
            advice = f"did you mean {near!r}?" if near else f"known are {', '.join(usable)}"
            raise Refusal(400, f"there is no field {name[:40]!r}; {advice}", name[:40])
        if isinstance(field, str):
            raise Refusal(400, f"{name} is not known here, and would change the answer; {field}", name)
        expected, fits = field
        if not fits(value):
            raise wrong(name, expected, value)
    return fields


def wrong(name: str, expected: str, value: Any) -> Refusal:
    """Make the refusal of a field with a wrong value."""
    return Refusal(400, f"{name} must be {expected}, found {_shown(value)}", name)


def _shown(value: Any) -> str:
    if isinstance(value, dict) and value:
        return f"an object with {', '.join(map(repr, value)):.40}"
    kinds: dict[type, str] = {type(None): "nothing", list: "a list", dict: "an object"}
    return kinds.get(type(value)) or f"{value!r:.40}"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its fields. Raises ValueError if two fields have the same name."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the field {twice[:40]!r} is given twice; send it once")
    return fields
