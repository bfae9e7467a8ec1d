"""BERT's input layer and rotated queries and keys: NomicBERT, GTE, Jina's third embedding model."""

from __future__ import annotations

from minibert.families.parts.block_names import LegacyName
from minibert.families.parts.block_parts import Blocks, FeedForward, Residual
from minibert.families.parts.config import replace, typed
from minibert.families.parts.steps import Norm

from .bert import BERT, BERT_DEFAULTS, BERT_WORDS, NORM, TYPE, WORD
from .family import scheme
from .llama import GATED, ROTATED
from .parts.heads import CLASSIFIER, POOLER, TOKEN_CLASSES, WORDS, Act, HeadLinear, classes, masked_word
from .roberta import MPNET_HEADS, XLM_ROBERTA, flash_names
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

GTE = replace(
    BERT,
    model_type="gte",
    tokenizer="XLMRobertaTokenizer",
    attention=scheme("gte_rotary"),
    steps=(replace(WORD, head="lm_head.decoder.weight"), replace(TYPE, when=typed), NORM),
    prefixes=("gte.", "new."),
    unused_endings=("position_ids", "inv_freq"),
    defaults={**BERT_DEFAULTS, "pad_token_id": 1, "type_vocab_size": 1, "max_position_embeddings": 8192},
    only={"position_embedding_type": "rope", "layer_norm_type": "layer_norm"},  # keys of published files
    later_arguments=("position_ids",),
)

GTE_BLOCKS = Blocks(
    path="layers.{i}",
    parts=(
        Residual(
            work=replace(ROTATED, key_heads="", biased=True, output_biased=True),
            post_norm=Norm(path="post_attention_layernorm"),
        ),
        Residual(work=replace(GATED, output_biased=True), post_norm=Norm(path="post_mlp_layernorm")),
    ),
    only={"logn_attention_scale": False, "pack_qkv": True},
    checked_prefixes=("layers.", "encoder.layer."),
    older_path="encoder.layer.{i}",
    older={
        **{f"self_attn.{name}_proj": LegacyName("attention.qkv_proj", part, 3) for part, name in enumerate("qkv")},
        "self_attn.o_proj": LegacyName("attention.o_proj"),
        **{f"mlp.{name}_proj": LegacyName("mlp.up_gate_proj", part, 2) for part, name in enumerate(("up", "gate"))},
        "mlp.down_proj": LegacyName("mlp.down_proj"),
        "post_attention_layernorm": LegacyName("attn_ln"),
        "post_mlp_layernorm": LegacyName("mlp_ln"),
    },
)

GTE_HEADS = (
    masked_word(
        HeadLinear(path="lm_head.dense"),
        Act(path="lm_head.gelu", word="gelu"),  # regardless of hidden_act
        Norm(path="lm_head.layer_norm", names=("lm_head.layer_norm", "lm_head.norm")),
        HeadLinear(path="lm_head.decoder", out=WORDS, tied=True),
        architectures=("ForMaskedLM",),
    ),
    classes(*POOLER, CLASSIFIER),
    TOKEN_CLASSES,
)

JINA_EMBEDDINGS_V3 = replace(
    XLM_ROBERTA,
    model_type="jina_embeddings_v3",
    attention=scheme("rotary", theta=20000.0),
    steps=(replace(WORD, head="lm_head.decoder.weight"), TYPE, XLM_ROBERTA.steps[-1]),
    defaults={
        **BERT_DEFAULTS, "layer_norm_eps": 1e-5, "pad_token_id": 1, "type_vocab_size": 1,
        "max_position_embeddings": 8194,
    },
    only={"lora_adaptations": None},
    later_arguments=("position_ids",),
)  # fmt: skip

JINA_EMBEDDINGS_V3_BLOCKS = Blocks(
    path="layers.{i}",
    parts=(
        GTE_BLOCKS.parts[0],
        Residual(
            work=FeedForward(up="mlp.fc1", down="mlp.fc2", activation="mlp.activation_fn"),
            post_norm=Norm(path="post_mlp_layernorm"),
        ),
    ),
    checked_prefixes=("layers.", "encoder.layers."),
    older_path="encoder.layers.{i}",
    older=flash_names(
        [f"self_attn.{name}_proj" for name in "qkv"], "self_attn.o_proj", "post_attention_layernorm", "mlp.fc1",
        "mlp.fc2", "post_mlp_layernorm",
    ),
)  # fmt: skip

ROWS = (
    ModelType(NOMIC_BERT, NOMIC_BERT_BLOCKS, NOMIC_BERT_HEADS),
    ModelType(GTE, GTE_BLOCKS, GTE_HEADS),
    ModelType(JINA_EMBEDDINGS_V3, JINA_EMBEDDINGS_V3_BLOCKS, MPNET_HEADS),
)
