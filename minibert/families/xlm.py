"""XLM."""

from __future__ import annotations

from minibert.families.parts.config import Config
from minibert.families.parts.steps import Add, Mask, Norm, Positions, Tokens

from .family import Family
from .rows import ModelType


def many_languages(config: Config) -> bool:
    """Return whether a row for the language is added: only if the model knows several."""
    return config.flag("use_lang_emb") and config.integer("n_langs") > 1


XLM = Family(
    model_type="xlm",
    steps=(
        Tokens(path="embeddings", head="pred_layer.proj.weight"),
        Positions(path="position_embeddings", cached=False),
        Add(path="lang_embeddings", ids="langs", rows="n_langs", when=many_languages),
        Add(
            path="embeddings", names=("embeddings.weight", "pred_layer.proj.weight"), ids="token_type_ids",
            rows="vocab_size", padding_idx="pad_token_id", role=" (types)",
        ),
        Norm(path="layer_norm_emb"),
        Mask(counted=True),
    ),
    prefixes=("transformer.",),
    checked_prefixes=(),
    aliases={
        "hidden_size": "emb_dim",
        "num_attention_heads": "n_heads",
        "num_hidden_layers": "n_layers",
        "n_words": "vocab_size",
        "pad_index": "pad_token_id",
    },
    defaults={
        "pad_token_id": 2, "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "n_langs": 1, "use_lang_emb": True,
    },
)  # fmt: skip

ROWS = (ModelType(XLM),)
