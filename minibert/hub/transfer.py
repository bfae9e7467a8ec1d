"""Requests to the Hub: wait for a slow server, give up soon on a dead one, make each failure a `HubError`.

Everything goes through huggingface_hub: its session (proxies, certificates, the offline switch), its token, its
`hf_hub_download`. Versions 1.x and 2.x sit on different HTTP clients; only what both share is used here.

Its own readers of ranges (`http_backoff`, `parse_safetensors_file_metadata`, `HfFileSystem`) were tried at 1.0 and 2.4.
They accept a whole file, other bytes or another commit as the range, read an endless body into memory, and fetch a
range that was cut from its beginning. Even its functions for the local cache load its HTTP library.
"""

from __future__ import annotations

import base64
import inspect
import math
import os
import re
import sys
import time
from collections.abc import Callable, Sized
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from minibert.errors import HubError
from minibert.files.reading import note_model_file

from .caches import Span
from .errors import Address, PassingError, client_errors, explain, wrong_answer
from .watch import Watch

FIRST_ANSWER = 2.2  # seconds to wait for the Hub's first answer: a command without network fails within 3 seconds
QUIET = 20.0  # seconds without progress in the middle of a transfer, or twice HF_HUB_DOWNLOAD_TIMEOUT: then we give up
RETRIES = 3  # in a row, without progress in between
PAUSE = 0.5  # seconds before the first retry; doubled before each next one
GAINED = 1 << 16  # bytes: a transfer that was cut after at least this many has made progress


class RangesIgnoredError(HubError):
    """The server answers with the whole file to a request for a part."""


class Version:
    """A file's size and the server's name for this version of it (ETag), on which all answers must agree."""

    def __init__(self, where: str, kept: Path) -> None:
        self.size: int | None = None
        self.etag: str | None = None
        self._where, self._kept = where, kept

    def check(self, size: int, etag: str | None = None) -> None:
        """Compare an answer with earlier ones. Raises HubError."""
        if self.size not in (None, size) or len({self.etag, etag} - {None}) > 1:
            raise HubError(
                f"{self._where}: the server changed the file under one commit: expected version {self.etag} of "
                f"{self.size} bytes, found {etag} of {size} bytes; delete {self._kept} and try again"
            )
        self.size, self.etag = size, self.etag or etag


