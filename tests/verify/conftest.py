"""Fixtures that several tests of verify share."""

from __future__ import annotations

from pathlib import Path

import encoders
import pytest
import vector_port


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A seeded BERT, which no test writes to; a file of tests may have a separate folder."""
    return encoders.write(tmp_path_factory.mktemp("model") / "bert", "bert")


@pytest.fixture(scope="session")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of sentences, which no test writes to."""
    return vector_port.write(tmp_path_factory.mktemp("sentences") / "model")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A seeded model of every kind, which no test writes to."""
    root = tmp_path_factory.mktemp("encoders")
    return {name: encoders.write(root / name, name) for name in encoders.CONFIGS}
