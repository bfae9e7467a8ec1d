"""Tests of a layer share a folder for each kind of model, and its layer, opened once for a file of tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from layers import Make, opened_once, write_each


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_each(tmp_path_factory)


@pytest.fixture(scope="module")
def load(folders: dict[str, Path]) -> Make:
    return opened_once(folders)
