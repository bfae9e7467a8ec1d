"""Rows of blocks that no family here has: between them every field of a row's parts away from its default.

qwen3    RMSNorm before, no biases, queries wider than the model, fewer key heads, a norm in each head, rotation, a gate
gemma3   norms before and within, 1 + weight, a scale and a window, a rotation of its own in every second block
mine     LayerNorm without a bias after each sum, one map for q, k and v, its bias alone, a window that looks both ways
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minibert.families.block_parts import Add, Attend, Blocks, Feed, Norm, RMSNorm

MAPS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
SHARED: dict[str, Any] = {"causal": lambda config: True, "path": "layers.{i}", "checked_prefixes": ("layers.", "norm.")}
FEED = Feed(
    up="mlp.up_proj", gate="mlp.gate_proj", down="mlp.down_proj", activation="mlp.act_fn", biased=False,
    activation_last=True,
)  # fmt: skip


def rms(path: str, plus: float = 0.0) -> Norm:
    return Norm(path=path, kind=RMSNorm, eps="rms_norm_eps", plus=plus)


def attend(plus: float = 0.0, **fields: Any) -> Attend:
    return Attend(
        maps=MAPS, output="self_attn.o_proj", biased=False, output_biased=False, key_heads="num_key_value_heads",
        head_dim="head_dim", query_norm=rms("self_attn.q_norm", plus), key_norm=rms("self_attn.k_norm", plus), **fields,
    )  # fmt: skip


QWEN3 = Blocks(
    parts=(
        Add(work=attend(rotation=lambda config, i: None), before=rms("input_layernorm")),
        Add(work=FEED, before=rms("post_attention_layernorm")),
    ),
    last_norm=rms("norm"),
    defaults={"hidden_act": "silu"},
    **SHARED,
)
GEMMA3 = Blocks(
    parts=(
        Add(
            work=attend(
                1.0,
                rotation=lambda config, i: config.layer_types[i],
                reach=lambda config, i: config.sliding_window - 1 if config.layer_types[i][0] == "s" else None,
                scale=lambda config, head_dim, i: config.query_pre_attn_scalar**-0.5,
            ),
            before=rms("input_layernorm", 1.0),
            within=rms("post_attention_layernorm", 1.0),
        ),
        Add(
            work=Feed(**{**vars(FEED), "act": "hidden_activation"}),
            before=rms("pre_feedforward_layernorm", 1.0),
            within=rms("post_feedforward_layernorm", 1.0),
        ),
    ),
    last_norm=rms("norm", 1.0),
    defaults={"hidden_activation": "gelu_pytorch_tanh"},
    **SHARED,
)
MINE = Blocks(
    parts=(
        Add(
            work=Attend(
                maps=("attention.self.qkv",),
                key_heads="num_key_value_heads",
                output="attention.output.dense",
                output_biased=False,
                reach=lambda config, i: 2,
            ),
            after=Norm(path="attention.output.LayerNorm", biased=False),
        ),
        Add(
            work=Feed(up="intermediate.dense", down="output.dense", activation="intermediate.act", biased=False),
            after=Norm(path="output.LayerNorm", biased=False, eps=0.5),
        ),
    ),
)
ROWS: Mapping[str, Blocks] = {"qwen3": QWEN3, "gemma3_text": GEMMA3, "bert": MINE}

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
