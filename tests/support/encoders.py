"""Tiny encoders from seeded numbers: every row of blocks, two blocks deep, with weights large enough to show mistakes.

Square weights but in no sense symmetric, biases that are not zero, scores that spread over several units: a mistake
that small random weights would hide is seen in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
from binders import Stored

import minibert
from minibert.equations.input_layer import Array
from minibert.families.parts.attention_schemes import deberta_log_buckets
from minibert.families.rows import BLOCKS

DIM, HEADS, WIDTH, DEPTH, LONGEST = 16, 4, 24, 2, 24
COMMON = {
    "vocab_size": checkpoints.VOCAB, "hidden_size": DIM, "num_attention_heads": HEADS, "num_hidden_layers": DEPTH,
    "intermediate_size": WIDTH, "max_position_embeddings": LONGEST, "hidden_act": "gelu", "type_vocab_size": 2,
    "pad_token_id": 0, "layer_norm_eps": 1e-12,
}  # fmt: skip
TODAY = {"num_key_value_heads": 2, "head_dim": 8, "hidden_act": "silu", "rms_norm_eps": 1e-6, "pad_token_id": 0}
ROBERTA = {"pad_token_id": 1, "layer_norm_eps": 1e-5, "type_vocab_size": 1}
T5 = {
    "d_model": DIM, "num_heads": HEADS, "num_layers": DEPTH, "d_ff": WIDTH, "d_kv": 8, "pad_token_id": 0,
    "layer_norm_epsilon": 1e-6, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20,
    "feed_forward_proj": "gated-gelu", "tie_word_embeddings": True,
}  # fmt: skip
BART = {
    "d_model": DIM, "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "encoder_layers": DEPTH,
    "decoder_layers": DEPTH, "encoder_ffn_dim": WIDTH, "decoder_ffn_dim": WIDTH, "activation_function": "gelu",
    "max_position_embeddings": LONGEST, "pad_token_id": 0, "scale_embedding": False,
}  # fmt: skip
SHARED = {"encoder.embed_tokens.weight": "shared.weight"}  # as files with two sides have it
BART_LIKE = ("bart", "mbart", "marian", "pegasus")
T5_LIKE = ("t5", "mt5", "umt5")
CONFIGS: dict[str, dict[str, Any]] = {
    "bert": {},
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), ROBERTA),
    "electra": {"embedding_size": 12},
    "ernie": {"use_task_id": False},
    "distilbert": {
        "dim": DIM, "n_heads": HEADS, "n_layers": DEPTH, "hidden_dim": WIDTH, "activation": "gelu",
        "max_position_embeddings": LONGEST,
    },
    "mpnet": {"pad_token_id": 1, "layer_norm_eps": 1e-5, "relative_attention_num_buckets": 32},
    "gpt2": {
        "n_embd": DIM, "n_head": HEADS, "n_layer": DEPTH, "n_inner": WIDTH, "n_positions": LONGEST,
        "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "bos_token_id": 0, "eos_token_id": 0,
    },
    **dict.fromkeys(T5_LIKE, T5),
    **dict.fromkeys(BART_LIKE, BART),
    "albert": {"embedding_size": 12, "hidden_act": "gelu_new"},
    "modernbert": {
        "hidden_activation": "gelu", "local_attention": 4, "global_attn_every_n_layers": 2, "norm_eps": 1e-5,
    },
    "deberta-v2": {
        "type_vocab_size": 0, "relative_attention": True, "position_biased_input": False, "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "norm_rel_ebd": "layer_norm",
    },
    "nomic_bert": {"hidden_act": "silu"},
    "gte": {"hidden_act": "gelu", "type_vocab_size": 1, "pad_token_id": 1},
    "jina_embeddings_v3": {"hidden_act": "gelu", "type_vocab_size": 1, "pad_token_id": 1, "layer_norm_eps": 1e-5},
    "clip_text_model": {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "eos_token_id": 2, "projection_dim": 12},
    "llama": TODAY,
    "mistral": {**TODAY, "sliding_window": 3},
    "ministral3": {**TODAY, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 3,
        "llama_4_scaling_beta": 0.1,
    }},
    **dict.fromkeys(("qwen2", "qwen3"), TODAY),
    "eurobert": {**TODAY, "num_key_value_heads": None, "attention_bias": True, "mlp_bias": True},
    "ultrabert": {**TODAY, "sliding_window": 2, "layer_types": ["sliding_attention", "full_attention"]},
    "gemma3_text": {
        **TODAY, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 5, "sliding_window": 3,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "embedding_gemma2_text": {
        **TODAY, "hidden_activation": "gelu_pytorch_tanh", "sliding_window": 2, "sliding_window_pattern": 2,
        "global_head_dim": 12, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 6, "embedding_dim": 20,
    },
}  # fmt: skip


def config(name: str, **changes: Any) -> dict[str, Any]:
    """config.json of one model_type, with changes."""
    if name == "clip":  # a whole model's, whose part for texts is that of another model_type
        return {"model_type": name, "text_config": config("clip_text_model", **changes), "projection_dim": 12}
    if name == "embedding_gemma2":
        return {"model_type": name, "text_config": config("embedding_gemma2_text", **changes)}
    common = {"vocab_size": checkpoints.VOCAB} if name in ("distilbert", "gpt2", *T5_LIKE, *BART_LIKE) else COMMON
    return {"model_type": name, **common, **CONFIGS[name], **changes}


class _Asked(Stored):
    """Notes the tables that are asked for too; of those that have a formula none is there."""

    def table(self, names: tuple[str, ...], shape: tuple[int, ...]) -> Array:
        return self.vector(names, shape)

    def stores(self, name: str) -> bool:
        return False


def tensors(config: Mapping[str, Any]) -> dict[str, Array]:
    """Input layer and blocks of one config, by the base model's names."""
    config = config.get("text_config", config)
    kind: str = config["model_type"]
    generator = np.random.default_rng(sum(map(ord, kind)))

    def normal(*shape: int, spread: float = 1.0) -> Array:
        return np.asarray(generator.standard_normal(shape) * spread, np.float32)

    def norm(name: str, *shape: int) -> Array:
        return np.float32(around * name.endswith("weight")) + normal(*shape, spread=0.2)

    family, row, made = minibert.FAMILIES[kind], BLOCKS[kind], dict[str, Array]()
    around = float(kind != "gemma3_text")  # whose files hold a norm's weight less 1
    read = row.configure(family, config, "config.json")
    dim = read.integer("hidden_size")
    layer = _Asked(config=read)
    for step in family.steps_for("encoder"):
        if step.when(read):
            step.bind(layer)
    for name, shape in sorted(layer.asked.items(), key=lambda item: "token_type" in item[0]):
        if "norm" in name.lower():
            made[name] = norm(name, *shape)
        else:
            map_of_rows = name.endswith(("_project.weight", "_mapping_in.weight"))
            spread = 0.3 if map_of_rows else 0.25 if kind == "gemma3_text" else 1.0
            made[SHARED.get(name, name)] = normal(*shape, spread=spread)
    if kind == "clip_text_model":
        made["text_projection.weight"] = normal(config["projection_dim"], dim)
    scheme = None
    if kind == "deberta-v2":
        made["encoder.rel_embeddings.weight"] = normal(16, dim)
        made |= {name: norm(name, dim) for name in ("encoder.LayerNorm.weight", "encoder.LayerNorm.bias")}
        scheme = deberta_log_buckets(read, Stored(made))
    for i in range(read.integer("num_hidden_layers")):
        binder = Stored(config=read)
        row.bind(read, binder, i, scheme=scheme)
        for name, shape in sorted(binder.asked.items(), key=lambda item: not mapped(item[0], binder.asked)):
            if len(shape) > 1:
                # 1.5 times what keeps a row's size: softmax is neither flat nor a choice of one
                width = shape[0] if row.transposed else np.prod(shape[1:])
                made[name] = normal(*shape, spread=1.5 / np.sqrt(width))
                if name.endswith("SelfAttention.q.weight"):  # whose scores are not divided
                    made[name] /= np.float32(np.sqrt(read.integer("d_kv")))
            elif mapped(name, binder.asked):
                made[name] = normal(*shape, spread=0.3)
            elif name.endswith("layer_scalar"):
                made[name] = 1 + normal(*shape, spread=0.2)
            else:
                made[name] = norm(name, *shape)
    row.last_norm.bound(read, last := Stored(config=read), "", dim)
    made |= {name: norm(name, *shape) for name, shape in last.asked.items()}
    for path in dict.fromkeys(row.relative.format(i=i) for i in range(DEPTH) if row.relative):
        made[f"{path}.weight"] = normal(read.integer("relative_attention_num_buckets"), HEADS)
    return made


