"""The textbook's whole models beside the reference's own classes: ids to logits."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from encoder_files import off
from textbook import bert_weights, gpt2_weights

from minibert.equations.input_layer import Array
from minibert.equations.whole_models import bert_model, gpt2_model

pytestmark = pytest.mark.reference

LOGITS = 1e-5  # relative to max(1, |reference|); measured 1.2e-6
IDS = np.arange(24).reshape(3, 8) % 29 + 1
TYPES = (np.arange(8) >= 5) * np.ones((3, 1), np.int64)
MASK = (np.arange(8) < np.array([[8], [5], [1]])).astype(np.int64)


def seeded(name: str, **sizes: Any) -> tuple[Any, dict[str, Array]]:
    """A class of the reference with numbers large enough for attention to choose, and its tensors by name."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    torch.manual_seed(0)
    model = getattr(transformers, name)
    model = model(model.config_class(vocab_size=31, **sizes, attn_implementation="eager")).eval()
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape) / 2)
    return model, {key: value.numpy() for key, value in model.state_dict().items()}


def logits(model: Any, **inputs: Array) -> Array:
    torch = importlib.import_module("torch")
    with torch.no_grad():
        found: Array = model(**{key: torch.from_numpy(value) for key, value in inputs.items()}).logits.numpy()
    return found


def test_bert() -> None:
    sizes = dict(hidden_size=12, num_attention_heads=3, num_hidden_layers=2, intermediate_size=20)
    model, tensors = seeded("BertForMaskedLM", **sizes)
    theirs = logits(model, input_ids=IDS, token_type_ids=TYPES, attention_mask=MASK)
    ours = bert_model(IDS, TYPES, MASK, bert_weights(tensors, "bert."), heads=3)
    assert off(ours[MASK != 0], theirs[MASK != 0]) <= LOGITS


def test_gpt2() -> None:
    model, tensors = seeded("GPT2LMHeadModel", n_embd=12, n_head=3, n_layer=2)
    weights = gpt2_weights(tensors, "transformer.")
    theirs = logits(model, input_ids=IDS, attention_mask=MASK)
    assert off(gpt2_model(IDS, MASK, weights, heads=3)[MASK != 0], theirs[MASK != 0]) <= LOGITS
