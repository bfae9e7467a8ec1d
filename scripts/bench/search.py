"""Measure search: the ten best of 300,000 vectors in a folder of `bulk`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from minibert.bulk.stored import StoredVectors

from .children import child
from .measure import Row, Settings, compare, in_turn, most, seconds_of
from .memory import Peak, kibibytes
from .models import folder_of, once
from .sections import written_texts

COUNT, QUICK = 300_000, 30_000
PRODUCT = "vectors @ queries.T"
LIMIT = most(250, "MiB")


def search(settings: Settings) -> Iterator[Row]:
    """Measure one question and 16 at once, beside the product alone with the same vectors in one array in memory.

    A folder stays mapped between searches. Memory is the private memory of the process (RssAnon), without the mapped
    files.
    """
    count = QUICK if settings.quick else COUNT
    texts, static = written_texts(settings.models, count, 1, 4), folder_of(settings.models, "static")
    for precision in ("float32", "int8"):
        folder = once(settings.models / f"search-{count}-{precision}", "write_vectors", texts, static, precision)
        stored = StoredVectors(folder)
        vectors = np.concatenate([np.asarray(block, np.float32) for block in stored.blocks()])
        for number in (1, 16):
            queries = questions(number, vectors.shape[1])
            calls = {"search": partial(stored.search, queries, 10), PRODUCT: partial(np.matmul, vectors, queries.T)}
            times = in_turn({name: partial(seconds_of, call) for name, call in calls.items()}, settings.rounds(7))
            what = f"{number} question{'s' * (number > 1)}, {count:,} vectors of {vectors.shape[1]} {precision} numbers"
            yield compare(what, times["search"], times[PRODUCT], PRODUCT, most(1.5) if precision == "float32" else None)
        before, peak = child("search.memory", folder, vectors.shape[1])
        what, peer = "its own memory, 16 questions", "Python, NumPy and minibert"
        yield compare(what, [peak - before], [before], peer, LIMIT, "B")


def questions(number: int, dim: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((number, dim), np.float32)


def memory(folder: str, dim: str) -> tuple[int, int]:
    """Return the private memory of a process before a search, and its peak during the search."""
    stored, queries, before = StoredVectors(Path(folder)), questions(16, int(dim)), kibibytes("status", "RssAnon")
    peak = Peak()
    stored.search(queries, 10)
    return before, peak.most
