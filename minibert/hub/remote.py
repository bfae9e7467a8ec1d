"""Safetensors files that are fetched by byte range: the header first, then the requested tensors or rows."""

from __future__ import annotations

import json
import math
import mmap as memory_map
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.input_layer import Array, check_ids
from minibert.errors import CheckpointError
from minibert.files.checkpoint import MAX_HEADER, Checkpoint, SafetensorsFile, Tensor, parse_header
from minibert.files.tables import EVERY_DTYPE, NUMPY_DTYPE, StoredTable, Table
from minibert.threads.pool import parallel_for

from .caches import RangeCache, Span
from .transfer import RangesIgnoredError, Version, late_bar

HEADER_GUESS = 1 << 15  # bytes: room for the header of most models, so that one request is enough
ROWWISE_FROM = 256_000  # bytes from which a lazy table is fetched row by row
MERGE_BYTES = 4096  # unwanted bytes between two rows that cost less than a second request
MOST_REQUESTS = 256  # for one table; if it needs more, all of it is fetched
AT_ONCE = 8  # requests under way at the same time


class Files(Protocol):
    """What is needed of a repository at one commit."""

    def cached(self, name: str) -> Path | None: ...
    def cache(self, name: str) -> RangeCache: ...
    def part(self, name: str, span: Span, version: Version, progress: Callable[[int], object]) -> bytearray: ...
    def download(self, name: str) -> Path: ...
    def describe(self, name: str) -> str: ...


class RemoteFile(SafetensorsFile):
    """One file of which only the header is here; the rest is fetched when needed. Threads may share it.

    Raises RangesIgnoredError where the server gives no parts of files.
    """

    def __init__(self, files: Files, name: str, mmap: bool = True) -> None:
        # nothing is mapped yet: the local reader's __init__ is not called
        self.path, self.mmap = Path(name), mmap
        self.cache = files.cache(name)
        self._files, self._name = files, name
        self._version = Version(files.describe(name), self.cache.folder)
        self._read_header()

    def raw(self, tensor: Tensor) -> Array:
        (content,) = self.read([(tensor.start, tensor.stop)])
        return content.view(EVERY_DTYPE[tensor.dtype]).reshape(tensor.shape)

    def read(self, spans: list[Span]) -> list[Array]:
        """Give the bytes of each span, from the cache or fetched, several at a time. Raises HubError."""
        found = {span: self.cache.load(span, self.mmap) for span in spans}
        found |= {span: np.empty(0, np.uint8) for span in spans if span[0] == span[1]}
        missing = [span for span in spans if found[span] is None]
        found |= self._fetch(missing) if missing else {}
        return [content for span in spans if (content := found[span]) is not None]

    def _fetch(self, spans: list[Span]) -> dict[Span, Array]:
        where, total = self._files.describe(self._name), sum(stop - start for start, stop in spans)
        found: dict[Span, Array] = {}

        def fetch(span: Span) -> None:
            part = np.frombuffer(self._files.part(self._name, span, self._version, bar.update), np.uint8)
            part.flags.writeable = False
            if span[0] > 0:  # the header has an entry of its own
                self.cache.store(span, part)
            found[span] = part

        with late_bar()(total=total, desc=where, unit="B", unit_scale=True, leave=False) as bar:
            parallel_for(fetch, spans, min(AT_ONCE, len(spans)))
        return found

    def _read_header(self) -> None:
        """Read the header: its length from the first eight bytes, usually with the rest in the same request."""
        where, stored = self._files.describe(self._name), self.cache.load("header")
        if stored is not None:
            line, _, content = stored.tobytes().partition(b"\n")
            self._version.check(*json.loads(line))
        else:
            content = self.read([(0, HEADER_GUESS)])[0].tobytes()
        length, size = 8 + int.from_bytes(content[:8], "little"), self._version.size or 0
        if len(content) < 8 or length > min(MAX_HEADER, size):
            raise CheckpointError(f"{where}: not a safetensors file, or an incomplete one; tell its authors")
        if length > len(content):
            content = self.read([(0, length)])[0].tobytes()
        self.tensors, self.metadata = parse_header(content[8:length], length, size, where)
        if stored is None:
            self.cache.store("header", json.dumps([size, self._version.etag]).encode() + b"\n" + content[:length])


