"""A name on the Hub -> a commit, its small files, and tables of which only the needed bytes are fetched.

The name is resolved to a commit first; everything after that is of this commit. A file that is in the Hub's own cache
is used there, whichever program fetched it. Small files are fetched into that cache. Of the large file only the header
and the needed ranges are fetched; they are kept in a cache of our own (`caches.py`).
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from minibert.errors import HubError
from minibert.files.checkpoint import CONVERT, INDEX, SINGLE, Checkpoint, read_index

from .caches import COMMIT, Caches, RangeCache, Span
from .errors import Address, RevisionError, shown
from .remote import RemoteCheckpoint
from .transfer import Transfer, Version

# as the Hub has it: an owner's name (except for a few old models) and a name of letters, digits, - _ and .
NAME = re.compile(r"(?!.*(--|\.\.|\.git$))(?:\b[\w.-]+\b/)?\b[\w.-]{1,96}\b", re.ASCII)


def resolve(name: str, revision: str | None = None, local_files_only: bool = False) -> Repository:
    """Find the commit that a name and a revision (a branch, a tag, a commit; "main" if none) stand for.

    One request. None for the forty digits of a commit, with local_files_only or with HF_HUB_OFFLINE. Where the Hub does
    not answer, its last answer is used, as in huggingface_hub.

    Raises HubError.
    """
    from huggingface_hub import constants

    if not NAME.fullmatch(name):
        raise HubError(
            f"{name!r} cannot be a name on the Hub, such as 'gpt2' or 'google/mt5-small'. A folder is written with ./ "
            "in front"
        )
    address = Address(name, revision or "main", _endpoint(constants.ENDPOINT))
    transfer, problem = Transfer(address), None
    if local_files_only or constants.HF_HUB_OFFLINE:
        reason = "local_files_only" if local_files_only else "HF_HUB_OFFLINE"
        problem = HubError(
            f"{address}: {reason} is set, and not all of it is cached; load it once where there is a network, or "
            f"{address.without_hub}"
        )
    if COMMIT.fullmatch(address.revision):
        return Repository(transfer, address.revision, problem)
    if problem is None:
        try:
            about = _ask(address, transfer)
            return Repository(transfer, about.commit, None, about)
        except RevisionError:
            raise
        except HubError as error:
            problem = error
    known = Caches(address).last_known()
    if known is None:
        raise problem
    return Repository(transfer, known, problem)


def _endpoint(address: str) -> str:
    """Take the user's name and password out of the Hub's address: they belong into one header, and nowhere else."""
    host = r"(?:[^/@:\[\].]{1,63}\.)*[^/@:\[\].]{1,63}\.?|\[[0-9a-fA-F:.]+\]"
    parts = re.fullmatch(rf"(https?://)(?:[^/@]*@)?((?:{host})(?::[0-9]+)?(?:/[^@]*)?)", address)
    if parts is None:
        raise HubError(
            "HF_ENDPOINT is not the address of a Hub, such as https://hf-mirror.com; each part of a host's name has 1 "
            "to 63 letters; in a name or a password in front of an @ write all but letters and digits as %XX"
        )
    return parts[1] + parts[2]


class About(NamedTuple):
    """What the Hub says of a revision: its commit, the names of its files, the model's name of today."""

    commit: str
    files: list[str]
    name: str


def _ask(address: Address, transfer: Transfer) -> About:
    revision = quote(address.revision, safe="")
    url = f"{address.endpoint}/api/models/{address.name}/revision/{revision}?expand=sha&expand=siblings"
    answer = transfer.ask(url)
    try:
        found = json.loads(answer)
        about = About(found["sha"], [file["rfilename"] for file in found["siblings"]], found.get("id", address.name))
        if not COMMIT.fullmatch(about.commit):  # it becomes part of a path
            raise ValueError(f"{about.commit!r} is no commit")
    except (ValueError, KeyError, TypeError) as error:
        raise HubError(
            f"{address}: {address.endpoint} does not answer as a Hub does ({type(error).__name__}: "
            f"{shown(str(error))}; {answer[:60]!r}). A login page of this network, or a wrong HF_ENDPOINT? Else "
            f"{address.without_hub}"
        ) from None
    return about


