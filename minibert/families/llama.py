"""RMSNorm, rotary positions, a gate: Llama, Mistral, Ministral 3, Qwen, Mixtral, OLMo 2, Phi-3, Granite, Cohere 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from minibert.families.parts.block_parts import Attention, Blocks, FeedForward, Residual
from minibert.families.parts.config import FULL, SLIDING, Config, layer_type, replace, window
from minibert.families.parts.heads import ANSWER, TOKEN_CLASSES, Head
from minibert.families.parts.steps import Norm, Scale, Tokens

from .family import Family, scheme
from .gpt2 import GPT2_HEADS, LM_HEAD, SCORE
from .rows import ModelType

if TYPE_CHECKING:
    from minibert.families.parts.attention_schemes import Rotary
    from minibert.families.parts.steps import Binder


def embedding_multiplier(config: Config) -> float:
    """Return Granite's factor of word rows."""
    return config.number("embedding_multiplier")


INPUT_DEFAULTS = {"tie_word_embeddings": False, "pad_token_id": None, "max_position_embeddings": 2048}
GATED_DEFAULTS = {"hidden_act": "silu", "rms_norm_eps": 1e-6}
QWEN_DEFAULTS = {
    **GATED_DEFAULTS, "num_key_value_heads": 32, "sliding_window": 4096, "use_sliding_window": False,
    "max_window_layers": 28,
}  # fmt: skip

LLAMA = Family(
    model_type="llama",
    attention=scheme("rotary"),
    steps=(Tokens(path="embed_tokens"),),
    prefixes=("model.", "transformer."),  # the second in classes for question answering
    checked_prefixes=(),
    unused_endings=("position_ids", ".rotary_emb.inv_freq"),  # older versions stored the frequencies
    defaults={**INPUT_DEFAULTS, **GATED_DEFAULTS, "attention_bias": False, "mlp_bias": False},
    later_arguments=("position_ids",),
)


def llama_like(
    model_type: str, longest: int, tokenizer: str = "TokenizersBackend", defaults: Mapping[str, Any] = {}, **fields: Any
) -> Family:
    """Return Llama's row with another maximum length, tokenizer, defaults and other changed fields."""
    defaults = {**INPUT_DEFAULTS, "max_position_embeddings": longest, **defaults}
    return replace(LLAMA, model_type=model_type, tokenizer=tokenizer, defaults=defaults, **fields)


MISTRAL = llama_like("mistral", 131072, defaults={**GATED_DEFAULTS, "num_key_value_heads": 8, "sliding_window": 4096})
MINISTRAL3_SCALING = {  # without parameters in config.json
    "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 16384,
    "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip


def _ministral3_rotary(config: Config, binder: Binder, side: str) -> Rotary:
    """Read the rotation, and the factor of rotated queries, both from `rope_parameters`."""
    from minibert.families.parts.attention_schemes import Rotary, number, read_rotation

    rope = config.part("rope_scaling") or config.part("rope_parameters") or Config(MINISTRAL3_SCALING)
    growth = rope.number("llama_4_scaling_beta"), rope.integer("original_max_position_embeddings", above=0)
    theta = number(rope, "rope_theta", default=number(config, "rope_theta", default=10000.0))
    return Rotary(rotations={None: read_rotation(config, Config({**rope, "rope_theta": theta}))}, growth=growth)


MINISTRAL3 = llama_like(
    "ministral3",
    262144,
    attention=_ministral3_rotary,
    defaults={
        **GATED_DEFAULTS, "rms_norm_eps": 1e-5, "pad_token_id": 11, "num_key_value_heads": 8, "head_dim": 128,
        "sliding_window": None,
    },
)  # fmt: skip
QWEN2 = llama_like("qwen2", 32768, "Qwen2Tokenizer", QWEN_DEFAULTS, always_usual=True)
QWEN3 = llama_like("qwen3", 32768, "Qwen2Tokenizer", {**QWEN_DEFAULTS, "head_dim": 128, "attention_bias": False})
MIXTRAL = llama_like("mixtral", 131072, attention=scheme("rotary", theta=1000000.0))
OLMO2 = llama_like("olmo2", 2048, defaults={"pad_token_id": 1})

PHI3 = llama_like(
    "phi3",
    4096,
    attention=scheme("rotary", share=1.0),  # a part of the head may rotate
    defaults={"pad_token_id": 32000, "original_max_position_embeddings": 4096},
)

GRANITE = llama_like(
    "granite",
    2048,
    steps=(*LLAMA.steps, Scale(factor=embedding_multiplier, embeds=True)),
    defaults={"embedding_multiplier": 1.0},
)

COHERE2 = llama_like(
    "cohere2",
    8192,
    "CohereTokenizer",
    attention=scheme("rotary", pairing="neighbours"),  # in its sliding layers; the full ones have no positions
    defaults={"tie_word_embeddings": True, "pad_token_id": 0},
)


GATED = FeedForward(
    up="mlp.up_proj", gate="mlp.gate_proj", down="mlp.down_proj", activation="mlp.act_fn", biased=False,
)  # fmt: skip

ROTATED = Attention(
    maps=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), output="self_attn.o_proj", biased=False,
    output_biased=False, key_heads="num_key_value_heads", head_dim="head_dim", rotation=lambda config, i: None,
)  # fmt: skip


