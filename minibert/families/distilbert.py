"""DistilBERT."""

from __future__ import annotations

from minibert.families.parts.block_parts import Attention, Blocks, FeedForward, Residual
from minibert.families.parts.config import replace
from minibert.families.parts.heads import (
    ANSWER,
    CLASSIFIER,
    TOKEN_CLASSES,
    WORDS,
    Act,
    HeadLinear,
    classes,
    masked_word,
)
from minibert.families.parts.steps import Norm

from .bert import BERT, NORM, POSITION, WORD
from .rows import ModelType

DISTILBERT = replace(
    BERT,
    model_type="distilbert",
    steps=(replace(WORD, head="vocab_projector.weight"), replace(POSITION, cached=False), replace(NORM, eps=1e-12)),
    prefixes=("distilbert.",),
    aliases={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    defaults={"pad_token_id": 0, "max_position_embeddings": 512, "activation": "gelu"},
)


DISTILBERT_BLOCKS = Blocks(
    path="transformer.layer.{i}",
    parts=(
        Residual(
            work=Attention(maps=("attention.q_lin", "attention.k_lin", "attention.v_lin"), output="attention.out_lin"),
            post_norm=Norm(path="sa_layer_norm", eps=1e-12),
        ),
        Residual(
            work=FeedForward(
                up="ffn.lin1", down="ffn.lin2", activation="ffn.activation",
                act="activation", inner="hidden_dim",
            ),
            post_norm=Norm(path="output_layer_norm", eps=1e-12),
        ),
    ),
    checked_prefixes=("transformer.",),
)  # fmt: skip


DISTILBERT_HEADS = (
    masked_word(
        HeadLinear(path="vocab_transform"),
        Act(path="activation", act="activation"),
        Norm(path="vocab_layer_norm", eps=1e-12),
        HeadLinear(path="vocab_projector", out=WORDS, tied=True),
    ),
    classes(HeadLinear(path="pre_classifier"), Act(path="pre_classifier.relu", word="relu"), CLASSIFIER),
    TOKEN_CLASSES,
    ANSWER,
)

ROWS = (ModelType(DISTILBERT, DISTILBERT_BLOCKS, DISTILBERT_HEADS),)
