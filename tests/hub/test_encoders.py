"""Whole models by name: their weights go through the Hub's own cache, so that one copy serves everybody."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from checkpoints import write_shards
from encoder_files import CASE
from fake_hub import FakeHub
from safetensors.numpy import load_file

import minibert

NAME = "someone/tiny"
IDS = np.array([[3, 4, 5, 6]])
FOLDER = CASE["bert"].folder


@pytest.fixture
def want() -> np.ndarray:
    with CASE["bert"].load() as encoder:
        return encoder(IDS)


def test_weights_are_fetched_once_and_found_offline(tmp_path: Path, hub: FakeHub, want: np.ndarray) -> None:
    files = {name: FOLDER / name for name in ("config.json", "model.safetensors")}
    hub.add(NAME, files)
    with minibert.load_encoder(NAME) as encoder:
        np.testing.assert_array_equal(encoder(IDS), want)
    in_cache = list((tmp_path / "home").rglob("model.safetensors"))
    assert len(in_cache) == 1 and in_cache[0].read_bytes() == files["model.safetensors"].read_bytes()
    hub.forget()
    with minibert.load_encoder(NAME) as encoder, minibert.load(NAME) as layer:
        np.testing.assert_array_equal(encoder(IDS), want)
        np.testing.assert_array_equal(layer(IDS), encoder.embeddings(IDS))
    assert not hub.asked(r"model\.safetensors")
    hub.forget()
    with minibert.load_encoder(NAME, local_files_only=True) as encoder:
        np.testing.assert_array_equal(encoder(IDS), want)
    assert not hub.asked("")


def test_shards(tmp_path: Path, hub: FakeHub, want: np.ndarray) -> None:
    tensors = load_file(FOLDER / "model.safetensors")
    parts = [{name: tensors[name] for name in sorted(tensors)[start::2]} for start in (0, 1)]
    config = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    folder = write_shards(tmp_path / "shards", config, parts)
    hub.add(NAME, {path.name: path for path in folder.iterdir()})
    for name in (NAME, folder):
        with minibert.load_encoder(name) as encoder:
            np.testing.assert_array_equal(encoder(IDS), want)
