"""Still more ports with planted mistakes, as `planted_ports` has them: formulas over another axis, in another order, of
another token, or with other numbers."""

from __future__ import annotations

import math
from typing import Any

from planted_blocks import BERT, GPT2, N1, SMALL_HEADS, TODAY, angles, in_heads, other, turned
from planted_ports import (
    Change,
    Planted,
    called,
    every,
    interleaved,
    put,
    rotated_by,
    several,
    split_otherwise,
)

# -- maps, norms, activations ------------------------------------------------------------------------------------------


def weight_first(plus: float) -> Change:
    """RMSNorm of x times (plus + weight)."""

    def made(own: Any) -> Change:
        eps = getattr(own, "eps", None) or own.variance_epsilon
        return lambda x: (w := x * (plus + own.weight)) / (w.pow(2).mean(-1, keepdim=True) + eps).sqrt()

    return made


def over(axis: Any, own: Any) -> Change:
    """RMSNorm over other axes."""
    return lambda x: own.weight * x / (x.pow(2).mean(axis, keepdim=True) + own.variance_epsilon).sqrt()


def by_tanh(a: float, b: float) -> Change:
    return lambda x: 0.5 * x * (1 + (a * x + b * x**3).tanh())


def gated(gate: Any, up: Any) -> Change:
    """Llama's feed-forward: from its activation and what gate and up give, both factors."""
    return called(
        "layers.1.mlp",
        lambda own, args: own.down_proj(
            gate(own.act_fn, own.gate_proj(args[0]), own.up_proj(args[0]))
            * up(own.act_fn, own.gate_proj(args[0]), own.up_proj(args[0]))
        ),
    )


def scale_in_weight(model: Any) -> None:
    """The scale is multiplied into the weights of queries, and not into their biases."""
    for layer in model.encoder.layer:
        own = layer.attention.self
        own.query.weight.data *= own.scaling
        own.scaling = 1.0


def biased_late(own: Any, args: Any) -> Any:
    return own.intermediate_act_fn(args[0] @ own.dense.weight.T) + own.dense.bias


def activated_late(own: Any, args: Any) -> Any:
    """Of BERT: what is added passes the activation, which the block has not before."""
    import torch

    return own.LayerNorm(torch.nn.functional.gelu(own.dense(args[0])) + args[1])


# -- attention ---------------------------------------------------------------------------------------------------------


def as_one_head(x: Any, cos: Any, sin: Any) -> Any:
    batch, heads, seq, size = x.shape
    row = x.transpose(1, 2).reshape(batch, 1, seq, heads * size)
    return turned(row, angles(row, heads * size)).reshape(batch, seq, heads, size).transpose(1, 2)


def reshaped(q: Any, k: Any, v: Any) -> Any:
    """Keys whose transpose is what lies in memory, read as (size, seq)."""
    batch, heads, seq, size = k.shape
    return q, k.reshape(batch, heads, size, seq).transpose(2, 3), v


def before(v: Any) -> Any:
    """Of the token before; the first one has zeros."""
    made = v.roll(1, 2)
    made[:, :, 0] = 0
    return made


def after(k: Any) -> Any:
    """Of the token after; the last one has its own."""
    made = k.roll(-1, 2)
    made[:, :, -1] = k[:, :, -1]
    return made


