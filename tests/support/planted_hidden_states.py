"""Ports that give their hidden states alone, with mistakes: made by transformers' modules, as in `planted_ports`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import encoders
from planted_ports import DEPTH, Change, Planted, several, weight


class OfStates(NamedTuple):
    """A port; what explains the whole of it, and what fits single blocks, where that is another name."""

    port: Planted
    matches: list[str]
    fits: Mapping[int, str] = {}


def in_blocks(path: str, change: Any) -> Change:
    """A change of each block: `path` with its number for {i}."""
    return several(*(change(path.format(i=i)) for i in range(DEPTH)))


def exchanged(path: str, one: str, other: str) -> Change:
    """Two modules exchanged."""

    def changed(model: Any) -> None:
        parts = model.get_submodule(path)
        first, second = parts.get_submodule(one), parts.get_submodule(other)
        for name, module in ((one, second), (other, first)):
            place, _, last = name.rpartition(".")
            setattr(parts.get_submodule(place), last, module)

    return changed


def beside(path: str) -> Change:
    """GPT-J's block by GPT-2's parts."""

    def made(own: Any, args: Any, named: Any) -> Any:
        x, _, mask = args[:3]
        attended, *_ = own.attn(own.ln_1(x), attention_mask=mask)
        return x + attended + own.mlp(own.ln_2(x))

    return with_named(path, made)


def with_named(path: str, made: Any) -> Change:
    """Another forward of a module, from what is passed by name too."""

    def changed(model: Any) -> None:
        module = model.get_submodule(path)
        module.forward = lambda *args, **named: made(module, args, named)

    return changed


def after_attention(path: str, rest: Callable[[Any, Any], Any]) -> Change:
    """A block of today's models whose attention and first sum are right: the rest from the block and that sum."""

    def made(own: Any, args: Any, named: Any) -> Any:
        attended, *_ = own.self_attn(hidden_states=own.input_layernorm(args[0]), **named)
        return rest(own, args[0] + attended)

    return with_named(path, made)


def like_llama(path: str) -> Change:
    """Gemma's block as Llama's."""
    return after_attention(path, lambda own, x: x + own.mlp(own.post_attention_layernorm(x)))


def dropped(x: Any) -> Any:
    import torch

    torch.manual_seed(0)
    return torch.nn.functional.dropout(x, 0.1)


def sinusoids(model: Any) -> None:
    """Vaswani's table."""
    table = model.embeddings.position_embeddings.weight.data
    angle = [[p / 10000 ** (j // 2 * 2 / table.shape[1]) for j in range(table.shape[1])] for p in range(len(table))]
    table[:] = table.new_tensor([[(math.sin, math.cos)[j % 2](x) for j, x in enumerate(row)] for row in angle])


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip


def scaled_theta(model: Any) -> None:
    """Llama 3.1's scaling of other frequencies."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    own = model.rotary_emb
    model.config.rope_parameters = {**LLAMA3, "rope_theta": 1e4}
    own.inv_freq = ROPE_INIT_FUNCTIONS["llama3"](model.config, "cpu")[0]


def by_neighbours(w: Any) -> Any:
    """Rows of each head as a converter to GGUF orders them."""
    return w.reshape(-1, 2, HEAD_DIM // 2, w.shape[1]).transpose(1, 2).reshape(w.shape)


HEAD_DIM = encoders.TODAY["head_dim"]
PLANTED: dict[str, OfStates] = {
    "blocks 0 and 1 exchanged": OfStates(
        Planted("bert", {}, exchanged("encoder.layer", "0", "1")), [],
        {1: "weights of block 1", 2: "weights of block 0"}),
    "sinusoids for a learned table": OfStates(
        Planted("distilbert", {}, sinusoids), ["sinusoids in the place of learned positions"]),
    "theta of 10000, scaled all the same": OfStates(
        Planted("llama", {}, scaled_theta, settings={"rope_parameters": LLAMA3}), ["theta 10000"]),
    "rows for neighbours": OfStates(
        Planted("mistral", {}, several(*(
            weight(f"layers.{i}.self_attn.{x}_proj", by_neighbours) for i in range(DEPTH) for x in "qk"))),
        ["queries and keys in the order of rows for neighbours"]),
    "feed-forward beside attention": OfStates(
        Planted("gpt2", {}, in_blocks("h.{i}", beside)), ["feed-forward beside attention"]),
    "Gemma's norms as Llama's": OfStates(
        Planted("gemma3_text", {}, in_blocks("layers.{i}", like_llama)), ["norms as in Llama"]),
}  # fmt: skip
