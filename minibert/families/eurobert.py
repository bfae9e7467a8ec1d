"""EuroBERT: Llama's blocks without a causal mask."""

from __future__ import annotations

from minibert.families.parts.config import Config, replace
from minibert.families.parts.heads import CLASSIFIER, TOKEN_CLASSES, WORDS, Act, HeadLinear, classes, masked_word

from .llama import LLAMA, LLAMA_BLOCKS
from .rows import ModelType

EUROBERT = replace(
    LLAMA,
    model_type="eurobert",
    defaults={
        **LLAMA.defaults,
        "pad_token_id": 128001,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "classifier_pooling": "late",
    },
)

EUROBERT_BLOCKS = replace(LLAMA_BLOCKS, causal=lambda config: False)

POOLINGS = {"bos": "first", "mean": "mean", "late": "late"}


def _pooling(config: Config) -> str:
    pooling = config.get("classifier_pooling")
    if pooling not in POOLINGS:
        raise config.refused(f"'classifier_pooling' must be one of {', '.join(POOLINGS)}, found {pooling!r}")
    return POOLINGS[pooling]


EUROBERT_HEADS = (
    masked_word(
        HeadLinear(path="lm_head", out=WORDS, biased="mlp_bias", tied=True),  # the blocks' key is read here too
        architectures=("ForMaskedLM",),
    ),
    classes(
        HeadLinear(path="dense"),
        Act(path="activation", word="gelu"),  # regardless of hidden_act
        CLASSIFIER,
        pooling=_pooling,
    ),
    TOKEN_CLASSES,
)

ROWS = (ModelType(EUROBERT, EUROBERT_BLOCKS, EUROBERT_HEADS),)
