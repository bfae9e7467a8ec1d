"""Names that neither loops nor `planted_blocks` plant, and mistakes that real ports have made: one row each.

A row whose modules have "" is a mistake that the list does not name; no other name may then fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from planted_blocks import B1, BERT, DEBERTA, GEMMA2, LLAMA3, N2, SCORES, T5, TODAY, OfStates
from planted_ports import (
    Change,
    Planted,
    around,
    bias,
    called,
    every,
    frequencies,
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
from ports import arrays, verify_part
from reference_files import BY_NAME

from minibert.verify.reference import Reference
from minibert.verify.report import Comparison
from minibert.verify.subjects import Subject, batches

NORM, POSITIONS, TYPES = B1 + N2, "position_ids", "embeddings.token_type_embeddings"
HEADS, SIZE, THETA = 12, 4, 1e4


# -- norms, residuals, weights -----------------------------------------------------------------------------------------


def norm(formula: Callable[[Any, Any], Any]) -> Change:
    """Another LayerNorm after block 1, from the module and x less its mean."""
    return put(NORM, lambda own, x: formula(own, x - x.mean(-1, keepdim=True)) * own.weight + own.bias)


def variance(x: Any, less: int = 0) -> Any:
    return (x * x).sum(-1, keepdim=True) / (x.shape[-1] - less)


def one_pass(own: Any, x: Any) -> Any:
    """By NumPy: a variance in one pass is rounding, which each program has of its own."""
    y = x.numpy()
    mean = y.mean(-1, keepdims=True)
    root = np.sqrt((y * y).mean(-1, keepdims=True) - mean * mean + np.float32(own.eps))
    return x.new_tensor((y - mean) / root) * own.weight + own.bias


def far_from_zero(tensors: dict[str, Any]) -> None:
    tensors[f"{B1}output.dense.bias"] += np.float32(100)


def in_steps(w: Any) -> Any:
    step = w.abs().amax(1, keepdim=True) / 127
    return (w / step).round() * step


def rounded(narrow: Change) -> Change:
    """One map's weight and bias."""
    return several(weight(VALUE, narrow), bias(VALUE, narrow))


