"""A name on the Hub -> a commit, its small files, and tables of which only the needed bytes are fetched.

The name is resolved to a commit first; all that follows is of this commit. huggingface_hub finds and fetches, with its
cache, session and token. Its HTTP library takes half a second to import, so a cached file is found here by its path. Of
a large file that is not cached only the needed bytes are fetched, and kept under the client's assets folder.

Source: huggingface_hub's guide "Understand caching".
"""

from __future__ import annotations

import json
import os
import re
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from minibert.errors import HubError, MinibertError
from minibert.files.checkpoint import INDEX, SINGLE, Checkpoint, advice_for, read_index
from minibert.files.reading import FileName, mode_of, note_model_file

from .names import ORGANIZATION
from .remote import RemoteCheckpoint, Span, keep

COMMIT = re.compile(r"[0-9a-f]{40}")
LIST = "files.json"  # beside the ranges: the names of all files of a commit
LONGEST_WORDS = 300  # letters of the client's message that are shown
PASSING = (408, 429, 500, 502, 503, 504)  # statuses that may be gone at the next try
RETRIES = 3  # of a range, with the client's pauses: after 1, 2 and 4 seconds


def resolve(
    name: str,
    revision: str | None = None,
    local_files_only: bool = False,
    cache_folder: FileName | None = None,
    token: str | None = None,
) -> Repository:
    """Find the commit that a name and a revision (a branch, a tag, a commit; "main" if none) stand for.

    One request. None for the forty digits of a commit, with local_files_only or with HF_HUB_OFFLINE. Where the Hub does
    not answer, its last answer is used, as in huggingface_hub.

    cache_folder: of whole files, before SENTENCE_TRANSFORMERS_HOME and the Hub's own cache.

    Raises HubError; CheckpointError for a cache that may not be read.
    """
    from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE

    offline = "HF_HUB_OFFLINE is set" if HF_HUB_OFFLINE else ""
    offline = "you asked for local files only" if local_files_only else offline
    cache = Path(cache_folder or os.environ.get("SENTENCE_TRANSFORMERS_HOME") or HF_HUB_CACHE).expanduser().absolute()
    found = Repository(name, revision or "main", cache, token, offline)
    if not offline and found.revision != found.commit:
        try:
            found.ask()
        except HubError as error:
            if not found.commit:
                raise
            found.offline = f"the Hub refused or did not answer ({str(error).partition('; ')[0]})"
    if not found.commit:
        raise found.refusal("", f"it is not in the cache, and {offline}")
    return found


