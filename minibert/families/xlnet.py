"""XLNet."""

from __future__ import annotations

from minibert.families.parts.readers import scheme
from minibert.families.parts.steps import Tokens

from .family import Family
from .rows import Row
from .t5 import D_MODEL

XLNET = Family(
    model_type="xlnet",
    tokenizer="XLNetTokenizer",
    attention=scheme("xlnet_sinusoids"),
    steps=(Tokens(path="word_embedding", padding_idx=None, head="lm_loss.weight"),),
    prefixes=("transformer.",),
    tree={"": "XLNetModel"},
    checked_prefixes=(),
    aliases={**D_MODEL, "n_token": "vocab_size", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
    defaults={"pad_token_id": 5},
    later_arguments=("token_type_ids",),
)

ROWS = (Row(XLNET),)
