"""NomicBERT: BERT's input layer, Llama's rotation and gate."""

from __future__ import annotations

from minibert.families.parts.block_names import LegacyName
from minibert.families.parts.block_parts import Blocks, Residual
from minibert.families.parts.config import replace
from minibert.families.parts.heads import CLASSIFIER, POOLER, TOKEN_CLASSES, classes, masked_word
from minibert.families.parts.steps import Norm

from .bert import BERT, BERT_DEFAULTS, BERT_WORDS, NORM, TYPE, WORD
from .family import scheme
from .llama import GATED, ROTATED
from .rows import ModelType

NOMIC_BERT = replace(
    BERT,
    model_type="nomic_bert",
    # published files have the second key, which the reference does not read
    attention=scheme("rotary", theta=1000.0, theta_keys=("rope_theta", "rotary_emb_base")),
    # the file calls the norm emb_ln, the module is embeddings.LayerNorm
    steps=(WORD, TYPE, replace(NORM, names=("embeddings.LayerNorm", "emb_ln"))),
    prefixes=("nomic_bert.",),
    checked_prefixes=("embeddings.", "emb_ln."),
    aliases={  # keys of published files; the reference does not read them, and has their values as its defaults
        "hidden_size": "n_embd",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
        "intermediate_size": "n_inner",
        "layer_norm_eps": "layer_norm_epsilon",
    },
    defaults={**BERT_DEFAULTS, "max_position_embeddings": 2048, "hidden_act": "silu"},
    only={},
    later_arguments=("position_ids",),
)


NOMIC_BERT_BLOCKS = Blocks(
    path="layers.{i}",
    parts=(
        Residual(work=replace(ROTATED, key_heads=""), post_norm=Norm(path="post_attention_layernorm")),
        Residual(work=GATED, post_norm=Norm(path="post_mlp_layernorm")),
    ),
    only={
        "activation_function": "swiglu",
        "rotary_emb_fraction": 1.0,
        "rotary_emb_scale_base": None,
        "scale_attn_weights": True,
        **dict.fromkeys(
            (
                "causal", "prenorm", "parallel_block", "use_rms_norm", "qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias",
                "rotary_emb_interleaved", "scale_attn_by_inverse_layer_idx",
            ),
            False,
        ),
    },  # keys of published files
    checked_prefixes=("layers.", "encoder.layers."),
    older_path="encoder.layers.{i}",
    older={
        **{f"self_attn.{name}_proj": LegacyName("attn.Wqkv", part, 3) for part, name in enumerate("qkv")},
        "self_attn.o_proj": LegacyName("attn.out_proj"),
        "mlp.up_proj": LegacyName("mlp.fc11"),
        "mlp.gate_proj": LegacyName("mlp.fc12"),
        "mlp.down_proj": LegacyName("mlp.fc2"),
        "post_attention_layernorm": LegacyName("norm1"),
        "post_mlp_layernorm": LegacyName("norm2"),
    },
)  # fmt: skip


NOMIC_BERT_HEADS = (
    masked_word(
        *BERT_WORDS[:2],
        Norm(path="cls.predictions.transform.layer_norm"),
        BERT_WORDS[3],
        architectures=("ForMaskedLM",),
    ),
    classes(*POOLER, CLASSIFIER),
    TOKEN_CLASSES,
)

ROWS = (ModelType(NOMIC_BERT, NOMIC_BERT_BLOCKS, NOMIC_BERT_HEADS),)
