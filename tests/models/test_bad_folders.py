"""Folders and config.json that are not a model: each is refused by its file, key and value."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import BERT, ROBERTA, same_bits, tensors, write

import minibert
from minibert import CheckpointError, UnknownFamilyError
from minibert.families.rows import FAMILIES

GOOD = np.array([[5, 6, 7], [8, 9, 10]])


# -- folders and config.json ---------------------------------------------------------------------------------------


def test_without_a_name_it_is_what_minibert_model_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for nothing in (None, ""):
        monkeypatch.delenv("MINIBERT_MODEL", raising=False)
        if nothing is not None:
            monkeypatch.setenv("MINIBERT_MODEL", nothing)
        for load in (minibert.load, minibert.load_encoder):
            with pytest.raises(ValueError, match=r"no model is named: pass a folder or a Hub.*, or set MINIBERT_MODEL"):
                load()
    monkeypatch.setenv("MINIBERT_MODEL", str(tmp_path / "absent"))
    for load in (minibert.load, minibert.load_encoder):
        with pytest.raises(CheckpointError, match="absent: no such folder"):
            load()
    monkeypatch.setenv("MINIBERT_MODEL", str(write(tmp_path / "model")))
    assert minibert.load().config.model_type == "bert"


def test_a_folder_by_every_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "model")
    expected = minibert.load(folder)(GOOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (str(folder), f"{folder}/", "./model", "model", Path("model"), "model/", "~/model", Path("~/model")):
        assert same_bits(minibert.load(name)(GOOD), expected)
    os.symlink(folder, tmp_path / "link")  # noqa: PTH211
    assert same_bits(minibert.load(tmp_path / "link")(GOOD), expected)


SCALE = "config.json: 'layer_norm_eps' must be a number >= 0, found"
REFUSED: list[tuple[Any, str]] = [
    (b"", "config.json: not readable as JSON"),
    (b"\xff\xfe{\x00}\x00", "config.json: not readable as JSON"),
    (b"[]", "expected an object, found list"),
    (b"[" * 100_000, "config.json: not readable as JSON"),
    (b'{"model_type": "bert", "n": ' + b"1" * 5000 + b"}", "config.json"),
    (b'{"model_type": "bert", "n": ' + b"[" * 700 + b"]" * 700 + b"}", "config.json"),
    (b"{}", "config.json has no model_type; add the one it was saved from: albert"),
    (b'{"model_type": ["bert"]}', "config.json has no model_type"),
    (b'{"model_type": "bert"}', "config.json: 'vocab_size' must be an integer >= 0, found None"),
    *((BERT | {"model_type": odd}, "is not known") for odd in ("", " ", "\ud800", "x" * 10_000, "__class__", "bert\n")),
    *((BERT | {"layer_norm_eps": odd}, SCALE) for odd in ("1e-12", -1e-12, 10**400, float("nan"), float("inf"))),
    (ROBERTA | {"pad_token_id": 17}, "'max_position_embeddings' must be larger than 'pad_token_id' + 1"),
    *((ROBERTA | {"pad_token_id": odd}, "'pad_token_id' must be an integer >= 0, found") for odd in (None, -1)),
    ({"model_type": "clip", "text_config": 3}, "config.json: 'text_config' must be an object, found"),
]


@pytest.mark.parametrize(("config", "says"), REFUSED, ids=lambda value: repr(value)[:40])
def test_bad_config(tmp_path: Path, config: Any, says: str) -> None:
    content = config if isinstance(config, bytes) else json.dumps(config).encode()
    whole = ROBERTA if b'"roberta"' in content else BERT
    (write(tmp_path, whole, tensors(whole)) / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError if "known" not in says else UnknownFamilyError) as caught:
        minibert.load(tmp_path)
    assert says in str(caught.value)
    str(caught.value).encode("utf-8")  # can be printed anywhere


@pytest.mark.parametrize(("model_type", "near"), [("barts", "bart"), ("Bert", "bert"), ("gpt3", "gpt2")])
def test_unknown_model_type(tmp_path: Path, model_type: str, near: str) -> None:
    folder = write(tmp_path, {**BERT, "model_type": model_type}, tensors(BERT))
    with pytest.raises(UnknownFamilyError) as caught:
        minibert.load(folder)
    message = str(caught.value)
    assert f"model_type {model_type!r} is not known (did you mean {near}?); known are " in message
    assert all(known in message for known in FAMILIES)
    assert "load(..., family=Family(...))" in message
    known = minibert.load(write(tmp_path / "known"))
    assert same_bits(minibert.load(folder, family=FAMILIES["bert"])(GOOD), known(GOOD))


def test_a_byte_order_mark_is_read_over(tmp_path: Path) -> None:
    """An editor has put it there; the file means the same."""
    folder = write(tmp_path)
    expected = minibert.load(folder)(GOOD)
    for path in folder.glob("*.json"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert same_bits(minibert.load(folder)(GOOD), expected)
