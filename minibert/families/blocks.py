"""The blocks after the input layer, a row for each model_type: the names of their tensors and what a config decides.

Data alone; `block_parts` says what a row is made of. A row here shares its prefixes with the row of the same model_type
in `rows`. A model_type without a row here has an input layer only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from .block_parts import Add, Attend, Blocks, Feed, Norm
from .config import Config
from .frozen import replace


def _bert_tree(name: str) -> dict[str, str]:
    block = "encoder.layer.{i}"
    return {
        "": f"{name}Model",
        "encoder": f"{name}Encoder",
        block: f"{name}Layer",
        f"{block}.attention": f"{name}Attention",
        f"{block}.attention.self": f"{name}SelfAttention",
        f"{block}.attention.output": f"{name}SelfOutput",
        f"{block}.attention.attn": f"{name}SelfAttention",
        f"{block}.intermediate": f"{name}Intermediate",
        f"{block}.output": f"{name}Output",
    }


BERT_FEED = Add(
    work=Feed(up="intermediate.dense", activation="intermediate.intermediate_act_fn", down="output.dense"),
    after=Norm(path="output.LayerNorm"),
)

BERT = Blocks(
    parts=(
        Add(
            work=Attend(
                maps=("attention.self.query", "attention.self.key", "attention.self.value"),
                output="attention.output.dense",
            ),
            after=Norm(path="attention.output.LayerNorm"),
        ),
        BERT_FEED,
    ),
    tree=_bert_tree("Bert"),
)

DISTILBERT = Blocks(
    path="transformer.layer.{i}",
    parts=(
        Add(
            work=Attend(maps=("attention.q_lin", "attention.k_lin", "attention.v_lin"), output="attention.out_lin"),
            after=Norm(path="sa_layer_norm", eps=1e-12),
        ),
        Add(
            work=Feed(
                up="ffn.lin1", down="ffn.lin2", activation="ffn.activation", activation_last=True,
                act="activation", inner="hidden_dim",
            ),
            after=Norm(path="output_layer_norm", eps=1e-12),
        ),
    ),
    causal=lambda config: False,
    defaults={"activation": "gelu"},
    checked_prefixes=("transformer.",),
    tree={
        "": "DistilBertModel",
        "transformer": "Transformer",
        "transformer.layer.{i}": "TransformerBlock",
        "transformer.layer.{i}.attention": "DistilBertSelfAttention",
        "transformer.layer.{i}.ffn": "FFN",
    },
)  # fmt: skip

MPNET = Blocks(
    parts=(
        Add(
            work=Attend(maps=("attention.attn.q", "attention.attn.k", "attention.attn.v"), output="attention.attn.o"),
            after=Norm(path="attention.LayerNorm"),
        ),
        BERT_FEED,
    ),
    causal=lambda config: False,
    relative="encoder.relative_attention_bias",
    tree=_bert_tree("MPNet"),
)


def _gpt2_scale(config: Config, head_dim: int, i: int) -> float:
    scale = 1 / math.sqrt(head_dim) if config.flag("scale_attn_weights", True) else 1.0
    return scale / (i + 1) if config.flag("scale_attn_by_inverse_layer_idx") else scale


GPT2 = Blocks(
    path="h.{i}",
    parts=(
        Add(
            work=Attend(maps=("attn.c_attn",), output="attn.c_proj", scale=_gpt2_scale),
            before=Norm(path="ln_1", eps="layer_norm_epsilon"),
        ),
        Add(
            work=Feed(
                up="mlp.c_fc", down="mlp.c_proj", activation="mlp.act", activation_last=True,
                act="activation_function", inner="n_inner", times=4,
            ),
            before=Norm(path="ln_2", eps="layer_norm_epsilon"),
        ),
    ),
    last_norm=Norm(path="ln_f", eps="layer_norm_epsilon"),
    transposed=True,
    causal=lambda config: True,
    defaults={"activation_function": "gelu_new"},
    checked_prefixes=("h.", "ln_f."),
    unused_endings=(".attn.bias", ".attn.masked_bias"),  # the causal mask, which older versions stored
    tree={"h.{i}": "GPT2Block", "h.{i}.attn": "GPT2Attention", "h.{i}.mlp": "GPT2MLP"},
)  # fmt: skip

BLOCKS: Mapping[str, Blocks] = {
    "bert": BERT,
    "roberta": replace(BERT, tree=_bert_tree("Roberta")),
    "xlm-roberta": replace(BERT, tree=_bert_tree("XLMRoberta")),
    "camembert": replace(BERT, tree=_bert_tree("Camembert")),
    "electra": replace(BERT, tree=_bert_tree("Electra")),
    "ernie": replace(BERT, tree=_bert_tree("Ernie")),
    "distilbert": DISTILBERT,
    "mpnet": MPNET,
    "gpt2": GPT2,
}
"""model_type -> row."""
