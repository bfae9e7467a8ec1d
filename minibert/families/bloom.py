"""BLOOM."""

from __future__ import annotations

from minibert.families.parts.steps import Norm, Tokens

from .family import Family, scheme
from .rows import ModelType

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

ROWS = (ModelType(BLOOM),)
