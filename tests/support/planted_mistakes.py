"""Ports with one mistake each, as `planted_ports` makes them: of all intermediates, or of hidden states alone.

Hardly anything that loops plant, in `loops` and in tests/verify, is planted here once more. A module with "" has a
mistake that the list does not name; no other name may then fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import encoders
import numpy as np
from planted_ports import (
    DEPTH,
    Change,
    Planted,
    around,
    bias,
    called,
    every,
    frequencies,
    in_blocks,
    mask_as,
    put,
    replaced,
    setting,
    several,
    taken,
    terms,
    torch,
    weight,
)
from ports import arrays, verify_part
from reference_files import BY_NAME

from minibert.verify.reference import Reference
from minibert.verify.report import Comparison
from minibert.verify.subjects import Subject, batches

TODAY, BERT = "layers.{i}.self_attn.", "encoder.layer.{i}."
B0, B1 = (BERT.format(i=i) for i in (0, 1))
SCORES, N2 = BERT + "attention.self.scores", "output.LayerNorm"
T5, TABLE = "encoder.block.{i}.layer.0.SelfAttention", "relative_attention_bias"
YARN = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0,
                            "original_max_position_embeddings": 8}}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}  # fmt: skip
GEMMA2, FACTOR = "embedding_gemma2_text", "factor of the block left out"
LOOKS, VALUE = BERT + "attention.self.", B1 + "attention.self.value"
OTHER_TYPE = "attention of the other layer type"
BACK, UNTURNED = "position to content in the wrong direction", "position to content not transposed"
MAPS = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
        "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm")  # fmt: skip
NORM, POSITIONS = B1 + N2, "position_ids"


# -- norms, residuals, weights -----------------------------------------------------------------------------------------


def norm(formula: Callable[[Any, Any], Any]) -> Change:
    """Another LayerNorm after block 1, from the module and x less its mean."""
    return put(NORM, lambda own, x: formula(own, x - x.mean(-1, keepdim=True)) * own.weight + own.bias)


def variance(x: Any, less: int = 0) -> Any:
    return (x * x).sum(-1, keepdim=True) / (x.shape[-1] - less)


def rounded(narrow: Change) -> Change:
    """One map's weight and bias."""
    return several(weight(VALUE, narrow), bias(VALUE, narrow))


