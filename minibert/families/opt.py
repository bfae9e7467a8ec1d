"""OPT."""

from __future__ import annotations

from minibert.families.parts.config import Config
from minibert.families.parts.steps import Positions, Project, Tokens

from .family import Family
from .rows import ModelType


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

ROWS = (ModelType(OPT),)
