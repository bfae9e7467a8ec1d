"""The blocks after the input layer, a row for each model_type: the names of their tensors and what a config decides.

Data alone; `block_parts` says what a row is made of. A row here shares its prefixes with the row of the same model_type
in `input_layer`. A model_type without a row here has an input layer only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .block_names import Older
from .block_parts import Attend, Blocks, Feed, NormAt, Residual, stays_causal
from .bound_blocks import GemmaRMSNorm, RMSNorm
from .config import Config
from .frozen import replace
from .terms import relative_term


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


BERT_FEED = Residual(
    work=Feed(up="intermediate.dense", activation="intermediate.intermediate_act_fn", down="output.dense"),
    after=NormAt(path="output.LayerNorm"),
)

BERT = Blocks(
    parts=(
        Residual(
            work=Attend(
                maps=("attention.self.query", "attention.self.key", "attention.self.value"),
                output="attention.output.dense",
            ),
            after=NormAt(path="attention.output.LayerNorm"),
        ),
        BERT_FEED,
    ),
    tree=_bert_tree("Bert"),
)

DISTILBERT = Blocks(
    path="transformer.layer.{i}",
    parts=(
        Residual(
            work=Attend(maps=("attention.q_lin", "attention.k_lin", "attention.v_lin"), output="attention.out_lin"),
            after=NormAt(path="sa_layer_norm", eps=1e-12),
        ),
        Residual(
            work=Feed(
                up="ffn.lin1", down="ffn.lin2", activation="ffn.activation", activation_last=True,
                act="activation", inner="hidden_dim",
            ),
            after=NormAt(path="output_layer_norm", eps=1e-12),
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
        Residual(
            work=Attend(
                maps=("attention.attn.q", "attention.attn.k", "attention.attn.v"), output="attention.attn.o",
                terms=(relative_term,),
            ),
            after=NormAt(path="attention.LayerNorm"),
        ),
        BERT_FEED,
    ),
    causal=lambda config: False,
    relative="encoder.relative_attention_bias",
    tree=_bert_tree("MPNet"),
)  # fmt: skip


def _gpt2_scale(config: Config, head_dim: int, i: int) -> float:
    scale = 1 / math.sqrt(head_dim) if config.flag("scale_attn_weights", True) else 1.0
    return scale / (i + 1) if config.flag("scale_attn_by_inverse_layer_idx") else scale


GPT2 = Blocks(
    path="h.{i}",
    parts=(
        Residual(
            work=Attend(maps=("attn.c_attn",), output="attn.c_proj", scale=_gpt2_scale),
            before=NormAt(path="ln_1", eps="layer_norm_epsilon"),
        ),
        Residual(
            work=Feed(
                up="mlp.c_fc", down="mlp.c_proj", activation="mlp.act", activation_last=True,
                act="activation_function", inner="n_inner", times=4,
            ),
            before=NormAt(path="ln_2", eps="layer_norm_epsilon"),
        ),
    ),
    last_norm=NormAt(path="ln_f", eps="layer_norm_epsilon"),
    transposed=True,
    causal=lambda config: True,
    defaults={"activation_function": "gelu_new", "eos_token_id": 50256},
    checked_prefixes=("h.", "ln_f."),
    unused_endings=(".attn.bias", ".attn.masked_bias"),  # the causal mask, which older versions stored
    tree={"h.{i}": "GPT2Block", "h.{i}.attn": "GPT2Attention", "h.{i}.mlp": "GPT2MLP"},
)  # fmt: skip

# -- rotary positions, windows, gates: the models of today -------------------------------------------------------

FULL, SLIDING = "full_attention", "sliding_attention"


def _layer_type(config: Config, i: int, sliding: bool) -> str:
    """The type of block i: config.json lists them, or a rule says whether it has a window."""
    types = config.get("layer_types")
    if types is None:
        return SLIDING if sliding else FULL
    if not isinstance(types, Sequence) or isinstance(types, str) or any(x not in (FULL, SLIDING) for x in types):
        raise config.refused(f"'layer_types' must list {FULL!r} or {SLIDING!r} for each block, found {types!r}")
    if len(types) != config.integer("num_hidden_layers"):
        raise config.refused(f"'layer_types' lists {len(types)} blocks, 'num_hidden_layers' has another number")
    return str(types[i])


def _window(config: Config) -> int:
    """How many tokens away a token still sees: in a causal model the config's number counts the token itself."""
    return max(0, config.integer("sliding_window") - 1) if stays_causal(config) else config.integer("sliding_window")


