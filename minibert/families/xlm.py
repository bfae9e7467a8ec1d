"""XLM and XLNet."""

from __future__ import annotations

from typing import NoReturn

from minibert.families.parts.config import Config
from minibert.families.parts.steps import Add, Binder, Mask, Norm, Positions, Tokens

from .family import Family
from .rows import ModelType
from .t5 import D_MODEL


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


def refuse_scheme(config: Config, binder: Binder, side: str) -> NoReturn:
    """Refuse XLNet's position scheme, which acts in blocks that are not computed here."""
    raise config.refused("xlnet has sinusoids by distance inside attention, which minibert does not compute")


XLNET = Family(
    model_type="xlnet",
    tokenizer="XLNetTokenizer",
    attention=refuse_scheme,
    steps=(Tokens(path="word_embedding", padding_idx=None, head="lm_loss.weight"),),
    prefixes=("transformer.",),
    checked_prefixes=(),
    aliases={**D_MODEL, "n_token": "vocab_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
    defaults={"pad_token_id": 5},
    later_arguments=("token_type_ids",),
)

ROWS = (
    ModelType(XLM),
    ModelType(XLNET),
)
