"""ModernBERT."""

from __future__ import annotations

from minibert.families.parts.block_parts import Attention, Blocks, FeedForward, Residual
from minibert.families.parts.config import FULL, Config, layer_type, replace, switch
from minibert.families.parts.heads import (
    ANSWER,
    CLASSIFIER,
    TOKEN_CLASSES,
    WORDS,
    Act,
    HeadLinear,
    classes,
    masked_word,
)
from minibert.families.parts.steps import Norm, Tokens

from .family import Family, scheme
from .rows import ModelType

MODERNBERT = Family(
    model_type="modernbert",
    tokenizer="TokenizersBackend",
    attention=scheme("layered_rotary"),
    steps=(
        Tokens(path="embeddings.tok_embeddings", head="decoder.weight"),
        Norm(path="embeddings.norm", eps="norm_eps", biased=switch("norm_bias")),
    ),
    prefixes=("model.",),
    defaults={
        "norm_eps": 1e-5, "norm_bias": False, "pad_token_id": 50283, "max_position_embeddings": 8192,
        "hidden_activation": "gelu", "attention_bias": False, "mlp_bias": False, "local_attention": 128,
        "global_attn_every_n_layers": 3, "classifier_pooling": "cls", "classifier_bias": False,
        "classifier_activation": "gelu", "decoder_bias": True,
    },
    later_arguments=("position_ids",),
)  # fmt: skip


def _modernbert_type(config: Config, i: int) -> str:
    return layer_type(config, i, i % max(1, config.integer("global_attn_every_n_layers")) != 0)


def _modernbert_window(config: Config, i: int) -> int | None:
    """Return half of `local_attention`, the visible tokens on each side; `sliding_window` is that half."""
    if _modernbert_type(config, i) == FULL:
        return None
    return config.integer("sliding_window") if "sliding_window" in config else config.integer("local_attention") // 2


MODERNBERT_ATTENTION = Residual(
    work=Attention(
        maps=("attn.Wqkv",), output="attn.Wo", biased="attention_bias", output_biased="attention_bias",
        rotation=_modernbert_type, window=_modernbert_window,
    ),
    pre_norm=Norm(path="attn_norm", eps="norm_eps", biased="norm_bias"),
)  # fmt: skip

MODERNBERT_FEED = Residual(
    work=FeedForward(
        up="mlp.Wi", gate="mlp.Wi", activation="mlp.act", down="mlp.Wo", biased="mlp_bias", act="hidden_activation"
    ),
    pre_norm=Norm(path="mlp_norm", eps="norm_eps", biased="norm_bias"),
)

MODERNBERT_BLOCKS = Blocks(
    path="layers.{i}",
    parts=(MODERNBERT_ATTENTION, MODERNBERT_FEED),
    first=(replace(MODERNBERT_ATTENTION, pre_norm=Norm()), MODERNBERT_FEED),  # the input layer ends with a norm
    last_norm=Norm(path="final_norm", eps="norm_eps", biased="norm_bias"),
    checked_prefixes=("layers.", "final_norm."),
)  # fmt: skip


def first_or_mean(config: Config) -> str:
    """Read the pooling of the classifier: each text's first row, or the mean of all rows."""
    pooling = config.get("classifier_pooling")
    if pooling not in ("cls", "mean"):
        raise config.refused(f"'classifier_pooling' must be 'cls' or 'mean', found {pooling!r}")
    return "first" if pooling == "cls" else "mean"


MODERNBERT_STEPS = (
    HeadLinear(path="head.dense", biased="classifier_bias"),
    Act(path="head.act", act="classifier_activation"),
    Norm(path="head.norm", eps="norm_eps", biased="norm_bias"),
)

MODERNBERT_HEADS = (
    masked_word(
        *MODERNBERT_STEPS,
        HeadLinear(path="decoder", out=WORDS, biased="decoder_bias", tied=True),
        architectures=("ForMaskedLM",),
    ),
    classes(*MODERNBERT_STEPS, CLASSIFIER, pooling=first_or_mean),
    replace(TOKEN_CLASSES, steps=(*MODERNBERT_STEPS, CLASSIFIER)),
    replace(ANSWER, steps=(*MODERNBERT_STEPS, replace(CLASSIFIER, out=2))),
)

ROWS = (ModelType(MODERNBERT, MODERNBERT_BLOCKS, MODERNBERT_HEADS),)
