"""Where the files of a model on the Hub are on this disk: in the Hub's own cache, and in ours.

The Hub's own cache is read as its documentation describes it: `refs` has a revision's commit, `snapshots` a commit's
files, `.no_exist` the names of files that a commit is known not to have. The client's functions are not used for this:
importing them takes longer than all the rest, and in some versions they write a test file.

Source: huggingface_hub's guide "Understand caching".
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import quote

from minibert.files.reading import note_model_file

from .errors import Address
from .ranges import RangeCache

COMMIT = re.compile(r"[0-9a-f]{40}")
LAYOUT = "1"  # of our cache; it is part of every digest: entries of another layout do not pass the check


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
        self._root = cache_root()
        self._own_folder = self._root / quote(address.endpoint, safe="") / folder
        self._label = "revision-" + quote(address.revision, safe="")

    def cached(self, commit: str, file: str) -> Path | None:
        """Give the path of a whole file in the Hub's own cache, or None."""
        path = self._hub_folder / "snapshots" / commit / file
        if not path.is_file():
            return None
        note_model_file(path)
        return path

    def known_absent(self, commit: str, file: str) -> bool:
        """Whether the client has noted that this commit has no such file."""
        return (self._hub_folder / ".no_exist" / commit / file).is_file()

    def range_cache(self, commit: str = "", file: str = "") -> RangeCache:
        """Give our cache for a model, for one of its commits, or for one file: each has its own entries only."""
        belongs_to = "\n".join((LAYOUT, self._address.endpoint, self._address.name, commit, file))
        return RangeCache(self._own_folder / commit / quote(file, safe=""), belongs_to, self._root)

    def remember(self, commit: str) -> None:
        """Note the commit of a revision, for a time without network."""
        cache, content = self.range_cache(), commit.encode()
        kept = cache.load(self._label)
        if kept is None or kept.tobytes() != content:
            cache.store(self._label, content)

    def last_known(self) -> str | None:
        """Give the commit that a revision stood for when it was last resolved: by us, or else by the client."""
        kept = self.range_cache().load(self._label)
        try:
            refs = self._hub_folder / "refs" / self._address.revision
            noted = refs.read_text(encoding="utf-8").strip() if kept is None else kept.tobytes().decode()
        except (OSError, ValueError):  # ValueError: bytes that are not UTF-8, or a name that no file can have
            return None
        return noted if COMMIT.fullmatch(noted) else None
