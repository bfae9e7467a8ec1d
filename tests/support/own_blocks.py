"""Rows of blocks whose formulas a test writes out: between them every field of a row's parts away from its default.

qwen3    RMSNorm before, no biases, queries wider than the model, fewer key heads, a norm in each head, rotation, a gate
gemma3   norms before and within, 1 + weight, a scale and a window, a rotation of its own in every second block
mine     of no family: LayerNorm without a bias after each sum, one map for q, k and v, its bias alone, a window that
         looks both ways
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minibert.families.parts.block_parts import Attention, Blocks, FeedForward, Residual
from minibert.families.parts.steps import Norm
from minibert.families.rows import BLOCKS

MINE = Blocks(
    parts=(
        Residual(
            work=Attention(
                maps=("attention.self.qkv",),
                key_heads="num_key_value_heads",
                output="attention.output.dense",
                output_biased=False,
                window=lambda config, i: 2,
            ),
            after=Norm(path="attention.output.LayerNorm", biased=False),
        ),
        Residual(
            work=FeedForward(up="intermediate.dense", down="output.dense", activation="intermediate.act", biased=False),
            after=Norm(path="output.LayerNorm", biased=False, eps=0.5),
        ),
    ),
)
ROWS: Mapping[str, Blocks] = {"qwen3": BLOCKS["qwen3"], "gemma3_text": BLOCKS["gemma3_text"], "bert": MINE}

SIZES = {
    "vocab_size": 29, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 6, "intermediate_size": 20, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
}  # fmt: skip
CONFIGS: Mapping[str, dict[str, Any]] = {
    "qwen3": {**SIZES, "rope_theta": 100.0},
    "gemma3_text": {
        **SIZES, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3, "rope_theta": 1000.0,
        "rope_local_base_freq": 50.0, "query_pre_attn_scalar": 3, "hidden_activation": "gelu_pytorch_tanh",
    },
    "bert": {
        "vocab_size": 29, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20,
        "max_position_embeddings": 24, "type_vocab_size": 2, "layer_norm_eps": 1e-5, "num_key_value_heads": 2,
    },
}  # fmt: skip