def mapped(name: str, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a weight or a bias is a map's, not a norm's."""
    return len(shapes.get(f"{name.rpartition('.')[0]}.weight", ())) > 1


def write(folder: Path, name: str, **changes: Any) -> Path:
    """A model folder of one model_type, with a vocabulary."""
    settings = config(name, **changes)
    checkpoints.write(folder, settings, tensors(settings))
    if name != "gpt2":
        checkpoints.write_vocab(folder)
    return folder


def write_gpt2(folder: Path) -> Path:
    """A folder of gpt2 with the tokenizer of bytes, and a row for each of its tokens."""
    return checkpoints.write_byte_level(write(folder, "gpt2", vocab_size=261))


def write_with_words(folder: Path, name: str, **changes: Any) -> Path:
    """A model folder with a tokenizer of words and letters, which has no token types; GPT-2's is of bytes."""
    if name == "gpt2":
        return write_gpt2(folder)
    checkpoints.write_wordpiece(write(folder, name, **changes))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', encoding="utf-8")
    return folder


def computed_once(encoder: minibert.Encoder) -> minibert.Encoder:
    """Compute each text's trace once: the last bits of two computations may differ."""
    trace, known = encoder.trace, dict[bytes, dict[str, Array]]()

    def remembered(head: str | None = None, **batch: Array) -> dict[str, Array]:
        key = np.asarray(batch["input_ids"]).tobytes()
        if key not in known or (head is not None and "logits" not in known[key]):
            known[key] = trace(**batch, head=head)
        return dict(known[key])

    vars(encoder)["trace"] = remembered
    return encoder