class Repository:
    """One model at one commit: files, and a checkpoint. Several threads may use it at once.

    unreachable: why we are offline, if we are.
    """

    def __init__(
        self, transfer: Transfer, commit: str, unreachable: HubError | None = None, about: About | None = None
    ) -> None:
        self._transfer, self._address = transfer, transfer.address
        self.name, self.revision, self.commit = self._address.name, self._address.revision, commit
        self._unreachable, self._about = unreachable, about
        self._caches = Caches(self._address)
        self._entries = self._caches.range_cache(commit)
        if about is not None and self._entries.load("about") is None:
            self._entries.store("about", json.dumps(about).encode())
        self._lock = threading.RLock()

    def file(self, filename: str) -> Path | None:
        """Give the path of a small file (config.json, tokenizer.json), fetched if need be; None if there is none.

        Raises HubError.
        """
        path = self.cached(filename)
        if path is not None:
            return path
        return self.download(filename) if filename in self._list(filename) else None

    def checkpoint(self, lazy: bool = False, mmap: bool = True, folder: str = "") -> Checkpoint:
        """Open `model.safetensors`, or the shards of its index, wherever their bytes are.

        A file in the Hub's cache is mapped there. Of other files the header is fetched now, and each tensor when it is
        asked for; with `lazy`, rows of tables over 256 kB when ids ask for them.

        `folder`: the subfolder of the repository that has the files, "" for its top.

        Raises HubError, CheckpointError.
        """
        above = f"{folder}/" if folder else ""
        return self._opened(RemoteCheckpoint(self, self._weight_map(above), lazy, mmap, above))

    def whole_checkpoint(self, folder: str = "", mmap: bool = True) -> Checkpoint:
        """Open the same with all bytes in the Hub's own cache, fetched with its own client where they are not there.

        Raises HubError, CheckpointError.
        """
        above = f"{folder}/" if folder else ""

        def locate(name: str) -> Path:
            path = self.file(above + name)
            if path is None:
                raise HubError(f"{self.describe(above + name)}: {INDEX} lists it, but the Hub has no such file")
            return path

        return self._opened(Checkpoint(locate, self._weight_map(above), mmap))

    def _weight_map(self, above: str = "") -> dict[str, str] | None:
        """Read the index of shards; None where one file holds all."""
        single, listed = above + SINGLE, above + INDEX
        if self.cached(single) is not None or (self.cached(listed) is None and single in self._list(SINGLE)):
            return None
        index = self.file(listed)
        if index is not None:
            weight_map = read_index(index.read_bytes(), self.describe(listed))
            for shard in set(weight_map.values()):
                self.cached(above + shard)  # notes also those that are never opened
            return weight_map
        names = self._list(INDEX)
        other = [name for name in names if name.endswith((".bin", ".h5", ".msgpack", ".ckpt", ".pt", ".pth"))]
        found = (shown(", ".join((other or names)[:8])) or "nothing") + (f": {CONVERT}" if other else "")
        raise HubError(f"{self._address}: expected {SINGLE} or {INDEX}, found only {found}")

    def _opened(self, checkpoint: Checkpoint) -> Checkpoint:
        if self._unreachable is None and self.revision != self.commit:
            self._caches.remember(self.commit)
        return checkpoint

    # -- what remote.py needs ----------------------------------------------------------------------------------

    def cached(self, name: str) -> Path | None:
        """Give a file's path in the Hub's own cache, or None."""
        return self._caches.cached(self.commit, name)

    def cache(self, name: str) -> RangeCache:
        """Give the cache of one file's ranges."""
        return self._caches.range_cache(self.commit, name)

    def part(self, name: str, span: Span, version: Version, progress: Callable[[int], object]) -> bytearray:
        """Fetch some bytes of a file."""
        from huggingface_hub import hf_hub_url

        self._need_hub(name)
        current = self._about.name if self._about is not None else self.name  # saves a redirect where it was renamed
        url = hf_hub_url(current, name, revision=self.commit, endpoint=self._address.endpoint)
        return self._transfer.part(url, name, span, self.commit, version, progress)

    def download(self, name: str) -> Path:
        """Fetch a whole file into the Hub's cache; if that is not writable, into a folder for this process."""
        from huggingface_hub import constants

        self._need_hub(name)
        try:
            return self._transfer.download(name, self.commit, constants.HF_HUB_CACHE)
        except OSError as refused:
            try:
                return self._transfer.download(name, self.commit, self._scratch)
            except OSError as error:
                raise HubError(
                    f"{self.describe(name)}: no disk takes it: {refused}; {error}. Set HF_HOME to a folder that can be "
                    "written and has room"
                ) from None

    def describe(self, name: str) -> str:
        """Name a file for an error."""
        return str(self._address._replace(file=name))

    def _list(self, wanted: str) -> list[str]:
        """Give the names of all files: asked once for a commit, then kept."""
        with self._lock:
            if self._about is None and (kept := self._entries.load("about")) is not None:
                self._about = About(*json.loads(kept.tobytes()))
            if self._about is None and self._unreachable is not None:
                # a cache that another program filled: if it holds the model, a file that it lacks does not exist
                if not any(map(self.cached, ("config.json", "modules.json"))) or wanted in (SINGLE, INDEX):
                    self._need_hub(wanted)
                return []
            if self._about is None:
                self._about = _ask(self._address._replace(revision=self.commit), self._transfer)
                self._entries.store("about", json.dumps(self._about).encode())
            return self._about.files

    def _need_hub(self, name: str) -> None:
        if self._unreachable is not None:
            raise HubError(f"{self.describe(name)}: not (all) in the cache. {self._unreachable}")

    @cached_property
    def _scratch(self) -> str:
        folder = tempfile.mkdtemp(prefix="minibert-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder
