"""T5 and mT5: encoder-decoders without position rows."""

from __future__ import annotations

from minibert.families.parts.frozen import replace
from minibert.families.parts.readers import scheme
from minibert.families.parts.steps import Tokens

from .family import Family
from .rows import Row

# own table, the shared one, the other side's, the output's: a tied table is stored once, under any of its names
TIED = ("{side}.embed_tokens.weight", "shared.weight", "{other}.embed_tokens.weight")

BOTH = ("encoder", "decoder")
D_MODEL = {"hidden_size": "d_model"}

T5 = Family(
    model_type="t5",
    tokenizer="T5Tokenizer",
    attention=scheme("t5_bias"),
    # words alone: T5 has no sinusoids and no position table; its relative bias acts inside attention
    steps=(Tokens(path="{side}.embed_tokens", names=TIED, padding_idx=None),),
    prefixes=("transformer.",),
    tree={"{side}": "T5Stack"},
    checked_prefixes=(),
    aliases={
        **D_MODEL,
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
        "head_dim": "d_kv",
        "max_position_embeddings": "n_positions",
    },
    # old files hold n_positions, which nothing reads; without it there is no number to give: T5 has no limit
    defaults={
        "n_positions": None,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
    },
    sides=BOTH,
    shared="shared",
)

MT5 = replace(T5, model_type="mt5", tree={"{side}": "MT5Stack"})

ROWS = (
    Row(T5),
    Row(MT5),
)
