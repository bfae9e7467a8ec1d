"""Requests to the Hub: patient with a slow one, brief with a dead one, and every failure a `HubError` in plain words.

Everything goes through huggingface_hub: its session (proxies, certificates, the offline switch), its token, its
`hf_hub_download`. Versions 1.x and 2.x sit on different HTTP clients; only what both share is used here.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from minibert.errors import HubError

from .errors import WITHOUT_HUB, Address, PassingError, client_errors, explain

T = TypeVar("T")
Alive = Callable[[], None]

FIRST_ANSWER = 2.2  # seconds to wait for the Hub's first answer: a command without network fails within 3 seconds
QUIET = 20.0  # seconds without a byte, in the middle of a transfer, until we give up; or twice HF_HUB_DOWNLOAD_TIMEOUT
RETRIES = 3  # in a row, without progress in between
PAUSE = 0.5  # seconds before the first retry; doubled before each next one
RETRIED = 5.0  # seconds that the client's own retries pause at least: what fails sooner has not had them all
GAINED = 1 << 16  # bytes: a transfer that was cut after at least so many has made progress


class RangesIgnoredError(Exception):
    """The server answers with the whole file where a part was asked for."""


class Part:
    """The bytes of an answer, the size of the whole file, and the server's name for this version of it (ETag)."""

    def __init__(self, content: bytearray, size: int | None = None, etag: str | None = None) -> None:
        self.content, self.size, self.etag = content, size, etag


class Transfer:
    """GET requests about one repository. Several threads may use it at once."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._answered = False

    def get(
        self,
        url: str,
        file: str | None = None,
        span: tuple[int, int] | None = None,
        commit: str | None = None,
        progress: Callable[[int], object] = lambda count: None,
    ) -> Part:
        """Fetch what an address gives, or the bytes span[0]..span[1]-1 of it (fewer where the file ends before).

        A part is taken only with status 206 and the Content-Range that was asked for, from the commit that was asked
        for, in one version from the first byte to the last. A transfer that was cut is continued where it stopped.

        Raises HubError, and RangesIgnoredError.
        """
        part, address = Part(bytearray()), self.address._replace(file=file)

        def attempt(alive: Alive) -> None:
            rest = (span[0] + len(part.content), span[1]) if span else None
            with _response("GET", url, address, alive, rest) as response:
                if span is None:
                    part.content.clear()
                else:
                    _check_part(response, span, commit, part, address)
                for piece in response.iter_bytes():
                    alive()
                    part.content += piece
                    progress(len(piece))
            if span is not None:
                _check_length(span, part, address)

        self._patiently(attempt, lambda: len(part.content), address)
        return part

    def probe(self, url: str, file: str) -> None:
        """Ask whether the server would send a file. Raises HubError."""
        address = self.address._replace(file=file)

        def attempt(alive: Alive) -> None:
            with _response("HEAD", url, address, alive, follow_redirects=False):
                pass

        self._patiently(attempt, lambda: 0, address)

    def download(self, file: str, commit: str, folder: str) -> Path:
        """Fetch a whole file into a cache folder with the client's own function.

        Call `probe` first: where no server answers, the client retries for minutes. Raises HubError, and OSError for
        a disk error.
        """
        from huggingface_hub import hf_hub_download

        address = self.address._replace(file=file)
        options: dict[str, Any] = {"cache_dir": folder, "endpoint": address.endpoint}
        if "tqdm_class" in inspect.signature(hf_hub_download).parameters:  # not in the oldest 1.x
            options["tqdm_class"] = _late_bar()
        # ValueError is what the client makes of any failure of a forced attempt
        failures: tuple[type[Exception], ...] = (*client_errors(), ValueError)

        def attempt(force: bool) -> Path:
            try:
                return Path(hf_hub_download(address.name, file, revision=commit, force_download=force, **options))
            except failures as error:
                if getattr(error, "errno", None) is not None and not isinstance(error, ConnectionError):
                    raise  # a disk error
                raise explain(error, address) from None

        started = time.monotonic()
        try:
            return attempt(False)
        except PassingError as passing:
            if not passing.checked and time.monotonic() - started >= RETRIED:
                raise passing.error from None
            time.sleep(PAUSE)
        try:
            return attempt(True)  # this also ignores the incomplete file of the first attempt
        except PassingError as passing:
            raise passing.error from None

    def _patiently(self, attempt: Callable[[Alive], object], gained: Callable[[], int], address: Address) -> None:
        def failure(answered: Alive) -> PassingError | None:
            try:
                attempt(answered)
            except PassingError as passing:
                return passing
            return None

        def call(alive: Alive) -> None:
            def answered() -> None:
                self._answered = True
                alive()

            failures, before = 0, 0
            while (passing := failure(answered)) is not None:
                if gained() - before >= GAINED:
                    failures, before = 0, gained()
                failures += 1
                # where nobody has ever answered, nobody will in a second
                if failures > RETRIES or not self._answered:
                    raise passing.error
                time.sleep(passing.pause or PAUSE * 2 ** (failures - 1))

        from huggingface_hub import get_session

        get_session()  # a slow machine imports and makes it for seconds: no silence of the Hub's
        quiet = _seconds("HF_HUB_DOWNLOAD_TIMEOUT", QUIET, 2.0)
        patience = quiet if self._answered else _seconds("HF_HUB_ETAG_TIMEOUT", FIRST_ANSWER)
        try:
            watched(call, patience, quiet)
        except TimeoutError:
            raise HubError(
                f"{address}: {address.endpoint} has not answered for {patience:g} seconds. Is there a network? "
                f"HF_HUB_ETAG_TIMEOUT=30 waits longer; {WITHOUT_HUB}"
            ) from None


def _seconds(variable: str, otherwise: float, factor: float = 1.0) -> float:
    """Read one of the client's variables, which say how long its user is ready to wait."""
    try:
        return factor * float(os.environ[variable])
    except (KeyError, ValueError):
        return otherwise