def residual_of_the_block(own: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """BERT's feed-forward, added to what enters the block."""
    attended, _ = own.attention(*args, **named)
    return own.output(own.intermediate(attended), args[0])


def training(model: Any) -> None:
    """Dropout as in training."""
    torch.manual_seed(1)
    model.train()


def norms_exchanged(model: Any) -> None:
    """Qwen3's norms of queries and of keys."""
    for block in model.layers:
        q, k = block.self_attn.q_norm, block.self_attn.k_norm
        q.weight, k.weight = k.weight, q.weight


# -- attention, tables -------------------------------------------------------------------------------------------------


def by_neighbours(w: Any) -> Any:
    """Rows of each head as a converter to GGUF orders them."""
    return w.reshape(-1, 2, encoders.TODAY["head_dim"] // 2, w.shape[1]).transpose(1, 2).reshape(w.shape)


def scaled_theta(model: Any) -> None:
    """Llama 3.1's scaling of other frequencies."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    model.config.rope_parameters = {**LLAMA3, "rope_theta": 1e4}
    model.rotary_emb.inv_freq = ROPE_INIT_FUNCTIONS["llama3"](model.config, "cpu")[0]


def sinusoids(x: Any) -> Any:
    """Vaswani's table, for x (..., seq, dim)."""
    j = np.arange(x.shape[-1])
    angle = np.arange(x.shape[-2])[:, None] / 10000 ** (j // 2 * 2 / len(j))
    return x.new_tensor(np.where(j % 2, np.cos(angle), np.sin(angle)))


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


def one_sided(model: Any) -> None:
    """T5's buckets as of its decoder."""
    own = model.get_submodule(T5.format(i=0))
    right = own._relative_position_bucket
    own._relative_position_bucket = lambda distances, **named: right(distances, **{**named, "bidirectional": False})


# -- input layers and heads --------------------------------------------------------------------------------------------


def given(**made: Callable[[dict[str, Any]], Any]) -> Callable[[Any, Any, dict[str, Any]], Any]:
    """Call a module with other arguments, each made of those that it has."""

    def call(right: Any, args: Any, named: dict[str, Any]) -> Any:
        return right(*args, **{**named, **{name: make(named) for name, make in made.items()}})

    return call


def ids(named: dict[str, Any]) -> Any:
    return named["input_ids"]


def counted(first: int) -> Callable[[dict[str, Any]], Any]:
    """Positions from `first` on, padding too."""
    return lambda named: (ids(named) * 0 + 1).cumsum(-1) - 1 + first


def counted_so(kept: Callable[[dict[str, Any]], Any], padding: int) -> Callable[[dict[str, Any]], Any]:
    """RoBERTa's rule with other tokens that count, and another id of padding."""
    return lambda named: kept(named).cumsum(-1) * kept(named) + padding


def by_mask(named: dict[str, Any]) -> Any:
    return named.get("attention_mask", ids(named) * 0 + 1)


def in_turns(table: Any) -> Any:
    """Sines and cosines in turns, of a table that has all sines first."""
    return table.unflatten(1, (2, -1)).transpose(1, 2).flatten(1)


def first_token(model: Any) -> None:
    def forward(right: Any, args: Any, named: dict[str, Any]) -> Any:
        made = right(*args, **named)
        made.logits = model.score(made.hidden_states[-1][:, 0])
        return made

    around("", forward)(model)


PLANTED: dict[str, Planted] = {
    # -- norms
    "weight and bias": Planted("bert", {B0 + N2: "weight and bias ignored"},
                               several(bias(B0 + N2), weight(B0 + N2, lambda w: w * 0 + 1))),
    "no norm": Planted("bert", {B1 + N2: "norm not applied"}, put(B1 + N2, lambda own, x: x)),
    # RoBERTa's own eps of 1e-5 would differ by half of what rounding allows in a block
    "eps of BERT": Planted("roberta", {NORM: "eps 1e-12"}, setting(NORM, eps=1e-12), settings={"layer_norm_eps": 1e-4}),
    "eps of Llama": Planted("roberta", {NORM: "eps 1e-06"}, setting(NORM, eps=1e-6), settings={"layer_norm_eps": 1e-4}),
    "eps beside the root": Planted("roberta", {NORM: "eps outside the root"}, norm(
        lambda own, x: x / (variance(x).sqrt() + own.eps))),
    "torch.std and eps": Planted("roberta", {NORM: "variance divided by dim - 1, eps outside the root"}, norm(
        lambda own, x: x / (variance(x, 1).sqrt() + own.eps))),
    "gamma for beta": Planted("bert", {NORM: "gamma and beta exchanged"}, put(
        NORM, lambda own, x: torch.nn.functional.layer_norm(x, x.shape[-1:], own.bias, own.weight, own.eps))),
    "ModernBERT's block 0 normed": Planted(  # as torch makes a LayerNorm, in the place of an Identity
        "modernbert", {"layers.0.attn.Wqkv": ""},
        put("layers.0.attn_norm", lambda own, x: torch.nn.functional.layer_norm(x, x.shape[-1:]))),
    "training": Planted("bert", dict.fromkeys(
        ["embeddings.LayerNorm", *(key.format(i=i) for i in range(3) for key in (
            "attentions.{i}", BERT + "attention.output.sum", BERT + "output.sum"))], ""), training),
    # -- weights, activations, residuals
    "a map in float16": Planted("bert", {VALUE: "parameters in float16"}, rounded(lambda x: x.half().float())),
    "a map in bfloat16": Planted("bert", {VALUE: "parameters in bfloat16"}, rounded(lambda x: x.bfloat16().float())),
    "a loader's loop that forgets i": Planted(
        "bert", {f"{BERT.format(i=i)}{path}": f"weight and bias of {BERT.format(i=0)}{path}"
                 for i in (1, 2) for path in MAPS},
        several(*(taken(f"encoder.layer.{i}", "encoder.layer.0") for i in (1, 2)))),
    "the key's map read from the query's": Planted(
        "bert", {f"{LOOKS.format(i=i)}key": f"weight and bias of {LOOKS.format(i=i)}query" for i in range(3)},
        in_blocks(LOOKS, lambda path: taken(path + "key", path + "query"))),
    "Qwen3's norms of heads exchanged": Planted(
        "qwen3", {f"{TODAY.format(i=i)}{a}_norm": f"weight of {TODAY.format(i=i)}{b}_norm"
                  for i in range(3) for a, b in ("qk", "kq")},
        norms_exchanged),
    "the second sum of the block's input": Planted(
        "bert", {f"{BERT.format(i=i)}output.sum": f"residual of hidden_states.{i}" for i in range(3)},
        in_blocks(BERT[:-1], lambda path: called(path, residual_of_the_block))),
    "Llama without its gate": Planted(
        "llama", {"layers.1.mlp.act_fn": "computed from layers.1.mlp.up_proj"}, called(
            "layers.1.mlp", lambda own, args, named: own.down_proj(
                (own.gate_proj(args[0]), own.act_fn(own.up_proj(args[0])) * own.up_proj(args[0]))[1]))),
    "ModernBERT's Wi": Planted(
        "modernbert", dict.fromkeys(("layers.1.mlp.act", "layers.1.mlp.Wo"), "gate and up exchanged"),
        called("layers.1.mlp", lambda own, args, named: own.Wo(
            (both := own.Wi(args[0]).chunk(2, -1))[0] * own.act(both[1])))),
    "residual missing": Planted("bert", {B1 + "output.sum": "residual missing"}, called(
        B1 + "output", lambda own, args, named: own.LayerNorm(own.dense(args[0])))),
    # -- scores, masks
    "q and k exchanged": Planted("bert", every(SCORES, "scores of k and q"),
                                 attention={"qkv": lambda q, k, v: (k, q, v)}),
    "mask inverted": Planted("bert", every("attentions.{i}", "mask inverted"), attention=mask_as(-1e4, 0)),
    "mask after softmax": Planted("bert", every("attentions.{i}", "mask after softmax"), attention={
        **mask_as(0, 0), "after": lambda weights, mask: weights * (mask == 0)}),
    "BERT's mask from the ids": Planted(  # transformers shows scores with the mask added
        "bert", every(SCORES, "mask from the ids") | every("attentions.{i}", "mask from the ids"),
        around("", given(attention_mask=lambda named: (ids(named) != 0).long())), kinds=("plain", "mask_unlike_ids")),
    "scores times 0 and 1": Planted("bert", every("attentions.{i}", "scores times the mask"), attention={
        "hide": lambda scores, mask: scores * (mask == 0)}),
    "queries for keys": Planted("bert", every(SCORES, "scores of q and q"),
                                attention={"qkv": lambda q, k, v: (q, q, v)}),
    # -- EmbeddingGemma 2
    "EmbeddingGemma 2's window as a width": Planted(
        GEMMA2, {"attentions.0": "window half as wide", "layers.0.self_attn.scores": "window half as wide"},
        setting("config", sliding_window=3), settings={"sliding_window": 6}),
    "EmbeddingGemma 2's piece of another block": Planted(
        GEMMA2, every("layers.{i}.ple_block.per_layer_projection", "piece of the next block"),
        around("ple", lambda right, args, named: right(*args).roll(-1, dims=2))),
    "EmbeddingGemma 2 without layer_scalar": Planted(
        GEMMA2, {"hidden_states.1": FACTOR, "hidden_states.2": FACTOR},  # of the last one the norm divides it out
        lambda model: [block.layer_scalar.fill_(1) for block in model.layers]),
    "EmbeddingGemma 2's norms by 1 + weight": Planted(
        GEMMA2, every("layers.{i}.input_layernorm", "weight with 1 +"),
        in_blocks("layers.{i}.input_layernorm", lambda path: weight(path, lambda x: x + 1))),
    "NomicBERT's values without their signs": Planted("nomic_bert", every(TODAY + "context", ""), replaced(
        "eager_attention_forward", lambda right: lambda module, q, k, v, mask, **named: right(
            module, q, k, v.abs(), mask, **named))),
    "EmbeddingGemma 2's projection as it is": Planted(
        GEMMA2, {"ple.per_layer_projection_norm": "projection's factor left out"},
        setting("ple", per_layer_model_projection_scale=1.0), settings={"rms_norm_eps": 1e-2}),
    # -- layer types, rotations
    "yarn without its factor": Planted("llama", every(TODAY + "scores", "cos and sin without their factor"),
                                       setting("rotary_emb", attention_scaling=1.0), settings=YARN),
    "Gemma's blocks counted from 0": Planted(
        "gemma3_text", {key.format(i=i): OTHER_TYPE for i in (0, 2) for key in (TODAY + "scores", "attentions.{i}")},
        setting("config", layer_types=["full_attention", "sliding_attention", "sliding_attention"]),  # i % 3
        settings={"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}),
    "Llama 3.1 without its scaling": Planted(
        "llama", every(TODAY + "scores", "rotary frequencies not scaled"), frequencies(
            lambda x: x.new_tensor([5e5 ** (-i / len(x)) for i in range(len(x))])),
        settings={"rope_parameters": LLAMA3}),
    "model.bfloat16() for frequencies": Planted("llama", every(TODAY + "scores", "rotary frequencies in bfloat16"),
                                                frequencies(lambda x: x.bfloat16())),
    # -- what a long text alone shows
    "BERT's positions clipped at 127": Planted(
        "bert", {"position_ids": ""}, lambda model: model.embeddings.position_ids.clamp_(max=127),
        prepare=more_positions, settings={"max_position_embeddings": 160}),
    # -- distances: DeBERTa, MPNet, T5, umT5
    "DeBERTa without content to position": Planted(
        "deberta-v2", every(SCORES, "content to position missing"), terms(lambda of, x: of(x, "p2c"))),
    "DeBERTa without position to content": Planted(
        "deberta-v2", every(SCORES, "position to content missing"), terms(lambda of, x: of(x, "c2p"))),
    "DeBERTa's distances turned round": Planted(
        "deberta-v2", every(SCORES, "distances in the wrong direction"), terms(lambda of, x: of(-x))),
    "DeBERTa's far distances clipped": Planted(
        "deberta-v2", every(SCORES, "distances without log buckets"), terms(lambda of, x: of(unsqueezed(x)))),
    "DeBERTa's scale for one term": Planted(
        "deberta-v2", every(SCORES, "terms not counted in the scale"),
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
        several(*(around(T5.format(i=i), given(position_bias=lambda named: None)) for i in range(1, DEPTH)))),
    "T5's buckets by query - key": Planted("t5", every(f"{T5}.scores", "relative bias transposed"),
                                           weight(f"{T5.format(i=0)}.relative_attention_bias", other_side)),
    "umT5's blocks with block 0's bias": Planted(
        "umt5", {f"{T5.format(i=i)}.scores": "relative bias of the first block" for i in range(1, DEPTH)},
        several(*(taken(f"{T5.format(i=i)}.{TABLE}", f"{T5.format(i=0)}.{TABLE}") for i in range(1, DEPTH)))),
    "DeBERTa's keys as rows": Planted("deberta-v2", every(SCORES, UNTURNED), terms(
        lambda of, distances: of(distances, "c2p") + of(distances, "p2c").transpose(-1, -2))),
    "DeBERTa's second distances turned round": Planted("deberta-v2", every(SCORES, BACK), terms(
        lambda of, distances: of(distances, "c2p") + of(-distances, "p2c"))),
    "DeBERTa's rows of distances without their norm": Planted("deberta-v2", every(SCORES, ""), setting(
        "encoder", norm_rel_ebd=["none"])),
    "T5's buckets one-sided": Planted("t5", every(f"{T5}.scores", "relative bias of the other direction"), one_sided),
    # -- heads
    "the word table for Qwen3's head": Planted(
        "qwen3-next_word", {"lm_head": "word table where the head has its own"},
        taken("lm_head", "model.embed_tokens")),
    "BERT's classes without a pooler": Planted("bert-classes", {"classifier": "pooler forgotten"},
                                               called("bert.pooler", lambda own, args, named: args[0][:, 0])),
    "GPT-2's first token": Planted("gpt2-classes", {"score": "first token instead of the last"}, first_token),
    "ModernBERT's first token": Planted("modernbert-classes-mean", {"head.dense": "first token instead of the mean"},
                                        setting("config", classifier_pooling="cls")),
    "ModernBERT's mean": Planted("modernbert-classes", {"head.dense": "mean of the tokens instead of one"},
                                 setting("config", classifier_pooling="mean")),
    "GPT-2's last norm twice": Planted("gpt2-next_word", {"lm_head": ""}, lambda model: around(
        "lm_head", lambda right, args, named: right(model.transformer.ln_f.forward(args[0])))(model)),
    # -- input layers
    "GPT-2's types": Planted("gpt2", {"sum": "type row 0 added"},
                             around("", given(token_type_ids=lambda named: ids(named) * 0))),
    "RoBERTa from 0": Planted("roberta", {POSITIONS: "positions from 0"},
                              around("embeddings", given(position_ids=counted(0)))),
    "RoBERTa's padding counted": Planted("roberta", {POSITIONS: "padding counted as tokens"},
                                         around("embeddings", given(position_ids=counted(2)))),
    "RoBERTa by the mask": Planted(
        "roberta", {POSITIONS: "positions by the mask instead of the ids"},
        around("", given(position_ids=counted_so(by_mask, 1))), kinds=("plain", "mask_unlike_ids")),
    "MPNet's pad_token_id": Planted(
        "mpnet", {POSITIONS: "padding id of positions from the config"},
        around("embeddings", given(position_ids=counted_so(lambda named: (ids(named) != 5).long(), 5))),
        settings={"pad_token_id": 5}, kinds=("plain", "left_pad")),
    "BART's offset": Planted("bart", {"encoder.embed_positions": "offset of the position table missing"},
                             weight("encoder.embed_positions", lambda table: table.roll(2, 0))),
    "Marian's sinusoids in turns": Planted("marian", {"encoder.embed_positions": "sinusoids in the other layout"},
                                           weight("encoder.embed_positions", in_turns)),
    "Gemma's rows": Planted("gemma3_text", {"embed_tokens": "factor of the word rows left out"},
                            lambda model: model.embed_tokens.embed_scale.fill_(1)),
    "mBART's own rows": Planted(
        "mbart", {"sum": "inputs_embeds scaled"},
        around("encoder", given(inputs_embeds=lambda named: named["inputs_embeds"] * 4)),
        settings={"scale_embedding": True}, kinds=("inputs_embeds",)),
}  # fmt: skip


class OfStates(NamedTuple):
    """A port that gives its hidden states alone; what explains the whole of it, else what fits single blocks."""

    port: Planted
    matches: list[str]
    fits: Mapping[int, str] = {}


OF_STATES: dict[str, OfStates] = {
    "blocks 0 and 1 exchanged": OfStates(
        Planted("bert", {}, lambda model: model.encoder.layer.insert(0, model.encoder.layer.pop(1))), [],
        {1: "weights of block 1", 2: "weights of block 0"}),
    "sinusoids for a learned table": OfStates(
        Planted("distilbert", {}, weight("embeddings.position_embeddings", sinusoids)),
        ["sinusoids in the place of learned positions"]),
    "theta of 10000, scaled all the same": OfStates(
        Planted("llama", {}, scaled_theta, settings={"rope_parameters": LLAMA3}), ["theta 10000"]),
    "rows for neighbours": OfStates(
        Planted("mistral", {}, several(*(
            in_blocks(f"{TODAY}{x}_proj", lambda path: weight(path, by_neighbours)) for x in "qk"))),
        ["queries and keys in the order of rows for neighbours"]),
}  # fmt: skip


# -- layers of models without blocks here, and of other batches --------------------------------------------------------


class OfLayer(NamedTuple):
    """A port of a committed input layer, a case of `tests/reference`, which has one mistake."""

    case: str
    change: Change
    kinds: tuple[str, ...]


def rows_kept(right: Any) -> Any:
    """XLM's masks, but all rows are kept."""

    def masks(*args: Any, **named: Any) -> Any:
        rows, seen = right(*args, **named)
        return rows * 0 + 1, seen

    return masks


def in_float32(table: Any) -> Any:
    """Marian's sinusoids from angles in float32."""
    count, dim = table.shape
    j = np.arange(0, dim, 2, dtype=np.float32)
    angle = np.arange(count, dtype=np.float32)[:, None] / np.float32(10000) ** (j / np.float32(dim))
    return table.new_tensor(np.concatenate([np.sin(angle), np.cos(angle)], 1))


OF_LAYERS: dict[str, OfLayer] = {
    "mask ignored in positions": OfLayer("opt", around("decoder.embed_positions", given(
        position_ids=lambda named: (named["position_ids"] * 0 + 1).cumsum(-1) - 1)), ("plain", "left_pad")),
    "positions by the ids instead of the mask": OfLayer("opt", around("decoder", given(
        position_ids=counted_so(lambda named: (ids(named) != 1).long(), -1))),
        ("plain", "right_pad_no_mask", "mask_unlike_ids")),
    "cached tokens not counted": OfLayer("gpt2", around("", given(position_ids=counted(0))), ("plain", "cached")),
    "mask not applied to the rows": OfLayer("xlm", replaced("get_masks", rows_kept), ("plain", "left_pad")),
    "sinusoids added": OfLayer("t5-encoder", around("encoder", given(
        inputs_embeds=lambda named: named["inputs_embeds"] + sinusoids(named["inputs_embeds"]))), ("inputs_embeds",)),
    "sinusoids from float32 angles": OfLayer("marian-encoder", weight("encoder.embed_positions", in_float32),
                                             ("plain", "full_length")),
}  # fmt: skip


def judged_of_layer(port: OfLayer) -> Comparison:
    case = BY_NAME[port.case]
    with case.layer() as layer:
        inputs = {kind: batch for kind, batch in batches(layer).items() if kind in port.kinds}
        reference = Reference(Subject(layer, case.layer), str(case.folder))
        port.change(model := reference._model)
        try:
            traces = {kind: reference.trace(batch) for kind, batch in inputs.items()}
        finally:
            getattr(model, "undo", bool)()
    return verify_part(case.folder, arrays(inputs, traces), side=case.side)