class RowTable:
    """A table of a remote file: a row is fetched when it is first asked for, and kept.

    The rows are kept in a map of zeros as large as the table. Only those of its pages that hold rows take memory.
    """

    def __init__(self, file: RemoteFile, tensor: Tensor, dtype: np.dtype[Any] | str = "float32") -> None:
        stored = EVERY_DTYPE[tensor.dtype]
        self.shape, self.stored, self.dtype = tensor.shape, tensor.dtype, np.dtype(dtype)
        self._file, self._tensor = file, tensor
        self._row_bytes = math.prod(tensor.shape[1:]) * stored.itemsize
        self._raw = np.ndarray(tensor.shape, stored, buffer=memory_map.mmap(-1, tensor.stop - tensor.start))
        self._have = np.zeros(tensor.shape[0], np.bool_)
        self._requests = 0
        self._lock = threading.Lock()
        self._use(self._raw, filling=True)

    def rows(self, ids: Array | slice, out: Array | None = None) -> Array:
        every = self.shape[0]
        self._need(np.arange(every)[ids] if isinstance(ids, slice) else np.unique(check_ids(ids, every)))
        return self._table.rows(ids, out)

    def expect(self, ids: Iterable[ArrayLike]) -> None:
        self._need(np.unique(np.concatenate([np.empty(0, np.int64), *(np.ravel(some) for some in ids)])))

    def array(self) -> Array:
        self._need(np.arange(self.shape[0]))
        return self._table.array()

    def _use(self, raw: Array, filling: bool = False) -> None:
        self._table = StoredTable(raw, self.stored, self.dtype, filling)

    def _need(self, wanted: Array) -> None:
        """Fetch those of these rows (sorted, distinct) that are not here. Raises HubError."""
        if self._have[wanted].all():
            return
        with self._lock:
            self._take_cached(wanted)
            missing = wanted[~self._have[wanted]]
            runs = merge(missing, MERGE_BYTES // self._row_bytes)
            self._requests += len(runs)
            if self._requests > MOST_REQUESTS or 2 * sum(stop - first for first, stop in runs) > self.shape[0]:
                self._use(self._file.raw(self._tensor))
                self._have[:] = True
                return
            for run, content in zip(runs, self._file.read([self._span(run) for run in runs]), strict=True):
                self._put(run, content)

    def _take_cached(self, wanted: Array) -> None:
        """Take from the cache the rows that earlier runs have fetched."""
        start, stop = self._tensor.start, self._tensor.stop
        for span in self._file.cache.spans():
            first, last = complete_rows(span, start, self._row_bytes, self.shape[0])
            here = wanted[np.searchsorted(wanted, first) : np.searchsorted(wanted, last)]
            if self._have[here].all() or (content := self._file.cache.load(span, self._file.mmap)) is None:
                continue
            if span == (start, stop):
                self._use(content.view(self._raw.dtype).reshape(self.shape))
                self._have[:] = True
                return
            skip = start + first * self._row_bytes - span[0]
            self._put((first, last), content[skip : skip + (last - first) * self._row_bytes])

    def _put(self, run: Span, content: Array) -> None:
        self._raw[run[0] : run[1]].reshape(-1).view(np.uint8)[:] = content  # as bytes, since they may be misaligned
        self._have[run[0] : run[1]] = True  # after the row itself: readers do not take the lock

    def _span(self, run: Span) -> Span:
        return self._tensor.start + run[0] * self._row_bytes, self._tensor.start + run[1] * self._row_bytes


class RemoteCheckpoint(Checkpoint):
    """Named tensors of a repository: a file that is whole in the cache is mapped there, of others parts are fetched.

    lazy: tables of more than 256 kB are fetched row by row.
    """

    def __init__(
        self, files: Files, weight_map: dict[str, str] | None, lazy: bool, mmap: bool, above: str = ""
    ) -> None:
        """`above`: what stands before a file's name in the repository, where the tensors are in a subfolder."""
        self._remote, self._above = files, above
        self._lazy = lazy
        super().__init__(lambda name: files.download(above + name), weight_map, mmap)

    def table(self, name: str, dtype: np.dtype[Any] | str = "float32", formats: Iterable[str] = NUMPY_DTYPE) -> Table:
        tensor = self.tensor(name)
        file = self._file(self._weight_map[name])
        large = len(tensor.shape) == 2 and tensor.stop - tensor.start > ROWWISE_FROM
        if self._lazy and large and tensor.dtype in formats and isinstance(file, RemoteFile):
            self.taken[name] = tensor
            return RowTable(file, tensor, dtype)
        return super().table(name, dtype, formats)

    def _file(self, name: str) -> SafetensorsFile:
        if name not in self._files:
            whole = self._above + name
            path = self._remote.cached(whole)
            try:
                file = (
                    RemoteFile(self._remote, whole, self._mmap) if path is None else SafetensorsFile(path, self._mmap)
                )
            except RangesIgnoredError:  # as some mirrors do
                file = SafetensorsFile(self._remote.download(whole), self._mmap)
            self._files[name] = file
        return self._files[name]


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
