"""Requests to the Hub: patient with a slow one, brief with a dead one, and bounded whatever one sends.

Everything goes through huggingface_hub: its session (proxies, certificates, the offline switch), its token, its
`hf_hub_download`. Versions 1.x and 2.x sit on different HTTP clients; only what both share is used here.

What comes is judged in hooks of that session, where every answer passes, redirects and the client's own requests too;
they let the requests of other threads pass. A refusal is raised there, before its body is read. No body is read further
than what was asked for or announced. Each QUIET seconds have to bring SLOWEST bytes or the end: the slowest modem
brings a hundred times as much, a server that sends a byte now and then is given up.
"""

from __future__ import annotations

import base64
import contextlib
import inspect
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from minibert.errors import HubError

from .errors import Address, PassingError, explain, number, refusal, wrong_answer

FIRST_ANSWER = 2.2  # seconds to wait for the Hub's first answer: a command without network fails within 3 seconds
QUIET = (
    20.0  # seconds without progress, in the middle of a transfer, until we give up; or twice HF_HUB_DOWNLOAD_TIMEOUT
)
SLOWEST = 500  # bytes that are progress
RETRIES = 3  # in a row, without progress in between
PAUSE = 0.5  # seconds before the first retry; doubled before each next one
GAINED = 1 << 16  # bytes: a transfer that was cut after at least so many has made progress
LARGEST = 1 << 27  # bytes of an answer, or of a file that holds no tensors; tokenizer.json reaches 40 MB
SIDELONG = 1 << 16  # bytes of the body of a redirect


class RangesIgnoredError(Exception):
    """The server answers with the whole file where a part was asked for."""


class Part:
    """The bytes of an answer, the size of the whole file, and the server's name for this version of it (ETag)."""

    def __init__(self, content: bytearray, size: int | None = None, etag: str | None = None) -> None:
        self.content, self.size, self.etag = content, size, etag


class Transfer:
    """Requests about one repository. Several threads may use it at once."""

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
        from huggingface_hub import constants, get_session

        part, address = Part(bytearray()), self.address._replace(file=file)
        # not the client's own headers: making them may cost a request that identifies the user
        headers = {"User-Agent": "minibert", "Accept-Encoding": "identity", **_authorization()}

        def attempt(watch: Watch, again: bool) -> None:
            if span is None:
                part.content.clear()
            else:
                headers["Range"] = f"bytes={span[0] + len(part.content)}-{span[1] - 1}"
                watch.most = span[1] - span[0] - len(part.content)
            # a redirect to another host keeps Range and loses Authorization: the HTTP library sees to both
            with get_session().stream(
                "GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT, follow_redirects=True
            ) as response:
                if span is not None:
                    _check_part(response, span, part, address)
                for piece in response.iter_raw():
                    part.content += piece
                    progress(len(piece))
            if span is not None and (missing := min(span[1], part.size or 0) - span[0] - len(part.content)):
                found = f"{missing} fewer, again and again"
                raise PassingError(wrong_answer(address, f"{len(part.content) + missing} bytes", found))

        self._patiently(attempt, lambda: len(part.content), address, commit)
        return part

    def download(self, file: str, commit: str, folder: str) -> Path:
        """Fetch a whole file into a cache folder with the client's own function.

        Raises HubError, and OSError for a disk error.
        """
        from huggingface_hub import hf_hub_download

        options: dict[str, Any] = {"revision": commit, "cache_dir": folder, "endpoint": self.address.endpoint}
        options |= {"token": False, "headers": {"Accept-Encoding": "identity", **_authorization()}}
        if "tqdm_class" in inspect.signature(hf_hub_download).parameters:  # not in the oldest 1.x
            options["tqdm_class"] = _late_bar()

        def attempt(watch: Watch, again: bool) -> Path:
            watch.whole = True
            # to force it ignores the incomplete file of the first attempt
            return Path(hf_hub_download(self.address.name, file, force_download=again, **options))

        path: Path = self._patiently(attempt, lambda: 0, self.address._replace(file=file), commit)
        return path

    def _patiently(
        self,
        attempt: Callable[[Watch, bool], Any],
        gained: Callable[[], int],
        address: Address,
        commit: str | None,
    ) -> Any:
        _hook_session()  # a slow machine imports and makes it for seconds: that is no silence of the Hub's
        quiet = _seconds("HF_HUB_DOWNLOAD_TIMEOUT", QUIET, 2.0)
        patience = quiet if self._answered else _seconds("HF_HUB_ETAG_TIMEOUT", FIRST_ANSWER)
        watch = Watch(address, commit, patience, quiet)

        def once(again: bool) -> Any:
            try:
                return attempt(watch, again)
            except PassingError as passing:
                return passing
            except _client_errors() as error:
                if getattr(error, "errno", None) is not None and not isinstance(error, ConnectionError):
                    raise  # a disk error
                return explain(error, address)

        def call() -> Any:
            failures, before = 0, 0
            while isinstance(result := once(failures > 0), PassingError):
                if gained() - before >= GAINED:
                    failures, before = 0, gained()
                failures += 1
                # where nobody has ever answered, nobody will in a second
                if failures > RETRIES or not (self._answered or watch.answered):
                    raise result.error
                watch.deadline = None
                time.sleep(result.pause or PAUSE * 2 ** (failures - 1))
            return result

        try:
            return watch.over(call)
        except TimeoutError:
            raise HubError(
                f"{address}: {address.endpoint} has not answered for {watch.quiet:g} seconds. Is there a network? "
                f"HF_HUB_ETAG_TIMEOUT=30 waits longer; {address.without_hub}"
            ) from None
        finally:
            self._answered = self._answered or watch.answered


