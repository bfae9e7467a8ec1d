"""GPT-NeoX."""

from __future__ import annotations

from minibert.families.parts.steps import Tokens

from .family import Family, scheme
from .rows import ModelType

GPT_NEOX = Family(
    model_type="gpt_neox",
    tokenizer="GPTNeoXTokenizer",
    attention=scheme("rotary", share=0.25, theta_keys=("rotary_emb_base",), share_key="rotary_pct"),
    steps=(Tokens(path="embed_in", padding_idx=None, head="embed_out.weight"),),
    prefixes=("gpt_neox.",),
    checked_prefixes=(),
    defaults={"tie_word_embeddings": False, "max_position_embeddings": 2048},
    later_arguments=("position_ids",),
)

ROWS = (ModelType(GPT_NEOX),)
