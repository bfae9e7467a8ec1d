"""Safetensors files that are fetched by byte range: the header first, then the requested tensors or rows."""

from __future__ import annotations

import math
import mmap as memory_map
import re
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.fast import check_ids
from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError
from minibert.files.checkpoint import MAX_HEADER, Checkpoint, SafetensorsFile, Tensor, parse_header
from minibert.files.tables import EVERY_DTYPE, NUMPY_DTYPE, StoredTable, Table
from minibert.files.writing import atomic_write
from minibert.threads.pool import parallel_for

Span = tuple[int, int]  # first, and one past the last

HEADER_GUESS = 1 << 15  # bytes: the header of most models fits, so that one request is enough
ROWWISE_FROM = 256_000  # bytes; larger lazy tables are fetched row by row
FETCH_BYTES = 1024  # bytes that are fetched together
GAP = 4  # unwanted blocks between two wanted ones that cost less than a second request
PIECE = 1 << 14  # blocks of the largest request
MOST_REQUESTS = 256  # for one file's rows; after them a whole table is fetched
MOST_AT_ONCE = 8  # requests under way at the same time


class RemoteFile(SafetensorsFile):
    """One file: the header is fetched at once, the rest when it is needed, and kept. Threads may share it.

    The bytes are in a map of zeros as large as the file; a page of it takes memory once it holds fetched bytes. Each
    fetched span is one file in a folder, named by its first and last byte and by the size of the whole file.
    """

    def __init__(self, repository: Any, name: str) -> None:
        """`repository`: the Repository of the file."""
        # no file is mapped: the local reader's __init__ is not called
        self.path, self._repository, self._name, self._folder = Path(name), repository, name, repository.ranges(name)
        self._lock, self._requests = threading.Lock(), 0
        saved = self._saved()
        spans = saved or [(0, *repository.part(name, (0, HEADER_GUESS)))]
        self._size, described = spans[0][2], repository.describe(name)
        try:
            self._bytes = np.frombuffer(memory_map.mmap(-1, max(8, self._size)), np.uint8)
        except OSError as error:
            raise CheckpointError(f"{described}: no room to map its {self._size:,} bytes ({error.strerror})") from None
        self._fetched = np.zeros(self._size // FETCH_BYTES + 1, np.bool_)
        for start, content, _ in spans:
            self._store(start, content)
        length = 8 + int.from_bytes(self._read(0, 8).tobytes(), "little")
        if not 8 < length <= min(MAX_HEADER, self._size):
            raise CheckpointError(f"{described}: not a safetensors file, or an incomplete one; tell its authors")
        self.tensors, self.metadata = parse_header(self._read(8, length).tobytes(), length, self._size, described)
        if not saved:
            self._save(0, spans[0][1])  # now that the header has confirmed the size

    def raw(self, tensor: Tensor) -> Array:
        self._read(tensor.start, tensor.stop)
        return self.view(tensor)

    def view(self, tensor: Tensor) -> Array:
        """Return a tensor's numbers, read-only; they are 0 until they are fetched."""
        numbers = np.ndarray(tensor.shape, EVERY_DTYPE[tensor.dtype], buffer=self._bytes, offset=tensor.start)
        numbers.flags.writeable = False
        return numbers

    def fetch(self, starts: Array, stops: Array, table: Tensor | None = None) -> None:
        """Fetch the missing blocks of these spans of bytes, several at a time. Raises HubError.

        table: the tensor to fetch whole if its rows need too many requests.
        """
        first, last = starts // FETCH_BYTES, (stops - 1) // FETCH_BYTES
        blocks = np.minimum(first[:, None] + np.arange((last - first + 1).max(initial=0)), last[:, None])
        if self._fetched[blocks].all():
            return
        from huggingface_hub.utils.tqdm import tqdm

        def fetch_run(run: Span) -> None:
            start, stop = run[0] * FETCH_BYTES, run[1] * FETCH_BYTES
            content, size = self._repository.part(self._name, (start, stop))
            wanted, received = (min(stop, self._size) - start, self._size), (len(content), size)
            if received != wanted:  # missing bytes would be zeros
                template = "{:,} bytes of a file of {:,}"
                wrong = f"expected {template.format(*wanted)}, found {template.format(*received)}"
                raise self._repository.refusal(self._name, wrong)
            self._save(start, content)
            bar.update(run[1] - run[0])

        with self._lock:
            runs = merge(np.unique(blocks[~self._fetched[blocks]]), GAP)
            self._requests += len(runs) if table else 0
            if table and self._requests > MOST_REQUESTS:
                runs = [(table.start // FETCH_BYTES, -(-table.stop // FETCH_BYTES))]
            runs = [(begin, min(begin + PIECE, stop)) for start, stop in runs for begin in range(start, stop, PIECE)]
            # a bar on a terminal, after a second
            bar_options: dict[str, Any] = dict(unit="B", unit_scale=FETCH_BYTES, leave=False, delay=1, disable=None)
            total = sum(stop - start for start, stop in runs)
            with tqdm(total=total, desc=self._repository.describe(self._name), **bar_options) as bar:  # type: ignore[no-untyped-call]
                parallel_for(fetch_run, runs, MOST_AT_ONCE)

    def _read(self, start: int, stop: int) -> Array:
        if start < stop:  # a Hub refuses a request for no bytes
            self.fetch(np.array([start]), np.array([stop]))
        return self._bytes[start:stop]

    def _store(self, start: int, content: bytes) -> None:
        stop = start + len(content)
        self._bytes[start:stop] = np.frombuffer(content, np.uint8)
        # after the bytes themselves: readers do not take the lock
        self._fetched[start // FETCH_BYTES : stop // FETCH_BYTES + (stop == self._size)] = True

    def _save(self, start: int, content: bytes) -> None:
        self._store(start, content)
        write_cache(self._folder / f"{start}-{start + len(content)}-{self._size}", content)

    def _saved(self) -> list[tuple[int, bytes, int]]:
        """Read the spans that earlier runs have kept: the first byte, the bytes, the size of the whole file.

        A span has as many bytes as its name says. The list is empty if the file's first bytes are missing, or if
        servers reported different sizes in two runs.
        """
        with suppress(OSError):
            paths = [path for path in self._folder.iterdir() if re.fullmatch(r"\d+-\d+-\d+", path.name)]
            contents = [(*map(int, path.name.split("-")), path.read_bytes()) for path in paths]
            spans = [(start, content, size) for start, stop, size, content in contents if len(content) == stop - start]
            one_size = len({size for *_, size in spans}) == 1
            return spans if one_size and any(start == 0 for start, *_ in spans) else []
        return []


class RowTable(Table):
    """A table of a remote file; each row is fetched when it is first used."""

    def __init__(self, file: RemoteFile, tensor: Tensor, dtype: np.dtype[Any] | str = "float32") -> None:
        self.shape, self.stored, self.dtype = tensor.shape, tensor.dtype, np.dtype(dtype)
        self._file, self._tensor = file, tensor
        self._table = StoredTable(file.view(tensor), tensor.dtype, dtype, filling=True)

    def rows(self, ids: Array | slice, out: Array | None = None) -> Array:
        self.expect([np.arange(self.shape[0])[ids] if isinstance(ids, slice) else check_ids(ids, self.shape[0])])
        return self._table.rows(ids, out)

    def expect(self, ids: Iterable[ArrayLike]) -> None:
        rows = np.unique(np.concatenate([np.empty(0, np.int64), *(np.ravel(part) for part in ids)]))
        row_bytes = math.prod(self.shape[1:]) * EVERY_DTYPE[self.stored].itemsize
        starts = self._tensor.start + rows * row_bytes
        self._file.fetch(starts, starts + row_bytes, self._tensor)

    def array(self) -> Array:
        self._file.raw(self._tensor)
        return self._table.array()


class RemoteCheckpoint(Checkpoint):
    """Named tensors of a repository: files that are whole in the cache are mapped there, others are fetched in parts.

    lazy: tables of more than 256 kB are fetched row by row. whole: files are fetched whole. above: the path of the
    tensors' subfolder in the repository, with its slash; "" for the top.
    """

    def __init__(
        self, repository: Any, weight_map: dict[str, str] | None, lazy: bool, mmap: bool, whole: bool, above: str
    ) -> None:
        self._repository, self._lazy, self._whole, self._above = repository, lazy, whole, above
        super().__init__(str, weight_map, mmap)

    def table(self, name: str, dtype: np.dtype[Any] | str = "float32", formats: Iterable[str] = NUMPY_DTYPE) -> Table:
        tensor = self.tensor(name)
        file = self._places[name][0]
        large = len(tensor.shape) == 2 and tensor.stop - tensor.start > ROWWISE_FROM
        if self._lazy and large and tensor.dtype in formats and isinstance(file, RemoteFile):
            self.requested_tensors[name] = tensor
            return RowTable(file, tensor, dtype)
        return super().table(name, dtype, formats)

    def _file(self, name: str) -> SafetensorsFile:
        if name not in self._files:
            full, repository = self._above + name, self._repository
            path = repository.cached(full) or (repository.download(full) if self._whole else None)
            self._files[name] = SafetensorsFile(path, self._mmap) if path else RemoteFile(repository, full)
        return self._files[name]


def merge(blocks: Array, gap: int) -> list[Span]:
    """Join sorted, distinct blocks into runs; a run includes up to `gap` unwanted blocks between two wanted ones.

    >>> merge(np.array([1, 2, 3, 5, 9]), gap=1)
    [(1, 6), (9, 10)]
    """
    breaks = np.flatnonzero(np.diff(blocks) > gap + 1)
    first, last = blocks[np.append(0, breaks + 1)[: blocks.size]], blocks[np.append(breaks, -1)[: blocks.size]]
    return [(int(a), int(b) + 1) for a, b in zip(first, last, strict=True)]


def write_cache(path: Path, content: bytes) -> None:
    """Write a file of the cache; on a full or read-only disk nothing is written, and it is fetched again next time."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, content)