def _seconds(variable: str, otherwise: float, factor: float = 1.0) -> float:
    """Read one of the client's variables, which say how long its user is ready to wait."""
    try:
        return factor * float(os.environ[variable])
    except (KeyError, ValueError):
        return otherwise


def _authorization() -> dict[str, str]:
    """Give the header that says who asks: the name and password in HF_ENDPOINT, or else the user's token."""
    from huggingface_hub import constants, get_token

    name, at, _ = urlsplit(constants.ENDPOINT).netloc.rpartition("@")
    if at:
        return {"authorization": "Basic " + base64.b64encode(unquote(name).encode()).decode()}
    if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return {}
    named = next((name for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if os.environ.get(name)), None)
    where = named or constants.HF_TOKEN_PATH
    try:
        token = get_token()
    except (OSError, ValueError) as error:
        raise HubError(f"the token cannot be read from {where} ({type(error).__name__}); log in again") from None
    if token and not re.fullmatch(r"[!-~]+", token):
        raise HubError(
            f"the token in {where} is none: it holds other characters than letters, digits and signs of ASCII. Copy it "
            "again from the settings of your account, or log in again with `hf auth login`"
        )
    return {"authorization": f"Bearer {token}"} if token else {}  # in small letters, as the client looks for it


# -- the watch over what comes -----------------------------------------------------------------------------------


class GivenUpError(Exception):
    """Nobody waits for what this thread fetches any more."""


_here = threading.local()  # .watch: the one over this thread


class Watch:
    """What one fetch may bring, and until when it has to be heard of again."""

    def __init__(self, address: Address, commit: str | None, patience: float, quiet: float) -> None:
        self.address, self.commit = address, commit
        self.most = LARGEST  # bytes of the next body
        self.whole = False  # the client fetches a whole file: how large it is, its first answers say
        self.answered = False
        self.quiet = patience  # seconds; `later` from the first answer on
        self.deadline: float | None = time.monotonic() + patience  # None where no request is under way
        self._later, self._gained, self._given_up = quiet, 0, False

    def over(self, call: Callable[[], Any]) -> Any:
        """Run `call`; raise TimeoutError when the deadline has passed.

        It runs in a thread, because neither resolving a host's name nor trying its addresses one by one obeys a
        timeout. A thread that is given up ends at its next sign of life, and does not keep the process alive.
        """
        outcome: Future[Any] = Future()

        def run() -> None:
            _here.watch = self
            try:
                outcome.set_result(call())
            except BaseException as error:  # noqa: BLE001 - not swallowed: the caller gets it
                outcome.set_exception(error)

        threading.Thread(target=run, daemon=True, name="minibert-hub").start()
        while not outcome.done():
            deadline = self.deadline
            left = self.quiet if deadline is None else deadline - time.monotonic()
            if left <= 0:
                self._given_up = True
                raise TimeoutError
            with contextlib.suppress(FutureTimeout):
                outcome.exception(timeout=left)
        return outcome.result()

    def asks(self) -> None:
        """A request goes out."""
        if self._given_up:
            raise GivenUpError
        if self.answered:
            self._heard()

    def answers(self, response: Any) -> None:
        """Judge the head of an answer, and bound its body."""
        self.answered, self.quiet = True, self._later
        self._heard()
        headers, most = response.headers, self.most
        if response.is_error:
            raise refusal(response, self.address)
        if self.commit is not None and headers.get("X-Repo-Commit", self.commit) != self.commit:
            raise wrong_answer(self.address, f"commit {self.commit}", f"X-Repo-Commit: {headers['X-Repo-Commit']}")
        if headers.get("Content-Encoding", "identity") != "identity":  # a kilobyte may become a gigabyte
            raise wrong_answer(self.address, "bytes as they are", f"Content-Encoding: {headers['Content-Encoding']}")
        if self.whole:
            tag = headers.get("X-Linked-Etag", headers.get("ETag", ""))
            if re.search(r"[/\\]|\.\.", tag):  # the client names a file by it
                raise wrong_answer(self.address, "an ETag that can name a file", f"ETag: {tag}")
            size = headers.get("X-Linked-Size", None if response.is_redirect else headers.get("Content-Length"))
            if response.request.method == "HEAD" and (announced := number(size)) is not None:
                most = self.most = announced
                if announced > LARGEST and not str(self.address.file).endswith(".safetensors"):
                    raise wrong_answer(self.address, f"at most {LARGEST} bytes", f"{announced}")
        response.stream = _bounded(type(response).__module__)(
            response.stream, self, SIDELONG if response.is_redirect else most
        )

    def brings(self, count: int) -> None:
        """Some bytes of a body have come."""
        if self._given_up:
            raise GivenUpError
        self._gained += count
        if self._gained >= SLOWEST:
            self._heard()

    def _heard(self) -> None:
        self.deadline, self._gained = time.monotonic() + self.quiet, 0


