"""LoRA adapters beside PEFT: saved by it, and merged here as the weights are bound."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest

import minibert

pytestmark = pytest.mark.reference

# largest difference, as a share of the largest number: PEFT adds the product to a map's result; measured: 1.3e-6
EXACT = 1e-5
TARGETS = {
    "bert": ["query", "value", "intermediate.dense"],
    "gpt2": ["c_attn", "c_proj"],  # whose weights are stored transposed
    "modernbert": ["Wqkv", "Wo"],
    "qwen3": ["q_proj", "k_proj", "down_proj"],
}
IDS = np.array([[5, 6, 7, 8, 9], [9, 3, 4, 10, 11]])


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("name", TARGETS)
def test_hidden_states_are_those_of_peft(tmp_path: Path, name: str, rslora: bool) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel

    base = encoders.write(tmp_path / "base", name)
    torch.manual_seed(0)
    settings: dict[str, Any] = dict(fan_in_fan_out=True) if name == "gpt2" else {}
    config = LoraConfig(r=3, lora_alpha=7, target_modules=TARGETS[name], use_rslora=rslora, **settings)
    model = get_peft_model(AutoModel.from_pretrained(base, dtype=torch.float32), config).eval()
    for key, parameter in model.named_parameters():
        if "lora_" in key:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path / "alone")
    with torch.no_grad():
        want = model(torch.from_numpy(IDS)).last_hidden_state.numpy()
    both = shutil.copytree(base, tmp_path / "both")
    shutil.copytree(tmp_path / "alone", both, dirs_exist_ok=True)
    plain = minibert.load_encoder(base)(IDS)
    for folder in (both, tmp_path / "alone"):
        found = minibert.load_encoder(folder)(IDS)
        assert np.abs(found - want).max() <= EXACT * np.abs(want).max()
        assert np.abs(found - plain).max() > 100 * EXACT * np.abs(want).max(), "the adapter changes something"
    narrow = minibert.load_encoder(both, low_memory=True)(IDS)
    assert np.abs(narrow - want).max() <= EXACT * np.abs(want).max()
