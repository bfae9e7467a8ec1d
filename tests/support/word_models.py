"""Tiny models that predict words, each with the small tokenizer of its class: seeded numbers, as in `encoders`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import checkpoints
import encoders
import numpy as np
from tokenizer_folders import BASES, tokenizer_json, vocabulary, write_tokenizer

from minibert.equations.input_layer import Array

CLASS = {"bert": "BertTokenizer", "roberta": "RobertaTokenizer", "gpt2": "GPT2Tokenizer"}
ARCHITECTURE = {"bert": "BertForMaskedLM", "roberta": "RobertaForMaskedLM", "gpt2": "GPT2LMHeadModel"}
TEXTS = ("We lived above the clouds", "we", "the dog, the he-lived cloud")


def settings(name: str, **changes: Any) -> dict[str, Any]:
    """config.json; without another number in it, for as many words as the tokenizer has."""
    usual = {"vocab_size": len(vocabulary(BASES[CLASS[name]])), "architectures": [ARCHITECTURE[name]]}
    return encoders.config(name, **{**usual, **changes})


def tokenizer(folder: Path, own: str, config: dict[str, Any]) -> Path:
    """Write config.json and a class's tokenizer; GPT-2's puts nothing around a text, the generic one names a mask."""
    files = {"tokenizer_config.json": {"mask_token": "[MASK]"}} if own == "PreTrainedTokenizerFast" else {}
    rules = tokenizer_json(BASES[own], **({"post_processor": None} if own == "GPT2Tokenizer" else {}))
    return write_tokenizer(folder, own, {"config.json": config, "tokenizer.json": rules, **files})


def write(folder: Path, name: str, **changes: Any) -> Path:
    """A model folder: input layer, blocks, head and tokenizer."""
    config = settings(name, **changes)
    checkpoints.write(folder, config, encoders.tensors(config) | head(name, config))
    return tokenizer(folder, CLASS[name], config)


def head(name: str, config: dict[str, Any]) -> dict[str, Array]:
    """The head's own tensors; the table is the input layer's."""
    if name == "gpt2":
        return {}
    dim, words = config["hidden_size"], config["vocab_size"]
    transform, norm, bias = {
        "bert": ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
        "roberta": ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    }[name]
    draw = np.random.default_rng(5).standard_normal
    spreads = {
        f"{transform}.weight": (1.5 / np.sqrt(dim), (dim, dim)), f"{transform}.bias": (0.3, dim),
        f"{norm}.weight": (0.2, dim), f"{norm}.bias": (0.2, dim), bias: (1.0, words),
    }  # fmt: skip
    made = {each: np.asarray(draw(shape) * spread, np.float32) for each, (spread, shape) in spreads.items()}
    return made | {f"{norm}.weight": 1 + made[f"{norm}.weight"]}
