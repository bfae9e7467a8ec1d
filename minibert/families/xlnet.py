"""XLNet."""

from __future__ import annotations

from typing import NoReturn

from minibert.families.parts.config import Config
from minibert.families.parts.steps import Binder, Tokens

from .family import Family
from .rows import ModelType
from .t5 import D_MODEL


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

ROWS = (ModelType(XLNET),)
