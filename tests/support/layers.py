"""Tiny layers of each kind, opened once for a file of tests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from checkpoints import (
    BERT,
    DEBERTA,
    DISTILBERT,
    ELECTRA,
    GPT2,
    ROBERTA,
    T5,
    VOCAB,
    write,
    write_byte_level,
    write_wordpiece,
)  # fmt: skip

import minibert
from minibert import EmbeddingLayer
from minibert.equations.input_layer import Array
from minibert.models.run import packing

CONFIGS = {"bert": BERT, "roberta": ROBERTA, "distilbert": DISTILBERT, "gpt2": GPT2, "t5": T5} | {
    "electra": ELECTRA,  # projected
    "deberta-v2": DEBERTA,  # masked
}

Make = Callable[[str], EmbeddingLayer]


def write_each(factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each config, with a tokenizer."""
    made = {}
    for name, config in CONFIGS.items():
        made[name] = write(factory.mktemp(name), config)
        if name == "gpt2":
            write_byte_level(made[name])
        else:
            write_wordpiece(made[name])
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


def some_ids(*shape: int, below: int = VOCAB, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).integers(0, below, shape)