def normed(v: Any) -> Any:
    return v / (v.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


def by_texts(scores: Any, mask: Any) -> Any:
    """Masks repeated text by text, as for torch's own attention, whose first axis is texts times heads."""
    batch, heads, *pairs = scores.shape
    return scores + mask.expand(batch, 1, *pairs).squeeze(1).repeat(heads, 1, 1).view(batch, heads, *pairs)


def capped(scores: Any, mask: Any) -> Any:
    return 30 * (scores / 30).tanh() + mask


def divided(scores: Any) -> Any:
    made = scores.clamp(min=0)
    return made / (made.sum(-1, keepdim=True) + 1e-9)


def by_number(model: Any) -> None:
    for i, block in enumerate(model.h):
        block.attn.scaling /= i + 1


AXIS, FIRST, MOVED = "norm over the axis before the last", "weight before the norm", "activation after the second map"
SUM, TOO = "norm before the sum", "computed from the activation times the activation of up"
B1, OUT = "encoder.layer.1.", "encoder.layer.1.output"
IN, ACT = "layers.1.input_layernorm", "intermediate.intermediate_act_fn"
NUMBER = "scores divided by the number of the block"

PLANTED: dict[str, Planted] = {
    # -- maps, norms, activations
    "the scale in the weights of queries alone": Planted(
        "bert", every(BERT + "attention.self.query", "weight 0.5 times as large, which is 1/sqrt(head_dim)")
        | every(BERT + "attention.self.scores", "no division by sqrt(head_dim)"), scale_in_weight),
    "LayerNorm over the tokens": Planted("bert", {N1: AXIS}, other(
        N1, lambda x, mean, variance, own: (x - x.mean(1, True)) / (x.var(1, False, True) + own.eps).sqrt()
        * own.weight + own.bias)),
    "Qwen3's norm over the heads": Planted(
        "qwen3", {"layers.1.self_attn.q_norm": AXIS}, put("layers.1.self_attn.q_norm", lambda own: over(2, own))),
    "Llama's norm over tokens too": Planted(
        "llama", {IN: "norm over the last two axes"}, put(IN, lambda own: over((1, 2), own))),
    "Llama's weight before its norm": Planted("llama", {IN: FIRST}, put(IN, weight_first(0))),
    "Gemma's 1 + weight before its norm": Planted("gemma3_text", {IN: FIRST}, put(IN, weight_first(1))),
    "Gemma's weight before its norm": Planted(
        "gemma3_text", {IN: f"{FIRST}, without 1 +"}, put(IN, weight_first(0))),
    "the length in place of the root mean square": Planted("llama", {IN: "sum of squares for their mean"}, put(
        IN, lambda own: lambda x: own.weight * x / (x.pow(2).sum(-1, keepdim=True) + own.variance_epsilon).sqrt())),
    "gelu_new with a bracket too early": Planted(
        "gpt2", {"h.1.mlp.act": "activation x * (1 + tanh(0.7979 x + 0.04472 x^3)) / 2"},
        put("h.1.mlp.act", lambda own: by_tanh(math.sqrt(2 / math.pi), 0.044715))),
    "silu of 1.5 x": Planted("llama", {"layers.1.mlp.act_fn": "activation x * sigmoid(1.5 x)"}, put(
        "layers.1.mlp.act_fn", lambda own: lambda x: x * (1.5 * x).sigmoid())),
    "BERT's gelu after the second map": Planted(
        "bert", {B1 + ACT: "activation left out", OUT + ".sum": MOVED},
        several(put(B1 + ACT, lambda own: lambda x: x), called(OUT, activated_late))),
    "BERT's bias after gelu": Planted(
        "bert", dict.fromkeys((OUT + ".dense", B1 + ACT), "bias added after the activation"),
        called(B1 + "intermediate", biased_late)),
    "BERT's norm before the sum": Planted("bert", {OUT + ".sum": "residual missing", "hidden_states.2": SUM}, called(
        OUT, lambda own, args: own.LayerNorm(own.dense(args[0])) + args[1])),
    "Llama's silu of both": Planted("llama", {"layers.1.mlp.down_proj": TOO}, gated(
        lambda act, gate, up: act(gate), lambda act, gate, up: act(up))),
    "Llama without its gate": Planted(
        "llama", {"layers.1.mlp.act_fn": "computed from layers.1.mlp.up_proj"},
        gated(lambda act, gate, up: act(up), lambda act, gate, up: up)),
    # -- attention
    "values cut number by number": Planted(
        "bert", every(BERT + "attention.self.context", "values alone interleaved"),
        attention={"qkv": lambda q, k, v: (q, k, interleaved(v))}),
    "keys not transposed": Planted(
        "bert", every(BERT + "attention.self.scores", "keys alone split without transposing"),
        attention={"qkv": lambda q, k, v: (q, split_otherwise(k), v)}),
    "keys reshaped": Planted(
        "bert", every(BERT + "attention.self.scores", "keys reshaped in place of transposed"),
        attention={"qkv": reshaped}),
    "values of the last token": Planted(
        "gpt2", every(GPT2 + "context", "values of the token before"),
        attention={"gather": lambda weights, v: weights @ before(v)}),
    "keys of the next token": Planted("llama", every(TODAY + "scores", "keys of the token after"),
                                      attention={"qkv": lambda q, k, v: (q, after(k), v)}, settings=SMALL_HEADS),
    "Qwen3's values normed": Planted(
        "qwen3", every(TODAY + "context", "values normed too"),
        attention={"qkv": lambda q, k, v: (q, k, normed(v))}),
    "Llama's heads rotated as one": Planted(
        "llama", every(TODAY + "scores", "rotation over all heads as one"), rotated_by(as_one_head)),
    "Llama rotated twice": Planted("llama", every(TODAY + "scores", "rotated twice"), rotated_by(
        lambda x, cos, sin: turned(x, 2 * angles(x, x.shape[-1])))),
    "Llama's exponent 4 j / d": Planted(
        "llama", every(TODAY + "scores", "exponent of the frequencies 4 j / d"),
        rotated_by(lambda x, cos, sin: turned(x, angles(x, x.shape[-1], power=4.0)))),
    "Gemma's scale without its root": Planted(
        "gemma3_text", every(TODAY + "scores", "scale applied twice"),
        attention={"scale": lambda q, scaling: scaling**2}),
    "GPT-2's scores by the number of the block": Planted(
        "gpt2", {f"h.{i}.attn.scores": NUMBER for i in (1, 2)}, by_number),
    "masks repeated text by text": Planted(
        "bert", every("attentions.{i}", "another text's mask in some heads"), attention={"hide": by_texts}),
    "scores capped at 30": Planted(
        "llama", every("attentions.{i}", "scores capped at 30"), attention={"hide": capped}),
    "softmax of base 2": Planted("bert", every("attentions.{i}", "softmax of scores 0.6931 times as large"), attention={
        "softmax": lambda scores: (scores * math.log(2)).softmax(-1)}),
    "Llama's key heads in reverse": Planted(
        "llama", in_heads(TODAY, "key heads in reverse"),
        attention={"shared": lambda heads, own: [(heads - 1 - i) // (heads // own) for i in range(heads)]}),
    "the square of relu": Planted("llama", {"layers.1.mlp.act_fn": "activation relu2"}, put(
        "layers.1.mlp.act_fn", lambda own: lambda x: x.relu() ** 2)),
    "relu of scores": Planted("bert", every("attentions.{i}", "relu for softmax"), attention={"softmax": divided}),
}  # fmt: skip
