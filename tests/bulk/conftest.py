"""Tests of many texts share a tiny model and a folder to write to."""

from __future__ import annotations

from pathlib import Path

import encoders
import pytest


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoders.write(tmp_path_factory.mktemp("model"), "bert")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all examples of a property."""
    return tmp_path_factory.mktemp("records")