def _mistral_reach(config: Config, i: int) -> int | None:
    """All blocks have the window, unless config.json lists their types: the reference calls such a model Ministral."""
    windowed = config.get("sliding_window") is not None
    return _window(config) if _layer_type(config, i, windowed) == SLIDING else None


def _modernbert_type(config: Config, i: int) -> str:
    return _layer_type(config, i, i % max(1, config.integer("global_attn_every_n_layers")) != 0)


def _modernbert_reach(config: Config, i: int) -> int | None:
    """Half of `local_attention` on each side, its end included; `sliding_window` is that half."""
    if _modernbert_type(config, i) == FULL:
        return None
    return config.integer("sliding_window") if "sliding_window" in config else config.integer("local_attention") // 2


MODERNBERT_ATTENTION = Residual(
    work=Attend(
        maps=("attn.Wqkv",), output="attn.Wo", biased="attention_bias", output_biased="attention_bias",
        rotation=_modernbert_type, reach=_modernbert_reach,
    ),
    before=NormAt(path="attn_norm", eps="norm_eps", biased="norm_bias"),
)  # fmt: skip
MODERNBERT_FEED = Residual(
    work=Feed(
        up="mlp.Wi", gate="mlp.Wi", activation="mlp.act", down="mlp.Wo", biased="mlp_bias", act="hidden_activation"
    ),
    before=NormAt(path="mlp_norm", eps="norm_eps", biased="norm_bias"),
)
MODERNBERT = Blocks(
    path="layers.{i}",
    parts=(MODERNBERT_ATTENTION, MODERNBERT_FEED),
    first=(replace(MODERNBERT_ATTENTION, before=NormAt()), MODERNBERT_FEED),  # the input layer ends with a norm
    last_norm=NormAt(path="final_norm", eps="norm_eps", biased="norm_bias"),
    causal=lambda config: False,
    defaults={
        "hidden_activation": "gelu", "attention_bias": False, "mlp_bias": False, "local_attention": 128,
        "global_attn_every_n_layers": 3, "classifier_pooling": "cls", "classifier_bias": False,
        "classifier_activation": "gelu", "decoder_bias": True,
    },
    checked_prefixes=("layers.", "final_norm."),
    tree={
        "": "ModernBertModel",
        "layers.{i}": "ModernBertEncoderLayer",
        "layers.{i}.attn": "ModernBertAttention",
        "layers.{i}.mlp": "ModernBertMLP",
        "rotary_emb": "ModernBertRotaryEmbedding",
    },
)  # fmt: skip


def _rotary_tree(name: str, norm: str = "") -> dict[str, str]:
    """The classes of a model whose module names are Llama's."""
    block = f"{name}DecoderLayer" if norm else f"{name}Layer"
    tree = {"": f"{name}Model", "layers.{i}": block, "rotary_emb": f"{name}RotaryEmbedding", "RMSNorm": norm}
    return tree | {"layers.{i}.self_attn": f"{name}Attention", "layers.{i}.mlp": f"{name}MLP"}


GATED = Feed(
    up="mlp.up_proj", gate="mlp.gate_proj", down="mlp.down_proj", activation="mlp.act_fn", biased=False,
    activation_last=True,
)  # fmt: skip
TURNED = Attend(
    maps=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), output="self_attn.o_proj", biased=False,
    output_biased=False, key_heads="num_key_value_heads", head_dim="head_dim", rotation=lambda config, i: None,
)  # fmt: skip

