"""What a failure of huggingface_hub means, in plain words: what happened, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from minibert.errors import HubError

LONGEST_PAUSE = 5.0  # seconds that a server may ask us to wait; to wait longer is the user's decision
PASSING = {408, 429, 500, 502, 503, 504}  # statuses that may be gone at the next attempt

WITHOUT_HUB = (
    "ways that need no Hub: a folder instead of a name (a path that starts with ./), local_files_only=True for what "
    "is cached, a folder made elsewhere with `minibert extract`, a mirror in HF_ENDPOINT"
)


class RevisionError(HubError):
    """The Hub has answered that there is no such revision: nothing from a cache may be used instead."""


class PassingError(Exception):
    """A failure that may be gone at the next attempt; `error` is what to raise if it is not.

    `checked`: the client has refused what came, as too short for one; it never tries again by itself then.
    """

    def __init__(self, error: HubError, pause: float | None = None, checked: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.pause = pause
        self.checked = checked


class Address(NamedTuple):
    """What a request is about, for error messages."""

    name: str
    revision: str
    endpoint: str
    file: str | None = None

    def __str__(self) -> str:
        return f"{self.name} at {self.revision}" + (f", {self.file}" if self.file else "")


def client_errors() -> tuple[type[Exception], ...]:
    """Give what the client may raise: the root of its HTTP library, whichever that is, and its own errors."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    return (HfHubHTTPError.__bases__[0], OSError, HFValidationError)


def explain(error: BaseException, address: Address) -> HubError | PassingError:
    """Turn an error of the client into the one to raise."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, LocalEntryNotFoundError | ValueError) and error.__cause__ is not None:
        return explain(error.__cause__, address)  # the client's wrapping of what really happened
    page = f"{address.endpoint}/{address.name}"
    if isinstance(error, GatedRepoError):  # a RepositoryNotFoundError too, so it comes first
        return HubError(
            f"{address}: this model is gated. Accept its conditions at {page}, then log in with `hf auth login` or set "
            "HF_TOKEN to a token that may read it"
        )
    if isinstance(error, RepositoryNotFoundError):
        return HubError(
            f"{address}: {address.endpoint} knows no such model, or it is private. Check the spelling; for a private "
            f"one log in with `hf auth login` or set HF_TOKEN; a folder is written ./{address.name}"
        )
    if isinstance(error, RevisionNotFoundError):
        return RevisionError(
            f"{address}: {address.name} has no revision {address.revision!r} (any more); branches, tags and commits "
            f"are listed at {page}/commits"
        )
    if isinstance(error, RemoteEntryNotFoundError):
        return HubError(f"{address}: the model has no such file; its files are listed at {page}/tree/main")
    if isinstance(error, OfflineModeIsEnabled):
        return HubError(f"{address}: not cached, and HF_HUB_OFFLINE is set; unset it. There are {WITHOUT_HUB}")
    if isinstance(error, HFValidationError):
        return HubError(f"{address}: {error}. A folder is written ./{address.name}")
    if isinstance(error, HfHubHTTPError):
        return _explain_status(error.response.status_code, error.response.headers, address, str(error))
    # no connection, a broken one, no proof of identity, or a body that ended too soon
    reason = f"{type(error).__name__}: {error}".rstrip(": ")
    problem = HubError(f"{address}: cannot fetch it from {address.endpoint} ({reason}); {WITHOUT_HUB}")
    return PassingError(problem, checked=isinstance(error, OSError))  # a connection's failures are no OSError here


def _explain_status(status: int, headers: Mapping[str, str], address: Address, message: str) -> HubError | PassingError:
    if status == 429:
        after = headers.get("Retry-After", "")
        wait = float(after) if after.isdigit() else None
        problem = HubError(
            f"{address}: {address.endpoint} refuses further requests for now (status 429"
            + (f", try again in {wait:g} seconds" if wait is not None else "")
            + "). Wait; logged in (`hf auth login`, HF_TOKEN) the limit is higher"
        )
        return problem if wait is not None and wait > LONGEST_PAUSE else PassingError(problem, wait)
    if status in PASSING:
        return PassingError(HubError(f"{address}: {address.endpoint} fails with status {status}; {WITHOUT_HUB}"))
    if status in (401, 403):
        return HubError(
            f"{address}: {address.endpoint} refuses with status {status}. The token may be wrong, expired or not meant "
            "for this model: log in again with `hf auth login`, or set HF_TOKEN"
        )
    return HubError(f"{address}: {address.endpoint} refuses with status {status}: {' '.join(message.split())}")
