"""Ports with planted mistakes, by the loops of `loops`: the mistake in one block or in all.

`PLANTED` has for each the model, the mistake, the blocks, and the modules that are wrong with their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
BLOCK = "encoder.layer.{i}."


def normed(
    port: Any, path: str, x: Array, ddof: int = 0, eps: float = 1e-12, outside: bool = False, rms: bool = False
) -> Array:
    """A norm of a port's with another formula; `outside` as tutorials print it: (x - mean) / (std + eps)."""
    centred = x - (0 if rms else x.mean(-1, keepdims=True))
    variance = (centred**2).sum(-1, keepdims=True) / (x.shape[-1] - ddof)
    root = np.sqrt(variance) + eps if outside else np.sqrt(variance + eps)
    return np.asarray(centred / root * port.tensors[f"{path}.weight"] + port.tensors[f"{path}.bias"], np.float32)


class Planted(NamedTuple):
    model: str
    mistake: str
    blocks: tuple[int, ...]  # () for all
    wrong: Mapping[str, str]  # key -> name


def _one(model: str, mistake: str, block: int, *paths: str, name: str = "") -> Planted:
    """A mistake in one block, which has the same name in these modules."""
    return Planted(model, mistake, (block,), dict.fromkeys((path.format(i=block) for path in paths), name or mistake))


BERT_SUM, GPT2_SUM = BLOCK + "output.sum", "h.{i}.attn.sum"
TODAY = "layers.{i}.self_attn."
_PLANTED = (
    _one("bert", "residual from before the norm", 0, BERT_SUM),
    _one("bert", "activation gelu_new", 0, BLOCK + "intermediate.intermediate_act_fn"),
    _one("bert", "norm before instead of after", 1, *(BLOCK + path for path in (
        "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.LayerNorm",
        "intermediate.dense", "output.LayerNorm", "output.sum")), "hidden_states.2"),
    _one("bert", "softmax over the heads", 1, "attentions.{i}"),
    _one("bert", "mask added as 0 and 1", 0, "attentions.{i}"),
    _one("bert", "causal mask where there is none", 1, "attentions.{i}"),
    _one("bert", "mask taken as a length", 0, "attentions.{i}"),
    _one("bert", "division by sqrt(dim)", 1, BLOCK + "attention.self.scores"),
    _one("bert", "heads joined without transposing", 0, BLOCK + "attention.self.context"),
    _one("gpt2", "first residual from the normed x", 1, GPT2_SUM, name="residual from the normed x"),
    _one("gpt2", "feed-forward beside attention", 1, "h.{i}.mlp.c_fc", name="computed from h.1.ln_1"),
    _one("gpt2", "causal mask hides the token itself", 0, "attentions.{i}"),
    _one("gpt2", "q k v in another order: q v k", 0, "h.{i}.attn.scores", name="q k v in another order: q v k"),
    Planted("gpt2", "last norm not applied", (), {"hidden_states.2": "last norm not applied"}),
    _one("gpt2", "norm after instead of before", 1, "h.{i}.ln_1", "h.{i}.ln_2", "h.{i}.attn.c_attn", "h.{i}.mlp.c_fc",
         "h.{i}.mlp.sum", "ln_f"),
    _one("qwen3", "norm of queries and keys not applied", 1, TODAY + "scores"),
    _one("qwen3", "neighbours rotated instead of halves", 0, TODAY + "scores"),
    _one("qwen3", "gate and up exchanged", 1, "layers.{i}.mlp.act_fn", "layers.{i}.mlp.down_proj"),
    _one("gemma3_text", "rotation of the other layer type", 0, TODAY + "scores"),
    _one("gemma3_text", "window one token too narrow", 0, "attentions.{i}"),
    _one("gemma3_text", "norm before the sum not applied", 1, TODAY + "sum", "layers.{i}.mlp.sum"),
)  # fmt: skip
TODAY_MODELS = ("qwen3", "gemma3_text")
# each mistake in all blocks, by a model in which it shows, and the first intermediate that it spoils
_WHOLE: dict[tuple[str, str], tuple[str, ...]] = {
    ("bert", "encoder.layer.0.attention.self.query"): ("norm before instead of after",),
    ("bert", "encoder.layer.0.attention.self.key"): ("q k v in another order: q v k",),
    ("bert", "encoder.layer.0.attention.self.scores"): (
        "no division by sqrt(head_dim)", "heads split without transposing", "scores divided by the root of 64"),
    ("bert", "attentions.0"): ("mask ignored", "softmax over the queries"),
    ("bert", "encoder.layer.0.intermediate.intermediate_act_fn"): ("activation gelu_new",),
    ("gpt2", "h.0.attn.scores"): ("q k v in another order: k q v",),
    ("gpt2", "attentions.0"): ("causal mask one token too far", "causal mask forgotten"),
    ("gpt2", "h.0.attn.c_proj"): ("weight transposed",),
    ("gpt2", "h.0.attn.sum"): ("residual from the normed x",),
    ("gpt2", "h.0.mlp.act"): ("activation gelu",),
    ("qwen3", "layers.0.input_layernorm"): ("mean subtracted in RMSNorm",),
    ("qwen3", "layers.0.self_attn.scores"): (
        "queries and keys not rotated", "queries alone rotated", "keys alone rotated", "one sign of the rotation wrong",
        "queries rotated by position +1", "rotary positions divided by 4", "key head taken modulo"),
    ("gemma3_text", "layers.0.input_layernorm"): ("weight without 1 +",),
    ("gemma3_text", "layers.0.self_attn.scores"): ("scale by head_dim",),
    ("gemma3_text", "attentions.0"): ("window one token too wide", "window forgotten"),
}  # fmt: skip
WHOLE = {name: where for where, names in _WHOLE.items() for name in names}
# what fits single modules too
FITS_TOO = {"norm before instead of after": {"residual from before the norm"},
            "q k v in another order: k q v": {"scores of k and q"}}  # fmt: skip
PLANTED = {f"{each.model}: {each.mistake}": each for each in _PLANTED}
# of c_attn's parts, used in another order, the context is wrong by itself too
PLANTED["gpt2: q k v in another order: q v k"].wrong["h.0.attn.context"] = "k gathered in place of v"  # type: ignore[index]
