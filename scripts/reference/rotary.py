"""Scaled rotary frequencies, the factor and a few angles from transformers' own modules, into rotary_scaling.json."""

from __future__ import annotations

import importlib
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from check import write_json

SIZES = {
    "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 4, "vocab_size": 8,
    "pad_token_id": 0,
}  # fmt: skip
LAYERS = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}

# name -> family, the stem of its classes, config.json, the length of the first training, the longest length
Setting = tuple[str, str, dict[str, Any], int, int]
SETTINGS: dict[str, Setting] = {
    "linear": ("llama", "Llama", {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 1e4}, 4096, 16384),
    "yarn": ("qwen2", "Qwen2", {
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
        "rope_theta": 1e6}, 32768, 131072),
    "yarn, not truncated": ("llama", "Llama", {"rope_parameters": {
        "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
        "beta_slow": 1.0, "truncate": False, "rope_theta": 1.5e5}}, 4096, 131072),
    "yarn with mscale": ("llama", "Llama", {"rope_parameters": {
        "rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "mscale": 1.0,
        "mscale_all_dim": 0.5, "rope_theta": 1e4}}, 4096, 163840),
    "llama3": ("llama", "Llama", {
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192}, "rope_theta": 5e5}, 8192, 131072),
    "llama3 in wide heads": ("llama", "Llama", {
        "head_dim": 64, "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}, "rope_theta": 1e4}, 8192, 8193),
    "linear in GPT-NeoX": ("gpt_neox", "GPTNeoX", {
        "rope_scaling": {"type": "linear", "factor": 2.0}, "rotary_pct": 0.5, "rotary_emb_base": 1e4}, 2048, 4096),
    "by layer type": ("gemma3", "Gemma3Text", {
        "head_dim": 16, "rope_theta": 1e6, "rope_local_base_freq": 1e4, **LAYERS,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 32768, 131072),
    "yarn, length unsaid": ("qwen3", "Qwen3", {
        "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6}}, 32768, 131072),
    "yarn, factor null": ("llama", "Llama", {"rope_parameters": {
        "rope_type": "yarn", "factor": None, "original_max_position_embeddings": 4096, "rope_theta": 1e4}},
        4096, 65536),
    "yarn, all said": ("llama", "Llama", {"rope_parameters": {
        "rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "mscale": 1.0,
        "mscale_all_dim": 0.5, "attention_factor": 0.7, "beta_fast": 16, "beta_slow": 2, "rope_theta": 1e4}},
        4096, 131072),
    "by layer type, older word": ("gemma3", "Gemma3Text", {
        "head_dim": 16, **LAYERS, "rope_scaling": {"factor": 8.0, "type": "linear"}}, 32768, 131072),
    "by layer type, each its own": ("gemma3", "Gemma3Text", {"head_dim": 16, **LAYERS, "rope_parameters": {
        "full_attention": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "truncate": False,
                           "original_max_position_embeddings": 8192},
        "sliding_attention": {"rope_type": "linear", "rope_theta": 70.0, "factor": 2.0}}}, 8192, 32768),
    "by layer type in ModernBERT": ("modernbert", "ModernBert", {
        **LAYERS, "global_rope_theta": 8e4, "local_rope_theta": 90.0,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}, 8192, 65536),
}  # fmt: skip


def short(values: torch.Tensor) -> Any:
    """Return the shortest decimals that read as the same float32."""
    strings = np.char.mod("%s", values.numpy()) if values.ndim else None
    return np.vectorize(float)(strings).tolist()


def texts(family: str, stem: str, config: dict[str, Any], trained: int, longest: int) -> list[dict[str, Any]]:
    """Run one module on a text of the first training's length, one token longer, and of the longest length."""
    package = f"transformers.models.{family}"
    configuration = getattr(importlib.import_module(f"{package}.configuration_{family}"), f"{stem}Config")
    modeling = importlib.import_module(f"{package}.modeling_{family}")
    made = []
    lengths = sorted({trained, trained + 1, longest, *([3 * longest] if trained == longest else [])})
    for length, *layer in product(lengths, *([config["layer_types"]] if "layer_types" in config else [])):
        module = getattr(modeling, f"{stem.removesuffix('Text')}RotaryEmbedding")(configuration(**config))
        prefix = "".join(f"{name}_" for name in layer)
        positions = [0, 1, trained - 1, length - 1]
        cos, sin = module(torch.zeros(1), torch.tensor([positions]), *layer)
        half = cos.shape[-1] // 2  # the second half repeats the first
        made.append({
            "length": length, "layer_type": layer[0] if layer else None,
            "frequencies": short(getattr(module, f"{prefix}inv_freq")),
            "factor": getattr(module, f"{prefix}attention_scaling"), "positions": positions,
            "cos": short(cos[0, :, :half]), "sin": short(sin[0, :, :half]),
        })  # fmt: skip
    return made


def write_rotary(target: Path) -> None:
    """Write rotary_scaling.json."""
    facts = {}
    for name, (family, stem, own, trained, longest) in SETTINGS.items():
        config = {**SIZES, "max_position_embeddings": longest, **own}
        # a module writes into its arguments
        copy = {key: dict(value) if isinstance(value, dict) else value for key, value in config.items()}
        facts[name] = {"family": family, "config": config, "texts": texts(family, stem, copy, trained, longest)}
    write_json(target / "rotary_scaling.json", facts, depth=2)
