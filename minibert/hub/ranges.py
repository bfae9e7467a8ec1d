"""Which bytes to ask for, and a small cache of those that were fetched: nothing here touches a network.

A cache belongs to one commit of one repository at one endpoint. That content never changes: an entry stays right for
ever, unless it is damaged. Each file holds an entry's bytes and, at its end, a digest of the bytes and of the entry's
name. It is written under another name and moved into place: a reader sees all of it or nothing. No link inside a cache
is followed. We make none; a link there would lead to files that are not ours to read or to write.
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

import numpy as np

from minibert.equations.input_layer import Array
from minibert.files.writing import atomic_write

Content = Any  # whatever gives its bytes: bytes, a uint8 array
Span = tuple[int, int]  # first, and one past the last

DIGEST = 32  # bytes of a SHA-256
LARGE = 1 << 20  # bytes from which an entry is mapped, not read
ABANDONED = 86_400  # seconds after which a temporary file belongs to a process that was killed


def merge(rows: Array, gap: int) -> list[Span]:
    """Join sorted, distinct row numbers into runs; up to `gap` unwanted rows between two are included.

    >>> merge(np.array([1, 2, 3, 5, 9]), gap=1)
    [(1, 6), (9, 10)]
    """
    if rows.size == 0:
        return []
    breaks = np.flatnonzero(np.diff(rows) > gap + 1)
    first = rows[np.concatenate(([0], breaks + 1))]
    last = rows[np.concatenate((breaks, [rows.size - 1]))]
    return [(int(a), int(b) + 1) for a, b in zip(first, last, strict=True)]


def complete_rows(span: Span, start: int, row_bytes: int, rows: int) -> Span:
    """Say which rows are completely inside a span of bytes; the table starts at byte `start`.

    >>> complete_rows((105, 131), start=100, row_bytes=10, rows=9)
    (1, 3)
    """
    first = max(0, -((start - span[0]) // row_bytes))
    return first, max(first, min(rows, (span[1] - start) // row_bytes))


class RangeCache:
    """Named entries in a folder. `belongs_to` goes into every digest: a file from elsewhere is not accepted.

    An entry is either absent or right; on a full or read-only disk it is absent. Several processes may use
    one folder at once. root: the folder, at or above this one, that a user has named. It may be a link; folders
    below it may not.
    """

    def __init__(self, folder: Path, belongs_to: str, root: Path | None = None) -> None:
        self.folder = folder
        self._below = [] if root is None else [folder, *folder.parents][: len(folder.relative_to(root).parts)]
        self._belongs_to = belongs_to

    def load(self, label: str, mmap: bool = True) -> Array | None:
        """Give an entry's bytes, read-only, or None where it is absent or damaged."""
        if self._linked():
            return None
        try:
            with open(self.folder / label, "rb", opener=_open_unlinked) as file:
                size = os.fstat(file.fileno()).st_size - DIGEST
                if size < 0:
                    return None
                if mmap and size >= LARGE:
                    stored = memory_map.mmap(file.fileno(), 0, access=memory_map.ACCESS_READ)
                    content = np.frombuffer(stored, np.uint8)
                else:
                    content = np.frombuffer(file.read(), np.uint8)
        except (OSError, ValueError):  # ValueError: the file shrank to nothing before it was mapped
            return None
        content, digest = content[:size], content[size:].tobytes()
        return content if digest == self._digest(label, content) else None

    def store(self, label: str, content: Content) -> None:
        """Keep an entry if the disk allows it; if not, it is fetched again next time."""
        if self._linked():
            return
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            atomic_write(self.folder / label, content, self._digest(label, content))

    def load_span(self, span: Span, mmap: bool = True) -> Array | None:
        """Give the bytes of a span that was stored as such."""
        content = self.load(_label(span), mmap)
        return content if content is not None and len(content) == span[1] - span[0] else None

    def store_span(self, span: Span, content: Array) -> None:
        self.store(_label(span), content)

    def spans(self) -> list[Span]:
        """List the spans that are there, the largest first; each may still turn out to be damaged."""
        if self._linked():
            return []
        try:
            names = [path.name for path in self.folder.iterdir()]
        except OSError:
            return []
        for name in names:
            if name.startswith("."):
                self._sweep(self.folder / name)
        found = (re.fullmatch(r"(\d+)-(\d+)", name) for name in names)
        return sorted(((int(m[1]), int(m[2])) for m in found if m), key=lambda span: span[0] - span[1])

    def _sweep(self, temporary: Path) -> None:
        with contextlib.suppress(OSError):
            if temporary.lstat().st_mtime < time.time() - ABANDONED:
                temporary.unlink()

    def _linked(self) -> bool:
        return any(map(os.path.islink, self._below))

    def _digest(self, label: str, content: Content) -> bytes:
        digest = hashlib.sha256(f"{self._belongs_to}\n{label}\n{len(content)}\n".encode())
        digest.update(content)
        return digest.digest()


def _open_unlinked(path: str, flags: int) -> int:
    """Open a file, but not through a link; ELOOP, an OSError, where there is one."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0))


def _label(span: Span) -> str:
    return f"{span[0]}-{span[1]}"
