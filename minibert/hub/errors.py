"""What a failure of a request means, in plain words: what happened, and what to do."""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import Any, NamedTuple

from minibert.errors import HubError

from .names import ORGANIZATION

LONGEST_PAUSE = 5.0  # seconds that a server may ask us to wait; to wait longer is the user's decision
PASSING = {408, 429, 500, 502, 503, 504}  # statuses that may be gone at the next attempt
LONGEST_WORDS = 300  # letters of a server's own words that are shown


class RevisionError(HubError):
    """The Hub has answered that there is no such revision: nothing from a cache may be used instead."""


class PassingError(Exception):
    """A failure that may be gone at the next attempt; `error` is what to raise if it is not."""

    def __init__(self, error: HubError, pause: float | None = None) -> None:
        super().__init__(str(error))
        self.error, self.pause = error, pause


class Address(NamedTuple):
    """What a request is about, for error messages."""

    name: str
    revision: str
    endpoint: str  # without a user's name and password
    file: str | None = None

    def __str__(self) -> str:
        return shown(f"{self.name} at {self.revision}" + (f", {self.file}" if self.file else ""))

    @property
    def without_hub(self) -> str:
        """The ways that need no Hub."""
        return (
            f"use a folder (a path that starts with ./) that was made elsewhere with `hf download {self.name} "
            "--local-dir FOLDER` or, for the input layer alone, with `extract`; the option local_files_only for what "
            "is cached; or a mirror in HF_ENDPOINT"
        )


def shown(text: str) -> str:
    """Words from elsewhere, safe to print: on one line, without escape sequences, not too long."""
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in " ".join(text.split()))
    return text if len(text) <= LONGEST_WORDS else text[:LONGEST_WORDS] + "..."


def number(text: str | None) -> int | None:
    """Read a header that holds a number; None where it holds something else, or a number without end."""
    return int(text) if text and re.fullmatch(r"[0-9]{1,18}", text) else None


@cache
def client_errors() -> tuple[type[Exception], ...]:
    """Give what the client may raise: its HTTP library's errors, and its own."""
    from huggingface_hub.errors import HfHubHTTPError

    root = HfHubHTTPError.__bases__[0]
    library = sys.modules[root.__module__.partition(".")[0]]
    # ValueError is what the client makes of any failure of a forced attempt, RuntimeError what its fast downloads raise
    return (root, library.InvalidURL, OSError, ValueError, RuntimeError)


def explain(error: BaseException, address: Address) -> PassingError:
    """Turn an error of the client's into the one to raise: no connection, a broken one, a body that ended too soon."""
    while error.__cause__ is not None:  # the client's wrapping of what really happened
        error = error.__cause__
    reason = shown(f"{type(error).__name__}: {error}".rstrip(": "))
    return PassingError(
        HubError(f"{address}: cannot fetch it from {address.endpoint} ({reason}); {address.without_hub}")
    )


def refusal(response: Any, address: Address) -> HubError | PassingError:
    """Turn an answer whose status is an error into the one to raise; its body is not read."""
    status, headers = response.status_code, response.headers
    code, words = headers.get("X-Error-Code"), shown(headers.get("X-Error-Message", ""))
    page = f"{address.endpoint}/{address.name}"
    if code == "GatedRepo":
        return HubError(
            f"{address}: this model is gated. Accept its conditions at {page}, then log in with `hf auth login` or set "
            "HF_TOKEN to a token that may read it"
        )
    # anonymous users get 401 for missing models as for private ones
    if code == "RepoNotFound" or (status == 401 and "Invalid credentials" not in words):
        folder = address.name.removeprefix(ORGANIZATION)  # which may not have been typed
        return HubError(
            f"{address}: {address.endpoint} knows no such model, or it is private. Check the spelling; for a private "
            f"one log in with `hf auth login` or set HF_TOKEN; a folder is written ./{folder}"
        )
    if code == "RevisionNotFound":
        return RevisionError(
            f"{address}: the model has no revision {address.revision!r} (any more); see {page}/commits"
        )
    if code == "EntryNotFound":
        return HubError(f"{address}: the model has no such file; its files are listed at {page}/tree/main")
    refused = f"{address}: {address.endpoint} refuses with status {status}" + (f" ({words})" if words else "")
    if status == 429:
        wait = number(headers.get("Retry-After"))
        refused += f", try again in {wait} seconds" if wait is not None else ", too many requests"
        problem = HubError(f"{refused}. Wait; logged in (`hf auth login`, HF_TOKEN) the limit is higher")
        return problem if wait is not None and wait > LONGEST_PAUSE else PassingError(problem, wait)
    if status in PASSING:
        return PassingError(HubError(f"{refused}; {address.without_hub}"))
    if status in (401, 403):
        refused += (
            ". The token may be wrong, expired or not meant for this model: log in again with `hf auth login`, or set "
            "HF_TOKEN"
        )
    return HubError(refused)


def wrong_answer(address: Address, expected: str, found: str) -> HubError:
    """The error for an answer that does not fit the request."""
    return HubError(
        f"{address}: {address.endpoint} gave a wrong answer: expected {expected}, found {shown(found)}; nothing of it "
        "was kept. A proxy in between or a mirror may be the cause: try another network or HF_ENDPOINT"
    )
