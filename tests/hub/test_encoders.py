"""Whole models by name: their weights go through the Hub's own cache, so that one copy serves everybody."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from encoder_files import CASE
from fake_hub import FakeHub
from safetensors.numpy import load_file, save_file

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
    folder = tmp_path / "shards"
    folder.mkdir()
    shutil.copy(FOLDER / "config.json", folder)
    tensors = load_file(FOLDER / "model.safetensors")
    names = sorted(tensors)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    index = {"weight_map": {name: file for file, part in parts.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    hub.add(NAME, {path.name: path for path in folder.iterdir()})
    for name in (NAME, folder):
        with minibert.load_encoder(name) as encoder:
            np.testing.assert_array_equal(encoder(IDS), want)
