"""Words for a mask beside transformers' `fill-mask`, a text written on beside its `generate`."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import word_models
from checkpoints import change_json
from tokenizer_folders import BASES, vocabulary

import minibert
from minibert.families.rows import BLOCKS

pytestmark = pytest.mark.reference

SAME = 2e-6  # probabilities; measured 2e-7
MASKED = {
    "bert": "BertTokenizer", "ernie": "BertTokenizer", "distilbert": "BertTokenizer", "electra": "BertTokenizer",
    "roberta": "RobertaTokenizer", "xlm-roberta": "XLMRobertaTokenizer", "camembert": "CamembertTokenizer",
    "mpnet": "MPNetTokenizer", "nomic_bert": "BertTokenizer", "modernbert": "PreTrainedTokenizerFast",
}  # fmt: skip
WRITES = {
    "gpt2": "GPT2Tokenizer", "llama": "LlamaTokenizer", "mistral": "LlamaTokenizer", "qwen2": "Qwen2Tokenizer",
    "qwen3": "Qwen2Tokenizer", "gemma3_text": "GemmaTokenizer",
}  # fmt: skip
TEXTS = ["We lived above the {}", "{}", "{} {} the clouds, {}.", "the dog (we{}) lived"]
SIZES = {
    "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 24, "embedding_size": 12,
    "max_position_embeddings": 40, "type_vocab_size": 2, "dim": 16, "n_heads": 4, "n_layers": 2, "hidden_dim": 24,
    "num_key_value_heads": 2, "head_dim": 4, "sliding_window": 5,
    "n_embd": 16, "n_head": 4, "n_layer": 2, "n_positions": 40,
}  # fmt: skip


def made(folder: Path, model_type: str, tokenizer: str, auto: str, **changes: Any) -> Any:
    """A model of the reference with numbers large enough for attention to choose, saved with a tokenizer."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    torch.manual_seed(0)
    usual = transformers.AutoConfig.for_model(model_type).to_dict()
    sizes = {key: value for key, value in SIZES.items() if key in usual}
    if model_type == "gemma3_text":
        sizes["layer_types"] = ["sliding_attention", "full_attention"]
    ids = {"pad_token_id": vocabulary(BASES[tokenizer]).index(p)} if (p := pad_of(tokenizer)) else {}
    every = {**sizes, **ids, "vocab_size": len(vocabulary(BASES[tokenizer])), **changes}
    model = getattr(transformers, auto).from_config(transformers.AutoConfig.for_model(model_type, **every)).eval()
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape) / 2)
    model.save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    word_models.tokenizer(folder, tokenizer, saved)
    return getattr(transformers, auto).from_pretrained(folder).eval()


def pad_of(tokenizer: str) -> str | None:
    return next((token for token in BASES[tokenizer].special if "pad" in token.lower()), None)


@pytest.mark.parametrize("model_type", MASKED)
def test_words_for_a_mask(tmp_path: Path, model_type: str) -> None:
    transformers = importlib.import_module("transformers")
    model = made(tmp_path, model_type, MASKED[model_type], "AutoModelForMaskedLM")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    pipeline = transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer)
    with minibert.load_encoder(tmp_path) as encoder:
        for text in (each.replace("{}", tokenizer.mask_token) for each in TEXTS):
            theirs = pipeline(text, top_k=6)
            theirs = theirs if isinstance(theirs[0], list) else [theirs]
            for ours, wanted in zip(encoder.fill(text, k=6), theirs, strict=True):
                for key in ("token", "token_str"):
                    assert [each[key] for each in ours] == [each[key] for each in wanted]
                scores = [[each["score"] for each in side] for side in (ours, wanted)]
                np.testing.assert_allclose(*scores, rtol=0, atol=SAME)


@pytest.mark.parametrize("model_type", WRITES)
def test_a_text_goes_on(tmp_path: Path, model_type: str) -> None:
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    model = made(tmp_path, model_type, WRITES[model_type], "AutoModelForCausalLM", eos_token_id=None)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)

    def with_text(begun: list[int], new: list[int]) -> str:
        """Decoded together; `text-generation` decodes the new tokens alone, and Llama's lose their first space then."""
        both, before = (tokenizer.decode(ids, skip_special_tokens=True) for ids in (begun + new, begun))
        return str(text + both[len(before) :])

    for text in word_models.TEXTS:
        batch = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            shares = torch.softmax(model(**batch).logits[0, -1], -1).numpy()
            written = model.generate(**batch, do_sample=False, max_new_tokens=12, pad_token_id=0)[0].tolist()
        begun = batch["input_ids"][0].tolist()
        new, order = written[len(begun) :], np.argsort(-shares)[:9]
        change_json(tmp_path / "config.json", eos_token_id=None)
        with minibert.load_encoder(tmp_path) as encoder:
            found = encoder.next_words(text, k=9)
            assert [each["token"] for each in found] == order.tolist()
            np.testing.assert_allclose([each["score"] for each in found], shares[order], rtol=0, atol=SAME)
            assert encoder.complete(text, tokens=12) == with_text(begun, new)
        ends = [3, new[3]]
        change_json(tmp_path / "config.json", eos_token_id=ends)
        until = next(i for i, token in enumerate(new) if token in ends)
        with minibert.load_encoder(tmp_path) as encoder:
            assert encoder.complete(text, tokens=12) == with_text(begun, new[:until])


@pytest.mark.parametrize("model_type", WRITES)
def test_what_ends_a_text_where_config_json_does_not_say(model_type: str) -> None:
    config = importlib.import_module("transformers").AutoConfig.for_model(model_type)
    assert BLOCKS[model_type].defaults.get("eos_token_id") == config.eos_token_id
