"""Names without an owner: as sentence-transformers completes them, and never a folder's or an old model's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from encoder_files import CASE
from fake_hub import FakeHub

import minibert
from minibert.hub.names import WITHOUT_OWNER, full_name

FOLDER = CASE["bert"].folder
FILES = {name: FOLDER / name for name in ("config.json", "model.safetensors")}


def test_a_short_name_is_one_of_sentence_transformers(hub: FakeHub) -> None:
    """A program that asks for the short name gets 401, as the Hub gives it for a model that is not there."""
    hub.add("sentence-transformers/tiny-L6", FILES)
    with minibert.load_encoder("tiny-L6") as encoder, minibert.load("tiny-L6") as layer:
        assert np.array_equal(layer([5, 6]), encoder.embeddings([5, 6]))
    hub.forget()
    with minibert.load_encoder("tiny-L6", local_files_only=True) as encoder:
        assert encoder([5, 6]).shape == (2, encoder.dim)


def test_old_names_and_names_with_an_owner_stay(hub: FakeHub) -> None:
    for name in ("gpt2", "BERT-base-uncased", "someone/tiny"):
        hub.add(name, FILES)
        with minibert.load_encoder(name) as encoder:
            assert encoder.dim
    assert not hub.asked("sentence-transformers")
    assert all(full_name(name) == name for name in WITHOUT_OWNER)


def test_a_folder_comes_first(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny-L6").symlink_to(FOLDER)
    monkeypatch.chdir(tmp_path)
    with minibert.load_encoder("tiny-L6") as encoder:
        assert encoder.dim and not hub.asked("")


def test_a_name_that_is_not_there_is_named_in_full(hub: FakeHub) -> None:
    message = r"sentence-transformers/mine at main: .*a folder is written \./mine\)"
    with pytest.raises(minibert.HubError, match=message):
        minibert.load_encoder("mine")
