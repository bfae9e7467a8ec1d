"""What tests of texts share: a tiny BERT with a vocabulary of few words."""

from __future__ import annotations

import pytest
from checkpoints import wordpiece_json, write

import minibert
from minibert import EmbeddingLayer


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> EmbeddingLayer:
    folder = write(tmp_path_factory.mktemp("bert"))
    (folder / "tokenizer.json").write_text(wordpiece_json(), encoding="utf-8")
    return minibert.load(folder)
