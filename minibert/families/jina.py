"""Jina's third embedding model: XLM-RoBERTa with rotary positions."""

from __future__ import annotations

from minibert.families.parts.block_parts import Blocks, FeedForward, Residual
from minibert.families.parts.config import replace
from minibert.families.parts.steps import Norm

from .bert import BERT_DEFAULTS, TYPE, WORD
from .family import scheme
from .gte import GTE_BLOCKS
from .roberta import MPNET_HEADS, XLM_ROBERTA, flash_names
from .rows import ModelType

JINA_EMBEDDINGS_V3 = replace(
    XLM_ROBERTA,
    model_type="jina_embeddings_v3",
    attention=scheme("rotary", theta=20000.0),
    steps=(replace(WORD, head="lm_head.decoder.weight"), TYPE, XLM_ROBERTA.steps[-1]),
    defaults={
        **BERT_DEFAULTS, "layer_norm_eps": 1e-5, "pad_token_id": 1, "type_vocab_size": 1,
        "max_position_embeddings": 8194,
    },
    only={"lora_adaptations": None},
    later_arguments=("position_ids",),
)  # fmt: skip

JINA_EMBEDDINGS_V3_BLOCKS = Blocks(
    path="layers.{i}",
    parts=(
        GTE_BLOCKS.parts[0],
        Residual(
            work=FeedForward(up="mlp.fc1", down="mlp.fc2", activation="mlp.activation_fn"),
            post_norm=Norm(path="post_mlp_layernorm"),
        ),
    ),
    checked_prefixes=("layers.", "encoder.layers."),
    older_path="encoder.layers.{i}",
    older=flash_names(
        [f"self_attn.{name}_proj" for name in "qkv"], "self_attn.o_proj", "post_attention_layernorm", "mlp.fc1",
        "mlp.fc2", "post_mlp_layernorm",
    ),
)  # fmt: skip

ROWS = (ModelType(JINA_EMBEDDINGS_V3, JINA_EMBEDDINGS_V3_BLOCKS, MPNET_HEADS),)