@cache
def _bounded(module: str) -> type[Any]:
    """Make the class of bodies that a watch bounds; its base is of the HTTP library that the client sits on."""
    library = sys.modules[module.partition(".")[0]]

    class Bounded(library.SyncByteStream):  # type: ignore[misc, name-defined]
        def __init__(self, stream: Any, watch: Watch, most: int) -> None:
            self._stream, self._watch, self._most = stream, watch, most

        def __iter__(self) -> Iterator[bytes]:
            left = self._most
            try:
                for piece in self._stream:
                    self._watch.brings(len(piece))
                    left -= len(piece)
                    if left < 0:
                        raise wrong_answer(self._watch.address, f"{self._most} bytes", "more of them")
                    yield piece
            except library.HTTPError as error:  # as ours: the client would try again by itself, and say so
                raise explain(error, self._watch.address) from None

        def close(self) -> None:
            self._stream.close()
            self._watch.deadline = None  # until the next request

    return Bounded


def _hook_session() -> None:
    """Let every request and answer of the client's session pass by the watch over its thread, if there is one."""
    from huggingface_hub import get_session

    session = get_session()
    if _answers not in session.event_hooks["response"]:
        hooks = session.event_hooks
        session.event_hooks = {"request": [*hooks["request"], _asks], "response": [*hooks["response"], _answers]}


def _asks(request: Any) -> None:
    if (watch := getattr(_here, "watch", None)) is not None:
        watch.asks()


def _answers(response: Any) -> None:
    if (watch := getattr(_here, "watch", None)) is not None:
        watch.answers(response)


def _client_errors() -> tuple[type[Exception], ...]:
    """Give what the client may raise besides what the watch does: its HTTP library's errors, and its own."""
    from huggingface_hub.errors import HfHubHTTPError

    root = HfHubHTTPError.__bases__[0]
    library = sys.modules[root.__module__.partition(".")[0]]
    # ValueError is what the client makes of any failure of a forced attempt, RuntimeError what its fast downloads raise
    return (root, library.InvalidURL, OSError, ValueError, RuntimeError)


def _check_part(response: Any, span: tuple[int, int], part: Part, address: Address) -> None:
    """Refuse all but the bytes that are asked for, of the version that the earlier bytes came from."""
    if response.status_code == 200:
        raise RangesIgnoredError
    found = response.headers.get("Content-Range", "")
    match = re.fullmatch(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})", found)
    first = span[0] + len(part.content)
    if response.status_code != 206 or not match:
        expected = f"status 206 and a Content-Range from byte {first}"
        raise wrong_answer(address, expected, f"status {response.status_code} and {found or 'none'}")
    start, last, size = (int(number) for number in match.groups())
    if start != first or last != min(span[1], size) - 1:
        raise wrong_answer(address, f"bytes {first}-{span[1] - 1}", f"Content-Range: {found}")
    answers = [*response.history, response]
    etag = next((found for answer in answers if (found := answer.headers.get("X-Linked-Etag"))), None)
    etag = (etag or response.headers.get("ETag") or "").removeprefix("W/").strip('"') or None
    if (part.size not in (None, size)) or (part.etag is not None and etag is not None and part.etag != etag):
        expected = f"version {part.etag} of {part.size} bytes"
        raise wrong_answer(address, expected, f"{etag} of {size} bytes")
    part.size, part.etag = size, etag or part.etag


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
