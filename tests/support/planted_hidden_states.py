"""Ports that give their hidden states alone, with mistakes: made by transformers' modules, as in `planted_ports`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import encoders
from planted_ports import DEPTH, Change, Planted, called, configured, setting, several, taken, theta, weight


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


def of_block_input(path: str) -> Change:
    """BERT's second sum with what enters the block."""

    def changed(model: Any) -> None:
        block = model.get_submodule(path)
        attention, output = block.attention.forward, block.output
        entered: list[Any] = []

        def forward(x: Any, *args: Any, **named: Any) -> Any:
            entered[:] = [x]
            return attention(x, *args, **named)

        block.attention.forward = forward
        output.forward = lambda x, _: output.LayerNorm(output.dense(x) + entered[0])

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


def normed_sum(path: str) -> Change:
    """Gemma's block in which attention's second norm is of the sum."""

    def rest(own: Any, x: Any) -> Any:
        x = own.post_attention_layernorm(x)
        return x + own.post_feedforward_layernorm(own.mlp(own.pre_feedforward_layernorm(x)))

    return after_attention(path, rest)


def second_normed(path: str) -> Change:
    """Qwen3's second sum with what its norm gives."""

    def rest(own: Any, x: Any) -> Any:
        x = own.post_attention_layernorm(x)
        return x + own.mlp(x)

    return after_attention(path, rest)


def norms_of(model: Any, part: str) -> list[Any]:
    return [module for module in model.modules() if type(module).__name__.endswith(part)]


def one_more(model: Any) -> None:
    for module in norms_of(model, "RMSNorm"):
        module.weight.data += 1


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
NORMED_SUM = "residual from the normed x in layers.{i}.mlp.sum"
PLANTED: dict[str, OfStates] = {
    "blocks 0 and 1 exchanged": OfStates(
        Planted("bert", {}, exchanged("encoder.layer", "0", "1")), [],
        {1: "weights of block 1", 2: "weights of block 0"}),
    "norms exchanged": OfStates(
        Planted("bert", {}, in_blocks("encoder.layer.{i}", lambda path: exchanged(
            path, "attention.output.LayerNorm", "output.LayerNorm"))), ["norms of each block exchanged"]),
    "the second sum with what enters the block": OfStates(
        Planted("bert", {}, in_blocks("encoder.layer.{i}", of_block_input)), ["residual of what enters the block"]),
    "values without bias in block 1": OfStates(
        Planted("bert", {}, called("encoder.layer.1.attention.self.value", lambda own, args: args[0] @ own.weight.T)),
        [], {2: "bias missing in encoder.layer.1.attention.self.value"}),
    "one map transposed": OfStates(
        Planted("bert", {}, weight("encoder.layer.0.attention.output.dense", lambda x: x.T)),
        [], {1: "weight transposed in encoder.layer.0.attention.output.dense"}),
    "dropout in the input layer": OfStates(
        Planted("bert", {}, called("embeddings.dropout", lambda own, args: dropped(args[0]))), [],
        {0: "dropout of 0.1 left on"}),
    "sinusoids for a learned table": OfStates(
        Planted("distilbert", {}, sinusoids), ["sinusoids in the place of learned positions"]),
    "theta of 10000, scaled all the same": OfStates(
        Planted("llama", {}, scaled_theta, settings={"rope_parameters": LLAMA3}), ["theta 10000"]),
    "theta of 10000, not scaled": OfStates(
        Planted("llama", {}, theta("rotary_emb", 1e4), settings={"rope_parameters": LLAMA3}),
        ["theta 10000, rotary frequencies not scaled"]),
    "rows for neighbours": OfStates(
        Planted("mistral", {}, several(*(
            weight(f"layers.{i}.self_attn.{x}_proj", by_neighbours) for i in range(DEPTH) for x in "qk"))),
        ["queries and keys in the order of rows for neighbours"]),
    "feed-forward beside attention": OfStates(
        Planted("gpt2", {}, in_blocks("h.{i}", beside)), ["feed-forward beside attention"]),
    "the second sum with the normed x": OfStates(
        Planted("qwen3", {}, in_blocks("layers.{i}", second_normed)), [],
        {i + 1: NORMED_SUM.format(i=i) for i in range(DEPTH)}),
    "scale by the width over the heads": OfStates(
        Planted("qwen3", {}, in_blocks("layers.{i}.self_attn", lambda path: setting(path, scaling=0.5))),
        ["division by sqrt(dim / heads)"]),
    "2 + weight": OfStates(Planted("gemma3_text", {}, one_more), ["1 + weight twice"]),
    "queries and keys without 1 +": OfStates(
        Planted("gemma3_text", {}, several(*(
            weight(f"layers.{i}.self_attn.{x}_norm", lambda w: w - 1) for i in range(DEPTH) for x in "qk"))), [],
        dict.fromkeys(range(1, DEPTH + 1), "weight without 1 + in attention")),
    "attention's norm of the sum": OfStates(
        Planted("gemma3_text", {}, in_blocks("layers.{i}", normed_sum)), ["norm of the sum, not before it"]),
    "keys normed by the queries' weight": OfStates(
        Planted("qwen3", {}, taken("layers.1.self_attn.k_norm", "layers.1.self_attn.q_norm")), [],
        {2: "weight of layers.1.self_attn.q_norm in layers.1.self_attn.k_norm"}),
    "Gemma's norms as Llama's": OfStates(
        Planted("gemma3_text", {}, in_blocks("layers.{i}", like_llama)), ["norms as in Llama"]),
    "windows in the other blocks": OfStates(
        Planted("gemma3_text", {}, configured(layer_types=[
            "full_attention", "sliding_attention", "full_attention"])), ["attention of the other layer type"]),
}  # fmt: skip