NOMIC_BERT = Blocks(
    path="layers.{i}",
    parts=(
        Residual(work=replace(TURNED, key_heads=""), after=NormAt(path="post_attention_layernorm")),
        Residual(work=GATED, after=NormAt(path="post_mlp_layernorm")),
    ),
    causal=lambda config: False,
    defaults={"hidden_act": "silu"},
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
    },  # published files say so in these words
    checked_prefixes=("layers.", "encoder.layers."),
    older_path="encoder.layers.{i}",
    older={
        **{f"self_attn.{name}_proj": Older("attn.Wqkv", part, 3) for part, name in enumerate("qkv")},
        "self_attn.o_proj": Older("attn.out_proj"),
        "mlp.up_proj": Older("mlp.fc11"),
        "mlp.gate_proj": Older("mlp.fc12"),
        "mlp.down_proj": Older("mlp.fc2"),
        "post_attention_layernorm": Older("norm1"),
        "post_mlp_layernorm": Older("norm2"),
    },
    tree=_rotary_tree("NomicBert"),
    order=("embeddings", "rotary_emb", "post_attention_layernorm", "mlp", "self_attn"),
)  # fmt: skip


def _rms(path: str, kind: type[RMSNorm] = RMSNorm) -> NormAt:
    return NormAt(path=path, kind=kind, eps="rms_norm_eps")


def _llama_like(name: str, defaults: Mapping[str, Any], attend: Attend = TURNED, feed: Feed = GATED) -> Blocks:
    """Llama's block, and what a model of its kin changes."""
    return Blocks(
        path="layers.{i}",
        parts=(
            Residual(work=attend, before=_rms("input_layernorm")),
            Residual(work=feed, before=_rms("post_attention_layernorm")),
        ),
        last_norm=_rms("norm"),
        causal=lambda config: True,
        defaults={"hidden_act": "silu", "rms_norm_eps": 1e-6, **defaults},
        checked_prefixes=("layers.", "norm."),
        unused_endings=(".rotary_emb.inv_freq",),  # frequencies, which older versions stored
        tree=_rotary_tree(name, f"{name}RMSNorm"),
        order=LLAMA_ORDER,
    )


def _qwen_type(config: Config, i: int) -> str:
    """Without `layer_types` the first `max_window_layers` blocks have no window."""
    windowed = config.flag("use_sliding_window") and config.get("sliding_window") is not None
    return _layer_type(config, i, windowed and i >= config.integer("max_window_layers"))


def _qwen_reach(config: Config, i: int) -> int | None:
    if _qwen_type(config, i) == FULL:
        return None
    if not config.flag("use_sliding_window"):
        raise config.refused(f"'layer_types' asks for {SLIDING!r}, but 'use_sliding_window' is false")
    return _window(config)


LLAMA_ORDER = (
    "self_attn", "mlp", "input_layernorm", "post_attention_layernorm", "q_proj", "k_proj", "v_proj", "o_proj",
)  # fmt: skip
QWEN_DEFAULTS = {
    "num_key_value_heads": 32, "sliding_window": 4096, "use_sliding_window": False, "max_window_layers": 28,
}  # fmt: skip
BIASED = replace(TURNED, biased="attention_bias", output_biased="attention_bias")
LLAMA = _llama_like(
    "Llama", {"attention_bias": False, "mlp_bias": False, "eos_token_id": 2}, BIASED, replace(GATED, biased="mlp_bias")
)
MISTRAL = _llama_like(
    "Mistral",
    {"num_key_value_heads": 8, "sliding_window": 4096, "eos_token_id": 2},
    replace(TURNED, reach=_mistral_reach),
)
QWEN2 = _llama_like("Qwen2", QWEN_DEFAULTS, replace(TURNED, biased=True, reach=_qwen_reach))
QWEN3 = _llama_like(
    "Qwen3",
    {**QWEN_DEFAULTS, "attention_bias": False, "head_dim": 128},
    replace(BIASED, query_norm=_rms("self_attn.q_norm"), key_norm=_rms("self_attn.k_norm"), reach=_qwen_reach),
)


def _gemma3_type(config: Config, i: int) -> str:
    return _layer_type(config, i, (i + 1) % max(1, config.integer("sliding_window_pattern")) != 0)


def _gemma3_reach(config: Config, i: int) -> int | None:
    """Of a model that looks both ways half the window is on each side, and one token more if `is_causal` is false."""
    if _gemma3_type(config, i) == FULL:
        return None
    if config.flag("use_bidirectional_attention"):
        return config.integer("sliding_window") // 2 + (not stays_causal(config))
    return _window(config)


