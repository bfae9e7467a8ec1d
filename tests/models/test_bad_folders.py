"""Folders and config.json that are not a model: each is refused by its file, key and value."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import BERT, GPT2, ROBERTA, T5, same_bits, tensors, write

import minibert
from minibert import CheckpointError, UnknownFamilyError
from minibert.families.rows import FAMILIES

GOOD = np.array([[5, 6, 7], [8, 9, 10]])


# -- folders and config.json ---------------------------------------------------------------------------------------


def test_folder_absent(tmp_path: Path) -> None:
    says = r"no such folder; expected a folder with config.json and model.safetensors"
    for name in (tmp_path / "none", str(tmp_path / "none"), "./none/such", "~/none/such/folder", "~nobody/x", "a/b/c",
                 tmp_path / ("x" * 5000), "./" + "x" * 5000, "./nul\0byte", "./\ud800"):  # fmt: skip
        with pytest.raises(CheckpointError, match=says):
            minibert.load(name)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    folder = write(tmp_path)
    for name in ("model.safetensors", "config.json"):
        with pytest.raises(CheckpointError, match=f"{name}: a file, not a folder; expected a folder with"):
            minibert.load(folder / name)


def test_a_name_of_no_text() -> None:
    with pytest.raises(ValueError, match="the model's name is empty; give a folder or a Hub name"):
        minibert.load("")
    for name in (3, b"bert", ["bert"], GOOD):
        with pytest.raises(TypeError, match=r"str"):
            minibert.load(name)  # type: ignore[arg-type]


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


def test_folder_without_config(tmp_path: Path) -> None:
    (write(tmp_path) / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no config.json, which says what the tensors mean; fetch it beside"):
        minibert.load(tmp_path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match=r"config.json is a folder, where a file of this name is read"):
        minibert.load(tmp_path)


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


@pytest.mark.parametrize("dtype", ["float16", "int32", "", "f", None, 3, np.int64, "nonsense"])
def test_bad_dtype(tmp_path: Path, dtype: Any) -> None:
    said = r"dtype must be 'float32' or 'float64', found .*; narrow files are converted"
    for load in (minibert.load, minibert.load_encoder):
        with pytest.raises(ValueError, match=said):
            load(write(tmp_path), dtype=dtype)


def test_bad_side_and_family(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="side must be 'encoder' for bert, found 'decoder'"):
        minibert.load(write(tmp_path / "bert"), side="decoder")
    with pytest.raises(ValueError, match="side must be 'encoder' or 'decoder' for t5, found 'left'"):
        minibert.load(write(tmp_path / "t5", T5), side="left")
    with pytest.raises(TypeError, match=r"family must be a minibert.Family, found str 'bert'; "):
        minibert.load(write(tmp_path / "again"), family="bert")  # type: ignore[arg-type]


def test_a_family_of_another_kind_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'n_embd'|'hidden_size'|no tensor for 'wte.weight'"):
        minibert.load(write(tmp_path), family=FAMILIES["gpt2"])
    # without this check a config that only claims to be DistilBERT would lose its segments in silence
    with pytest.raises(CheckpointError, match=r"does not use: embeddings.token_type_embeddings.weight"):
        minibert.load(write(tmp_path, {**BERT, "model_type": "distilbert", "dim": 8}, tensors(BERT)))


def test_a_folder_has_no_revision(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"revision is for a name on the Hub; .* is a folder"):
        minibert.load(write(tmp_path), revision="main")


def test_a_tensor_of_another_shape_says_why(tmp_path: Path) -> None:
    """MLX packs weights into integers, nanoGPT stores maps of a GPT-2 transposed; all else is of another model."""
    packed = ("U32", (16, 1), bytes(64))
    turned = {"wte.weight": tensors(GPT2)["wte.weight"].T.copy()}
    for changes, stored, why in (
        ({"quantization": {"group_size": 32, "bits": 4}}, {"embeddings.word_embeddings.weight": packed},
         "config.json has 'quantization': the weights are packed integers"),
        ({"quantization_config": {"bits": 4}}, {"embeddings.word_embeddings.weight": packed}, "'quantization_config'"),
        ({"hidden_size": 4}, {}, "config and tensors are of different models"),
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match=why):
            minibert.load(write(tmp_path, {**BERT, **changes}, {**tensors(BERT), **stored}))
    with pytest.raises(CheckpointError, match=r"the tensor is transposed, as nanoGPT .*; store tensor\.T"):
        minibert.load(write(tmp_path, GPT2, {**tensors(GPT2), **turned}))


def test_a_byte_order_mark_is_read_over(tmp_path: Path) -> None:
    """An editor has put it there; the file means the same."""
    folder = write(tmp_path)
    expected = minibert.load(folder)(GOOD)
    for path in folder.glob("*.json"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert same_bits(minibert.load(folder)(GOOD), expected)