def rms(path: str, kind: str = "RMSNorm") -> Norm:
    """Return a norm without a mean, with Llama's config key of eps."""
    return Norm(path=path, kind=kind, eps="rms_norm_eps")


def llama_blocks(attend: Attention = ROTATED, feed: FeedForward = GATED) -> Blocks:
    """Return Llama's blocks with another attention or feed-forward."""
    return Blocks(
        path="layers.{i}",
        parts=(
            Residual(work=attend, pre_norm=rms("input_layernorm")),
            Residual(work=feed, pre_norm=rms("post_attention_layernorm")),
        ),
        last_norm=rms("norm"),
        causal=lambda config: True,
        checked_prefixes=("layers.", "norm."),
    )


def _qwen_type(config: Config, i: int) -> str:
    """Return the type of block i; without `layer_types` the first `max_window_layers` blocks have no window."""
    windowed = config.flag("use_sliding_window") and config.get("sliding_window") is not None
    return layer_type(config, i, windowed and i >= config.integer("max_window_layers"))


def _qwen_window(config: Config, i: int) -> int | None:
    if _qwen_type(config, i) == FULL:
        return None
    if not config.flag("use_sliding_window"):
        raise config.refused(f"'layer_types' asks for {SLIDING!r}, but 'use_sliding_window' is false")
    return window(config)


def _mistral_window(config: Config, i: int) -> int | None:
    """Return the window of every block, unless config.json lists their types (the reference's Ministral)."""
    windowed = config.get("sliding_window") is not None
    return window(config) if layer_type(config, i, windowed) == SLIDING else None


def _ministral3_window(config: Config, i: int) -> int | None:
    """Return the window of every block; the reference reads no `layer_types` here."""
    return None if config.get("sliding_window") is None else window(config)


BIASED = replace(ROTATED, biased="attention_bias", output_biased="attention_bias")

LLAMA_BLOCKS = llama_blocks(BIASED, replace(GATED, biased="mlp_bias"))

MISTRAL_BLOCKS = llama_blocks(replace(ROTATED, window=_mistral_window))

MINISTRAL3_BLOCKS = llama_blocks(replace(ROTATED, window=_ministral3_window))

QWEN2_BLOCKS = llama_blocks(replace(ROTATED, biased=True, window=_qwen_window))

QWEN3_BLOCKS = llama_blocks(
    replace(BIASED, query_norm=rms("self_attn.q_norm"), key_norm=rms("self_attn.k_norm"), window=_qwen_window)
)


LLAMA_HEADS = (
    Head(name="next_word", architectures=("ForCausalLM",), steps=(LM_HEAD,), causal=True),
    GPT2_HEADS[1],
    replace(TOKEN_CLASSES, steps=(SCORE,)),
    ANSWER,
)

ROWS = (
    ModelType(LLAMA, LLAMA_BLOCKS, LLAMA_HEADS),
    ModelType(MISTRAL, MISTRAL_BLOCKS, LLAMA_HEADS),
    ModelType(MINISTRAL3, MINISTRAL3_BLOCKS, LLAMA_HEADS),
    ModelType(QWEN2, QWEN2_BLOCKS, LLAMA_HEADS),
    ModelType(QWEN3, QWEN3_BLOCKS, LLAMA_HEADS),
    ModelType(MIXTRAL),
    ModelType(OLMO2),
    ModelType(PHI3),
    ModelType(GRANITE),
    ModelType(COHERE2),
)
