"""Configs of tiny layers of each kind, which tests/models/conftest.py opens once for a file of tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import checkpoints
import numpy as np

from minibert import EmbeddingLayer
from minibert.equations.input_layer import Array

KINDS = ("BERT", "ROBERTA", "DISTILBERT", "GPT2", "T5", "ELECTRA", "DEBERTA")  # the last two are projected, and masked
CONFIGS: dict[str, dict[str, Any]] = {vars(checkpoints)[each]["model_type"]: vars(checkpoints)[each] for each in KINDS}

Make = Callable[[str], EmbeddingLayer]


def some_ids(*shape: int, below: int = checkpoints.VOCAB, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).integers(0, below, shape)
