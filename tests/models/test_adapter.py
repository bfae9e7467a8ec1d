"""LoRA adapters in a folder: merged as the formula says, or refused by the setting that is not computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from checkpoints import change_json, numbers, same_bits
from safetensors.numpy import load_file, save_file

import minibert
from minibert import CheckpointError
from minibert.equations.input_layer import Array

IDS = np.array([[5, 6, 7, 8], [9, 3, 4, 10]])
CLOSE = 5e-6  # of hidden states up to 3, one order of additions beside another; measured: 1.1e-6
PLAIN = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "bias": "none", "megatron_core": "megatron.core"}
QUERY = "encoder.layer.0.attention.self.query"
BEGIN = "base_model.model."


def adapter(folder: Path, tensors: dict[str, Array] | None = None, **settings: Any) -> Path:
    """Write an adapter of the queries of block 0."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(PLAIN | settings), "utf-8")
    a, b = numbers(2, encoders.DIM, seed=1), numbers(encoders.DIM, 2, seed=2)
    usual = {f"{BEGIN}{QUERY}.lora_A.weight": a, f"{BEGIN}{QUERY}.lora_B.weight": b}
    save_file(usual if tensors is None else tensors, folder / "adapter_model.safetensors")
    return folder


def by_hand(folder: Path, name: str, scale: float, turned: bool = False) -> Array:
    """Hidden states where the sum over the rank is written into the file, number by number."""
    stored = load_file(folder / "model.safetensors")
    a, b = numbers(2, encoders.DIM, seed=1), numbers(encoders.DIM, 2, seed=2)
    weight = stored[name].astype(np.float64)
    for out in range(encoders.DIM):
        for into in range(encoders.DIM):
            change = scale * sum(float(b[out, i]) * float(a[i, into]) for i in range(2))
            weight[(into, out) if turned else (out, into)] += change
    save_file(stored | {name: weight.astype(np.float32)}, folder / "model.safetensors")
    return minibert.load_encoder(folder)(IDS)


@pytest.mark.parametrize(("rslora", "scale"), [(False, 6 / 2), (True, 6 / 2**0.5)])
def test_the_product_is_added_to_the_weight(tmp_path: Path, rslora: bool, scale: float) -> None:
    folder = adapter(encoders.write(tmp_path / "model", "bert"), use_rslora=rslora)
    want = by_hand(encoders.write(tmp_path / "merged", "bert"), f"{QUERY}.weight", scale)
    plain = minibert.load_encoder(encoders.write(tmp_path / "plain", "bert"))(IDS)
    for options in ({}, {"low_memory": True}, {"mmap": False}):
        found = minibert.load_encoder(folder, **options)(IDS)  # type: ignore[arg-type]
        assert np.abs(found - want).max() <= CLOSE < 1e-3 < np.abs(found - plain).max()
    assert same_bits(minibert.load(folder)(IDS), minibert.load(tmp_path / "plain")(IDS))
    change_json(tmp_path / "model" / "adapter_config.json", r=3)
    with pytest.raises(CheckpointError, match=r"A is \(2, 16\) and B \(16, 2\), with r 3; is this the base"):
        minibert.load_encoder(folder)


def test_a_weight_that_is_stored_transposed(tmp_path: Path) -> None:
    name = "h.0.attn.c_proj"
    a, b = numbers(2, encoders.DIM, seed=1), numbers(encoders.DIM, 2, seed=2)
    named = {f"{BEGIN}transformer.{name}.lora_A.weight": a, f"{BEGIN}transformer.{name}.lora_B.weight": b}
    folder = adapter(encoders.write(tmp_path / "model", "gpt2"), named, fan_in_fan_out=True)
    want = by_hand(encoders.write(tmp_path / "merged", "gpt2"), f"{name}.weight", 3.0, turned=True)
    assert np.abs(minibert.load_encoder(folder)(IDS) - want).max() <= CLOSE


def test_an_adapter_alone_opens_its_base(tmp_path: Path) -> None:
    base = encoders.write(tmp_path / "base", "bert")
    alone = adapter(tmp_path / "alone", base_model_name_or_path=str(base))
    both = adapter(encoders.write(tmp_path / "both", "bert"))
    with minibert.load_encoder(alone) as encoder:
        assert same_bits(encoder(IDS), minibert.load_encoder(both)(IDS))
    (base / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"is an adapter alone, and its base .* does not open: .*config"):
        minibert.load_encoder(alone)
    with pytest.raises(CheckpointError, match="names no base: 'base_model_name_or_path' is None"):
        minibert.load_encoder(adapter(tmp_path / "none"))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"peft_type": "IA3"}, "'peft_type' is 'IA3', and LORA alone is computed here; merge it"),
        ({"use_dora": True}, "'use_dora' is True, which is not computed here; merge it"),
        ({"bias": "all"}, "'bias' is 'all', which is not computed"),
        ({"modules_to_save": ["pooler"]}, "'modules_to_save' is .'pooler'., which"),
        ({"rank_pattern": {"query": 4}}, "'rank_pattern' is "),
        ({"alpha_pattern": {"query": 4}}, "'alpha_pattern' is "),
        ({"init_lora_weights": "pissa"}, "'init_lora_weights' is 'pissa'"),
        ({"layer_replication": [[0, 2]]}, "'layer_replication' is"),
        ({"something_new": 1}, "'something_new' is 1, which is not computed here"),
        ({"r": 0}, "'r' must be an integer >= 1 and 'lora_alpha' a number, found 0, 6"),
        ({"lora_alpha": True}, "found 2, True"),
    ],
)
def test_other_adapters_are_refused_by_name(tmp_path: Path, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(CheckpointError, match=f"adapter_config.json: .*{says}"):
        minibert.load_encoder(adapter(encoders.write(tmp_path, "bert"), **settings))


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ((f"{QUERY}.lora_embedding_A", f"{QUERY}.lora_embedding_B"), "which is no matrix of a linear map; merge it"),
        ((f"{QUERY}.lora_A.weight", f"{QUERY}.lora_magnitude_vector"), "which is no matrix of a linear map"),
        ((f"{QUERY}.lora_A.weight", "encoder.layer.1.attention.self.query.lora_B.weight"), "one of two matrices for"),
        (("encoder.layer.7.query.lora_A.weight", "encoder.layer.7.query.lora_B.weight"), "has no such weight; is this"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, names: tuple[str, str], says: str) -> None:
    a, b = numbers(2, encoders.DIM, seed=1), numbers(encoders.DIM, 2, seed=2)
    named = {BEGIN + name: x for name, x in zip(names, (a, b), strict=True)}
    with pytest.raises(CheckpointError, match=says):
        minibert.load_encoder(adapter(encoders.write(tmp_path, "bert"), named))


def test_an_adapter_without_its_tensors_says_so(tmp_path: Path) -> None:
    (adapter(encoders.write(tmp_path, "bert")) / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has adapter_config.json, but no adapter_model.safetensors; merge it"):
        minibert.load_encoder(tmp_path)
