"""Tiny layers of each kind, opened once for a file of tests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import checkpoints
import numpy as np
import pytest

import minibert
from minibert import EmbeddingLayer
from minibert.equations.input_layer import Array
from minibert.models.run import packing

KINDS = ("BERT", "ROBERTA", "DISTILBERT", "GPT2", "T5", "ELECTRA", "DEBERTA")  # the last two are projected, and masked
CONFIGS: dict[str, dict[str, Any]] = {vars(checkpoints)[each]["model_type"]: vars(checkpoints)[each] for each in KINDS}

Make = Callable[[str], EmbeddingLayer]


def write_each(factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each config, with a tokenizer."""
    made = {}
    for name, config in CONFIGS.items():
        made[name] = checkpoints.write(factory.mktemp(name), config)
        if name == "gpt2":
            checkpoints.write_byte_level(made[name])
        else:
            checkpoints.write_wordpiece(made[name])
    return made


def opened_once(folders: dict[str, Path]) -> Make:
    """One layer for each config; they hold nothing that a call could change."""
    made: dict[str, EmbeddingLayer] = {}
    return lambda name: made.setdefault(name, minibert.load(folders[name]))


@contextlib.contextmanager
def tile_of(numbers: int) -> Iterator[None]:
    """Make tiles as small as a few tokens, so that a tiny batch is cut as a large one is."""
    with mock.patch.object(packing, "TILE_NUMBERS", numbers):
        yield


def some_ids(*shape: int, below: int = checkpoints.VOCAB, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).integers(0, below, shape)
