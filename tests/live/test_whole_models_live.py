"""The textbook's whole models beside the reference's own classes, ids to logits; what draws a word; cross-attention."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from drawn import normal
from encoder_files import off
from textbook import bert_weights, gpt2_weights, llama_weights

from minibert.equations.gated_blocks import llama_model
from minibert.equations.input_layer import Array
from minibert.equations.rotary import rotary_frequencies
from minibert.equations.sampling import next_word_probabilities, top_k, top_p
from minibert.equations.whole_models import bert_model, gpt2_model

pytestmark = pytest.mark.reference

LOGITS = 1e-5  # relative to max(1, |reference|); measured 1.2e-6
SHARES = 1e-12  # probabilities, float64 on both sides; measured 2.2e-16
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


def test_llama() -> None:
    """Twelve texts of random ids; heads that share keys, a head_dim of its own, no eps or base at its default."""
    sizes = dict(hidden_size=12, num_attention_heads=4, num_key_value_heads=2, head_dim=6, num_hidden_layers=2)
    rope = {"rope_type": "default", "rope_theta": 500.0}
    model, tensors = seeded("LlamaForCausalLM", **sizes, intermediate_size=20, rms_norm_eps=0.1, rope_parameters=rope)
    random = np.random.default_rng(0)
    ids = random.integers(0, 31, (12, 9))
    mask = (np.arange(9) < random.integers(1, 10, (12, 1))).astype(np.int64)
    frequencies = rotary_frequencies(6, base=500.0)
    ours = llama_model(ids, mask, llama_weights(tensors), 4, 2, frequencies, eps=0.1)
    assert off(ours[mask != 0], logits(model, input_ids=ids, attention_mask=mask)[mask != 0]) <= LOGITS


@pytest.mark.parametrize(
    ("temperature", "k", "p"), [(1.0, None, None), (0.3, 5, None), (2.0, None, 0.8), (0.7, 6, 0.6)]
)
def test_probabilities_of_a_next_word(temperature: float, k: int | None, p: float | None) -> None:
    """Forty rows of 31 words through what `generate` hands its logits to, in its order."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    rows = 3 * normal(40, 31)
    theirs = transformers.TemperatureLogitsWarper(temperature)(None, torch.from_numpy(rows))
    if k is not None:
        theirs = transformers.TopKLogitsWarper(k)(None, theirs)
        assert np.array_equal(np.isfinite(top_k(rows, k)), np.isfinite(theirs.numpy()))
    if p is not None:
        before, theirs = theirs.numpy(), transformers.TopPLogitsWarper(p)(None, theirs)
        assert np.array_equal(np.isfinite(top_p(before, p)), np.isfinite(theirs.numpy()))
    ours = next_word_probabilities(rows, temperature, k, p)
    np.testing.assert_allclose(ours, theirs.softmax(-1).numpy(), rtol=0, atol=SHARES)
