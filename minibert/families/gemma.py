"""Gemma, whose word rows are multiplied by sqrt(hidden size); EmbeddingGemma 2, its text tower."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from minibert.families.parts.block_parts import Blocks, FeedForward, Pieces, Residual
from minibert.families.parts.config import FULL, SLIDING, Config, layer_type, replace, sqrt_width, stays_causal, window

from .family import scheme
from .llama import BIASED, GATED, LLAMA, LLAMA_HEADS, llama_like, rms
from .rows import ModelType

if TYPE_CHECKING:
    from minibert.families.parts.attention_schemes import Rotary, Rotation
    from minibert.families.parts.steps import Binder


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

THETAS = {FULL: 1000000.0, SLIDING: 10000.0}
PIECE = "hidden_size_per_layer_input"
OTHER_IDS = ("image_token_id", "video_token_id", "audio_token_id")


def _type(config: Config, i: int) -> str:
    """Return the type of block i; the last one sees all tokens, whatever `layer_types` says."""
    if i + 1 == config.integer("num_hidden_layers"):
        return FULL
    return layer_type(config, i, (i + 1) % config.integer("sliding_window_pattern", above=0) != 0)


def _window(config: Config, i: int) -> int | None:
    """Return the window, an inclusive radius."""
    return config.integer("sliding_window") if _type(config, i) == SLIDING else None


def _block_size(key: str, key_of_full: str, config: Config, i: int) -> int:
    """Read a size of block i: from `per_layer_config`, in older files from the key of full blocks, or the model's."""
    sizes = config.part("per_layer_config")
    if config.get("per_layer_config") is None and _type(config, i) == FULL:
        return config.integer(key_of_full)
    entry = next((name for name in sizes if name.isdecimal() and int(name) == i), "")  # "5", in deep models "05"
    return sizes.part(entry).integer(key, default=config.integer(key), above=0)


HEAD_DIM = partial(_block_size, "head_dim", "global_head_dim")
KEY_HEADS = partial(_block_size, "num_key_value_heads", "num_global_key_value_heads")


def _rotary(config: Config, binder: Binder, side: str) -> Rotary:
    """Read one rotation for each type; each has the width of the heads of its blocks."""
    from minibert.families.parts.attention_schemes import Rotary, layered_rotary

    longest, widths = config.integer("max_position_embeddings"), dict[str, set[int]]()
    for i in range(config.integer("num_hidden_layers")):
        widths.setdefault(_type(config, i), set()).add(HEAD_DIM(config, i))
    rotations: dict[str | None, Rotation] = {}
    for kind, dims in widths.items():
        if len(dims) > 1:
            raise config.refused(f"the heads of all blocks of type {kind!r} must have one width, found {sorted(dims)}")
        kind_config = Config({"max_position_embeddings": longest, **config, "head_dim": dims.pop()})
        rotations |= layered_rotary(kind_config, binder, side, thetas={kind: ("", THETAS[kind])}).rotations
    return Rotary(rotations=rotations)


EMBEDDING_GEMMA2_TEXT = replace(
    LLAMA,
    model_type="embedding_gemma2_text",
    steps=(GEMMA_TOKENS,),
    prefixes=("language_model.",),  # in a file of the whole model
    tokenizer="TokenizersBackend",
    attention=_rotary,
    defaults={
        "num_key_value_heads": 2, "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 1,
        "hidden_activation": "gelu_pytorch_tanh", "pad_token_id": 0, "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6, "attention_bias": False, "sliding_window": 512, "sliding_window_pattern": 6,
        "hidden_size_per_layer_input": 512, "embedding_dim": 768,
    },
)  # fmt: skip

EMBEDDING_GEMMA2 = replace(
    EMBEDDING_GEMMA2_TEXT,
    model_type="embedding_gemma2",
    # ids of pictures, videos and sounds have the padding row, as in the reference
    steps=(replace(GEMMA_TOKENS, padded=OTHER_IDS),),
    section="text_config",
    beside_section=OTHER_IDS,
    defaults={
        **EMBEDDING_GEMMA2_TEXT.defaults, "image_token_id": 258880, "video_token_id": 258884, "audio_token_id": 258881,
    },
)  # fmt: skip

EMBEDDING_GEMMA2_BLOCKS = Blocks(
    path="layers.{i}",
    pieces=Pieces(map="ple.per_layer_model_projection", norm=rms("ple.per_layer_projection_norm"), width=PIECE),
    parts=(
        Residual(
            work=replace(
                BIASED, key_heads=KEY_HEADS, head_dim=HEAD_DIM, query_norm=rms("self_attn.q_norm"),
                key_norm=rms("self_attn.k_norm"), value_norm="self_attn.v_norm", heads_first=True,
                scale=lambda config, head_dim, i: 1.0, window=_window, rotation=_type,
            ),
            pre_norm=rms("input_layernorm"),
            output_norm=rms("post_attention_layernorm"),
        ),
        Residual(
            work=replace(GATED, act="hidden_activation"),
            pre_norm=rms("pre_feedforward_layernorm"),
            output_norm=rms("post_feedforward_layernorm"),
        ),
        Residual(
            work=FeedForward(
                gate="ple_block.per_layer_input_gate", down="ple_block.per_layer_projection",
                activation="ple_block.act_fn", act="hidden_activation", biased=False, inner=PIECE,
            ),
            output_norm=rms("ple_block.post_per_layer_input_norm"),
            module="ple_block", factor="layer_scalar",
        ),
    ),
    last_norm=rms("norm"),
    last_map="embedding_projection",
    last_width="embedding_dim",
    checked_prefixes=("layers.", "norm.", "ple.", "embedding_projection."),
)  # fmt: skip

ROWS = (
    ModelType(GEMMA),
    ModelType(GEMMA2),
    ModelType(GEMMA3_TEXT, GEMMA3_BLOCKS, GEMMA3_HEADS),
    ModelType(EMBEDDING_GEMMA2_TEXT, EMBEDDING_GEMMA2_BLOCKS),
    ModelType(EMBEDDING_GEMMA2, EMBEDDING_GEMMA2_BLOCKS),
)
