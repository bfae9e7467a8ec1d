"""GPT-2, GPT and GPT-Neo, whose token types are rows of the word table; OPT, GPT-NeoX and BLOOM."""

from __future__ import annotations

import math

from minibert.families.parts.block_parts import Attention, Blocks, FeedForward, Residual
from minibert.families.parts.config import Config, replace
from minibert.families.parts.heads import ANSWER, LABELS, TOKEN_CLASSES, WORDS, Head, HeadLinear, classes
from minibert.families.parts.steps import Add, Norm, Positions, Project, Tokens

from .family import Family, scheme
from .rows import ModelType

GPT2_WORDS = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}

GPT_DEFAULTS = {"layer_norm_epsilon": 1e-5, "pad_token_id": None}

GPT2_TYPES = Add(
    path="wte", names=("wte.weight", "lm_head.weight"), ids="token_type_ids", rows="vocab_size", role=" (types)"
)

GPT2 = Family(
    model_type="gpt2",
    steps=(Tokens(path="wte", padding_idx=None), Positions(path="wpe"), GPT2_TYPES),
    prefixes=("transformer.",),
    checked_prefixes=(),
    aliases=GPT2_WORDS,
    defaults={
        **GPT_DEFAULTS,
        "activation_function": "gelu_new",
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
    },
    unused_endings=("position_ids", ".attn.bias", ".attn.masked_bias"),  # older versions stored the causal mask
    tokenizer="GPT2Tokenizer",
)

OPENAI_GPT = replace(
    GPT2,
    model_type="openai-gpt",
    tokenizer="OpenAIGPTTokenizer",
    steps=(
        Tokens(path="tokens_embed", padding_idx=None),
        Positions(path="positions_embed", cached=False),
        replace(GPT2_TYPES, path="tokens_embed", names=("tokens_embed.weight", "lm_head.weight")),
    ),
    defaults=GPT_DEFAULTS,
)

GPT_NEO = replace(
    GPT2,
    model_type="gpt_neo",
    aliases={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers"},
    defaults=GPT_DEFAULTS,
)


def _gpt2_scale(config: Config, head_dim: int, i: int) -> float:
    scale = 1 / math.sqrt(head_dim) if config.flag("scale_attn_weights") else 1.0
    return scale / (i + 1) if config.flag("scale_attn_by_inverse_layer_idx") else scale


GPT2_BLOCKS = Blocks(
    path="h.{i}",
    parts=(
        Residual(
            work=Attention(maps=("attn.c_attn",), output="attn.c_proj", scale=_gpt2_scale),
            pre_norm=Norm(path="ln_1", eps="layer_norm_epsilon"),
        ),
        Residual(
            work=FeedForward(
                up="mlp.c_fc", down="mlp.c_proj", activation="mlp.act",
                act="activation_function", inner="n_inner", times=4,
            ),
            pre_norm=Norm(path="ln_2", eps="layer_norm_epsilon"),
        ),
    ),
    last_norm=Norm(path="ln_f", eps="layer_norm_epsilon"),
    transposed=True,
    causal=lambda config: True,
    checked_prefixes=("h.", "ln_f."),
)  # fmt: skip


SCORE = HeadLinear(path="score", out=LABELS)
LM_HEAD = HeadLinear(path="lm_head", out=WORDS, biased=False, tied=True)

GPT2_HEADS = (
    Head(name="next_word", architectures=("LMHeadModel", "DoubleHeadsModel"), steps=(LM_HEAD,), causal=True),
    classes(replace(SCORE, biased=False), pooling="last"),
    TOKEN_CLASSES,
    ANSWER,
)


def projected_words(config: Config) -> bool:
    """Return whether the word table's width differs from the model's."""
    return config.integer("word_embed_proj_dim") != config.integer("hidden_size")


OPT = Family(
    model_type="opt",
    steps=(
        Tokens(path="decoder.embed_tokens", width="word_embed_proj_dim"),
        Project(path="decoder.project_in", source="word_embed_proj_dim", biased=False, when=projected_words),
        Positions(path="decoder.embed_positions", rule="mask", extra=2),
    ),
    prefixes=("model.",),
    checked_prefixes=(),
    aliases={"word_embed_proj_dim": "hidden_size"},
    defaults={"pad_token_id": 1},
    tokenizer="GPT2Tokenizer",
)

GPT_NEOX = Family(
    model_type="gpt_neox",
    tokenizer="GPTNeoXTokenizer",
    attention=scheme("rotary", share=0.25, theta_keys=("rotary_emb_base",), share_key="rotary_pct"),
    steps=(Tokens(path="embed_in", padding_idx=None, head="embed_out.weight"),),
    prefixes=("gpt_neox.",),
    checked_prefixes=(),
    defaults={"tie_word_embeddings": False, "max_position_embeddings": 2048},
    later_arguments=("position_ids",),
)

BLOOM = Family(
    model_type="bloom",
    attention=scheme("alibi"),
    steps=(
        Tokens(path="word_embeddings", padding_idx=None),
        Norm(path="word_embeddings_layernorm", eps="layer_norm_epsilon"),
    ),
    prefixes=("transformer.",),
    checked_prefixes=(),
    aliases={"hidden_size": "n_embed", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
    defaults={"layer_norm_epsilon": 1e-5},
)

ROWS = (
    ModelType(GPT2, GPT2_BLOCKS, GPT2_HEADS),
    ModelType(OPENAI_GPT),
    ModelType(GPT_NEO),
    ModelType(OPT),
    ModelType(GPT_NEOX),
    ModelType(BLOOM),
)
