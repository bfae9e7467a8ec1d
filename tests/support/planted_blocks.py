"""More ports with planted mistakes, as `planted_ports` has them: how numbers lie, masks, windows, rotations, norms."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

from planted_ports import (
    DEPTH,
    Change,
    Planted,
    called,
    every,
    more_positions,
    put,
    rotated_by,
    setting,
    several,
    weight,
)
from planted_ports import bias as biased

TODAY, BERT, GPT2, MODERN = "layers.{i}.self_attn.", "encoder.layer.{i}.", "h.{i}.attn.", "layers.{i}.attn."
HEADS = ("scores", "context")
LINEAR = {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}
YARN = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0,
                            "original_max_position_embeddings": 8}}  # fmt: skip
SMALL_HEADS = {"head_dim": 4}  # half a head's exponent is not the hidden size's

# -- how numbers lie ---------------------------------------------------------------------------------------------------


def by_head(q: Any, k: Any, v: Any) -> Any:
    """(batch, heads, seq, size) of a row that was read as [q k v] of head 0, [q k v] of head 1 and so on."""
    import torch

    batch, heads, seq, size = q.shape
    row = torch.cat([x.transpose(1, 2).flatten(2) for x in (q, k, v)], -1)
    return tuple(x.transpose(1, 2) for x in row.view(batch, seq, heads, 3 * size).split(size, -1))


def of_each_head(own: Any, named: Mapping[str, Any]) -> Any:
    """ModernBERT's attention with Wqkv read head by head."""
    where, x = importlib.import_module(type(own).__module__), named["x"]
    q, k, v = own.Wqkv(x).view(*x.shape[:2], -1, 3 * own.head_dim).transpose(1, 2).split(own.head_dim, -1)
    q, k = where.apply_rotary_pos_emb(q, k, *named["position_embeddings"])
    made, weights = where.eager_attention_forward(own, q, k, v, named["attention_mask"], scaling=own.head_dim**-0.5)
    return own.Wo(made.flatten(2)), weights


def normed_late(own: Any, named: Mapping[str, Any]) -> Any:
    """Qwen3's attention with queries and keys normed after they are rotated."""
    where, x = importlib.import_module(type(own).__module__), named["x"]
    q, k, v = (each(x).view(*x.shape[:2], -1, own.head_dim) for each in (own.q_proj, own.k_proj, own.v_proj))
    q, k = where.apply_rotary_pos_emb(q, k, *named["position_embeddings"], unsqueeze_dim=2)
    q, k, v = (each.transpose(1, 2) for each in (own.q_norm(q), own.k_norm(k), v))
    made, weights = where.eager_attention_forward(own, q, k, v, named["attention_mask"], scaling=own.scaling)
    return own.o_proj(made.flatten(2)), weights


def forward(path: str, made: Any) -> Change:
    """Another forward of attention in all blocks: from the module and its arguments, the first one called x."""

    def changed(model: Any) -> None:
        for i in range(DEPTH):
            own = model.get_submodule(path.format(i=i))
            own.forward = lambda *x, own=own, **named: made(
                own, {"x": x[0] if x else named["hidden_states"], **named}
            )  # fmt: skip

    return changed


def by_turns(own: Any, args: Any) -> Any:
    both = own.Wi(args[0])
    return own.Wo(own.act(both[..., 0::2]) * both[..., 1::2])


def without_third(which: int) -> Change:
    def changed(bias: Any) -> Any:
        made = bias.clone()
        made.view(3, -1)[which] = 0
        return made

    return several(*(biased(f"h.{i}.attn.c_attn", changed) for i in range(DEPTH)))


def first_alone(q: Any, k: Any, v: Any) -> Any:
    return q, k[:, :1].expand_as(k), v[:, :1].expand_as(v)


def no_last(weights: Any, v: Any) -> Any:
    made = weights @ v
    made[:, -1] = 0
    return made


# -- masks and softmax -------------------------------------------------------------------------------------------------


def sees(rule: Any) -> Mapping[str, Any]:
    """Another mask: from how far each key stands before the query; padding stays hidden."""

    def changed(mask: Any) -> Any:
        import torch

        places = torch.arange(mask.shape[-1])
        hidden = (mask != 0).all(2, keepdim=True) | ~rule(places[:, None] - places)
        return (mask * 0).masked_fill(hidden, torch.finfo(mask.dtype).min)

    return {"mask": changed}


