"""A text written on beside transformers' `generate`: what generation_config.json says of it."""

from __future__ import annotations

import importlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import word_models
from checkpoints import change_json
from tokenizer_folders import BASES, vocabulary

import minibert
from minibert.models.heads.prediction import REFUSED

pytestmark = pytest.mark.reference

WRITES = {"qwen2": ("Qwen2Tokenizer", word_models.TEXTS[2]), "llama": ("LlamaTokenizer", word_models.TEXTS[0])}
# of every setting of `generate` a value that is not the usual one
ODD: dict[str, Any] = {
    "num_beams": 3, "no_repeat_ngram_size": 1, "min_length": 30, "min_new_tokens": 5, "is_assistant": True,
    "suppress_tokens": [*range(9, 200)], "begin_suppress_tokens": [*range(9, 200)], "use_mtp": True,
    "bad_words_ids": [[i] for i in range(9, 200)], "sequence_bias": [[[9], 99.0]], "forced_bos_token_id": 9,
    "forced_eos_token_id": 9, "exponential_decay_length_penalty": [3, 1.5], "repetition_penalty": 5.0,
    "encoder_repetition_penalty": 9.0, "encoder_no_repeat_ngram_size": 1, "guidance_scale": 1.5, "constraints": [1],
    "watermarking_config": {"bias": 9.0}, "penalty_alpha": 0.6, "dola_layers": "low", "force_words_ids": [[9]],
    "token_healing": True, "max_time": 0.0, "stop_strings": ["e"], "num_return_sequences": 2, "top_h": 0.5,
    "assistant_early_exit": 1, "do_sample": True, "temperature": 0.5, "top_k": 3, "top_p": 0.4, "min_p": 0.3,
    "typical_p": 0.4, "epsilon_cutoff": 0.3, "eta_cutoff": 0.3, "early_stopping": True, "length_penalty": 2.0,
    "max_length": 5, "max_new_tokens": 3, "remove_invalid_values": True, "num_beam_groups": 2, "pad_token_id": 4,
    "diversity_penalty": 0.5, "prompt_lookup_num_tokens": 3, "renormalize_logits": True, "use_cache": False,
    "cache_implementation": "hybrid", "output_scores": True, "low_memory": True, "bos_token_id": 3, "no_such_key": 3,
    "assistant_confidence_threshold": 0.5, "decoder_start_token_id": 4, "transformers_version": "4.1.0",
    "_from_model_config": True,
}  # fmt: skip
SIZES = {
    "hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 24,
    "max_position_embeddings": 40, "num_key_value_heads": 2, "eos_token_id": None,
}  # fmt: skip


def write(folder: Path, model_type: str, tokenizer: str) -> None:
    """A model of the reference with numbers large enough for attention to choose, saved with a tokenizer."""
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    torch.manual_seed(0)
    sizes = {**SIZES, "vocab_size": len(vocabulary(BASES[tokenizer]))}
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(model_type, **sizes))
    for parameter in model.parameters():
        parameter.data.copy_(torch.randn(parameter.shape) / 2)
    model.save_pretrained(folder)
    word_models.tokenizer(folder, tokenizer, json.loads((folder / "config.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("model_type", WRITES)
def test_what_generation_config_json_says(tmp_path: Path, model_type: str) -> None:
    """The file that decides the end of a text; settings of `generate` are followed, without effect, or refused."""
    transformers = importlib.import_module("transformers")
    tokenizer_class, text = WRITES[model_type]
    write(tmp_path, model_type, tokenizer_class)
    tokenizer, config = transformers.AutoTokenizer.from_pretrained(tmp_path), tmp_path / "config.json"
    batch = tokenizer(text, return_tensors="pt")
    begun = batch["input_ids"][0].tolist()

    def generated(settings: dict[str, Any] | None) -> list[int]:
        (tmp_path / "generation_config.json").unlink(missing_ok=True)
        if settings is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
        ids: list[int] = model.generate(**batch, do_sample=False, max_new_tokens=12, pad_token_id=0)[0].tolist()
        end = model.generation_config.eos_token_id
        return ids[len(begun) : -1 if ids[-1] in (end if isinstance(end, list) else [end]) else None]

    def follows(settings: dict[str, Any] | None) -> bool:
        # together: `text-generation` decodes the new tokens alone, and Llama's lose their first space then
        both, before = (tokenizer.decode(ids, skip_special_tokens=True) for ids in (begun + generated(settings), begun))
        with minibert.load_encoder(tmp_path) as encoder:
            return bool(encoder.complete(text, tokens=12) == text + both[len(before) :])

    plain = generated({})
    ends = list(dict.fromkeys(plain))[1:4]
    for of_config in (None, ends[0], ends):
        change_json(config, eos_token_id=of_config)
        for settings in (None, {}, {"eos_token_id": ends}, {"eos_token_id": ends[1]}, {"eos_token_id": None}):
            assert follows(settings)
    stored = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps({key: stored[key] for key in stored if key != "eos_token_id"}), encoding="utf-8")
    assert follows(None) and generated(None) == plain  # no default of the class
    for key in ODD.keys() - REFUSED.keys():
        assert generated({key: ODD[key]}) == plain and follows({key: ODD[key]}), key
    changed = 0
    for key in REFUSED:
        with suppress(ValueError, TypeError, IndexError, RuntimeError):  # refused there too
            changed += generated({key: ODD[key]}) != plain
        with minibert.load_encoder(tmp_path) as encoder, pytest.raises(minibert.CheckpointError, match=repr(key)):
            encoder.complete(text, tokens=12)
        assert generated({key: REFUSED[key]}) == plain and follows({key: REFUSED[key]}), key
    assert changed >= 8
