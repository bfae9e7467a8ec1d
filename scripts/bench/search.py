"""The section search: a million made-up vectors in a folder as `bulk` writes it, beside a bare matrix product.

The product is `vectors @ queries.T` over the same million in one array in memory, with nothing sorted. A folder stays
mapped between searches; the first search of a process maps it, which takes as long as comparing, and does not count.
Memory is what belongs to the searching process alone (RssAnon), so the mapped files do not count.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from minibert.bulk.shards import ShardFolder
from minibert.bulk.stored import StoredVectors
from minibert.equations.quantization import STEPS, quantized, ranges_of
from minibert.equations.sentences import normalized

from .child import Peak, kibibytes
from .measure import MIB, Limit, Row, Settings, compare, environment, interleaved

ROWS, DIM, SHARD = 1_000_000, 384, 16_384
QUESTIONS = (1, 16)
TIMES, OWN = Limit("<=", 1.5), Limit("<=", 250, "MiB")
MEASURED = (("npy", "float32"), ("npy", "float16"), ("npy", "int8"), ("npy", "ubinary"), ("parquet", "float32"))


def search(settings: Settings) -> list[Row]:
    """Ten best rows of a million, for one question and for 16 at once."""
    count = ROWS // 10 if settings.quick else ROWS
    rows: list[Row] = []
    vectors = made(count)
    for form, precision in MEASURED:
        folder = settings.models / f"search-{count}-{form}-{precision}"
        if not folder.exists():
            write(folder, vectors, form, precision)
        rows += _times(settings, vectors, StoredVectors(folder), f"{form}, {precision}")
        rows.append(_memory(folder, f"{form}, {precision}"))
    return rows


def made(count: int) -> Any:
    generator = np.random.default_rng(0)
    vectors = np.empty((count, DIM), np.float32)
    for start in range(0, count, SHARD):
        some = vectors[start : start + SHARD]
        some[:] = normalized(generator.standard_normal(some.shape, np.float32))
    return vectors


def write(folder: Path, vectors: Any, form: str, precision: str) -> None:
    """Write a folder as a run of `bulk` leaves it."""
    ranges = ranges_of(vectors[:SHARD]) if precision in STEPS else None
    source = {"paths": [None], "format": None, "model": "made up"}
    settings = {
        "model": "made up", "commit": None, "vectors": "sentence", "sha256": {}, "text_column": "text",
        "id_column": None, "dim": DIM, "precision": precision, "similarity": "cosine", "normalized": True,
        "format": form, "input": [{"name": "-", "bytes": None}],
    }  # fmt: skip
    shards = ShardFolder(folder, form)
    with shards.opened(settings, source):
        if ranges is not None:
            shards.keep_ranges(ranges)
        for start in range(0, len(vectors), SHARD):
            some = quantized(vectors[start : start + SHARD], precision, ranges)
            shards.add(range(start, start + len(some)), [some], len(some), 0, "", [])
        shards.finish()


def _times(settings: Settings, vectors: Any, stored: StoredVectors, what: str) -> list[Row]:
    rows = []
    plain = what == "npy, float32"  # the one with a limit; of the others a look is enough
    for number in QUESTIONS if plain else QUESTIONS[-1:]:
        queries = normalized(np.random.default_rng(1).standard_normal((number, DIM)).astype(np.float32))
        calls = {"search": lambda: stored.search(queries, 10), "product": lambda: vectors @ queries.T}  # noqa: B023
        times = interleaved(calls, settings.rounds(7 if plain else 3))
        asked = f"{number} question{'s' * (number > 1)}, {len(vectors):,} vectors, {what}"
        limit = TIMES if plain else None
        rows.append(compare(asked, times["search"], times["product"], "vectors @ queries.T", limit=limit))
    return rows


def _memory(folder: Path, what: str) -> Row:
    command = [sys.executable, "-m", "bench.search", str(folder)]
    done = subprocess.run(command, env=environment(), check=True, capture_output=True, text=True)
    before, most = json.loads(done.stdout)
    own = most - before
    return Row(
        f"its own memory, 16 questions, {what}", f"{own / MIB:.1f} MiB", limit=str(OWN), met=OWN.met(own / MIB),
        note=f"and {before / MIB:.1f} MiB of Python, NumPy and minibert", figures=(own, before),
    )  # fmt: skip


def _child(folder: str) -> None:
    """In a process of its own: what belongs to it before, and at most while it searches."""
    stored = StoredVectors(folder)
    queries = normalized(np.random.default_rng(1).standard_normal((16, DIM)).astype(np.float32))
    before = kibibytes("status", "RssAnon")
    peak = Peak()
    numbers, _ = stored.search(queries, 10)
    stored.ids(numbers.ravel().tolist())
    print(json.dumps([before, peak.most]))


if __name__ == "__main__":
    _child(sys.argv[1])
