"""Tests of a layer share a folder for each kind of model, and its layer, opened once for a file of tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import checkpoints
import pytest
from layers import CONFIGS, Make

import minibert


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each config, with a tokenizer."""
    made = {name: checkpoints.write(tmp_path_factory.mktemp(name), config) for name, config in CONFIGS.items()}
    for name, folder in made.items():
        (checkpoints.write_byte_level if name == "gpt2" else checkpoints.write_wordpiece)(folder)
    return made


@pytest.fixture(scope="module")
def load(folders: dict[str, Path]) -> Make:
    """Layers hold nothing that a call could change."""
    return cache(lambda name: minibert.load(folders[name]))
