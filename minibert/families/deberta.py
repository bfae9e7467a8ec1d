"""DeBERTa v2 and v3."""

from __future__ import annotations

from minibert.families.parts.config import Config
from minibert.families.parts.frozen import replace
from minibert.families.parts.readers import projected, scheme, switch
from minibert.families.parts.steps import Mask, Project

from .bert import BERT, BERT_DEFAULTS, NARROW, NORM, POSITION, PRINTED, TYPE, WORD
from .rows import Row


def typed(config: Config) -> bool:
    """There are token types."""
    return config.integer("type_vocab_size") > 0


DEBERTA_V2 = replace(
    BERT,
    model_type="deberta-v2",
    tokenizer="DebertaV2Tokenizer",
    attention=scheme("deberta_log_buckets"),
    steps=(
        replace(WORD, width=NARROW),
        replace(POSITION, width=NARROW, cached=False, when=switch("position_biased_input")),
        replace(TYPE, width=NARROW, when=typed),
        Project(path="embeddings.embed_proj", biased=False, when=projected),
        NORM,
        Mask(),
    ),
    prefixes=("deberta.",),
    tree={"embeddings": "DebertaV2Embeddings"},
    order=(*PRINTED[:3], "embed_proj", "LayerNorm"),
    unused_endings=("position_ids", "position_embeddings.weight"),
    aliases={"embedding_size": "hidden_size"},
    defaults={**BERT_DEFAULTS, "layer_norm_eps": 1e-7, "type_vocab_size": 0, "position_biased_input": True},
)

ROWS = (Row(DEBERTA_V2),)
