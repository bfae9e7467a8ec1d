"""Configs of tiny layers of each kind, which tests/models/conftest.py opens once for a file of tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import checkpoints

from minibert import EmbeddingLayer

KINDS = ("BERT", "ROBERTA", "DISTILBERT", "GPT2", "T5", "ELECTRA", "DEBERTA")  # the last two are projected, and masked
CONFIGS: dict[str, dict[str, Any]] = {vars(checkpoints)[each]["model_type"]: vars(checkpoints)[each] for each in KINDS}

Make = Callable[[str], EmbeddingLayer]
