"""Ports with one mistake each, as `planted_ports` makes them: of all intermediates, and of hidden states alone.

What loops plant, in `planted_loops` and in tests/verify, is not planted here once more.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import encoders
import numpy as np
from planted_ports import (
    DEPTH,
    Planted,
    around,
    bias,
    called,
    every,
    in_blocks,
    mask_as,
    powers_of,
    put,
    replaced,
    rotated_by,
    setting,
    several,
    taken,
    terms,
    torch,
    turned,
    weight,
)

TODAY, BERT, GPT2 = "layers.{i}.self_attn.", "encoder.layer.{i}.", "h.{i}.attn."
B0, B1 = (BERT.format(i=i) for i in (0, 1))
N1, N2 = "attention.output.LayerNorm", "output.LayerNorm"
SCORES = "attention.self.scores"
DEBERTA = BERT + SCORES
WORDS = "bert.embeddings.word_embeddings"
T5, TABLE = "encoder.block.{i}.layer.0.SelfAttention", "relative_attention_bias"
YARN = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0,
                            "original_max_position_embeddings": 8}}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip

GEMMA2, FACTOR = "embedding_gemma2_text", "factor of the block left out"


def without_factors(model: Any) -> None:
    for block in model.layers:
        block.layer_scalar.fill_(1)


# -- how numbers lie ---------------------------------------------------------------------------------------------------


def by_head(q: Any, k: Any, v: Any) -> Any:
    """(batch, heads, seq, size) of a row that was read as [q k v] of head 0, [q k v] of head 1 and so on."""
    batch, heads, seq, size = q.shape
    row = torch.cat([x.transpose(1, 2).flatten(2) for x in (q, k, v)], -1)
    return tuple(x.transpose(1, 2) for x in row.view(batch, seq, heads, 3 * size).split(size, -1))


def by_neighbours(w: Any) -> Any:
    """Rows of each head as a converter to GGUF orders them."""
    return w.reshape(-1, 2, encoders.TODAY["head_dim"] // 2, w.shape[1]).transpose(1, 2).reshape(w.shape)


# -- masks -------------------------------------------------------------------------------------------------------------


def from_ids(right: Any, args: Any, named: dict[str, Any]) -> Any:
    return right(**{**named, "attention_mask": (named["input_ids"] != 0).long()})


def positions_by_mask(right: Any, args: Any, named: dict[str, Any]) -> Any:
    if (mask := named.get("attention_mask")) is not None:
        named["position_ids"] = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)
    return right(**named)


def masked(at: str, name: str) -> dict[str, str]:
    """Scores as transformers shows them, with the mask added, and attention weights."""
    return every(at + "scores", name) | every("attentions.{i}", name)


# -- rotations, positions ----------------------------------------------------------------------------------------------


def half(x: Any, cos: Any, sin: Any) -> Any:
    """The first half of each head rotated, by the frequencies of a head of that size."""
    first, rest = x.chunk(2, -1)
    size = first.shape[-1]
    angle = (torch.arange(x.shape[2])[:, None] * 1e4 ** (-2 * torch.arange(size // 2) / size)).repeat(1, 2)
    return torch.cat([turned(first, angle.cos(), angle.sin()), rest], -1)


def side_by_side(x: Any, cos: Any, sin: Any) -> Any:
    return turned(x, *(y[..., : x.shape[-1] // 2].repeat_interleave(2, -1) for y in (cos, sin)))


def clipped(x: Any, cos: Any, sin: Any) -> Any:
    """Rotated as if no token stood after position 7."""
    places = [min(i, 7) for i in range(x.shape[2])]
    return turned(x, cos[:, :, places], sin[:, :, places])


def scaled_theta(model: Any) -> None:
    """Llama 3.1's scaling of other frequencies."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    model.config.rope_parameters = {**LLAMA3, "rope_theta": 1e4}
    model.rotary_emb.inv_freq = ROPE_INIT_FUNCTIONS["llama3"](model.config, "cpu")[0]


