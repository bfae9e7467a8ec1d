"""DeBERTa v2 and v3."""

from __future__ import annotations

from typing import Any

from minibert.families.parts.block_parts import Attention, Blocks, Residual
from minibert.families.parts.config import Config, projected, replace, switch, typed
from minibert.families.parts.heads import ANSWER, CLASSIFIER, TOKEN_CLASSES, WORDS, Act, HeadMap, classes, masked_word
from minibert.families.parts.plan import position_scale, position_term
from minibert.families.parts.steps import Binder, Mask, Norm, Project

from .bert import BERT, BERT_DEFAULTS, BERT_FEED, BERT_WORDS, NARROW, NORM, POSITION, TYPE, WORD
from .family import scheme
from .rows import Row

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
    unused_endings=("position_ids", "position_embeddings.weight"),
    aliases={"embedding_size": "hidden_size"},
    defaults={
        **BERT_DEFAULTS, "layer_norm_eps": 1e-7, "type_vocab_size": 0, "position_biased_input": True,
        "pooler_hidden_act": "gelu", "relative_attention": False,
    },
)  # fmt: skip


def distances(config: Config, binder: Binder) -> dict[str, Any]:
    """The rows of distances, which all blocks share, and their norm."""
    from minibert.families.parts.attention_schemes import deberta_norm, deberta_rows
    from minibert.families.parts.modules import Embedding

    found: dict[str, Any] = {}
    if config.flag("relative_attention"):
        rows = deberta_rows(config)[2], config.integer("hidden_size")
        found["encoder.rel_embeddings"] = Embedding(binder.table(("encoder.rel_embeddings.weight",), rows))
    return found | deberta_norm(config).bound(config, binder, "", config.integer("hidden_size"))


SELF = "attention.self"
QUERY, KEY, VALUE = (f"{SELF}.{name}_proj" for name in ("query", "key", "value"))

DEBERTA_V2_PARTS = (
    Residual(
        work=Attention(
            maps=(QUERY, KEY, VALUE), output="attention.output.dense", scale=position_scale,
            terms=(position_term("c2p", KEY, f"{SELF}.pos_key_proj"),
                   position_term("p2c", QUERY, f"{SELF}.pos_query_proj")),
        ),
        after=Norm(path="attention.output.LayerNorm"),
    ),
    BERT_FEED,
)  # fmt: skip

DEBERTA_V2_BLOCKS = Blocks(
    parts=DEBERTA_V2_PARTS,
    causal=lambda config: False,
    others=distances,
    only={"conv_kernel_size": 0},  # the large files of v2 convolve what entered block 0, which is not computed
)  # fmt: skip

OWN_WORDS = "lm_predictions.lm_head"  # of a file that legacy: false describes

DEBERTA_V2_HEADS = (
    masked_word(replace(BERT_WORDS[0], out=NARROW), *BERT_WORDS[1:], architectures=("ForMaskedLM",)),
    masked_word(
        HeadMap(path=f"{OWN_WORDS}.dense"),
        Act(path=f"{OWN_WORDS}.transform_act_fn"),
        Norm(path=f"{OWN_WORDS}.LayerNorm"),
        HeadMap(path=OWN_WORDS, out=WORDS, tied=True),
        architectures=("ForMaskedLM",),
    ),
    classes(HeadMap(path="pooler.dense"), Act(path="pooler.activation", act="pooler_hidden_act"), CLASSIFIER),
    TOKEN_CLASSES,
    ANSWER,
)

ROWS = (Row(DEBERTA_V2, DEBERTA_V2_BLOCKS, DEBERTA_V2_HEADS),)