class Repository:
    """One model at one commit: files, and a checkpoint. Several threads may use it at once.

    commit: at first the last known one, "" where none is. offline: the reason why the Hub is not asked, "" where it is.
    """

    def __init__(self, name: str, revision: str, cache: Path, token: str | None = None, offline: str = "") -> None:
        from huggingface_hub import constants

        self.name, self.revision, self.cache, self.offline, self._token = name, revision, cache, offline, token
        if "@" in constants.ENDPOINT:  # messages would show it
            raise HubError("HF_ENDPOINT holds a name or a password; write the address alone, and a token in HF_TOKEN")
        self._endpoint = constants.ENDPOINT
        self._folder = "--".join(("models", *name.split("/")))
        self._refs = cache / self._folder / "refs" / revision
        self.commit = revision if COMMIT.fullmatch(revision) else self._last_known()
        self._files: list[str] | None = None
        self._lock = threading.Lock()

    def ask(self) -> None:
        """Ask for the commit of the revision and for the names of its files. Raises HubError."""
        from huggingface_hub import HfApi, constants
        from huggingface_hub.errors import RevisionNotFoundError

        with self._in_words():
            api, timeout = HfApi(self._endpoint, token=False, headers=self._headers()), constants.HF_HUB_ETAG_TIMEOUT
            try:
                found = api.model_info(self.name, revision=self.revision, expand=["sha", "siblings"], timeout=timeout)
            except RevisionNotFoundError:
                self.commit = ""  # what is cached does not stand in for it
                raise
            if not COMMIT.fullmatch(found.sha or ""):  # it becomes part of a path
                raise ValueError(f"this is not an answer of the Hub: {found.sha!r} is no commit")
            self.commit, self._files = str(found.sha), [file.rfilename for file in found.siblings or ()]
        keep(self.ranges(LIST), json.dumps(self._files).encode())
        if self.revision != self.commit:
            keep(self._refs, self.commit.encode())

    def file(self, name: str) -> Path | None:
        """Give the path of a file, fetched if need be; None if there is none. Raises HubError."""
        return self.cached(name) or (self.download(name) if name in self._list(name) else None)

    def checkpoint(self, lazy: bool = False, mmap: bool = True, folder: str = "", whole: bool = False) -> Checkpoint:
        """Open `model.safetensors`, or the shards of its index, wherever their bytes are.

        A file in the Hub's cache is mapped there. Of other files the header is fetched now, and each tensor when it is
        asked for; with `lazy`, rows of tables over 256 kB when ids ask for them; with `whole`, all with the client.

        `folder`: the subfolder of the repository that has the files, "" for its top.

        Raises HubError, CheckpointError.
        """
        above = f"{folder}/" if folder else ""
        return RemoteCheckpoint(self, self._weight_map(above), lazy, mmap, whole, above)

    def cached(self, name: str) -> Path | None:
        """Give a file's path in the Hub's own cache, or None. Raises CheckpointError where it may not be looked at."""
        path = self.cache / self._folder / "snapshots" / self.commit / name
        if not stat.S_ISREG(mode_of(path)):
            return None
        note_model_file(path)
        return path

    def download(self, name: str) -> Path:
        """Fetch a whole file into the Hub's cache. Raises HubError."""
        from huggingface_hub import hf_hub_download

        with self._in_words(name):
            where: dict[str, Any] = dict(revision=self.commit, cache_dir=self.cache, endpoint=self._endpoint)
            path = Path(hf_hub_download(self.name, name, **where, headers=self._headers(), token=False))
        note_model_file(path)
        return path

    def part(self, name: str, span: Span) -> tuple[bytes, int]:
        """Fetch the bytes span[0]..span[1]-1 of a file (fewer where it ends before), and say how large it is.

        They are taken only with status 206, the requested Content-Range and a size below 10**13. Raises HubError.
        """
        from huggingface_hub import constants, hf_hub_url
        from huggingface_hub.errors import HfHubHTTPError
        from huggingface_hub.utils import hf_raise_for_status, http_backoff  # type: ignore[attr-defined]

        agent = f"minibert/{sys.modules['minibert'].__version__}"
        asked = {"Range": f"bytes={span[0]}-{span[1] - 1}", "Accept-Encoding": "identity", "User-Agent": agent}
        with self._in_words(name):
            url = hf_hub_url(self.name, name, revision=self.commit, endpoint=self._endpoint)
            options: dict[str, Any] = dict(timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT, follow_redirects=True)
            # what the newest client tries again by default; the oldest one stops at 500, and at a body that was cut
            again: dict[str, Any] = dict(retry_on_status_codes=PASSING, retry_on_exceptions=HfHubHTTPError.__bases__[0])
            options |= dict(headers=asked | self._headers(), max_retries=RETRIES)
            answer = http_backoff("GET", url, **options, **again)
            hf_raise_for_status(answer)
            said = answer.headers.get("Content-Range", "none")
            size = int(said.rpartition("/")[2]) if re.fullmatch(r"bytes \d+-\d+/\d{1,13}", said) else span[1]
            last = min(span[1], size) - 1
            wanted = (206, f"bytes {span[0]}-{last}/{size}", last + 1 - span[0])
            if (found := (answer.status_code, said, len(answer.content))) != wanted:
                words = "status {} with {} and {:,} bytes"
                raise ValueError(f"expected {words.format(*wanted)}, found {words.format(*found)}")
        return answer.content, size

    def ranges(self, name: str) -> Path:
        """Say where the ranges of a file are kept: in MINIBERT_CACHE, or in `assets/minibert` of HF_HOME."""
        from huggingface_hub import constants

        root = Path(os.environ.get("MINIBERT_CACHE") or Path(constants.HF_ASSETS_CACHE, "minibert")).expanduser()
        return root / self._folder / self.commit / quote(name, safe="")

    def describe(self, name: str) -> str:
        """Name a file for an error."""
        return _one_line(f"{self.name} at {self.revision}" + (f", {name}" if name else ""))

    def refusal(self, file: str, reason: str) -> HubError:
        """Make the error of a refusal by the client, the server or the disk, with the remedies."""
        name, page = self.name, f"{self._endpoint}/{self.name}"
        return HubError(
            f"{self.describe(file)}: {_one_line(reason)}; see {page} and check the spelling (a folder is written "
            f"./{name.removeprefix(ORGANIZATION)}); for a gated or private model accept its conditions there, then log "
            "in with `hf auth login` or set HF_TOKEN; without a network set HF_HUB_OFFLINE=1 and use a cached model, "
            "name a mirror in HF_ENDPOINT, or copy a folder made on another machine by "
            f"`hf download {name} --local-dir FOLDER` or, for the input layer alone, by `minibert extract`"
        )

    def _last_known(self) -> str:
        """Give the commit that the revision stood for when a program last resolved it; "" where none is noted."""
        noted = ""
        if mode_of(self._refs):
            with suppress(OSError, ValueError):  # ValueError: bytes that are not UTF-8
                noted = self._refs.read_text(encoding="utf-8").strip()
        return noted if COMMIT.fullmatch(noted) else ""

    def _weight_map(self, above: str) -> dict[str, str] | None:
        """Read the index of shards; None where one file holds all."""
        single, listed = above + SINGLE, above + INDEX
        if self.cached(single) or (not self.cached(listed) and single in self._list(single)):
            return None
        index = self.file(listed)
        if index is not None:
            weight_map = read_index(index.read_bytes(), self.describe(listed))
            for shard in set(weight_map.values()):
                self.cached(above + shard)  # notes also those that are never opened
            return weight_map
        names = self._list(listed)
        other, advice = advice_for(names)
        found = (_one_line(", ".join((other or names)[:8])) or "nothing") + advice
        raise HubError(f"{self.describe(above)}: expected {SINGLE} or {INDEX}, found only {found}")

    def _list(self, wanted: str) -> list[str]:
        """Give the names of all files: asked for once for a commit, then kept. Raises HubError."""
        with self._lock:
            if self._files is None:
                with suppress(OSError, ValueError, RecursionError):
                    self._files = json.loads(self.ranges(LIST).read_bytes())
            if self._files is None and self.offline:
                # a cache that another program filled: if it holds the model, a file that it lacks does not exist
                held = any(map(self.cached, ("config.json", "modules.json")))
                if not held or wanted.endswith((SINGLE, INDEX)):
                    raise self.refusal(wanted, f"it is not in the cache, and {self.offline}")
                return []
            if self._files is None:
                self.ask()
            return self._files or []

    def _headers(self) -> dict[str, str]:
        """Give the header with the user's token."""
        from huggingface_hub import constants, get_token

        if self._token is None and constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
            return {}
        token = get_token() if self._token is None else self._token
        if token and not re.fullmatch(r"[!-~]+", token):  # else the HTTP library's message would show it
            raise HubError(
                f"the token (of token=, of HF_TOKEN or in {constants.HF_TOKEN_PATH}) has characters outside printable "
                "ASCII; copy it again from the settings of your account, or log in again with `hf auth login`"
            )
        return {"authorization": f"Bearer {token}"} if token else {}

    @contextmanager
    def _in_words(self, file: str = "") -> Iterator[None]:
        """Send no request while offline; turn each failure into one HubError."""
        if self.offline:
            raise self.refusal(file, f"it is not in the cache, and {self.offline}")
        try:
            yield
        except MinibertError:
            raise
        except Exception as error:  # noqa: BLE001 - the client's, its HTTP library's, the disk's
            from huggingface_hub.errors import HfHubHTTPError

            cause: BaseException = error
            while cause.__cause__ is not None and not isinstance(cause, HfHubHTTPError):
                cause = cause.__cause__  # the failure that the client has wrapped
            raise self.refusal(file, f"{type(cause).__name__}: {cause}") from None


def _one_line(text: str) -> str:
    """Make words from elsewhere safe to print: on one line, without escape sequences, not too long."""
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in " ".join(text.split()))
    return text if len(text) <= LONGEST_WORDS else text[:LONGEST_WORDS] + "..."
