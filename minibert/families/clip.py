"""CLIP's text model."""

from __future__ import annotations

from minibert.families.parts.frozen import replace
from minibert.families.parts.steps import Positions, Tokens

from .family import Family
from .rows import Row

CLIP_TEXT_MODEL = Family(
    model_type="clip_text_model",
    steps=(
        Tokens(path="embeddings.token_embedding", padding_idx=None),
        Positions(path="embeddings.position_embedding", cached=False),
    ),
    prefixes=("text_model.",),
    tree={"embeddings": "CLIPTextEmbeddings"},
    section="text_config",
    defaults={"max_position_embeddings": 77, "pad_token_id": 1, "vocab_size": 49408, "hidden_size": 512},
)

CLIP = replace(CLIP_TEXT_MODEL, model_type="clip", tokenizer="CLIPTokenizer")

ROWS = (
    Row(CLIP_TEXT_MODEL),
    Row(CLIP),
)
