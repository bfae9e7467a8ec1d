"""GTE: BERT's input layer without positions, Llama's rotation and gate, with biases."""

from __future__ import annotations

from minibert.families.parts.block_names import LegacyName
from minibert.families.parts.block_parts import Blocks, Residual
from minibert.families.parts.config import replace, typed
from minibert.families.parts.heads import (
    CLASSIFIER,
    POOLER,
    TOKEN_CLASSES,
    WORDS,
    Act,
    HeadLinear,
    classes,
    masked_word,
)
from minibert.families.parts.steps import Norm

from .bert import BERT, BERT_DEFAULTS, NORM, TYPE, WORD
from .family import scheme
from .llama import GATED, ROTATED
from .rows import ModelType

GTE = replace(
    BERT,
    model_type="gte",
    tokenizer="XLMRobertaTokenizer",
    attention=scheme("gte_rotary"),
    steps=(replace(WORD, head="lm_head.decoder.weight"), replace(TYPE, when=typed), NORM),
    prefixes=("gte.", "new."),
    unused_endings=("position_ids", "inv_freq"),
    defaults={**BERT_DEFAULTS, "pad_token_id": 1, "type_vocab_size": 1, "max_position_embeddings": 8192},
    only={"position_embedding_type": "rope", "layer_norm_type": "layer_norm"},  # keys of published files
    later_arguments=("position_ids",),
)

GTE_BLOCKS = Blocks(
    path="layers.{i}",
    parts=(
        Residual(
            work=replace(ROTATED, key_heads="", biased=True, output_biased=True),
            post_norm=Norm(path="post_attention_layernorm"),
        ),
        Residual(work=replace(GATED, output_biased=True), post_norm=Norm(path="post_mlp_layernorm")),
    ),
    only={"logn_attention_scale": False, "pack_qkv": True},
    checked_prefixes=("layers.", "encoder.layer."),
    older_path="encoder.layer.{i}",
    older={
        **{f"self_attn.{name}_proj": LegacyName("attention.qkv_proj", part, 3) for part, name in enumerate("qkv")},
        "self_attn.o_proj": LegacyName("attention.o_proj"),
        **{f"mlp.{name}_proj": LegacyName("mlp.up_gate_proj", part, 2) for part, name in enumerate(("up", "gate"))},
        "mlp.down_proj": LegacyName("mlp.down_proj"),
        "post_attention_layernorm": LegacyName("attn_ln"),
        "post_mlp_layernorm": LegacyName("mlp_ln"),
    },
)

GTE_HEADS = (
    masked_word(
        HeadLinear(path="lm_head.dense"),
        Act(path="lm_head.gelu", word="gelu"),  # regardless of hidden_act
        Norm(path="lm_head.layer_norm", names=("lm_head.layer_norm", "lm_head.norm")),
        HeadLinear(path="lm_head.decoder", out=WORDS, tied=True),
        architectures=("ForMaskedLM",),
    ),
    classes(*POOLER, CLASSIFIER),
    TOKEN_CLASSES,
)

ROWS = (ModelType(GTE, GTE_BLOCKS, GTE_HEADS),)