def sinusoids(model: Any) -> None:
    """Vaswani's table."""
    table = model.embeddings.position_embeddings.weight.data
    angle = [[p / 10000 ** (j // 2 * 2 / table.shape[1]) for j in range(table.shape[1])] for p in range(len(table))]
    table[:] = table.new_tensor([[(math.sin, math.cos)[j % 2](x) for j, x in enumerate(row)] for row in angle])


# -- distances, tables, blocks -----------------------------------------------------------------------------------------


def unsqueezed(relative: Any) -> Any:
    """Distances (1, query, key), each as it is."""
    tokens = torch.arange(relative.shape[-1])
    return (tokens[:, None] - tokens)[None]


def other_side(table: Any) -> Any:
    """T5's rows of keys before the query in the place of those of keys after it."""
    made = table.roll(len(table) // 2, 0)
    made[0] = table[0]
    return made


def more_positions(tensors: dict[str, Any]) -> None:
    """A table of 160 rows."""
    name = "embeddings.position_embeddings.weight"
    tensors[name] = np.sin(np.arange(160 * tensors[name].shape[1], dtype=np.float32)).reshape(160, -1)


def exchanged(model: Any) -> None:
    """Blocks 0 and 1 exchanged."""
    layers = model.encoder.layer
    layers[0], layers[1] = layers[1], layers[0]


def beside(own: Any, args: Any, named: Mapping[str, Any]) -> Any:
    """GPT-J's block by GPT-2's parts."""
    x, _, mask = args[:3]
    attended, *_ = own.attn(own.ln_1(x), attention_mask=mask)
    return x + attended + own.mlp(own.ln_2(x))


SIDE = "queries, keys and values side by side for each head"
SEES, NARROW = "causal mask where there is none", "window one token too narrow"
PLANTED: dict[str, Planted] = {
    # -- linear maps
    "GPT-2's c_attn read head by head": Planted(
        "gpt2", every(GPT2 + "scores", SIDE) | every(GPT2 + "context", SIDE), attention={"qkv": by_head}),
    # -- norms
    "weight and bias": Planted("bert", {B0 + N2: "weight and bias ignored"},
                               several(bias(B0 + N2), weight(B0 + N2, lambda w: w * 0 + 1))),
    "the other norm's": Planted("bert", {B0 + N2: f"weight and bias of {B0}{N1}"}, taken(B0 + N2, B0 + N1)),
    "no norm": Planted("bert", {B1 + N2: "norm not applied"}, put(B1 + N2, lambda own, x: x)),
    # -- activations, sums
    "quick gelu": Planted("gpt2", {"h.1.mlp.act": "activation quick_gelu"},
                          put("h.1.mlp.act", lambda own, x: x * (1.702 * x).sigmoid())),
    "no activation of the gate": Planted("qwen3", {"layers.2.mlp.act_fn": "activation left out"},
                                         put("layers.2.mlp.act_fn", lambda own, x: x)),
    "activation not used": Planted("gpt2", {"h.1.mlp.c_proj": "computed from h.1.mlp.c_fc"}, called(
        "h.1.mlp", lambda own, args, named: (own.act(x := own.c_fc(args[0])), own.c_proj(x))[1])),
    "ModernBERT's Wi": Planted(
        "modernbert", dict.fromkeys(("layers.1.mlp.act", "layers.1.mlp.Wo"), "gate and up exchanged"),
        called("layers.1.mlp", lambda own, args, named: own.Wo(
            (both := own.Wi(args[0]).chunk(2, -1))[0] * own.act(both[1])))),
    "Llama without its gate": Planted(
        "llama", {"layers.1.mlp.act_fn": "computed from layers.1.mlp.up_proj"}, called(
            "layers.1.mlp", lambda own, args, named: own.down_proj(
                (own.gate_proj(args[0]), own.act_fn(own.up_proj(args[0])) * own.up_proj(args[0]))[1]))),
    "residual missing": Planted("bert", {B1 + "output.sum": "residual missing"}, called(
        B1 + "output", lambda own, args, named: own.LayerNorm(own.dense(args[0])))),
    # -- scores, masks
    "q and k exchanged": Planted("bert", every(BERT + SCORES, "scores of k and q"),
                                 attention={"qkv": lambda q, k, v: (k, q, v)}),
    "mask inverted": Planted("bert", every("attentions.{i}", "mask inverted"), attention=mask_as(-1e4, 0)),
    "mask after softmax": Planted("bert", every("attentions.{i}", "mask after softmax"), attention={
        **mask_as(0, 0), "after": lambda weights, mask: weights * (mask == 0)}),
    "GPT-2 that ignores padding": Planted(
        "gpt2", every("attentions.{i}", "padding seen"), attention={
            "mask": lambda mask: mask.amax(0, keepdim=True).expand_as(mask)}),
    "BERT's mask from the ids": Planted("bert", masked(BERT + "attention.self.", "mask from the ids"),
                                        around("", from_ids), kinds=("plain", "mask_unlike_ids")),
    "scores times 0 and 1": Planted("bert", every("attentions.{i}", "scores times the mask"), attention={
        "hide": lambda scores, mask: scores * (mask == 0)}),
    # transformers shows scores with the mask added
    "EuroBERT read as causal": Planted("eurobert", masked(TODAY, SEES), replaced(
        "create_bidirectional_mask", lambda right: partial(
            importlib.import_module("transformers.masking_utils").create_causal_mask, past_key_values=None))),
    "ModernBERT's window one narrower": Planted(
        "modernbert", {"attentions.1": NARROW, "layers.1.attn.scores": NARROW}, setting("config", local_attention=2)),
    "UltraBERT's window as a width": Planted(
        "ultrabert",
        {key.format(i=i): NARROW for i in (0, 2) for key in ("attentions.{i}", TODAY + "scores")},
        setting("config", sliding_window=1)),
    # -- EmbeddingGemma 2
    "EmbeddingGemma 2's window as a width": Planted(
        GEMMA2, {"attentions.0": "window half as wide", "layers.0.self_attn.scores": "window half as wide"},
        setting("config", sliding_window=3), settings={"sliding_window": 6}),
    "EmbeddingGemma 2's piece of another block": Planted(
        GEMMA2, every("layers.{i}.ple_block.per_layer_projection", "piece of the next block"),
        around("ple", lambda right, args, named: right(*args).roll(-1, dims=2))),
    "EmbeddingGemma 2 without layer_scalar": Planted(
        GEMMA2, {"hidden_states.1": FACTOR, "hidden_states.2": FACTOR}, without_factors),  # last: divided out
    "EmbeddingGemma 2's norms by 1 + weight": Planted(
        GEMMA2, every("layers.{i}.input_layernorm", "weight with 1 +"),
        in_blocks("layers.{i}.input_layernorm", lambda path: weight(path, lambda x: x + 1))),
    # -- rotations
    "half of Llama's head": Planted("llama", every(TODAY + "scores", "half of each head rotated"), rotated_by(half)),
    "ModernBERT's cos by repeat_interleave": Planted(
        "modernbert", every("layers.{i}.attn.scores", "cos and sin repeated by neighbours"), rotated_by(side_by_side)),
    "theta of 1e6": Planted("qwen3", every(TODAY + "scores", "theta 1e+06"), powers_of(1e6)),
    "yarn without its factor": Planted("llama", every(TODAY + "scores", "cos and sin without their factor"),
                                       setting("rotary_emb", attention_scaling=1.0), settings=YARN),
    # -- what a long text alone shows
    "Llama's positions clipped at 7": Planted("llama", every(TODAY + "context", ""), rotated_by(clipped)),
    "BERT's positions clipped at 127": Planted(
        "bert", {"position_ids": ""}, lambda model: model.embeddings.position_ids.clamp_(max=127),
        prepare=more_positions, settings={"max_position_embeddings": 160}),
    # -- distances: DeBERTa, MPNet, T5, umT5
    "DeBERTa without content to position": Planted(
        "deberta-v2", every(DEBERTA, "content to position missing"), terms(lambda of, x: of(x, "p2c"))),
    "DeBERTa without position to content": Planted(
        "deberta-v2", every(DEBERTA, "position to content missing"), terms(lambda of, x: of(x, "c2p"))),
    "DeBERTa's distances turned round": Planted(
        "deberta-v2", every(DEBERTA, "distances in the wrong direction"), terms(lambda of, x: of(-x))),
    "DeBERTa's far distances clipped": Planted(
        "deberta-v2", every(DEBERTA, "distances without log buckets"), terms(lambda of, x: of(unsqueezed(x)))),
    "DeBERTa's scale for one term": Planted(
        "deberta-v2", every(DEBERTA, "terms not counted in the scale"),
        replaced("scaled_size_sqrt", lambda right: lambda q, _: right(q, 1))),
    "MPNet's relative bias": Planted("mpnet", every("encoder.layer.{i}.attention.attn.scores", "relative bias missing"),
                                     weight("encoder.relative_attention_bias", lambda x: x * 0)),
    "T5's scores divided by sqrt(head_dim)": Planted(
        "t5", every(f"{T5}.scores", "division by sqrt(head_dim)"),
        in_blocks(T5, lambda path: setting(path, scaling=8**-0.5))),
    "T5's bias to a distance of 64": Planted(
        "t5", every(f"{T5}.context", "relative bias to a distance of 64"),
        setting(T5.format(i=0), relative_attention_max_distance=64)),
    "T5's bias in block 0 alone": Planted(
        "t5", {f"{T5.format(i=i)}.scores": "relative bias in the first block alone" for i in range(1, DEPTH)},
        several(*(around(T5.format(i=i), lambda right, args, named: right(*args, **{**named, "position_bias": None}))
                  for i in range(1, DEPTH)))),
    "T5's buckets by query - key": Planted("t5", every(f"{T5}.scores", "relative bias transposed"),
                                           weight(f"{T5.format(i=0)}.relative_attention_bias", other_side)),
    "umT5's blocks with block 0's bias": Planted(
        "umt5", {f"{T5.format(i=i)}.scores": "relative bias of the first block" for i in range(1, DEPTH)},
        several(*(taken(f"{T5.format(i=i)}.{TABLE}", f"{T5.format(i=0)}.{TABLE}") for i in range(1, DEPTH)))),
    # -- heads and input layers
    "the word table for Qwen3's head": Planted(
        "qwen3-next_word", {"lm_head": "word table where the head has its own"},
        taken("lm_head", "model.embed_tokens")),
    "BERT's head transposed": Planted(
        "bert-masked_word", {"cls.predictions.transform.dense": "weight transposed"},
        weight("cls.predictions.transform.dense", lambda x: x.T)),
    "BERT's rows times sqrt(dim)": Planted(
        "bert-masked_word", {"embeddings.word_embeddings": "word rows times sqrt(dim)"},
        around(WORDS, lambda right, args, named: right(*args) * 12**0.5)),
    "Llama's ids - 1": Planted(
        "llama-next_word", {"embed_tokens": "rows of ids -1"},
        around("model.embed_tokens", lambda right, args, named: right((args[0] - 1).clamp(min=0)))),
    "BERT's positions": Planted(
        "bert-masked_word", {"position_ids": "positions counted by the mask"}, around("", positions_by_mask)),
}  # fmt: skip
HONEST: dict[str, Planted] = {
    "transformers": Planted("bert", {}),
    "-1e4 for the mask": Planted("bert", {}, attention=mask_as(0, -1e4)),
    "-inf for the mask": Planted("bert", {}, attention={"mask": lambda mask: mask.masked_fill(mask != 0, -math.inf)}),
    "GPT-2": Planted("gpt2", {}),
    "UltraBERT": Planted("ultrabert", {}),
    "Qwen3": Planted("qwen3", {}),
    "ModernBERT": Planted("modernbert", {}),
    "ALBERT": Planted("albert", {}),
    "DeBERTa": Planted("deberta-v2", {}),
}


class OfStates(NamedTuple):
    """A port that gives its hidden states alone; what explains the whole of it, else what fits single blocks."""

    port: Planted
    matches: list[str]
    fits: Mapping[int, str] = {}


OF_STATES: dict[str, OfStates] = {
    "blocks 0 and 1 exchanged": OfStates(
        Planted("bert", {}, exchanged), [], {1: "weights of block 1", 2: "weights of block 0"}),
    "sinusoids for a learned table": OfStates(
        Planted("distilbert", {}, sinusoids), ["sinusoids in the place of learned positions"]),
    "theta of 10000, scaled all the same": OfStates(
        Planted("llama", {}, scaled_theta, settings={"rope_parameters": LLAMA3}), ["theta 10000"]),
    "rows for neighbours": OfStates(
        Planted("mistral", {}, several(*(
            in_blocks(f"{TODAY}{x}_proj", lambda path: weight(path, by_neighbours)) for x in "qk"))),
        ["queries and keys in the order of rows for neighbours"]),
    "feed-forward beside attention": OfStates(
        Planted("gpt2", {}, in_blocks("h.{i}", lambda path: called(path, beside))), ["feed-forward beside attention"]),
}  # fmt: skip