def watched(call: Callable[[Alive], T], first: float, quiet: float) -> T:
    """Run `call(alive)`; raise TimeoutError where it does not call `alive()` soon (`first`) and often (`quiet`).

    It runs in a thread, because neither resolving a host's name nor trying its addresses one by one obeys a timeout.
    A thread that is given up ends by itself and does not keep the process alive.
    """
    outcome: Future[T] = Future()
    signs = [0.0, 0.0]  # when the last sign came; whether one came

    def alive() -> None:
        signs[:] = [time.monotonic(), 1.0]

    def run() -> None:
        try:
            outcome.set_result(call(alive))
        except BaseException as error:  # noqa: BLE001 - not swallowed: the caller gets it
            outcome.set_exception(error)

    started = time.monotonic()
    threading.Thread(target=run, daemon=True, name="minibert-hub").start()
    while not outcome.done():
        left = (signs[0] + quiet if signs[1] else started + first) - time.monotonic()
        if left <= 0:
            raise TimeoutError
        with contextlib.suppress(FutureTimeout):
            outcome.exception(timeout=left)
    return outcome.result()


class Progress:
    """A bar on stderr for what takes longer than a second; only on a terminal, and where bars are not switched off."""

    def __init__(self, what: str, total: int) -> None:
        self._lock = threading.Lock()
        self._bar = _late_bar()(total=total, desc=what, unit="B", unit_scale=True, disable=None, leave=False)

        self.close = self._bar.close

    def __call__(self, count: int) -> None:
        with self._lock:
            self._bar.update(count)


@cache
def _late_bar() -> type[Any]:
    """Make the class once: tqdm keeps a thread for each class of bars, until the process ends."""
    from huggingface_hub.utils.tqdm import tqdm

    class LateBar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{"delay": 1, **options})  # type: ignore[no-untyped-call]

    return LateBar


# -- one request -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _response(
    method: str,
    url: str,
    address: Address,
    alive: Alive,
    span: tuple[int, int] | None = None,
    follow_redirects: bool = True,
) -> Iterator[Any]:
    """Open a response whose status is right; turn everything that goes wrong, also while it is read, into our own."""
    from huggingface_hub import constants, get_session, get_token, hf_raise_for_status

    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    try:
        # not the client's own headers: making them may cost a request that identifies the user
        headers = {"User-Agent": "minibert", "Accept-Encoding": "identity"}
        if not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN and (token := get_token()):
            headers["Authorization"] = f"Bearer {token}"
        if span is not None:
            headers["Range"] = f"bytes={span[0]}-{span[1] - 1}"
        # a redirect to another host keeps Range and loses Authorization: the HTTP library sees to both
        with get_session().stream(
            method, url, headers=headers, timeout=timeout, follow_redirects=follow_redirects
        ) as response:
            alive()
            if not response.is_redirect:
                hf_raise_for_status(response)
            yield response
    except client_errors() as error:
        raise explain(error, address) from None


def _check_part(response: Any, span: tuple[int, int], commit: str | None, part: Part, address: Address) -> None:
    """Refuse all but the bytes that are asked for, of the version that the earlier bytes came from."""
    if response.status_code == 200:
        raise RangesIgnoredError
    found = response.headers.get("Content-Range", "")
    match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", found)
    first = span[0] + len(part.content)
    if response.status_code != 206 or not match or response.headers.get("Content-Encoding", "identity") != "identity":
        raise HubError(_wrong(address, f"status 206 and a Content-Range from byte {first}", f"{response.status_code}"))
    start, last, size = (int(number) for number in match.groups())
    if start != first or last != min(span[1], size) - 1:
        raise HubError(_wrong(address, f"bytes {first}-{span[1] - 1}", f"Content-Range: {found}"))
    answers = [*response.history, response]
    commits = {answer.headers["X-Repo-Commit"] for answer in answers if "X-Repo-Commit" in answer.headers}
    if commit is not None and commits - {commit}:
        raise HubError(_wrong(address, f"commit {commit}", f"X-Repo-Commit: {', '.join(commits)}"))
    etag = next((found for answer in answers if (found := answer.headers.get("X-Linked-Etag"))), None)
    etag = (etag or response.headers.get("ETag") or "").removeprefix("W/").strip('"') or None
    if (part.size not in (None, size)) or (part.etag is not None and etag is not None and part.etag != etag):
        raise HubError(_wrong(address, f"version {part.etag} of {part.size} bytes", f"{etag} of {size} bytes"))
    part.size, part.etag = size, etag or part.etag


def _check_length(span: tuple[int, int], part: Part, address: Address) -> None:
    assert part.size is not None  # _check_part has been here
    expected = min(span[1], part.size) - span[0]
    if len(part.content) > expected:
        raise HubError(_wrong(address, f"{expected} bytes", f"at least {len(part.content)}"))
    if len(part.content) < expected:
        raise PassingError(HubError(_wrong(address, f"{expected} bytes", f"{len(part.content)}, again and again")))


def _wrong(address: Address, expected: str, found: str) -> str:
    return (
        f"{address}: {address.endpoint} gave a wrong answer: expected {expected}, found {found}; nothing of it was "
        "kept. A proxy in between or a mirror may be the cause: try another network or HF_ENDPOINT"
    )