class Transfer:
    """Requests about one repository. Several threads may use it at once."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._answered = False

    def ask(self, url: str) -> bytes:
        """Fetch a page of the Hub's API. Raises HubError."""

        def attempt(watch: Watch, again: bool) -> bytes:
            with _answer(url) as response:
                return b"".join(response.iter_raw())

        page: bytes = self._patiently(attempt, self.address)
        return page

    def part(
        self, url: str, file: str, span: Span, commit: str, version: Version, progress: Callable[[int], object]
    ) -> bytearray:
        """Fetch the bytes span[0]..span[1]-1 of a file (fewer where it ends before).

        They are taken only with status 206, the requested Content-Range and the requested commit, in one version from
        the first byte to the last. A transfer that was cut is continued where it stopped.

        Raises HubError, and RangesIgnoredError.
        """
        content, address = bytearray(), self.address._replace(file=file)

        def attempt(watch: Watch, again: bool) -> None:
            left = (span[0] + len(content), span[1])
            watch.most = left[1] - left[0]
            with _answer(url, Range=f"bytes={left[0]}-{left[1] - 1}") as response:
                missing = _check_part(response, left, version, address)
                for piece in response.iter_raw():
                    content.extend(piece)
                    missing -= len(piece)
                    progress(len(piece))
            if missing:
                raise PassingError(wrong_answer(address, f"{missing} bytes more", "the end, again and again"))

        self._patiently(attempt, address, commit, content)
        return content

    def download(self, file: str, commit: str, folder: str) -> Path:
        """Fetch a whole file into a cache folder with the client's own function.

        Raises HubError, and OSError for a disk error.
        """
        from huggingface_hub import hf_hub_download

        options: dict[str, Any] = {"revision": commit, "cache_dir": folder, "endpoint": self.address.endpoint}
        options["headers"] = {"Accept-Encoding": "identity", **_authorization()}
        if "tqdm_class" in inspect.signature(hf_hub_download).parameters:  # not in the oldest 1.x
            options["tqdm_class"] = late_bar()

        def attempt(watch: Watch, again: bool) -> Path:
            # to force it ignores the incomplete file of the first attempt
            return Path(hf_hub_download(self.address.name, file, force_download=again, **options))

        path: Path = self._patiently(attempt, self.address._replace(file=file), commit)
        note_model_file(path)
        return path

    def _patiently(
        self, attempt: Callable[[Watch, bool], Any], address: Address, commit: str | None = None, content: Sized = ()
    ) -> Any:
        quiet = 2 * float(os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT", QUIET / 2))
        first = float(os.environ.get("HF_HUB_ETAG_TIMEOUT", FIRST_ANSWER))
        watch = Watch(address, commit, quiet if self._answered else first, quiet)

        def call() -> Any:
            failures, before = 0, 0
            while True:
                try:
                    return attempt(watch, failures > 0)
                except PassingError as error:
                    passing = error
                except client_errors() as error:
                    if getattr(error, "errno", None) is not None and not isinstance(error, ConnectionError):
                        raise  # a disk error
                    passing = explain(error, address)
                if len(content) - before >= GAINED:
                    failures, before = 0, len(content)
                failures += 1
                # no retry where nothing has answered yet
                if failures > RETRIES or not (self._answered or watch.answered):
                    raise passing.error
                watch.deadline = math.inf
                time.sleep(passing.pause or PAUSE * 2 ** (failures - 1))

        try:
            return watch.over(call)
        except TimeoutError:
            raise HubError(
                f"{address}: {address.endpoint} has not answered for {watch.seconds:g} seconds. Is there a network? "
                f"HF_HUB_ETAG_TIMEOUT=30 waits longer; {address.without_hub}"
            ) from None
        finally:
            self._answered = self._answered or watch.answered


def _answer(url: str, **headers: str) -> AbstractContextManager[Any]:
    """Ask for an address. The HTTP library keeps Range and drops Authorization in a redirect to another host."""
    from huggingface_hub import constants, get_session

    # not the client's own headers: making them may cost a request that identifies the user
    agent = f"minibert/{sys.modules['minibert'].__version__}"
    headers |= {"User-Agent": agent, "Accept-Encoding": "identity", **_authorization()}
    answer: AbstractContextManager[Any] = get_session().stream(
        "GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT, follow_redirects=True
    )
    return answer


def _authorization() -> dict[str, str]:
    """Give the header that says who asks: the name and password in HF_ENDPOINT, or else the user's token."""
    from huggingface_hub import constants, get_token

    name, at, _ = urlsplit(constants.ENDPOINT).netloc.rpartition("@")
    if at:
        return {"authorization": "Basic " + base64.b64encode(unquote(name).encode()).decode()}
    if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        return {}
    variables = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
    where = next(filter(os.environ.get, variables), constants.HF_TOKEN_PATH)
    try:
        token = get_token()
    except (OSError, ValueError) as error:
        raise HubError(f"the token cannot be read from {where} ({type(error).__name__}); log in again") from None
    if token and not re.fullmatch(r"[!-~]+", token):
        raise HubError(
            f"the token in {where} cannot be right: it has characters outside printable ASCII. Copy it again from the "
            "settings of your account, or log in again with `hf auth login`"
        )
    return {"authorization": f"Bearer {token}"} if token else {}  # in small letters, as the client looks for it


def _check_part(response: Any, span: Span, version: Version, address: Address) -> int:
    """Give the length of the part that comes. Raises HubError if these are not the requested bytes."""
    found = response.headers.get("Content-Range", "none")
    match = re.fullmatch(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})", found)
    if response.status_code != 206 or not match:
        expected = f"status 206 and a Content-Range from byte {span[0]}"
        error = wrong_answer(address, expected, f"status {response.status_code} and {found}")
        raise RangesIgnoredError(str(error)) if response.status_code == 200 else error
    start, last, size = map(int, match.groups())
    if start != span[0] or last != min(span[1], size) - 1:
        raise wrong_answer(address, f"bytes {span[0]}-{span[1] - 1}", f"Content-Range: {found}")
    linked = (answer.headers.get("X-Linked-Etag") for answer in [*response.history, response])
    etag = next(filter(None, linked), response.headers.get("ETag", "")).removeprefix("W/").strip('"')
    version.check(size, etag or None)
    return last + 1 - start


@cache
def late_bar() -> type[Any]:
    """Make the class of bars on stderr for what takes longer than a second, once: tqdm keeps a thread for each class.

    On a terminal only, and where bars are not switched off.
    """
    from huggingface_hub.utils.tqdm import tqdm

    class LateBar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{"delay": 1, "disable": None, **options})  # type: ignore[no-untyped-call]

    return LateBar
