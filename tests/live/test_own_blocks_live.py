"""The rows of blocks that tests make for themselves, beside the reference's own classes: the form carries both."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from encoder_files import at_kept_tokens, off
from own_blocks import CONFIGS, ROWS

import minibert

pytestmark = [
    pytest.mark.reference,
    pytest.mark.filterwarnings("default:::torch"),
    pytest.mark.filterwarnings("default:::transformers"),
]

ROWS_OFF, SHARES = 2e-5, 2e-6  # relative to max(1, |reference|); measured 1.9e-6 and 3.6e-7


@pytest.mark.parametrize(("model_type", "name"), [("qwen3", "Qwen3Model"), ("gemma3_text", "Gemma3TextModel")])
def test_a_block_of_today(model_type: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    monkeypatch.setattr("minibert.models.load_encoder.BLOCKS", ROWS)
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(model_type, **CONFIGS[model_type], pad_token_id=0)
    made = getattr(transformers, name)(config)
    for parameter in made.parameters():  # numbers large enough for attention to choose
        parameter.data.copy_(torch.randn(parameter.shape) / 2 + (parameter.ndim == 1 and model_type == "qwen3"))
    made.save_pretrained(tmp_path)
    model = getattr(transformers, name).from_pretrained(tmp_path, attn_implementation="eager").eval()
    ids, mask = np.arange(27).reshape(3, 9) + 1, np.ones((3, 9), np.int64)
    mask[1, 5:] = 0
    with torch.no_grad():
        given = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
        result = model(**given, output_hidden_states=True, output_attentions=True)
    with minibert.load_encoder(tmp_path) as encoder:
        trace = encoder.trace(ids, attention_mask=mask)
    keep = mask != 0
    for i, theirs in enumerate(result.hidden_states):
        assert off(trace[f"hidden_states.{i}"][keep], theirs.numpy()[keep]) <= ROWS_OFF, i
    for i, theirs in enumerate(result.attentions):
        ours, reference = (at_kept_tokens("attentions", x, keep) for x in (trace[f"attentions.{i}"], theirs.numpy()))
        assert off(ours, reference) <= SHARES, i
