"""Where the files of a model on the Hub are on this disk: in the Hub's own cache, and in ours.

The Hub's own cache is read as its documentation describes it: `refs` has a revision's commit, `snapshots` a commit's
files. The client's functions are not used for this: importing them takes longer than all the rest, and in some versions
they write a test file.

Our cache holds the ranges that were fetched. It belongs to one commit of one repository at one endpoint. That content
never changes, so an entry stays right unless it is damaged.

Source: huggingface_hub's guide "Understand caching".
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap as memory_map
import os
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from minibert.equations.input_layer import Array
from minibert.files.reading import note_model_file
from minibert.files.writing import atomic_write

from .errors import Address

Content = Any  # whatever gives its bytes: bytes, a uint8 array
Span = tuple[int, int]  # first, and one past the last

COMMIT = re.compile(r"[0-9a-f]{40}")
LAYOUT = "1"  # of our cache; it is part of every digest: entries of another layout do not pass the check
DIGEST = 32  # bytes of a SHA-256
LARGE = 1 << 20  # bytes from which an entry is mapped, not read
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}")  # as `atomic_write` names a file that it has begun
ABANDONED = 86_400  # seconds after which a temporary file belongs to a process that was killed


def cache_root() -> Path:
    """Say where ranges are kept: MINIBERT_CACHE, or `assets/minibert` in HF_HOME, the client's folder for such files.

    Deleting it is always safe.
    """
    from huggingface_hub import constants

    named = os.environ.get("MINIBERT_CACHE")
    return Path(named).expanduser() if named else Path(constants.HF_ASSETS_CACHE) / "minibert"


class Caches:
    """The two caches, as far as they belong to one model at one endpoint."""

    def __init__(self, address: Address) -> None:
        from huggingface_hub import constants

        folder = address.name.replace("/", "--")
        self._address = address
        self._hub_folder = Path(constants.HF_HUB_CACHE) / f"models--{folder}"
        self._own_folder = cache_root() / quote(address.endpoint, safe="") / folder
        self._label = "revision-" + quote(address.revision, safe="")

    def cached(self, commit: str, file: str) -> Path | None:
        """Give the path of a whole file in the Hub's own cache, or None."""
        path = self._hub_folder / "snapshots" / commit / file
        if not path.is_file():
            return None
        note_model_file(path)
        return path

    def range_cache(self, commit: str = "", file: str = "") -> RangeCache:
        """Give our cache for a model, for one of its commits, or for one file: each has its own entries only."""
        belongs_to = "\n".join((LAYOUT, self._address.endpoint, self._address.name, commit, file))
        return RangeCache(self._own_folder / commit / quote(file, safe=""), belongs_to)

    def remember(self, commit: str) -> None:
        """Note the commit of a revision, for a time without network."""
        self.range_cache().store(self._label, commit.encode())

    def last_known(self) -> str | None:
        """Give the commit that a revision stood for when it was last resolved: by us, or else by the client."""
        kept = self.range_cache().load(self._label)
        try:
            refs = self._hub_folder / "refs" / self._address.revision
            noted = refs.read_text(encoding="utf-8").strip() if kept is None else kept.tobytes().decode()
        except (OSError, ValueError):  # ValueError: bytes that are not UTF-8, or a name that no file can have
            return None
        return noted if COMMIT.fullmatch(noted) else None


class RangeCache:
    """Entries in a folder, each under a word or under the span of bytes that it holds.

    At the end of each file is a digest of its bytes, its name and `belongs_to`: an entry is right or absent. On a full
    or read-only disk it is absent. Several processes may use one folder at once.
    """

    def __init__(self, folder: Path, belongs_to: str) -> None:
        self.folder = folder
        self._belongs_to = belongs_to

    def load(self, label: str | Span, mmap: bool = True) -> Array | None:
        """Give an entry's bytes, read-only, or None where it is absent or damaged."""
        try:
            with open(self.folder / _name(label), "rb") as file:
                size = os.fstat(file.fileno()).st_size - DIGEST
                if size < 0:
                    return None
                large = mmap and size >= LARGE
                stored = memory_map.mmap(file.fileno(), 0, access=memory_map.ACCESS_READ) if large else file.read()
        except (OSError, ValueError):  # ValueError: the file shrank to nothing before it was mapped
            return None
        content = np.frombuffer(stored, np.uint8)
        content, digest = content[:size], content[size:].tobytes()
        return content if digest == self._digest(label, content) else None

    def store(self, label: str | Span, content: Content) -> None:
        """Keep an entry if the disk allows it; if not, it is fetched again next time."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            atomic_write(self.folder / _name(label), content, self._digest(label, content))

    def spans(self) -> list[Span]:
        """List the spans that are there, the largest first; each may still turn out to be damaged."""
        try:
            names = [path.name for path in self.folder.iterdir()]
        except OSError:
            return []
        for name in filter(TEMPORARY.fullmatch, names):
            with contextlib.suppress(OSError):
                if (self.folder / name).stat().st_mtime < time.time() - ABANDONED:
                    (self.folder / name).unlink()
        found = (re.fullmatch(r"(\d+)-(\d+)", name) for name in names)
        return sorted(((int(m[1]), int(m[2])) for m in found if m), key=lambda span: span[0] - span[1])

    def _digest(self, label: str | Span, content: Content) -> bytes:
        digest = hashlib.sha256(f"{self._belongs_to}\n{_name(label)}\n{len(content)}\n".encode())
        digest.update(content)
        return digest.digest()


def _name(label: str | Span) -> str:
    return label if isinstance(label, str) else f"{label[0]}-{label[1]}"
