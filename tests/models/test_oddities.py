"""Oddities of published folders: each row is read as the settings of today; each small file is opened once."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reference_files import REFERENCE, opened

import minibert
from minibert.files import reading
from minibert.models.open.load_encoder import load_encoder
from minibert.models.sentences import folder as folders
from minibert.models.sentences.folder import FolderFiles
from minibert.models.sentences.oddities import ODDITIES, mended

# the oddity -> settings as they are found, and the settings of today that they mean
FOUND: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a flag for each pooling": (
        {"embedding_dimension": 8, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True,
         "pooling_mode_max_tokens": False},
        {"embedding_dimension": 8, "pooling_mode": ["cls", "mean"]},
    ),
    "the older key of a pooling's width": (
        {"word_embedding_dimension": 8, "pooling_mode": "cls"}, {"embedding_dimension": 8, "pooling_mode": "cls"},
    ),
}  # fmt: skip


def test_every_oddity_has_a_test() -> None:
    assert [oddity.name for oddity in ODDITIES] == list(FOUND)


@pytest.mark.parametrize("oddity", ODDITIES, ids=lambda oddity: oddity.name)
def test_an_oddity_is_read_as_the_settings_of_today(oddity: Any, tmp_path: Path) -> None:
    """And settings of today stay as they are."""
    for i, settings in enumerate(FOUND[oddity.name]):
        (tmp_path / f"{i}.json").write_text(json.dumps(settings), encoding="utf-8")
        files = FolderFiles(lambda name: tmp_path / name, "here")
        assert mended(oddity.of, files, f"{i}.json") == FOUND[oddity.name][1]


def test_older_words_give_the_vectors_of_todays(tmp_path: Path) -> None:
    """A whole folder: pooling by flags, its width by its older name."""
    made = shutil.copytree(REFERENCE / "sentences-cls", tmp_path / "older")
    (pooling,) = made.glob("*Pooling/config.json")
    older = {"word_embedding_dimension": 8, "pooling_mode_cls_token": True}
    pooling.write_text(json.dumps(older), encoding="utf-8")
    found = minibert.load_encoder(made)
    assert np.array_equal(found.encode("we lived"), opened("sentences-cls").encode("we lived"))


@pytest.mark.parametrize(
    ("name", "inside"),
    [("sentences-cls", "1_Pooling"), ("sentences-dense", "2_Dense"), ("sentences-modules", "2_LayerNorm"),
     ("late-kept", "2_Dense"), ("static-dense", "1_Dense")],
)  # fmt: skip
def test_a_module_without_its_config_is_named(name: str, inside: str, tmp_path: Path) -> None:
    made = shutil.copytree(REFERENCE / name, tmp_path / "made")
    (made / inside / "config.json").unlink()
    with pytest.raises(minibert.CheckpointError, match=f"{inside}: the {inside[2:]} has no config.json, .* fetch the"):
        minibert.load_encoder(made)


FOLDERS = "sentences-dense sentences-bare late-pylate late-stanford uses-sparse-router uses-reranker static-dense"


@pytest.mark.parametrize("name", FOLDERS.split())
def test_each_small_file_is_opened_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a load; the tokenizer's are opened when a text comes, but of a static model, whose length one says."""
    seen: Counter[str] = Counter()

    def noted(path: Any, *options: Any, **more: Any) -> Any:
        seen[str(path)] += str(path).endswith((".json", ".metadata"))
        return open(path, *options, **more)

    for module in (reading, folders):
        monkeypatch.setattr(module, "open", noted, raising=False)
    load_encoder(REFERENCE / name).close()
    assert sum(seen.values()) > 1 and max(seen.values()) == 1, seen
