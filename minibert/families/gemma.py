"""Gemma, whose word rows are multiplied by sqrt(hidden size)."""

from __future__ import annotations

from minibert.families.parts.block_parts import Blocks, Residual
from minibert.families.parts.config import FULL, Config, layer_type, replace, sqrt_width, stays_causal, window

from .family import scheme
from .llama import BIASED, GATED, LLAMA, LLAMA_HEADS, llama_like, rms
from .rows import ModelType

# A file in bfloat16 is computed in float32, and so is the factor: 55.4256 for width 3072. Without a dtype argument the
# reference computes such a file in bfloat16, and rounds the factor to 55.5.
GEMMA_TOKENS = replace(LLAMA.steps[0], scale=sqrt_width)

GEMMA = llama_like(
    "gemma",
    8192,
    "GemmaTokenizer",
    steps=(GEMMA_TOKENS,),
    defaults={"tie_word_embeddings": True, "pad_token_id": 0, "head_dim": 256},
)

GEMMA2 = replace(GEMMA, model_type="gemma2")

GEMMA3_TEXT = replace(
    GEMMA,
    model_type="gemma3_text",
    attention=scheme("gemma3_rotary"),
    defaults={
        **GEMMA.defaults, "max_position_embeddings": 131072, "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6, "attention_bias": False, "num_key_value_heads": 4, "query_pre_attn_scalar": 256,
        "sliding_window": 4096, "sliding_window_pattern": 6,
    },
)  # fmt: skip


def _gemma3_type(config: Config, i: int) -> str:
    return layer_type(config, i, (i + 1) % max(1, config.integer("sliding_window_pattern")) != 0)


def _gemma3_window(config: Config, i: int) -> int | None:
    """Return the window; in a bidirectional model half of it on each side, and a token more if is_causal is false."""
    if _gemma3_type(config, i) == FULL:
        return None
    if config.flag("use_bidirectional_attention"):
        return config.integer("sliding_window") // 2 + (not stays_causal(config))
    return window(config)


def _gemma3_scale(config: Config, head_dim: int, i: int) -> float:
    """Return 1 / sqrt(query_pre_attn_scalar), which replaces the head's width."""
    if not config.number("query_pre_attn_scalar"):
        raise config.refused("'query_pre_attn_scalar' must be a number above 0, found 0")
    return float(config.number("query_pre_attn_scalar") ** -0.5)


GEMMA3_BLOCKS = Blocks(
    path="layers.{i}",
    parts=(
        Residual(
            work=replace(
                BIASED,
                query_norm=rms("self_attn.q_norm", "GemmaRMSNorm"),
                key_norm=rms("self_attn.k_norm", "GemmaRMSNorm"),
                heads_first=True,
                rotation=_gemma3_type,
                window=_gemma3_window,
                scale=_gemma3_scale,
            ),
            pre_norm=rms("input_layernorm", "GemmaRMSNorm"),
            output_norm=rms("post_attention_layernorm", "GemmaRMSNorm"),
        ),
        Residual(
            work=replace(GATED, act="hidden_activation"),
            pre_norm=rms("pre_feedforward_layernorm", "GemmaRMSNorm"),
            output_norm=rms("post_feedforward_layernorm", "GemmaRMSNorm"),
        ),
    ),
    last_norm=rms("norm", "GemmaRMSNorm"),
    causal=lambda config: not config.flag("use_bidirectional_attention"),
    only={"attn_logit_softcapping": None},
    checked_prefixes=("layers.", "norm."),
)  # fmt: skip


GEMMA3_HEADS = (replace(LLAMA_HEADS[0], refuses=("final_logit_softcapping",)), LLAMA_HEADS[1])

ROWS = (ModelType(GEMMA), ModelType(GEMMA2), ModelType(GEMMA3_TEXT, GEMMA3_BLOCKS, GEMMA3_HEADS))
