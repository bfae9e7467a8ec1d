"""What tests of the commands share: no model named by the environment, and a BERT of twelve words."""

from __future__ import annotations

from pathlib import Path

import checkpoints
import pytest
from command_line import DIM, LONGEST, VOCAB, WORDS
from seeded import values


@pytest.fixture(autouse=True)
def no_model_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MINIBERT_MODEL", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A BERT of twelve words, eight numbers each, with its vocabulary."""
    config = {"model_type": "bert", "vocab_size": VOCAB, "hidden_size": DIM, "max_position_embeddings": LONGEST}
    shapes = {
        "word_embeddings.weight": (VOCAB, DIM),
        "position_embeddings.weight": (LONGEST, DIM),
        "token_type_embeddings.weight": (2, DIM),
        "LayerNorm.weight": (DIM,),
        "LayerNorm.bias": (DIM,),
    }
    tensors = {f"embeddings.{name}": values(shape, salt) for salt, (name, shape) in enumerate(shapes.items())}
    return checkpoints.write_vocab(checkpoints.write(tmp_path / "tiny", config, tensors), WORDS)