def plus_one(scores: Any) -> Any:
    return scores.exp() / (1 + scores.exp().sum(-1, keepdim=True))


def near_alone(scores: Any) -> Any:
    """A window of 20 tokens on each side."""
    import torch

    places = torch.arange(scores.shape[-1])
    return scores.masked_fill((places[:, None] - places).abs() > 20, -math.inf).softmax(-1)


def from_ids(model: Any) -> None:
    right = model.forward
    model.forward = lambda input_ids=None, attention_mask=None, **named: right(
        input_ids=input_ids, attention_mask=attention_mask if input_ids is None else (input_ids != 0).long(), **named
    )


def no_window_in_long(mask: Any) -> Any:
    return sees(lambda back: back >= 0)["mask"](mask) if mask.shape[-1] > 100 else mask


# -- rotations ---------------------------------------------------------------------------------------------------------


def turned(x: Any, angle: Any) -> Any:
    """x (batch, heads, seq, size) by angles (seq, size / 2)."""
    import torch

    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def angles(x: Any, size: float, power: float = 2.0, further: int = 0) -> Any:
    import torch

    pairs = torch.arange(x.shape[-1] // 2)
    return (torch.arange(x.shape[2])[:, None] + further) * 10000.0 ** (-power * pairs / size)


def half(x: Any, cos: Any, sin: Any) -> Any:
    import torch

    first, rest = x.chunk(2, -1)
    return torch.cat([turned(first, angles(first, first.shape[-1])), rest], -1)


def side_by_side(x: Any, cos: Any, sin: Any) -> Any:
    import torch

    c, s = (y[..., : x.shape[-1] // 2].repeat_interleave(2, -1) for y in (cos, sin))
    a, b = x.chunk(2, -1)
    return x * c + torch.cat([-b, a], -1) * s


def values_too(model: Any) -> None:
    where, kept = importlib.import_module(type(model).__module__), []
    turn, attend = where.apply_rotary_pos_emb, where.eager_attention_forward

    def apply(q: Any, k: Any, cos: Any, sin: Any, **named: Any) -> Any:
        kept[:] = cos, sin
        return turn(q, k, cos, sin, **named)

    where.apply_rotary_pos_emb = apply
    where.eager_attention_forward = lambda own, q, k, v, *rest, **named: attend(
        own, q, k, turn(v, v, *kept)[0], *rest, **named
    )

    def undo() -> None:
        where.apply_rotary_pos_emb, where.eager_attention_forward = turn, attend

    model.undo = undo


def frequencies(change: Change) -> Change:
    def changed(model: Any) -> None:
        own = model.rotary_emb.inv_freq.data
        own.copy_(change(own))

    return changed


def rounded(x: Any, cos: Any, sin: Any) -> Any:
    return turned(x, angles(x, x.shape[-1]).half().float())


# -- norms and activations ---------------------------------------------------------------------------------------------


def other(path: str, made: Any) -> Change:
    """A norm by another formula, from x, its mean, its variance and the module."""
    return put(path, lambda own: lambda x: made(x, x.mean(-1, keepdim=True), x.var(-1, False, keepdim=True), own))


def again(path: str) -> Change:
    def changed(model: Any) -> None:
        own = model.get_submodule(path)
        own.forward = lambda x, right=own.forward: right(right(x))

    return changed


def last_of_each(last: str, blocks: str) -> Change:
    def changed(model: Any) -> None:
        norm = type(model.get_submodule(last)).forward
        for own in list(model.get_submodule(blocks))[:-1]:
            own.forward = lambda *x, right=own.forward, **named: norm(model.get_submodule(last), right(*x, **named))

    return changed


def over_heads(own: Any) -> Change:
    def made(x: Any) -> Any:
        row = x.flatten(2)
        return (row / (row.pow(2).mean(-1, keepdim=True) + own.variance_epsilon).sqrt()).view_as(x) * own.weight

    return made


def first_normed(model: Any) -> None:
    import torch

    model.layers[0].attn_norm = torch.nn.LayerNorm(model.config.hidden_size, eps=1e-5, bias=False)


def with_one(own: Any) -> Change:
    import torch

    return lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:], own.weight + 1, own.bias, own.eps)


def no_root(own: Any) -> Change:
    import torch

    return lambda x: 0.5 * x * (1 + torch.erf(x))


N1, N2, ACT = (f"encoder.layer.1.{path}" for path in (
    "attention.output.LayerNorm", "output.LayerNorm", "intermediate.intermediate_act_fn"))  # fmt: skip
SIDE = "queries, keys and values side by side for each head"
INTERLEAVED, LOST, ONE = "heads joined interleaved", "the last head lost", "all queries on one key head"
LATER, TIMES, TEN = "later tokens seen in place of earlier ones", "scores times the mask", "mask of -10"
PLUS, FORGOTTEN = "softmax with one added below", "window forgotten in long texts"
HALF, VALUES, PLACE = "half of each head rotated", "values rotated too", "queries one place further than their keys"
BESIDE, EXPONENT = "cos and sin repeated by neighbours", "exponent of the frequencies j / d"
WIDTH = "frequencies by the hidden size"
FLAT, TWICE = "rotary frequencies not scaled", "rotary frequencies scaled twice"
LATE, OVER = "queries and keys normed after the rotation", "queries and keys normed over all heads"
EACH, AGAIN, NONE = "last norm applied to each block", "last norm applied twice", "norm where this block has none"
ROOT = "gelu without the root of 2"


def in_heads(at: str, name: str) -> dict[str, str]:
    return every(at + "scores", name) | every(at + "context", name)


def masked(at: str, name: str) -> dict[str, str]:
    """Scores as transformers shows them, with the mask added, and attention weights."""
    return every(at + "scores", name) | every("attentions.{i}", name)


PLANTED: dict[str, Planted] = {
    # -- how numbers lie
    "GPT-2's c_attn read head by head": Planted("gpt2", in_heads(GPT2, SIDE), attention={"qkv": by_head}),
    "ModernBERT's Wqkv read head by head": Planted(
        "modernbert", in_heads(MODERN, SIDE), forward("layers.{i}.attn", of_each_head)),
    "ModernBERT's gate and value by turns": Planted(
        "modernbert", {f"layers.1.mlp.{x}": "gate and up interleaved" for x in ("act", "Wo")},
        called("layers.1.mlp", by_turns)),
    "heads joined number by number": Planted(
        "bert", every(BERT + "attention.self.context", INTERLEAVED),
        attention={"join": lambda made: made.permute(0, 2, 3, 1).contiguous()}),
    "a loop that ends before the last head": Planted(
        "llama", every(TODAY + "context", LOST), attention={"gather": no_last}),
    **{f"c_attn's bias without its {what}": Planted(
        "gpt2", every(GPT2 + "c_attn", f"bias of {what} missing"), without_third(i))
       for i, what in enumerate(("queries", "keys", "values"))},
    "Llama's queries all on key head 0": Planted(
        "llama", in_heads(TODAY, ONE), attention={"shared": lambda heads, own: [0] * heads}),
    "BERT's queries all on key head 0": Planted(
        "bert", in_heads(BERT + "attention.self.", ONE), attention={"qkv": first_alone}),
    # -- masks and softmax
    "GPT-2 that ignores padding": Planted(
        "gpt2", every("attentions.{i}", "padding seen"), attention={
            "mask": lambda mask: mask.amax(0, keepdim=True).expand_as(mask)}),
    "BERT's mask from the ids": Planted("bert", masked(BERT + "attention.self.", "mask from the ids"), from_ids,
                                        kinds=("plain", "mask_unlike_ids")),
    "scores times 0 and 1": Planted(
        "bert", every("attentions.{i}", TIMES), attention={"hide": lambda scores, mask: scores * (mask == 0)}),
    "Llama's scores filled with -10": Planted(
        "llama", every("attentions.{i}", TEN), attention={
            "hide": lambda scores, mask: scores.masked_fill(mask != 0, -10.0)}),
    "-10 added": Planted("modernbert", every("attentions.{i}", TEN), attention={
        "hide": lambda scores, mask: scores - 10.0 * (mask != 0)}),
    "GPT-2 that sees later tokens": Planted(
        "gpt2", every("attentions.{i}", LATER), attention=sees(lambda back: back <= 0)),
    "Llama with a window of 40": Planted(
        "llama", every(TODAY + "context", "window that reaches 39 tokens"),
        attention=sees(lambda back: (back >= 0) & (back < 40))),
    "BERT with a window of 20 on each side": Planted(
        "bert", every(BERT + "attention.self.context", "window that reaches 20 tokens"),
        attention={"softmax": near_alone}, prepare=more_positions,
        settings={"max_position_embeddings": 160}),
    "ModernBERT's window before the token": Planted(
        "modernbert", {"attentions.1": "window of earlier tokens alone"},
        attention={**sees(lambda back: (back >= 0) & (back <= 2)), "only": (1,)}),
    "Mistral without its window in long texts": Planted(
        "mistral", every(TODAY + "context", FORGOTTEN), attention={"mask": no_window_in_long}),
    "one more below": Planted("bert", every("attentions.{i}", PLUS), attention={"softmax": plus_one}),
    # -- rotations
    "half of Llama's head": Planted("llama", every(TODAY + "scores", HALF), rotated_by(half)),
    "Llama's values rotated": Planted("llama", every(TODAY + "context", VALUES), values_too),
    "ModernBERT's values rotated": Planted("modernbert", every(MODERN + "context", VALUES), values_too),
    "Llama's queries from place 1": Planted("llama", every(TODAY + "scores", PLACE), rotated_by(
        lambda x, cos, sin: turned(x, angles(x, x.shape[-1], further=1)), only=(0,))),
    "ModernBERT's cos by repeat_interleave": Planted(
        "modernbert", every(MODERN + "scores", BESIDE), rotated_by(side_by_side)),
    "Llama's exponent j / d": Planted("llama", every(TODAY + "scores", EXPONENT), rotated_by(
        lambda x, cos, sin: turned(x, angles(x, x.shape[-1], power=1.0))), settings=SMALL_HEADS),
    "Llama's frequencies by 16": Planted("llama", every(TODAY + "scores", WIDTH), rotated_by(
        lambda x, cos, sin: turned(x, angles(x, 16))), settings=SMALL_HEADS),
    "linear scaling forgotten": Planted("llama", every(TODAY + "scores", FLAT), frequencies(lambda x: x * 4),
                                        settings=LINEAR),
    "linear scaling twice": Planted("llama", every(TODAY + "scores", TWICE), frequencies(lambda x: x / 4),
                                    settings=LINEAR),
    "yarn without its factor": Planted("llama", every(TODAY + "scores", "cos and sin without their factor"),
                                       setting("rotary_emb", attention_scaling=1.0), settings=YARN),
    "angles in float16": Planted(
        "llama", every(TODAY + "scores", "angles of the rotation in float16"), rotated_by(rounded)),
    # -- norms and activations
    "no root of the variance": Planted("bert", {N1: "variance without the root"}, other(
        N1, lambda x, mean, variance, own: (x - mean) / (variance + own.eps) * own.weight + own.bias)),
    "no root in Llama's norm": Planted("llama", {"layers.1.input_layernorm": "mean square without the root"}, other(
        "layers.1.input_layernorm", lambda x, mean, variance, own: own.weight * x / (
            (x * x).mean(-1, keepdim=True) + own.variance_epsilon))),
    "mean left in": Planted("bert", {N2: "mean not subtracted"}, other(
        N2, lambda x, mean, variance, own: x / (variance + own.eps).sqrt() * own.weight + own.bias)),
    "1 + weight in LayerNorm": Planted("bert", {N2: "1 + weight for weight"}, put(N2, with_one)),
    "only the bias of a norm": Planted("bert", {N1: "weight ignored"}, weight(N1, lambda w: w * 0 + 1)),
    "ln_f twice": Planted("gpt2", {"ln_f": AGAIN}, again("ln_f")),
    "Llama's norm on each block": Planted(
        "llama", {f"layers.{i}.mlp.sum": EACH for i in range(DEPTH - 1)}, last_of_each("norm", "layers")),
    "Qwen3's norm after the rotation": Planted(
        "qwen3", every(TODAY + "q_norm", LATE) | every(TODAY + "k_norm", LATE) | every(TODAY + "scores", LATE),
        forward("layers.{i}.self_attn", normed_late)),
    "Qwen3's norm over all heads": Planted(
        "qwen3", every(TODAY + "q_norm", OVER),
        several(*(put(f"layers.{i}.self_attn.q_norm", over_heads) for i in range(DEPTH)))),
    "a norm in ModernBERT's block 0": Planted("modernbert", {"layers.0.attn.Wqkv": NONE}, first_normed),
    "erf of x itself": Planted("bert", {ACT: ROOT}, put(ACT, no_root)),
}  # fmt: skip