def residual_of_the_block(own: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """BERT's feed-forward, added to what enters the block."""
    attended, _ = own.attention(*args, **named)
    return own.output(own.intermediate(attended), args[0])


def weights_of_block_0(model: Any) -> None:
    for layer in model.encoder.layer[1:]:
        layer.load_state_dict(model.encoder.layer[0].state_dict())


def training(model: Any) -> None:
    """Dropout as in training."""
    torch.manual_seed(1)
    model.train()


def norms_exchanged(model: Any) -> None:
    """Qwen3's norms of queries and of keys."""
    for block in model.layers:
        q, k = block.self_attn.q_norm, block.self_attn.k_norm
        q.weight, k.weight = k.weight, q.weight


# -- attention ---------------------------------------------------------------------------------------------------------


def in_heads(heads: int) -> Planted:
    """BERT with another number of heads."""

    def split(*projections: Any) -> Any:
        return tuple(x.transpose(1, 2).flatten(2).unflatten(2, (heads, -1)).transpose(1, 2) for x in projections)

    scale = (HEADS * SIZE / heads) ** -0.5
    return Planted("bert", {}, in_blocks(LOOKS[:-1], lambda path: setting(path, scaling=scale)),
                   attention={"qkv": split})  # fmt: skip


def numbers_first(*projections: Any) -> Any:
    """(head_dim, heads) read from each row, where it has (heads, head_dim)."""
    return tuple(x.transpose(1, 2).flatten(2).unflatten(2, (-1, x.shape[1])).permute(0, 3, 1, 2) for x in projections)


def joined_so(right: Any, args: Any, named: dict[str, Any]) -> Any:
    context, weights = right(*args, **named)
    return context.unflatten(2, (HEADS, -1)).transpose(2, 3).flatten(2), weights


def turned_by(x: Any, first: int = 0) -> Any:
    """x (batch, heads, seq, size), turned by positions from `first` on."""
    size = x.shape[-1]
    angle = torch.arange(first, first + x.shape[2])[:, None] * THETA ** (torch.arange(size // 2) / size * -2)
    both = torch.cat([angle, angle], -1)
    return turned(x, both.cos(), both.sin())


def turned_before_the_norm(own: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """Qwen3's attention with the order of Hunyuan's."""
    x, (cos, sin) = args[0], (y.unsqueeze(2) for y in named["position_embeddings"])
    q, k, v = (project(x).unflatten(2, (-1, own.head_dim)) for project in (own.q_proj, own.k_proj, own.v_proj))
    q, k = own.q_norm(turned(q, cos, sin)), own.k_norm(turned(k, cos, sin))
    k, v = (y.repeat_interleave(q.shape[2] // k.shape[2], 2) for y in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * own.scaling
    weights = torch.nn.functional.softmax(scores + named["attention_mask"], dim=-1)
    return own.o_proj(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)), weights


def other_layer_types(model: Any) -> None:
    """Local and global blocks exchanged, as by a count from 1."""
    other = {"sliding_attention": "full_attention", "full_attention": "sliding_attention"}
    for block in model.layers:
        block.attention_type = other[block.attention_type]


def rows_not_normed(model: Any) -> None:
    model.encoder.norm_rel_ebd = ["none"]


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


def position_before_type(right: Any, args: Any, named: dict[str, Any]) -> Any:
    own, x = right.__self__, ids(named)
    places = own.position_ids[:, : x.shape[1]]
    rows = own.word_embeddings(x) + own.position_embeddings(places)
    return own.LayerNorm(rows + own.token_type_embeddings(x * 0))


def in_turns(table: Any) -> Any:
    """Sines and cosines in turns, of a table that has all sines first."""
    return table.unflatten(1, (2, -1)).transpose(1, 2).flatten(1)


def first_token(model: Any) -> None:
    def forward(right: Any, args: Any, named: dict[str, Any]) -> Any:
        made = right(*args, **named)
        made.logits = model.score(made.hidden_states[-1][:, 0])
        return made

    around("", forward)(model)


LOOKS, VALUE = BERT + "attention.self.", B1 + "attention.self.value"
OTHER_TYPE, EXPONENT = "attention of the other layer type", "exponent of the frequencies j / d"
AFTER_TURN = "queries and keys normed after the rotation"
BACK, UNTURNED = "position to content in the wrong direction", "position to content not transposed"
WORDS = "embeddings.word_embeddings"
MAPS = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
        "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm")  # fmt: skip
NAMES: dict[str, Planted] = {
    # -- norms
    # RoBERTa's own eps of 1e-5 would differ by half of what rounding allows in a block
    "eps of BERT": Planted("roberta", {NORM: "eps 1e-12"}, setting(NORM, eps=1e-12), settings={"layer_norm_eps": 1e-4}),
    "eps of Llama": Planted("roberta", {NORM: "eps 1e-06"}, setting(NORM, eps=1e-6), settings={"layer_norm_eps": 1e-4}),
    "eps of Keras": Planted("bert", {NORM: "eps 0.001"}, setting(NORM, eps=1e-3)),
    "torch.var": Planted("bert", {NORM: "variance divided by dim - 1"}, norm(
        lambda own, x: x / (variance(x, 1) + own.eps).sqrt())),
    "eps beside the root": Planted("roberta", {NORM: "eps outside the root"}, norm(
        lambda own, x: x / (variance(x).sqrt() + own.eps))),
    "torch.std and eps": Planted("roberta", {NORM: "variance divided by dim - 1, eps outside the root"}, norm(
        lambda own, x: x / (variance(x, 1).sqrt() + own.eps))),
    "the mean kept": Planted("bert", {NORM: "RMSNorm for LayerNorm"}, put(
        NORM, lambda own, x: torch.nn.functional.rms_norm(x, x.shape[-1:], own.weight, own.eps) + own.bias)),
    "gamma for beta": Planted("bert", {NORM: "gamma and beta exchanged"}, put(
        NORM, lambda own, x: torch.nn.functional.layer_norm(x, x.shape[-1:], own.bias, own.weight, own.eps))),
    "rows of length 1": Planted(
        "llama", {"layers.1.input_layernorm": "RMSNorm by the sum of squares"},
        put("layers.1.input_layernorm", lambda own, x: torch.nn.functional.normalize(x, dim=-1) * own.weight)),
    "Gemma's norms of heads without 1 +": Planted(
        "gemma3_text", every(TODAY + "q_norm", "weight without 1 +") | every(TODAY + "k_norm", "weight without 1 +"),
        several(*(in_blocks(f"{TODAY}{x}_norm", lambda path: weight(path, lambda w: w - 1)) for x in "qk"))),
    "ModernBERT's block 0 normed": Planted(  # as torch makes a LayerNorm, in the place of an Identity
        "modernbert", {"layers.0.attn.Wqkv": ""},
        put("layers.0.attn_norm", lambda own, x: torch.nn.functional.layer_norm(x, x.shape[-1:]))),
    "training": Planted("bert", dict.fromkeys(
        ["embeddings.LayerNorm", *(key.format(i=i) for i in range(3) for key in (
            "attentions.{i}", BERT + "attention.output.sum", BERT + "output.sum"))], ""), training),
    "E[x^2] - E[x]^2": Planted("bert", {NORM: "variance in one pass"}, put(NORM, one_pass), prepare=far_from_zero),
    # -- weights, residuals
    "a map without its bias": Planted("bert", {VALUE: "bias missing"}, bias(VALUE)),
    "a map in float16": Planted("bert", {VALUE: "parameters in float16"}, rounded(lambda x: x.half().float())),
    "a map in bfloat16": Planted("bert", {VALUE: "parameters in bfloat16"}, rounded(lambda x: x.bfloat16().float())),
    "a map in int8": Planted("bert", {VALUE: "weights in int8"}, weight(VALUE, in_steps)),
    "a loader's loop that forgets i": Planted(
        "bert", {f"{BERT.format(i=i)}{path}": f"weight and bias of {BERT.format(i=0)}{path}"
                 for i in (1, 2) for path in MAPS}, weights_of_block_0),
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
    # -- scores, heads, masks
    "1e-9 for 1e9": Planted("bert", every("attentions.{i}", "mask ignored"), attention=mask_as(0, -1e-9)),
    "a scale of sqrt(128)": Planted("bert", every(BERT + SCORES, "scores divided by the root of 128"),
                                    in_blocks(LOOKS[:-1], lambda path: setting(path, scaling=128**-0.5))),
    "head_dim from dim": Planted("qwen3", every(TODAY + "scores", "division by sqrt(dim / heads)"),
                                 in_blocks(TODAY[:-1], lambda path: setting(path, scaling=0.5))),
    "queries for keys": Planted("bert", every(BERT + SCORES, "scores of q and q"),
                                attention={"qkv": lambda q, k, v: (q, q, v)}),
    "(head_dim, heads) for (heads, head_dim)": Planted(
        "bert", every(LOOKS + "scores", "") | every(LOOKS + "context", ""),
        in_blocks(LOOKS[:-1], lambda path: around(path, joined_so)), attention={"qkv": numbers_first}),
    # -- distances
    "DeBERTa's keys as rows": Planted("deberta-v2", every(DEBERTA, UNTURNED), terms(
        lambda of, distances: of(distances, "c2p") + of(distances, "p2c").transpose(-1, -2))),
    "DeBERTa's second distances turned round": Planted("deberta-v2", every(DEBERTA, BACK), terms(
        lambda of, distances: of(distances, "c2p") + of(-distances, "p2c"))),
    "DeBERTa's rows of distances without their norm": Planted("deberta-v2", every(DEBERTA, ""), rows_not_normed),
    "T5's buckets one-sided": Planted("t5", every(f"{T5}.scores", "relative bias of the other direction"), one_sided),
    "MPNet's bias divided too": Planted("mpnet", every("encoder.layer.{i}.attention.attn.scores", ""),
                                        weight("encoder.relative_attention_bias", lambda x: x / 2)),
    # -- layer types, rotations
    "ModernBERT's blocks counted from 1": Planted(
        "modernbert", every("layers.{i}.attn.scores", OTHER_TYPE) | every("attentions.{i}", OTHER_TYPE),
        other_layer_types),
    "Gemma's blocks counted from 0": Planted(
        "gemma3_text", {key.format(i=i): OTHER_TYPE for i in (0, 2) for key in (TODAY + "scores", "attentions.{i}")},
        setting("config", layer_types=["full_attention", "sliding_attention", "sliding_attention"]),  # i % 3
        settings={"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}),
    "Qwen3 in Hunyuan's order": Planted(
        "qwen3", {f"{TODAY.format(i=i)}{key}": AFTER_TURN for i in range(3) for key in ("q_norm", "k_norm", "scores")},
        in_blocks(TODAY[:-1], lambda path: called(path, turned_before_the_norm))),
    "queries a position back": Planted("llama", every(TODAY + "scores", "queries rotated by position -1"),
                                       replaced(
        "apply_rotary_pos_emb", lambda right: lambda q, k, cos, sin: (turned_by(q, -1), turned_by(k)))),
    "half as fast": Planted("llama", every(TODAY + "scores", "rotary positions divided by 2"),
                            frequencies(lambda x: x / 2)),
    "an eighth as fast": Planted("llama", every(TODAY + "scores", "rotary positions divided by 8"),
                                 frequencies(lambda x: x / 8)),
    "BERT rotated": Planted("bert", every(BERT + SCORES, "rotated where nothing rotates"),
                            attention={"qkv": lambda q, k, v: (turned_by(q), turned_by(k), v)}),
    "the sine's sign": Planted("llama", every(TODAY + "scores", "rotated the other way"),
                               rotated_by(lambda x, cos, sin: turned(x, cos, -sin))),
    "theta^(-j / d)": Planted("qwen3", every(TODAY + "scores", EXPONENT), powers_of(THETA, slower=2)),
    "Llama 3.1 without its scaling": Planted(
        "llama", every(TODAY + "scores", "rotary frequencies not scaled"), powers_of(5e5),
        settings={"rope_parameters": LLAMA3}),
    "model.bfloat16() for frequencies": Planted("llama", every(TODAY + "scores", "rotary frequencies in bfloat16"),
                                                frequencies(lambda x: x.bfloat16())),
    "NomicBERT's values rotated": Planted("nomic_bert", every(TODAY + "context", ""), replaced(
        "eager_attention_forward", lambda right: lambda module, q, k, v, mask, **named: right(
            module, q, k, turned_by(v), mask, **named))),
    "EmbeddingGemma 2's projection as it is": Planted(
        GEMMA2, {"ple.per_layer_projection_norm": "projection's factor left out"},
        setting("ple", per_layer_model_projection_scale=1.0), settings={"rms_norm_eps": 1e-2}),
    # -- heads
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
    "position before type": Planted("bert", {"sum": "rows added in the other order"},
                                    around("embeddings", position_before_type)),
    "GPT-2's types": Planted("gpt2", {"sum": "type row 0 added"},
                             around("", given(token_type_ids=lambda named: ids(named) * 0))),
    "types not read": Planted("bert", {TYPES: "type 0 for all tokens"}, kinds=("plain", "types"), change=around(
        "", given(token_type_ids=lambda named: ids(named) * 0))),
    "types 1": Planted("bert", {TYPES: "type 1 for all tokens"}, kinds=("plain", "types"), change=around(
        "", given(token_type_ids=lambda named: ids(named) * 0 + 1))),
    "types exchanged": Planted("bert", {TYPES: "token types exchanged"}, kinds=("plain", "types"), change=around(
        "", given(token_type_ids=lambda named: 1 - named.get("token_type_ids", ids(named) * 0)))),
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
    "padding_idx": Planted("bert", {WORDS: "padding row zeroed"}, weight(
        WORDS, lambda table: table * (table.new_tensor(range(len(table))) > 0)[:, None]),
        kinds=("plain", "right_pad_no_mask")),
    "a table from row 1 on": Planted("bert", {WORDS: "rows of ids +1"}, weight(
        WORDS, lambda table: table[[*range(1, len(table)), len(table) - 1]])),
}  # fmt: skip
NAMES_OF_STATES: dict[str, OfStates] = {
    f"{many} heads": OfStates(in_heads(many), [name])
    for many, name in ((24, "twice as many heads"), (6, "half as many heads"))
}


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


def with_sinusoids(named: dict[str, Any]) -> Any:
    rows = named["inputs_embeds"]
    j = np.arange(rows.shape[-1])
    angle = np.arange(rows.shape[1])[:, None] / 10000 ** (j // 2 * 2 / len(j))
    return rows + rows.new_tensor(np.where(j % 2, np.cos(angle), np.sin(angle)))


def in_float32(table: Any) -> Any:
    """Marian's sinusoids from angles in float32."""
    count, dim = table.shape
    j = np.arange(0, dim, 2, dtype=np.float32)
    angle = np.arange(count, dtype=np.float32)[:, None] / np.float32(10000) ** (j / np.float32(dim))
    return table.new_tensor(np.concatenate([np.sin(angle), np.cos(angle)], 1))


NAMES_OF_LAYERS: dict[str, OfLayer] = {
    "mask ignored in positions": OfLayer("opt", around("decoder.embed_positions", given(
        position_ids=lambda named: (named["position_ids"] * 0 + 1).cumsum(-1) - 1)), ("plain", "left_pad")),
    "positions by the ids instead of the mask": OfLayer("opt", around("decoder", given(
        position_ids=counted_so(lambda named: (ids(named) != 1).long(), -1))),
        ("plain", "right_pad_no_mask", "mask_unlike_ids")),
    "cached tokens not counted": OfLayer("gpt2", around("", given(position_ids=counted(0))), ("plain", "cached")),
    "mask not applied to the rows": OfLayer("xlm", replaced("get_masks", rows_kept), ("plain", "left_pad")),
    "sinusoids added": OfLayer("t5-encoder", around("encoder", given(inputs_embeds=with_sinusoids)),
                               ("inputs_embeds",)),
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
