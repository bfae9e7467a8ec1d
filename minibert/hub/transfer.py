"""Requests to the Hub: wait for a slow server, give up soon on a dead one, make each failure a `HubError`.

Everything goes through huggingface_hub: its session (proxies, certificates, the offline switch), its token, its
`hf_hub_download`. Versions 1.x and 2.x sit on different HTTP clients; only what both share is used here.

Its readers of ranges (`http_backoff`, `parse_safetensors_file_metadata`, `HfFileSystem`) were tried at 1.0 and at 2.4.
They take a whole file, other bytes or another commit for the range that was asked for, read a body without end into
memory and fetch all of a range again where it was cut. Where nobody listens the first waits 24 seconds (2.4) or ends in
a RuntimeError (1.0); the second fetches 100 kB for each header and does not say how large the file is; the third makes
two requests before the first one for bytes. Even to look into the client's cache by its own functions loads its HTTP
library, for which no run without network should wait.
"""

from __future__ import annotations

import base64
import inspect
import os
import re
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from minibert.errors import HubError
from minibert.files.reading import note_model_file

from .errors import Address, PassingError, explain, wrong_answer
from .watch import Watch

FIRST_ANSWER = 2.2  # seconds to wait for the Hub's first answer: a command without network fails within 3 seconds
QUIET = 20.0  # seconds without progress in the middle of a transfer, or twice HF_HUB_DOWNLOAD_TIMEOUT: then we give up
RETRIES = 3  # in a row, without progress in between
PAUSE = 0.5  # seconds before the first retry; doubled before each next one
GAINED = 1 << 16  # bytes: a transfer that was cut after at least so many has made progress


class RangesIgnoredError(Exception):
    """The server answers with the whole file where a part was asked for."""


class FilePart:
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
    ) -> FilePart:
        """Fetch what an address gives, or the bytes span[0]..span[1]-1 of it (fewer where the file ends before).

        A part is taken only with status 206 and the Content-Range that was asked for, from the commit that was asked
        for, in one version from the first byte to the last. A transfer that was cut is continued where it stopped.

        Raises HubError, and RangesIgnoredError.
        """
        from huggingface_hub import constants, get_session

        part, address = FilePart(bytearray()), self.address._replace(file=file)
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
                expected = f"{len(part.content) + missing} bytes"
                raise PassingError(wrong_answer(address, expected, f"{missing} fewer, again and again"))

        self._patiently(attempt, lambda: len(part.content), address, commit)
        return part

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

        path: Path = self._patiently(attempt, lambda: 0, self.address._replace(file=file), commit)
        note_model_file(path)
        return path

    def _patiently(
        self, attempt: Callable[[Watch, bool], Any], gained: Callable[[], int], address: Address, commit: str | None
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
                except _client_errors() as error:
                    if getattr(error, "errno", None) is not None and not isinstance(error, ConnectionError):
                        raise  # a disk error
                    passing = explain(error, address)
                if gained() - before >= GAINED:
                    failures, before = 0, gained()
                failures += 1
                # no retry where nothing has answered yet
                if failures > RETRIES or not (self._answered or watch.answered):
                    raise passing.error
                watch.deadline = None
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


def _client_errors() -> tuple[type[Exception], ...]:
    """Give what the client may raise besides what the watch does: its HTTP library's errors, and its own."""
    from huggingface_hub.errors import HfHubHTTPError

    root = HfHubHTTPError.__bases__[0]
    library = sys.modules[root.__module__.partition(".")[0]]
    # ValueError is what the client makes of any failure of a forced attempt, RuntimeError what its fast downloads raise
    return (root, library.InvalidURL, OSError, ValueError, RuntimeError)


def _check_part(response: Any, span: tuple[int, int], part: FilePart, address: Address) -> None:
    """Refuse all but the bytes that are asked for, of the version that the earlier bytes came from."""
    if response.status_code == 200:
        raise RangesIgnoredError
    found = response.headers.get("Content-Range", "none")
    match = re.fullmatch(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})", found)
    first = span[0] + len(part.content)
    if response.status_code != 206 or not match:
        found = f"status {response.status_code} and {found}"
        raise wrong_answer(address, f"status 206 and a Content-Range from byte {first}", found)
    start, last, size = map(int, match.groups())
    if start != first or last != min(span[1], size) - 1:
        raise wrong_answer(address, f"bytes {first}-{span[1] - 1}", f"Content-Range: {found}")
    linked = (answer.headers.get("X-Linked-Etag") for answer in [*response.history, response])
    etag = next(filter(None, linked), response.headers.get("ETag", "")).removeprefix("W/").strip('"') or None
    if part.size not in (None, size) or len({part.etag, etag} - {None}) > 1:
        expected = f"version {part.etag} of {part.size} bytes"
        raise wrong_answer(address, expected, f"{etag} of {size} bytes")
    part.size, part.etag = size, etag or part.etag


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
