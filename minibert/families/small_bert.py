"""Smaller BERTs: DistilBERT, and ALBERT with narrow tables and blocks that share their modules."""

from __future__ import annotations

from minibert.families.parts.block_parts import Attention, Blocks, FeedForward, Residual
from minibert.families.parts.config import Config, replace
from minibert.families.parts.steps import Norm, Project

from .bert import BERT, BERT_DEFAULTS, NARROW, NORM, POSITION, TYPE, WORD
from .parts.heads import ANSWER, CLASSIFIER, TOKEN_CLASSES, WORDS, Act, HeadLinear, classes, masked_word
from .rows import ModelType

DISTILBERT = replace(
    BERT,
    model_type="distilbert",
    steps=(replace(WORD, head="vocab_projector.weight"), replace(POSITION, cached=False), replace(NORM, eps=1e-12)),
    prefixes=("distilbert.",),
    aliases={"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
    defaults={"pad_token_id": 0, "max_position_embeddings": 512, "activation": "gelu"},
)


DISTILBERT_BLOCKS = Blocks(
    path="transformer.layer.{i}",
    parts=(
        Residual(
            work=Attention(maps=("attention.q_lin", "attention.k_lin", "attention.v_lin"), output="attention.out_lin"),
            post_norm=Norm(path="sa_layer_norm", eps=1e-12),
        ),
        Residual(
            work=FeedForward(
                up="ffn.lin1", down="ffn.lin2", activation="ffn.activation",
                act="activation", inner="hidden_dim",
            ),
            post_norm=Norm(path="output_layer_norm", eps=1e-12),
        ),
    ),
    checked_prefixes=("transformer.",),
)  # fmt: skip


DISTILBERT_HEADS = (
    masked_word(
        HeadLinear(path="vocab_transform"),
        Act(path="activation", act="activation"),
        Norm(path="vocab_layer_norm", eps=1e-12),
        HeadLinear(path="vocab_projector", out=WORDS, tied=True),
    ),
    classes(HeadLinear(path="pre_classifier"), Act(path="pre_classifier.relu", word="relu"), CLASSIFIER),
    TOKEN_CLASSES,
    ANSWER,
)

ALBERT = replace(
    BERT,
    model_type="albert",
    tokenizer="AlbertTokenizer",
    steps=(
        replace(WORD, width=NARROW, head="predictions.decoder.weight"),
        replace(TYPE, width=NARROW),
        replace(POSITION, width=NARROW, cached=False),
        replace(NORM, width=NARROW),
        Project(path="encoder.embedding_hidden_mapping_in"),
    ),
    prefixes=("albert.",),
    defaults={
        **BERT_DEFAULTS,
        "embedding_size": 128,
        "hidden_act": "gelu_new",
        "num_hidden_groups": 1,
        "inner_group_num": 1,
    },
)


MOST_SHARED = 1_000  # in other models a missing tensor shows that the count is too high; here all layers share weights


def _albert_count(config: Config) -> int:
    count = config.integer("num_hidden_layers") * config.integer("inner_group_num")
    if count > MOST_SHARED:
        most = f"at most {MOST_SHARED:,} (ALBERT: 12), found {count:,}"
        raise config.refused(f"'num_hidden_layers' times 'inner_group_num' is {most}")
    return count


def _albert_module(config: Config, i: int) -> str:
    """Return the path of the module that block i uses: each group serves a run of layers, all its modules per layer."""
    layers, groups = config.integer("num_hidden_layers"), config.integer("num_hidden_groups")
    if not 1 <= groups <= layers:
        raise config.refused(f"'num_hidden_groups' must be from 1 to the {layers} layers, found {groups}")
    layer, inner = divmod(i, config.integer("inner_group_num"))
    return f"encoder.albert_layer_groups.{int(layer / (layers / groups))}.albert_layers.{inner}"


ALBERT_BLOCKS = Blocks(
    path="encoder.albert_layer_groups.{i}",
    parts=(
        Residual(
            work=Attention(maps=("attention.query", "attention.key", "attention.value"), output="attention.dense"),
            post_norm=Norm(path="attention.LayerNorm"),
        ),
        Residual(
            work=FeedForward(up="ffn", down="ffn_output", activation="activation"),
            post_norm=Norm(path="full_layer_layer_norm"),
        ),
    ),
    count=_albert_count,
    shared=_albert_module,
    checked_prefixes=("encoder.albert_layer_groups.",),
)


ALBERT_HEADS = (
    masked_word(
        HeadLinear(path="predictions.dense", out="embedding_size"),
        Act(path="predictions.activation"),
        Norm(path="predictions.LayerNorm"),
        HeadLinear(path="predictions.decoder", out=WORDS, bias="predictions.bias", tied=True),
    ),
    classes(HeadLinear(path="pooler"), Act(path="pooler_activation", word="tanh"), CLASSIFIER),
    TOKEN_CLASSES,
    ANSWER,
)

ROWS = (
    ModelType(DISTILBERT, DISTILBERT_BLOCKS, DISTILBERT_HEADS),
    ModelType(ALBERT, ALBERT_BLOCKS, ALBERT_HEADS),
)