def _gemma3_scale(config: Config, head_dim: int, i: int) -> float:
    """One number of the config's takes the place of the head's width."""
    if not config.number("query_pre_attn_scalar"):
        raise config.refused("'query_pre_attn_scalar' must be a number above 0, found 0")
    return float(config.number("query_pre_attn_scalar") ** -0.5)


GEMMA3 = Blocks(
    path="layers.{i}",
    parts=(
        Residual(
            work=replace(
                BIASED,
                query_norm=_rms("self_attn.q_norm", GemmaRMSNorm),
                key_norm=_rms("self_attn.k_norm", GemmaRMSNorm),
                heads_first=True,
                rotation=_gemma3_type,
                reach=_gemma3_reach,
                scale=_gemma3_scale,
            ),
            before=_rms("input_layernorm", GemmaRMSNorm),
            within=_rms("post_attention_layernorm", GemmaRMSNorm),
        ),
        Residual(
            work=replace(GATED, act="hidden_activation"),
            before=_rms("pre_feedforward_layernorm", GemmaRMSNorm),
            within=_rms("post_feedforward_layernorm", GemmaRMSNorm),
        ),
    ),
    last_norm=_rms("norm", GemmaRMSNorm),
    causal=lambda config: not config.flag("use_bidirectional_attention"),
    defaults={
        "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "attention_bias": False, "head_dim": 256,
        "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "sliding_window": 4096, "sliding_window_pattern": 6,
        "eos_token_id": 1,
    },
    only={"attn_logit_softcapping": None},
    checked_prefixes=("layers.", "norm."),
    tree=_rotary_tree("Gemma3", "Gemma3RMSNorm") | {"": "Gemma3TextModel"},
    order=(*LLAMA_ORDER, "pre_feedforward_layernorm"),
)  # fmt: skip


# -- blocks that share their modules -----------------------------------------------------------------------------


MOST_SHARED = 1_000  # elsewhere a missing tensor shows a count that is too high; here every layer has its weights


def _albert_count(config: Config) -> int:
    count = config.integer("num_hidden_layers") * config.integer("inner_group_num")
    if count > MOST_SHARED:
        raise config.refused(
            f"'num_hidden_layers' times 'inner_group_num' is at most {MOST_SHARED:,} (ALBERT: 12), found {count:,}"
        )
    return count


def _albert_module(config: Config, i: int) -> str:
    """The layers are dealt out to the groups in turn, and each layer calls all modules of its group."""
    layers, groups = config.integer("num_hidden_layers"), config.integer("num_hidden_groups")
    if not 1 <= groups <= layers:
        raise config.refused(f"'num_hidden_groups' must be from 1 to the {layers} layers, found {groups}")
    layer, inner = divmod(i, config.integer("inner_group_num"))
    return f"encoder.albert_layer_groups.{int(layer / (layers / groups))}.albert_layers.{inner}"


ALBERT = Blocks(
    path="encoder.albert_layer_groups.{i}",
    parts=(
        Residual(
            work=Attend(maps=("attention.query", "attention.key", "attention.value"), output="attention.dense"),
            after=NormAt(path="attention.LayerNorm"),
        ),
        Residual(
            work=Feed(up="ffn", down="ffn_output", activation="activation", activation_last=True),
            after=NormAt(path="full_layer_layer_norm"),
        ),
    ),
    count=_albert_count,
    shared=_albert_module,
    causal=lambda config: False,
    defaults={"hidden_act": "gelu_new", "num_hidden_groups": 1, "inner_group_num": 1},
    checked_prefixes=("encoder.albert_layer_groups.",),
    tree={
        "encoder.albert_layer_groups.{i}": "AlbertLayerGroup",
        "encoder.albert_layer_groups.{i}.albert_layers.{i}": "AlbertLayer",
        "encoder.albert_layer_groups.{i}.albert_layers.{i}.attention": "AlbertAttention",
    },
    order=("full_layer_layer_norm",),
)

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
    "albert": ALBERT,
    "modernbert": MODERNBERT,
    "nomic_bert": NOMIC_BERT,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "gemma3_text": GEMMA3,
}
"""model_type -> row."""
