"""Tests of files share a tiny BERT with a vocabulary of few words, and the output of its simplest file."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoints import Array, result, write, write_wordpiece

import minibert
from minibert import EmbeddingLayer


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> EmbeddingLayer:
    folder = write_wordpiece(write(tmp_path_factory.mktemp("bert")))
    return minibert.load(folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Array:
    return result(write(tmp_path_factory.mktemp("plain")))


@pytest.fixture(scope="module")
def real(minilm: Path) -> EmbeddingLayer:
    return minibert.load(minilm)
