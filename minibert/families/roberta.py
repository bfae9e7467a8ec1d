"""RoBERTa, XLM-RoBERTa, CamemBERT, MPNet: positions count from the padding id on."""

from __future__ import annotations

from collections.abc import Sequence

from minibert.families.parts.block_names import LegacyName
from minibert.families.parts.block_parts import Attention, Blocks, Residual
from minibert.families.parts.config import replace
from minibert.families.parts.heads import ANSWER, LABELS, TOKEN_CLASSES, WORDS, Act, HeadLinear, classes, word_heads
from minibert.families.parts.plan import relative_term
from minibert.families.parts.steps import Norm

from .bert import ABSOLUTE, BERT, BERT_BLOCKS, BERT_DEFAULTS, BERT_FEED, NORM, POSITION, TYPE, WORD
from .family import scheme
from .rows import ModelType

ROBERTA = replace(
    BERT,
    model_type="roberta",
    steps=(
        replace(WORD, head="lm_head.decoder.weight"),
        TYPE,
        replace(POSITION, rule="padding", padding_idx="pad_token_id"),
        NORM,
    ),
    prefixes=("roberta.",),
    defaults={**BERT_DEFAULTS, "pad_token_id": 1},
    tokenizer="RobertaTokenizer",
)

XLM_ROBERTA = replace(
    ROBERTA,
    model_type="xlm-roberta",
    # in files for flash attention, such as jina-reranker-v2's, the norm is emb_ln
    steps=(*ROBERTA.steps[:-1], replace(NORM, names=("embeddings.LayerNorm", "emb_ln"))),
    checked_prefixes=("embeddings.", "emb_ln."),
    only={"lora_adaptations": None, **ABSOLUTE},  # the first files of jina-embeddings-v3 have this model_type
    tokenizer="XLMRobertaTokenizer",
)

CAMEMBERT = replace(ROBERTA, model_type="camembert", tokenizer="CamembertTokenizer")

MPNET = replace(
    BERT,
    model_type="mpnet",
    tokenizer="MPNetTokenizer",
    attention=scheme("mpnet_bias"),
    # the reference's padding row is 1, regardless of config.json
    steps=(
        replace(WORD, padding_idx=1, head="lm_head.decoder.weight"),
        replace(POSITION, rule="padding", padding_idx=1, cached=False),
        NORM,
    ),
    prefixes=("mpnet.",),
    defaults={**BERT_DEFAULTS, "pad_token_id": 1, "relative_attention_num_buckets": 32},
)


def flash_names(
    qkv: Sequence[str], output: str, attention_norm: str, up: str, down: str, feed_norm: str
) -> dict[str, LegacyName]:
    """Return the names in files for flash attention, by the reference's paths of the same modules."""
    return {
        **{path: LegacyName("mixer.Wqkv", part, 3) for part, path in enumerate(qkv)},
        output: LegacyName("mixer.out_proj"),
        attention_norm: LegacyName("norm1"),
        up: LegacyName("mlp.fc1"),
        down: LegacyName("mlp.fc2"),
        feed_norm: LegacyName("norm2"),
    }


XLM_ROBERTA_BLOCKS = replace(
    BERT_BLOCKS,
    older_path="encoder.layers.{i}",
    older=flash_names(
        [f"attention.self.{name}" for name in ("query", "key", "value")], "attention.output.dense",
        "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm",
    ),
)  # fmt: skip

MPNET_BLOCKS = Blocks(
    parts=(
        Residual(
            work=Attention(
                maps=("attention.attn.q", "attention.attn.k", "attention.attn.v"), output="attention.attn.o",
                terms=(relative_term,),
            ),
            post_norm=Norm(path="attention.LayerNorm"),
        ),
        BERT_FEED,
    ),
    relative="encoder.relative_attention_bias",
)  # fmt: skip


ROBERTA_HEADS = (
    *word_heads(
        HeadLinear(path="lm_head.dense"),
        Act(path="lm_head.gelu", word="gelu"),  # regardless of hidden_act
        Norm(path="lm_head.layer_norm"),
        HeadLinear(path="lm_head.decoder", out=WORDS, bias="lm_head.bias", tied=True),
    ),
    classes(
        HeadLinear(path="classifier.dense"),
        Act(path="classifier.tanh", word="tanh"),
        HeadLinear(path="classifier.out_proj", out=LABELS),
    ),
    TOKEN_CLASSES,
    ANSWER,
)

MPNET_HEADS = (ROBERTA_HEADS[0], *ROBERTA_HEADS[2:])  # never causal, so no next word

ROWS = (
    ModelType(ROBERTA, BERT_BLOCKS, ROBERTA_HEADS),
    ModelType(XLM_ROBERTA, XLM_ROBERTA_BLOCKS, ROBERTA_HEADS),
    ModelType(CAMEMBERT, BERT_BLOCKS, ROBERTA_HEADS),
    ModelType(MPNET, MPNET_BLOCKS, MPNET_HEADS),
)
