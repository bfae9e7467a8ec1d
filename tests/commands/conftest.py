"""Tests of the commands share an environment that names no model, and a BERT of twelve words."""

from __future__ import annotations

from pathlib import Path

import checkpoints
import pytest
from command_line import DIM, LONGEST, VOCAB, WORDS


@pytest.fixture(autouse=True)
def no_model_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINIBERT_MODEL", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A BERT of twelve words, DIM numbers each, for LONGEST tokens, with its vocabulary."""
    config = {**checkpoints.BERT, "vocab_size": VOCAB}
    assert (config["hidden_size"], config["max_position_embeddings"]) == (DIM, LONGEST)
    return checkpoints.write_vocab(checkpoints.write(tmp_path / "tiny", config), WORDS)
