"""A name on the Hub -> a commit, its small files, and tables of which only the needed bytes are fetched.

The name is resolved to a commit first; everything after that is of this commit. A file that is in the Hub's own cache
is used there, whichever program fetched it. Small files are fetched into that cache. Of the large file only the header
and the needed ranges are fetched; they are kept in a cache of our own (`ranges.py`).
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from minibert.errors import HubError
from minibert.files.checkpoint import CONVERT, INDEX, SINGLE, Checkpoint, Source, read_index
from minibert.files.reading import note_model_file

from .caches import COMMIT, Caches
from .errors import Address, RevisionError, shown
from .ranges import RangeCache, Span
from .remote import RemoteCheckpoint
from .transfer import Part, Transfer

# as the Hub has it: an owner's name (except for a few old models) and a name of letters, digits, - _ and .
NAME = re.compile(r"(?:\b[\w.-]+\b/)?\b[\w.-]{1,96}\b", re.ASCII)

FOLDER = "A folder is written with ./ in front"


def resolve(name: str, revision: str | None = None, local_files_only: bool = False, whole: bool = False) -> Repository:
    """Find the commit that a name and a revision (a branch, a tag, a commit; "main" if none) stand for.

    One request. None for the forty digits of a commit, with local_files_only or with HF_HUB_OFFLINE. Where the Hub does
    not answer, its last answer is used, as in huggingface_hub. whole: all of the model will be needed, not its input
    layer alone; this changes what errors advise.

    Raises HubError.
    """
    from huggingface_hub import constants

    if not _is_name(name):
        raise HubError(f"{name!r} cannot be a name on the Hub, such as 'gpt2' or 'google/mt5-small'. {FOLDER}")
    address = Address(name, revision or "main", _endpoint(constants.ENDPOINT), whole)
    why_not = "local_files_only=True" if local_files_only else "HF_HUB_OFFLINE is set"
    offline = HubError(why_not) if local_files_only or constants.HF_HUB_OFFLINE else None
    if COMMIT.fullmatch(address.revision):
        return Repository(address, address.revision, offline)
    problem = offline
    if offline is None:
        try:
            transfer = Transfer(address)
            about = _ask(address, transfer)
            return Repository(address, about.commit, None, about, transfer)
        except RevisionError:
            raise
        except HubError as error:
            problem = error
    known = Caches(address).last_known()
    if known is not None:
        return Repository(address, known, problem)
    if problem is not offline and problem is not None:
        raise problem
    raise HubError(f"{address}: nothing of it is cached, and {why_not}. {_fetch_once(address)}")


def _is_name(name: object) -> bool:
    """Say whether a text may be a model's name on the Hub: no other one may become part of a path or an address."""
    return isinstance(name, str) and bool(NAME.fullmatch(name)) and not re.search(r"--|\.\.|\.git$", name)


def _endpoint(address: str) -> str:
    """Take the user's name and password out of the Hub's address: they belong into one header, and nowhere else."""
    try:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError
    except ValueError:
        raise HubError(
            "HF_ENDPOINT is no address of a Hub: expected one such as https://hf-mirror.com; in a name or a password "
            "in front of an @ write all but letters and digits as %XX"
        ) from None
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _fetch_once(address: Address) -> str:
    enough = "the blocks" if address.whole else "another lazy run only"
    return (
        f"Load it once where there is a network, or give {address.folder} (a path that starts with ./); what an "
        f"earlier {'run has fetched for the input layer is not' if address.whole else 'lazy run has fetched is'} "
        f"enough for {enough}"
    )


