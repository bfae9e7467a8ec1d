"""Folders of vectors as runs leave them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minibert.bulk.manifest import Shard
from minibert.bulk.shards import ShardFolder

SETTINGS = {"model": "m", "vectors": "input", "prompt": None, "input": [{"name": "a", "bytes": 3}]}
FORMS = ("parquet", "npy")
BAD = [{"file": "ä.csv", "row": 2, "problem": "none"}]


def add(folder: ShardFolder, number: int, rows: int = 3, bad: list[dict[str, Any]] | None = None) -> None:
    ids = list(range(10 * number, 10 * number + rows))
    vectors = np.full((rows, 4), number, np.float32)
    folder.add(ids, [vectors[:1], vectors[1:]], rows + len(bad or ()), number, f"sha{number}", bad or [])


def begin(path: Path, count: int = 2, form: str = "parquet", settings: Mapping[str, Any] = SETTINGS) -> ShardFolder:
    """A folder of some shards, the last one with a bad row, as a killed run leaves it."""
    folder = ShardFolder(path, form)
    with folder.opened(settings):
        for number in range(count):
            add(folder, number, bad=BAD if number == count - 1 else None)
    return folder


def opened(path: Path, form: str = "parquet", settings: Mapping[str, Any] = SETTINGS) -> list[Shard]:
    folder = ShardFolder(path, form)
    with folder.opened(settings):
        return folder.shards


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != ".lock"}


def refused(path: Path, error: str, kind: type[Exception] = ValueError, **options: Any) -> None:
    """Opening it is an error, and changes nothing."""
    before = files(path) if path.is_dir() else {}
    with pytest.raises(kind, match=error):
        opened(path, **options)
    assert before == (files(path) if path.is_dir() else {})
