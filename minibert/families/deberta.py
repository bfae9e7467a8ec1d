"""DeBERTa v2 and v3."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from minibert.equations.blocks import split_heads
from minibert.equations.input_layer import Array
from minibert.families.parts.block_parts import Attention, BindContext, Blocks, Residual
from minibert.families.parts.config import Config, projected, replace, switch, typed
from minibert.families.parts.plan import PositionTerm
from minibert.families.parts.steps import Binder, Mask, Norm, Project

from .bert import BERT, BERT_DEFAULTS, BERT_FEED, BERT_WORDS, NARROW, NORM, POSITION, TYPE, WORD
from .family import scheme
from .parts.heads import ANSWER, CLASSIFIER, TOKEN_CLASSES, WORDS, Act, HeadLinear, classes, masked_word
from .rows import ModelType

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
    """Read the rows of distances, which all blocks share, and their norm."""
    from minibert.families.parts.attention_schemes import deberta_norm, deberta_rows
    from minibert.families.parts.modules import Embedding

    modules: dict[str, Any] = {}
    if config.flag("relative_attention"):
        rows = deberta_rows(config)[2], config.integer("hidden_size")
        modules["encoder.rel_embeddings"] = Embedding(binder.table(("encoder.rel_embeddings.weight",), rows))
    return modules | deberta_norm(config).bound(config, binder, "", config.integer("hidden_size"))


def position_kinds(config: Config) -> tuple[str, ...]:
    """Read the terms in config.json, a list or a string: "c2p", content to position, and "p2c"."""
    named = config.get("pos_att_type") or ()
    kinds = [kind.strip() for kind in named.lower().split("|")] if isinstance(named, str) else named
    if not isinstance(kinds, list | tuple) or not all(isinstance(kind, str) for kind in kinds):
        raise config.refused(f"'pos_att_type' must list 'c2p', 'p2c' or both, found {named!r}")
    return tuple(kind for kind in ("c2p", "p2c") if kind in kinds)


def position_scale(config: Config, head_dim: int, i: int) -> float:
    """Return the factor of DeBERTa's scores: 1 / sqrt(s * head_dim), s = 1 + the number of terms in the config."""
    return 1 / math.sqrt((1 + len(position_kinds(config))) * head_dim)


def position_term(kind: str, shared: str, separate: str) -> Callable[[BindContext], PositionTerm | None]:
    """Return the maker of one of DeBERTa's terms.

    shared, separate: the paths of its rows' map; `share_att_key` decides which one is read.
    """

    def make(context: BindContext) -> PositionTerm | None:
        config, log_buckets = context.config, context.scheme
        if log_buckets is None or kind not in position_kinds(config):
            return None
        dim, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
        path = context.prefix + shared if config.flag("share_att_key") else context.linear(separate, dim, dim, True)
        factor, module = position_scale(config, dim // heads, context.i), context.modules[path]

        @cache
        def mapped_rows() -> Array:
            rows = split_heads(module(log_buckets.relative_embeddings), heads)
            return np.ascontiguousarray(rows * rows.dtype.type(factor))

        words = ("k", "queries") if kind == "p2c" else ("q", "keys")
        name = "position to content" if kind == "p2c" else "content to position"
        says = f"{factor:.6g} * {words[0]} . the row of each distance, mapped as {words[1]} are"
        return PositionTerm(log_buckets, module, mapped_rows, heads, factor, kind == "p2c", name, says)

    return make


SELF = "attention.self"
QUERY, KEY, VALUE = (f"{SELF}.{name}_proj" for name in ("query", "key", "value"))

DEBERTA_V2_PARTS = (
    Residual(
        work=Attention(
            maps=(QUERY, KEY, VALUE), output="attention.output.dense", scale=position_scale,
            terms=(position_term("c2p", KEY, f"{SELF}.pos_key_proj"),
                   position_term("p2c", QUERY, f"{SELF}.pos_query_proj")),
        ),
        post_norm=Norm(path="attention.output.LayerNorm"),
    ),
    BERT_FEED,
)  # fmt: skip

DEBERTA_V2_BLOCKS = Blocks(
    parts=DEBERTA_V2_PARTS,
    others=distances,
    only={"conv_kernel_size": 0},  # the large files of v2 convolve the input of block 0, which is not computed
)  # fmt: skip

OWN_WORDS = "lm_predictions.lm_head"  # in a file with legacy: false

DEBERTA_V2_HEADS = (
    masked_word(replace(BERT_WORDS[0], out=NARROW), *BERT_WORDS[1:], architectures=("ForMaskedLM",)),
    masked_word(
        HeadLinear(path=f"{OWN_WORDS}.dense"),
        Act(path=f"{OWN_WORDS}.transform_act_fn"),
        Norm(path=f"{OWN_WORDS}.LayerNorm"),
        HeadLinear(path=OWN_WORDS, out=WORDS, tied=True),
        architectures=("ForMaskedLM",),
    ),
    classes(HeadLinear(path="pooler.dense"), Act(path="pooler.activation", act="pooler_hidden_act"), CLASSIFIER),
    TOKEN_CLASSES,
    ANSWER,
)

ROWS = (ModelType(DEBERTA_V2, DEBERTA_V2_BLOCKS, DEBERTA_V2_HEADS),)
