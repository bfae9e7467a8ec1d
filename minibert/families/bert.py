"""BERT, and models whose modules have BERT's names: ERNIE, ELECTRA, ConvBERT."""

from __future__ import annotations

from minibert.families.parts.block_parts import Attention, Blocks, FeedForward, Residual
from minibert.families.parts.config import projected, replace, switch
from minibert.families.parts.heads import (
    ANSWER,
    CLASSIFIER,
    LABELS,
    POOLER,
    TOKEN_CLASSES,
    WORDS,
    Act,
    Head,
    HeadLinear,
    classes,
    word_heads,
)
from minibert.families.parts.steps import Add, Norm, Positions, Project, Tokens

from .family import Family
from .rows import ModelType

WORD = Tokens(path="embeddings.word_embeddings", head="cls.predictions.decoder.weight")
TYPE = Add(path="embeddings.token_type_embeddings", ids="token_type_ids", rows="type_vocab_size", missing=0)
POSITION = Positions(path="embeddings.position_embeddings")
NORM = Norm(path="embeddings.LayerNorm")
BERT_DEFAULTS = {
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "type_vocab_size": 2,
    "max_position_embeddings": 512,
    "hidden_act": "gelu",
}

# with "relative_key" positions act inside attention, and no position row is added to the words
ABSOLUTE = {"position_embedding_type": "absolute"}

NARROW = "embedding_size"  # config key of a table's width, if it is narrower than the model

BERT = Family(
    model_type="bert",
    steps=(WORD, TYPE, POSITION, NORM),
    prefixes=("bert.",),
    defaults=BERT_DEFAULTS,
    only=ABSOLUTE,
    tokenizer="BertTokenizer",
)

ERNIE = replace(
    BERT,
    model_type="ernie",
    steps=(
        WORD,
        TYPE,
        POSITION,
        Add(
            path="embeddings.task_type_embeddings", ids="task_type_ids", rows="task_type_vocab_size", missing=0,
            when=switch("use_task_id"),
        ),
        NORM,
    ),
    prefixes=("ernie.", "bert."),
    unused_endings=("position_ids", "task_type_embeddings.weight"),
    defaults={**BERT_DEFAULTS, "task_type_vocab_size": 3, "use_task_id": False},
)  # fmt: skip

ELECTRA = replace(
    BERT,
    model_type="electra",
    steps=(
        replace(WORD, width=NARROW, head="generator_lm_head.weight"),
        replace(TYPE, width=NARROW),
        replace(POSITION, width=NARROW),
        replace(NORM, width=NARROW),
        Project(path="embeddings_project", when=projected),
    ),
    prefixes=("electra.",),
    defaults={**BERT_DEFAULTS, "embedding_size": 128},
)

CONVBERT = replace(
    ELECTRA,
    model_type="convbert",
    steps=(
        replace(WORD, width=NARROW, head="generator_lm_head.weight"),
        replace(POSITION, width=NARROW, cached=False),
        replace(TYPE, width=NARROW),
        replace(NORM, width=NARROW),
        Project(path="embeddings_project", when=projected),
    ),
    prefixes=("convbert.",),
    defaults={**BERT_DEFAULTS, "embedding_size": 768, "pad_token_id": 1},
)


BERT_FEED = Residual(
    work=FeedForward(up="intermediate.dense", activation="intermediate.intermediate_act_fn", down="output.dense"),
    post_norm=Norm(path="output.LayerNorm"),
)

BERT_BLOCKS = Blocks(
    parts=(
        Residual(
            work=Attention(
                maps=("attention.self.query", "attention.self.key", "attention.self.value"),
                output="attention.output.dense",
            ),
            post_norm=Norm(path="attention.output.LayerNorm"),
        ),
        BERT_FEED,
    ),
    causal=switch("is_decoder"),
)


BERT_WORDS = (
    HeadLinear(path="cls.predictions.transform.dense"),
    Act(path="cls.predictions.transform.transform_act_fn"),
    Norm(path="cls.predictions.transform.LayerNorm"),
    HeadLinear(path="cls.predictions.decoder", out=WORDS, bias="cls.predictions.bias", tied=True),
)

BERT_HEADS = (
    *word_heads(*BERT_WORDS),
    classes(*POOLER, CLASSIFIER),
    TOKEN_CLASSES,
    ANSWER,
    Head(
        name="next_sentence",
        architectures=("ForNextSentencePrediction",),
        steps=(*POOLER, HeadLinear(path="cls.seq_relationship", out=2)),
        pooling="first",
    ),
)

ELECTRA_HEADS = (
    *word_heads(
        HeadLinear(path="generator_predictions.dense", out="embedding_size"),
        Act(path="generator_predictions.activation", word="gelu"),
        Norm(path="generator_predictions.LayerNorm"),
        HeadLinear(path="generator_lm_head", out=WORDS, tied=True),
        architectures=("ForMaskedLM",),
    ),
    classes(
        HeadLinear(path="classifier.dense"),
        Act(path="classifier.activation", word="gelu"),  # BERT has tanh
        HeadLinear(path="classifier.out_proj", out=LABELS),
    ),
    TOKEN_CLASSES,
    ANSWER,
    Head(
        name="replaced_token",
        architectures=("ForPreTraining",),
        steps=(
            HeadLinear(path="discriminator_predictions.dense"),
            Act(path="discriminator_predictions.activation"),
            HeadLinear(path="discriminator_predictions.dense_prediction", out=1),
        ),
        single=True,
    ),
)

ROWS = (
    ModelType(BERT, BERT_BLOCKS, BERT_HEADS),
    ModelType(ERNIE, BERT_BLOCKS, BERT_HEADS),
    ModelType(ELECTRA, BERT_BLOCKS, ELECTRA_HEADS),
    ModelType(CONVBERT),
)