class Repository:
    """One model at one commit: files, and a checkpoint. Several threads may use it at once."""

    def __init__(
        self,
        address: Address,
        commit: str,
        unreachable: HubError | None,
        about: About | None = None,
        transfer: Transfer | None = None,
    ) -> None:
        self.name = address.name
        self.revision = address.revision
        self.commit = commit
        self._address = address
        self._unreachable = unreachable
        self._about = about
        self._transfer = transfer if transfer is not None else Transfer(address)
        self._caches = Caches(address)
        self._entries = self._caches.range_cache(commit)
        if about is not None and self._entries.load("about") is None:
            self._entries.store("about", json.dumps(about).encode())
        self._lock = threading.RLock()
        self._scratch: str | None = None

    def file(self, filename: str) -> Path | None:
        """Give the path of a small file (config.json, tokenizer.json), fetched if need be; None if there is none.

        Raises HubError.
        """
        path = self.cached(filename)
        if path is not None or self._caches.known_absent(self.commit, filename):
            return path
        if filename not in self._list(filename):
            return None
        path = self.download(filename)
        note_model_file(path)
        return path

    def checkpoint(self, lazy: bool = False, mmap: bool = True) -> Source:
        """Open `model.safetensors`, or the shards of its index, wherever their bytes are.

        A file in the Hub's cache is mapped there. Of other files the header is fetched now, and each tensor when it is
        asked for; with `lazy`, rows of tables over 256 kB when ids ask for them.

        Raises HubError, CheckpointError.
        """
        opened = RemoteCheckpoint(self, self._weight_map(), lazy, mmap)
        self._remember()
        return opened

    def whole_checkpoint(self, folder: str = "", mmap: bool = True) -> Source:
        """Open the same with all bytes in the Hub's own cache, fetched with its own client where they are not there.

        `folder`: the subfolder of the repository that has the files, "" for its top.

        Raises HubError, CheckpointError.
        """

        above = f"{folder}/" if folder else ""

        def locate(name: str) -> Path:
            path = self.file(above + name)
            if path is None:
                raise HubError(f"{self.describe(above + name)}: {INDEX} lists it, but the Hub has no such file")
            return path

        opened = Checkpoint(locate, self._weight_map(above), mmap)
        self._remember()
        return opened

    def _weight_map(self, above: str = "") -> dict[str, str] | None:
        """Read the index of shards; None where one file holds all."""
        single, listed = above + SINGLE, above + INDEX
        if self.cached(single) is not None or (self.cached(listed) is None and single in self._list(SINGLE)):
            return None
        index = self.file(listed)
        if index is None:
            raise HubError(self._no_safetensors())
        weight_map = read_index(index.read_bytes(), self.describe(listed))
        for shard in set(weight_map.values()):
            self.cached(above + shard)  # notes also those that are never opened
        return weight_map

    def _remember(self) -> None:
        if self._unreachable is None and self.revision != self.commit:
            self._caches.remember(self.commit)

    # -- what remote.py needs ----------------------------------------------------------------------------------

    def cached(self, name: str) -> Path | None:
        """Give a file's path in the Hub's own cache, or None."""
        return self._caches.cached(self.commit, name)

    def cache(self, name: str) -> RangeCache:
        """Give the cache of one file's ranges."""
        return self._caches.range_cache(self.commit, name)

    def part(self, name: str, span: Span, progress: Callable[[int], object]) -> Part:
        """Fetch some bytes of a file."""
        self._need_hub(name)
        return self._transfer.get(self._url(name), name, span, self.commit, progress)

    def download(self, name: str) -> Path:
        """Fetch a whole file into the Hub's cache; if that is not writable, into a folder for this process."""
        from huggingface_hub import constants

        self._need_hub(name)
        try:
            return self._transfer.download(name, self.commit, constants.HF_HUB_CACHE)
        except OSError as refused:
            try:
                return self._transfer.download(name, self.commit, self._scratch_folder())
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
                # a cache that somebody else filled: what it does not hold counts as absent, if it holds the model
                if self.cached("config.json") is None or wanted in (SINGLE, INDEX):
                    self._need_hub(wanted)
                return []
            if self._about is None:
                self._about = _ask(self._address._replace(revision=self.commit), self._transfer)
                self._entries.store("about", json.dumps(self._about).encode())
            return self._about.files

    def _need_hub(self, name: str) -> None:
        if self._unreachable is not None:
            said = self._address.without_hub in str(self._unreachable)
            advice = "" if said else f". {_fetch_once(self._address)}"
            raise HubError(f"{self.describe(name)}: not (all) in the cache, and {self._unreachable}{advice}")

    def _url(self, name: str) -> str:
        from huggingface_hub import hf_hub_url

        current = self._about.name if self._about is not None else self.name  # saves a redirect where it was renamed
        return hf_hub_url(current, name, revision=self.commit, endpoint=self._address.endpoint)

    def _scratch_folder(self) -> str:
        with self._lock:
            if self._scratch is None:
                self._scratch = tempfile.mkdtemp(prefix="minibert-")
                weakref.finalize(self, shutil.rmtree, self._scratch, ignore_errors=True)
            return self._scratch

    def _no_safetensors(self) -> str:
        listing = self._list(INDEX)
        other = [name for name in listing if name.endswith((".bin", ".h5", ".msgpack", ".ckpt", ".pt", ".pth"))]
        names = shown(", ".join((other or listing)[:8])) or "nothing"
        found = f"only {names}" + (f": {CONVERT}" if other else "")
        return f"{self._address}: expected {SINGLE} or {INDEX}, found {found}"


class About(NamedTuple):
    """What the Hub says of a revision: its commit, the names of its files, the model's name of today."""

    commit: str
    files: list[str]
    name: str


def _ask(address: Address, transfer: Transfer) -> About:
    revision = quote(address.revision, safe="")
    url = f"{address.endpoint}/api/models/{address.name}/revision/{revision}?expand=sha&expand=siblings"
    answer = bytes(transfer.get(url).content)
    try:
        found = json.loads(answer)
        files = [sibling["rfilename"] for sibling in found["siblings"]]
        about = About(found["sha"], files, found.get("id", address.name))
        if not COMMIT.fullmatch(about.commit):
            raise ValueError(f"{about.commit!r} is no commit")
        if not _is_name(about.name) or not all(isinstance(file, str) for file in files):
            raise ValueError("names that are none")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise HubError(
            f"{address}: {address.endpoint} does not answer as a Hub does ({type(error).__name__}: "
            f"{shown(str(error))}; {answer[:60]!r}). A login page of this network, or a wrong HF_ENDPOINT? There are "
            f"{address.without_hub}"
        ) from None
    return about
