"""More ports with planted mistakes, as `planted_ports` has them: how numbers lie, masks, windows, rotations, norms."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from planted_ports import (
    DEPTH,
    Change,
    Planted,
    called,
    every,
    rotated_by,
    setting,
)

TODAY, BERT, GPT2, MODERN = "layers.{i}.self_attn.", "encoder.layer.{i}.", "h.{i}.attn.", "layers.{i}.attn."
HEADS = ("scores", "context")
LINEAR = {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}}
YARN = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0,
                            "original_max_position_embeddings": 8}}  # fmt: skip
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


def forward(path: str, made: Any) -> Change:
    """Another forward of attention in all blocks: from the module and its arguments, the first one called x."""

    def changed(model: Any) -> None:
        for i in range(DEPTH):
            own = model.get_submodule(path.format(i=i))
            own.forward = lambda *x, own=own, **named: made(
                own, {"x": x[0] if x else named["hidden_states"], **named}
            )  # fmt: skip

    return changed


# -- masks and softmax -------------------------------------------------------------------------------------------------


def from_ids(model: Any) -> None:
    right = model.forward
    model.forward = lambda input_ids=None, attention_mask=None, **named: right(
        input_ids=input_ids, attention_mask=attention_mask if input_ids is None else (input_ids != 0).long(), **named
    )


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


def frequencies(change: Change) -> Change:
    def changed(model: Any) -> None:
        own = model.rotary_emb.inv_freq.data
        own.copy_(change(own))

    return changed


def rounded(x: Any, cos: Any, sin: Any) -> Any:
    return turned(x, angles(x, x.shape[-1]).half().float())


# -- norms and activations ---------------------------------------------------------------------------------------------


def again(path: str) -> Change:
    def changed(model: Any) -> None:
        own = model.get_submodule(path)
        own.forward = lambda x, right=own.forward: right(right(x))

    return changed


SIDE, TIMES = "queries, keys and values side by side for each head", "scores times the mask"
HALF, BESIDE = "half of each head rotated", "cos and sin repeated by neighbours"
FLAT, AGAIN = "rotary frequencies not scaled", "last norm applied twice"


def in_heads(at: str, name: str) -> dict[str, str]:
    return every(at + "scores", name) | every(at + "context", name)


def masked(at: str, name: str) -> dict[str, str]:
    """Scores as transformers shows them, with the mask added, and attention weights."""
    return every(at + "scores", name) | every("attentions.{i}", name)


def gated(gate: Any, up: Any) -> Change:
    """Llama's feed-forward: from its activation and what gate and up give, both factors."""
    return called(
        "layers.1.mlp",
        lambda own, args: own.down_proj(
            gate(own.act_fn, own.gate_proj(args[0]), own.up_proj(args[0]))
            * up(own.act_fn, own.gate_proj(args[0]), own.up_proj(args[0]))
        ),
    )


# -- attention ---------------------------------------------------------------------------------------------------------


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


def by_texts(scores: Any, mask: Any) -> Any:
    """Masks repeated text by text, as for torch's own attention, whose first axis is texts times heads."""
    batch, heads, *pairs = scores.shape
    return scores + mask.expand(batch, 1, *pairs).squeeze(1).repeat(heads, 1, 1).view(batch, heads, *pairs)


PLANTED: dict[str, Planted] = {
    # -- how numbers lie
    "GPT-2's c_attn read head by head": Planted("gpt2", in_heads(GPT2, SIDE), attention={"qkv": by_head}),
    "ModernBERT's Wqkv read head by head": Planted(
        "modernbert", in_heads(MODERN, SIDE), forward("layers.{i}.attn", of_each_head)),
    # -- masks and softmax
    "GPT-2 that ignores padding": Planted(
        "gpt2", every("attentions.{i}", "padding seen"), attention={
            "mask": lambda mask: mask.amax(0, keepdim=True).expand_as(mask)}),
    "BERT's mask from the ids": Planted("bert", masked(BERT + "attention.self.", "mask from the ids"), from_ids,
                                        kinds=("plain", "mask_unlike_ids")),
    "scores times 0 and 1": Planted(
        "bert", every("attentions.{i}", TIMES), attention={"hide": lambda scores, mask: scores * (mask == 0)}),
    # -- rotations
    "half of Llama's head": Planted("llama", every(TODAY + "scores", HALF), rotated_by(half)),
    "ModernBERT's cos by repeat_interleave": Planted(
        "modernbert", every(MODERN + "scores", BESIDE), rotated_by(side_by_side)),
    "linear scaling forgotten": Planted("llama", every(TODAY + "scores", FLAT), frequencies(lambda x: x * 4),
                                        settings=LINEAR),
    "yarn without its factor": Planted("llama", every(TODAY + "scores", "cos and sin without their factor"),
                                       setting("rotary_emb", attention_scaling=1.0), settings=YARN),
    # -- norms and activations
    "ln_f twice": Planted("gpt2", {"ln_f": AGAIN}, again("ln_f")),
    # -- maps, norms, activations
    "Llama without its gate": Planted(
        "llama", {"layers.1.mlp.act_fn": "computed from layers.1.mlp.up_proj"},
        gated(lambda act, gate, up: act(up), lambda act, gate, up: up)),
    # -- attention
    "masks repeated text by text": Planted(
        "bert", every("attentions.{i}", "another text's mask in some heads"), attention={"hide": by_texts}),
}  # fmt: skip
