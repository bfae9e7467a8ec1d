"""Ports with planted mistakes, made by transformers' own modules, changed or patched: nothing of what judges them has
computed them. `PLANTED` has for each the model, the modules that are wrong and their names, and how it is made; a name
of "" says that none is given.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import encoders
import numpy as np
from ports import verify_part
from safetensors.numpy import load_file, save_file

from minibert.models.open.load_encoder import load_encoder
from minibert.verify.judge.blocks import EncoderSubject, encoder_batches
from minibert.verify.report import Report
from minibert.verify.sides.reference import Reference
from minibert.verify.sides.traces import Traces, write_traces

Change = Callable[[Any], Any]
KINDS = ("plain", "left_pad", "long")  # in the long one a window shows
DEPTH = 3


class Planted(NamedTuple):
    """One port: a change made to the model's modules, and a patch of its attention; in which modules it shows."""

    model: str
    wrong: Mapping[str, str]
    change: Change = lambda model: None
    attention: Mapping[str, Any] = {}
    prepare: Callable[[dict[str, Any]], None] = lambda tensors: None  # of the checkpoint, before both open it
    settings: Mapping[str, Any] = {}  # other ones of its config
    kinds: tuple[str, ...] = KINDS  # of batches


def settings(name: str) -> dict[str, Any]:
    """MiniLM's shape, small: 12 heads, three blocks."""
    if name == "gpt2":
        return {"n_embd": 48, "n_head": 6, "n_layer": DEPTH, "n_inner": 96, "n_positions": 48}
    if name == "gemma3_text":
        return {"num_hidden_layers": DEPTH, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
    if name in encoders.T5_LIKE:
        return {"num_layers": DEPTH}
    if name in ("qwen3", "mistral", "llama", "eurobert"):
        return {"num_hidden_layers": DEPTH}
    if name == "modernbert":
        return {"num_hidden_layers": DEPTH, "global_attn_every_n_layers": 2}
    heads = 12 if name == "bert" else 4
    return {"num_hidden_layers": DEPTH, "num_attention_heads": heads} | (
        {"hidden_size": 48, "intermediate_size": 96} if name == "bert" else {}
    )


def written(root: Path, port: Planted) -> Path:
    """A folder of this model with seeded weights, then prepared."""
    name, folder = port.model, root / port.model
    width, encoders.DIM = encoders.DIM, 48 if name in ("bert", "gpt2") else encoders.DIM
    try:
        encoders.write(folder, name, **settings(name), **port.settings)
    finally:
        encoders.DIM = width
    tensors = load_file(folder / "model.safetensors")
    port.prepare(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def ported(folder: Path, port: Planted) -> tuple[Traces, Traces]:
    """Inputs, and what transformers gives for them with the change: of each batch what `save` writes."""
    with load_encoder(folder) as encoder:
        inputs = {kind: batch for kind, batch in encoder_batches(encoder).items() if kind in port.kinds}
        reference = Reference(EncoderSubject(encoder, partial(load_encoder, folder)), str(folder))
        model: Any = reference._model
        port.change(model)
        try:
            with patched(model, port.attention) as scores:
                traces = {}
                for kind, batch in inputs.items():
                    traces[kind] = reference.trace(batch)
                    traces[kind] |= {reference._subject.scores[i]: x for i, x in scores.items()}
                for key in reference._subject.pairs if "long" in traces else ():
                    del traces["long"][key]
                return inputs, traces
        finally:
            getattr(model, "undo", bool)()


def judged(port: Planted, folder: Path, states_alone: bool = False) -> Report:
    """What verify says of it; `states_alone`: of a file with its hidden states and nothing else."""
    where = written(folder, port)
    inputs, traces = ported(where, port)
    for kind in traces if states_alone else ():
        traces[kind] = {key: x for key, x in traces[kind].items() if key.startswith("hidden_states.")}
    write_traces(folder / "port.safetensors", inputs, traces)
    return verify_part(str(where), encoder=True, against=folder / "port.safetensors")


# -- attention by hand, in the place of transformers' own function ------------------------------------------------


@contextmanager
def patched(model: Any, wrong: Mapping[str, Any]) -> Iterator[dict[int, Any]]:
    """Attention with what is wrong in the blocks `only` (all, if it names none); gives their scores before the mask."""
    kept: dict[int, Any] = {}
    if not wrong:
        yield kept
        return
    where = importlib.import_module(type(model).__module__)
    right = where.eager_attention_forward

    def eager(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: Any = None, **rest: Any) -> Any:
        if module.layer_idx not in wrong.get("only", range(99)):
            return right(module, q, k, v, mask, scaling=scaling, **rest)
        return by_hand(wrong, module, q, k, v, mask, scaling, kept)

    where.eager_attention_forward = eager
    try:
        yield kept
    finally:
        where.eager_attention_forward = right


def by_hand(wrong: Mapping[str, Any], module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: Any, kept: Any) -> Any:
    import torch

    q, k, v = wrong.get("qkv", lambda q, k, v: (q, k, v))(q, k, v)
    if k.shape[1] != q.shape[1]:
        shared = wrong.get("shared", lambda heads, own: torch.arange(heads) // (heads // own))(q.shape[1], k.shape[1])
        k, v = k[:, shared], v[:, shared]
    scale = wrong.get("scale", lambda q, scaling: q.shape[-1] ** -0.5 if scaling is None else scaling)(q, scaling)
    scores = (q @ k.transpose(2, 3)) * scale
    kept[module.layer_idx] = scores.numpy()
    added = None if mask is None else wrong.get("mask", lambda mask: mask)(mask)
    total = scores if added is None else wrong.get("hide", torch.add)(scores, added)
    weights = torch.nn.functional.softmax(total, dim=wrong.get("axis", -1))
    weights = wrong.get("softmax", lambda total: weights)(total)
    if mask is not None:
        weights = wrong.get("after", lambda weights, mask: weights)(weights, mask)
    made = wrong.get("gather", torch.matmul)(weights, v)
    return wrong.get("join", lambda made: made.transpose(1, 2).contiguous())(made), weights


def mask_as(kept: float, hidden: float) -> Mapping[str, Any]:
    def changed(mask: Any) -> Any:
        return mask * 0 + (mask == 0) * kept + (mask != 0) * hidden

    return {"mask": changed}


def split_otherwise(x: Any) -> Any:
    """(batch, heads, seq, size), read from the rows as they lie in memory."""
    batch, heads, seq, size = x.shape
    return x.transpose(1, 2).reshape(batch, heads, seq, size)


# -- changes of modules --------------------------------------------------------------------------------------------


def weight(path: str, change: Change) -> Change:
    """Another weight."""

    def changed(model: Any) -> None:
        module = model.get_submodule(path)
        module.weight.data = change(module.weight.data).contiguous()

    return changed


def bias(path: str, change: Change = lambda bias: bias * 0) -> Change:
    def changed(model: Any) -> None:
        module = model.get_submodule(path)
        module.bias.data = change(module.bias.data)

    return changed


def several(*changes: Change) -> Change:
    return lambda model: [change(model) for change in changes]


def setting(path: str, **values: Any) -> Change:
    """Other attributes of a module, as its eps."""

    def changed(model: Any) -> None:
        for name, value in values.items():
            assert hasattr(model.get_submodule(path), name)
            setattr(model.get_submodule(path), name, value)

    return changed


def configured(**values: Any) -> Change:
    """Another config, after the model has been made."""

    def changed(model: Any) -> None:
        for name, value in values.items():
            assert getattr(model.config, name) != value
            setattr(model.config, name, value)

    return changed


def put(path: str, made: Callable[[Any], Any]) -> Change:
    """Another module, made of the one that is there."""

    def changed(model: Any) -> None:
        import torch

        parent, _, name = path.rpartition(".")
        formula = made(model.get_submodule(path))

        class Other(torch.nn.Module):  # type: ignore[misc]  # torch's types are not read
            def forward(self, x: Any) -> Any:
                return formula(x)

        setattr(model.get_submodule(parent), name, Other())

    return changed


def swapped(one: str, other: str) -> Change:
    """Two modules' weights exchanged."""

    def changed(model: Any) -> None:
        a, b = model.get_submodule(one), model.get_submodule(other)
        for name in ("weight", "bias"):
            if getattr(a, name, None) is not None:
                first, second = getattr(a, name), getattr(b, name)
                first.data, second.data = second.data, first.data

    return changed


def taken(path: str, other: str) -> Change:
    """Another module's weight and bias."""

    def changed(model: Any) -> None:
        a, b = model.get_submodule(path), model.get_submodule(other)
        for name in ("weight", "bias"):
            if getattr(a, name, None) is not None:
                getattr(a, name).data = getattr(b, name).data.clone()

    return changed


def without_bias(path: str) -> Change:
    """T5's attention that is handed no bias of another block."""

    def changed(model: Any) -> None:
        module = model.get_submodule(path)
        right = module.forward
        module.forward = lambda *args, **named: right(*args, **{**named, "position_bias": None})

    return changed


def other_side(table: Any) -> Any:
    """T5's rows of keys before the query in the place of those of keys after it."""
    half = len(table) // 2
    made = table.roll(half, 0)
    made[0] = table[0]
    return made


def blocks_in_reverse(model: Any) -> None:
    """Block 0's weights are the last block's."""
    import copy

    first, last = (model.encoder.layer[i] for i in (0, DEPTH - 1))
    here, there = (copy.deepcopy(each.state_dict()) for each in (first, last))
    first.load_state_dict(there)
    last.load_state_dict(here)


def normed(x: Any, own: Any, ddof: int = 0, outside: bool = False, mean: bool = True, once: bool = False) -> Any:
    centred = x - x.mean(-1, keepdim=True) if mean else x
    if once:
        variance = (x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2
    else:
        variance = (centred**2).sum(-1, keepdim=True) / (x.shape[-1] - ddof)
    eps = getattr(own, "eps", None) or own.variance_epsilon
    root = variance.sqrt() + eps if outside else (variance + eps).sqrt()
    made = centred / root * own.weight
    return made if getattr(own, "bias", None) is None else made + own.bias


def norm(path: str, **how: Any) -> Change:
    return put(path, lambda own: lambda x: normed(x, own, **how))


def called(path: str, made: Callable[[Any, Any], Any]) -> Change:
    """Another forward of a module: from the module and its arguments."""

    def changed(model: Any) -> None:
        module = model.get_submodule(path)
        module.forward = lambda *args, **named: made(module, args)

    return changed


def rotated_by(rotate: Callable[[Any, Any, Any], Any], only: tuple[int, ...] = (0, 1)) -> Change:
    """Another rotation of queries and keys."""

    def changed(model: Any) -> None:
        where = importlib.import_module(type(model).__module__)
        right = where.apply_rotary_pos_emb

        def apply(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
            c, s, sides = cos.unsqueeze(1), sin.unsqueeze(1), [q, k]
            plain = right(q, k, cos, sin)
            return tuple(rotate(sides[i], c, s) if i in only else plain[i] for i in (0, 1))

        where.apply_rotary_pos_emb = apply
        model.undo = lambda: setattr(where, "apply_rotary_pos_emb", right)

    return changed


def terms(types: list[str] | None = None, distances: Change = lambda x: x) -> Change:
    """DeBERTa's scores with some of its terms, whose number the scale still has, or of other distances."""

    def changed(model: Any) -> None:
        for layer in model.encoder.layer:
            own = layer.attention.self
            own.disentangled_attention_bias = partial(other, own, own.disentangled_attention_bias)

    def other(own: Any, right: Any, q: Any, k: Any, relative: Any, *rest: Any) -> Any:
        kept, own.pos_att_type = own.pos_att_type, types or own.pos_att_type
        found = right(q, k, distances(relative), *rest)
        own.pos_att_type = kept
        return found

    return changed


def unsqueezed(relative: Any) -> Any:
    """Distances (1, query, key), each as it is."""
    import torch

    tokens = torch.arange(relative.shape[-1])
    return (tokens[:, None] - tokens)[None]


def scale_of_one_term(model: Any) -> None:
    """DeBERTa's scores divided by sqrt(head_dim)."""
    where = importlib.import_module(type(model).__module__)
    right = where.scaled_size_sqrt
    where.scaled_size_sqrt = lambda q, _: right(q, 1)
    model.undo = lambda: setattr(where, "scaled_size_sqrt", right)


def by_neighbours(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    a, b = x[..., 0::2], x[..., 1::2]
    c, s = cos[..., :half], sin[..., :half]
    made = x.clone()
    made[..., 0::2], made[..., 1::2] = a * c - b * s, b * c + a * s
    return made


def clipped(x: Any, cos: Any, sin: Any, last: int = 7) -> Any:
    """Rotated as if no token stood after position 7."""
    places, (a, b) = [min(i, last) for i in range(x.shape[2])], x.chunk(2, -1)
    both = type(x).new_empty(x, x.shape)
    half = x.shape[-1] // 2
    both[..., :half], both[..., half:] = -b, a
    return x * cos[:, :, places] + both * sin[:, :, places]


def causal(model: Any) -> None:
    """A mask of later tokens, where there is none."""
    where = importlib.import_module(type(model).__module__)
    right, masks = where.create_bidirectional_mask, importlib.import_module("transformers.masking_utils")
    where.create_bidirectional_mask = partial(masks.create_causal_mask, past_key_values=None)
    model.undo = lambda: setattr(where, "create_bidirectional_mask", right)


def theta(path: str, base: float) -> Change:
    """The rotation by another theta."""

    def changed(model: Any) -> None:
        module = model.get_submodule(path)
        size = 2 * len(module.inv_freq)
        module.inv_freq.data.copy_(module.inv_freq.new_tensor([base ** (-2 * i / size) for i in range(size // 2)]))

    return changed


def small_rows(tensors: dict[str, Any]) -> None:
    """Rows as small as a real GPT-2's: there eps counts."""
    for name in ("wte.weight", "wpe.weight"):
        tensors[name] = tensors[name] * np.float32(0.005)


def more_positions(tensors: dict[str, Any]) -> None:
    """A table of 160 rows."""
    name = "embeddings.position_embeddings.weight"
    tensors[name] = np.sin(np.arange(160 * tensors[name].shape[1], dtype=np.float32)).reshape(160, -1)


def every(path: str, name: str) -> dict[str, str]:
    return {path.format(i=i): name for i in range(DEPTH)}


def _bert(i: int, path: str) -> str:
    return f"encoder.layer.{i}.{path}"


Q, K, V = ("attention.self.query", "attention.self.key", "attention.self.value")
OUT, N1, UP, ACT, DOWN, N2 = (
    "attention.output.dense", "attention.output.LayerNorm", "intermediate.dense", "intermediate.intermediate_act_fn",
    "output.dense", "output.LayerNorm",
)  # fmt: skip
SEES = "causal mask where there is none"
SCORES, CONTEXT = "attention.self.scores", "attention.self.context"
ALL_BERT = (Q, K, V, OUT, N1, UP, DOWN, N2)
BERT_SCORES, BERT_CONTEXT = f"encoder.layer.{{i}}.{SCORES}", f"encoder.layer.{{i}}.{CONTEXT}"
DEBERTA_SCORES = "encoder.layer.{i}.attention.self.scores"
ALBERT = "encoder.albert_layer_groups.0.albert_layers.0"
T5, TABLE = "encoder.block.{i}.layer.0.SelfAttention", "relative_attention_bias"
DIM_LESS_ONE = "variance divided by dim - 1"


def _half(x: Any) -> Any:
    return x.half().float()


PLANTED: dict[str, Planted] = {
    # -- linear maps
    "bias of one query": Planted("bert", {_bert(1, Q): "bias missing"}, bias(_bert(1, Q))),
    "one value transposed": Planted("bert", {_bert(0, V): "weight transposed"}, weight(_bert(0, V), lambda x: x.T)),
    "one output map transposed": Planted("bert", {_bert(2, OUT): "weight transposed"},
                                         weight(_bert(2, OUT), lambda x: x.T)),
    "two at once": Planted("bert", {_bert(0, K): "bias missing", _bert(1, UP): ""},
                           several(bias(_bert(0, K)), weight(_bert(1, UP), _half))),
    "three at once": Planted("bert", {_bert(0, V): "weight transposed", _bert(1, N2): "eps 0.001",
                                      _bert(2, ACT): "activation relu"},
                             several(weight(_bert(0, V), lambda x: x.T), setting(_bert(1, N2), eps=1e-3),
                                     put(_bert(2, ACT), lambda own: lambda x: x.relu()))),
    "another block's map": Planted("bert", {_bert(1, DOWN): f"weight and bias of {_bert(0, DOWN)}"},
                                   taken(_bert(1, DOWN), _bert(0, DOWN))),
    "query and key exchanged": Planted(
        "bert", dict.fromkeys((_bert(0, Q), _bert(0, K)), "q k v in another order: k q v"),
        swapped(_bert(0, Q), _bert(0, K))),
    "first and last block exchanged": Planted(
        "bert", {_bert(i, path): f"weight and bias of {_bert(2 - i, path)}" for i in (0, 2) for path in ALL_BERT},
        blocks_in_reverse),
    "what no list has": Planted("bert", {_bert(1, Q): ""},
                                put(_bert(1, Q), lambda own: lambda x: (x @ own.weight.T).tanh() + own.bias)),
    # -- norms
    "eps in one block": Planted("bert", {_bert(1, N1): "eps 0.001"}, setting(_bert(1, N1), eps=1e-3)),
    "eps of another size": Planted("gpt2", {"h.0.ln_1": "eps 1e-06"}, setting("h.0.ln_1", eps=1e-6),
                                   prepare=small_rows),
    "eps outside the root": Planted("gpt2", {"h.0.ln_1": "eps outside the root"}, norm("h.0.ln_1", outside=True),
                                    prepare=small_rows),
    "dim - 1": Planted("bert", {_bert(2, N1): DIM_LESS_ONE}, norm(_bert(2, N1), ddof=1)),
    "RMS": Planted("bert", {_bert(1, N2): "RMSNorm for LayerNorm"}, norm(_bert(1, N2), mean=False)),
    "a norm's bias": Planted("bert", {_bert(0, N2): "bias missing"}, bias(_bert(0, N2))),
    "weight and bias": Planted("bert", {_bert(0, N2): "weight and bias ignored"},
                               several(bias(_bert(0, N2)), weight(_bert(0, N2), lambda w: w * 0 + 1))),
    "the other norm's": Planted("bert", {_bert(0, N2): f"weight and bias of {_bert(0, N1)}"},
                                taken(_bert(0, N2), _bert(0, N1))),
    "no norm": Planted("bert", {_bert(1, N2): "norm not applied"}, put(_bert(1, N2), lambda own: lambda x: x)),
    "last norm": Planted("gpt2", {"ln_f": "norm not applied"}, put("ln_f", lambda own: lambda x: x)),
    # -- activations
    "gelu by tanh in one block": Planted("bert", {_bert(1, ACT): "activation gelu_new"}, put(
        _bert(1, ACT), lambda own: lambda x: 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh()))),
    "relu everywhere": Planted("bert", every(f"encoder.layer.{{i}}.{ACT}", "activation relu"), several(
        *(put(_bert(i, ACT), lambda own: lambda x: x.relu()) for i in range(DEPTH)))),
    "quick gelu": Planted("gpt2", {"h.1.mlp.act": "activation quick_gelu"},
                          put("h.1.mlp.act", lambda own: lambda x: x * (1.702 * x).sigmoid())),
    # -- scores
    "no scale": Planted("bert", every(BERT_SCORES, "no division by sqrt(head_dim)"),
                        attention={"scale": lambda q, scaling: 1.0}),
    "scale by dim": Planted("bert", every(BERT_SCORES, "division by sqrt(dim)"),
                            attention={"scale": lambda q, scaling: (q.shape[1] * q.shape[-1]) ** -0.5}),
    "no scale in the last block": Planted("bert", {_bert(2, SCORES): "no division by sqrt(head_dim)"},
                                          attention={"scale": lambda q, scaling: 1.0, "only": (2,)}),
    "another factor": Planted("bert", {_bert(1, SCORES): ""},
                              attention={"scale": lambda q, scaling: 0.9 * scaling, "only": (1,)}),
    "q and k exchanged": Planted("bert", every(BERT_SCORES, "scores of k and q"),
                                 attention={"qkv": lambda q, k, v: (k, q, v)}),
    "k for v": Planted("bert", {_bert(1, CONTEXT): "k gathered in place of v"},
                       attention={"qkv": lambda q, k, v: (q, k, k), "only": (1,)}),
    "heads split otherwise": Planted(
        "bert", every(BERT_SCORES, "heads split without transposing")
        | every(BERT_CONTEXT, "heads split without transposing"),
        attention={"qkv": lambda *x: tuple(map(split_otherwise, x))}),
    # -- mask and softmax
    "mask ignored": Planted("bert", every("attentions.{i}", "mask ignored"), attention=mask_as(0, 0)),
    "mask inverted": Planted("bert", every("attentions.{i}", "mask inverted"),
                             attention=mask_as(-1e4, 0)),
    "mask after softmax": Planted("bert", every("attentions.{i}", "mask after softmax"), attention={
        **mask_as(0, 0), "after": lambda weights, mask: weights * (mask == 0)}),
    "softmax over the queries": Planted("bert", every("attentions.{i}", "softmax over the queries"),
                                        attention={"axis": -2}),
    "softmax over the heads": Planted("bert", {"attentions.2": "softmax over the heads"},
                                      attention={"axis": 1, "only": (2,)}),
    "heads joined otherwise": Planted(
        "bert", every(BERT_CONTEXT, "heads joined without transposing"), attention={
            "join": lambda made: made.reshape(made.shape[0], made.shape[2], made.shape[1], made.shape[3])}),
    "causal forgotten": Planted("gpt2", every("attentions.{i}", "causal mask forgotten"), attention={
        "mask": lambda mask: mask * 0 + mask[:, :, -1:]}),
    "one token too far": Planted("gpt2", {"attentions.0": "causal mask one token too far"}, attention={
        "mask": lambda mask: mask[:, :, [*range(1, mask.shape[2]), -1]], "only": (0,)}),
    # -- sums
    "residual missing": Planted("bert", {_bert(1, "output.sum"): "residual missing"}, called(
        _bert(1, "output"), lambda own, args: own.LayerNorm(own.dense(args[0])))),
    "activation not used": Planted("gpt2", {"h.1.mlp.c_proj": "computed from h.1.mlp.c_fc"}, called(
        "h.1.mlp", lambda own, args: _not_activated(own, args[0]))),
    # -- GPT-2
    "bias of c_attn": Planted("gpt2", {"h.1.attn.c_attn": "bias missing"}, bias("h.1.attn.c_attn")),
    "c_proj transposed": Planted("gpt2", {"h.0.attn.c_proj": "weight transposed"},
                                 weight("h.0.attn.c_proj", lambda x: x.T)),
    "k for q": Planted("gpt2", {f"h.{i}.attn.scores": "scores of k and q" for i in range(DEPTH)},
                       attention={"qkv": lambda q, k, v: (k, q, v)}),
    # -- the models of today
    "neighbours rotated": Planted("qwen3", every("layers.{i}.self_attn.scores", "neighbours rotated instead of halves"),
                                 rotated_by(by_neighbours)),
    "not rotated": Planted("qwen3", every("layers.{i}.self_attn.scores", "queries and keys not rotated"),
                          rotated_by(lambda x, cos, sin: x)),
    "theta of 1e6": Planted("qwen3", every("layers.{i}.self_attn.scores", "theta 1e+06"), theta("rotary_emb", 1e6)),
    "head modulo": Planted(
        "qwen3", every("layers.{i}.self_attn.scores", "key head taken modulo")
        | every("layers.{i}.self_attn.context", "key head taken modulo"),
        attention={"shared": lambda heads, own: np.arange(heads) % own}),
    "k not normed": Planted("qwen3", {"layers.1.self_attn.k_norm": "norm not applied"},
                            put("layers.1.self_attn.k_norm", lambda own: lambda x: x)),
    "gate and up exchanged": Planted(
        "qwen3", {"layers.0.mlp.act_fn": "gate and up exchanged",
                  "layers.0.mlp.down_proj": "gate and up exchanged"},
        called("layers.0.mlp", lambda own, args: own.down_proj(own.act_fn(own.up_proj(args[0]))
                                                               * own.gate_proj(args[0])))),
    "no activation of the gate": Planted("qwen3", {"layers.2.mlp.act_fn": "activation left out"},
                                         put("layers.2.mlp.act_fn", lambda own: lambda x: x)),
    "mean subtracted": Planted("qwen3", {"layers.1.post_attention_layernorm": "mean subtracted in RMSNorm"},
                               put("layers.1.post_attention_layernorm", lambda own: lambda x: own.weight * (
                                   x - x.mean(-1, keepdim=True)) / (x.var(-1, False, keepdim=True) + 1e-6).sqrt())),
    "1 + weight": Planted("gemma3_text", {"layers.1.input_layernorm": "weight without 1 +"},
                          weight("layers.1.input_layernorm", lambda w: w - 1)),
    "norm within": Planted("gemma3_text", {"layers.0.post_attention_layernorm": "norm not applied"},
                           put("layers.0.post_attention_layernorm", lambda own: lambda x: x)),
    "Gemma's scale by head_dim": Planted("gemma3_text", every("layers.{i}.self_attn.scores", "scale by head_dim"),
                                         attention={"scale": lambda q, scaling: q.shape[-1] ** -0.5}),
    "window one wider": Planted("gemma3_text", {f"attentions.{i}": "window one token too wide" for i in (0, 2)},
                                configured(sliding_window=4)),
    "window forgotten": Planted("modernbert", {"attentions.1": "window forgotten"},
                                configured(local_attention=1000)),
    "ModernBERT's Wi": Planted("modernbert", {
        f"layers.1.mlp.{x}": "gate and up exchanged" for x in ("act", "Wo")}, called(
            "layers.1.mlp", lambda own, args: _exchanged(own, args[0]))),
    "ModernBERT's window one narrower": Planted(  # transformers shows scores with the mask added
        "modernbert", dict.fromkeys(("attentions.1", "layers.1.attn.scores"), "window one token too narrow"),
        configured(local_attention=2)),
    "EuroBERT read as causal": Planted(  # transformers shows scores with the mask added
        "eurobert", every("attentions.{i}", SEES) | every("layers.{i}.self_attn.scores", SEES), causal),
    "GTE's gate before up": Planted("gte", {f"layers.1.mlp.{x}": "gate and up exchanged" for x in (
        "act_fn", "down_proj")}, called("layers.1.mlp", lambda own, args: own.down_proj(
            own.act_fn(own.up_proj(args[0])) * own.gate_proj(args[0])))),
    "GTE's theta of 10000": Planted(
        "gte", every("layers.{i}.self_attn.scores", "theta 10000"), theta("rotary_emb", 1e4)),
    # -- what a long text alone shows
    "Llama's positions clipped at 7": Planted("llama", every("layers.{i}.self_attn.context", ""), rotated_by(clipped)),
    "Mistral without its window of 512": Planted(
        "mistral", every("layers.{i}.self_attn.context", "window forgotten"), configured(sliding_window=None),
        settings={"sliding_window": 512}),
    "BERT's positions clipped at 127": Planted(
        "bert", {"position_ids": ""}, lambda model: model.embeddings.position_ids.clamp_(max=127),
        prepare=more_positions, settings={"max_position_embeddings": 160}),
    # -- ALBERT, MPNet
    "ALBERT's query transposed": Planted(
        "albert", {f"{ALBERT}[{i}].attention.query": "weight transposed" for i in range(DEPTH)},
        weight(f"{ALBERT}.attention.query", lambda x: x.T)),
    "ALBERT's feed-forward without bias": Planted(
        "albert", {f"{ALBERT}[{i}].ffn": "bias missing" for i in range(DEPTH)}, bias(f"{ALBERT}.ffn")),
    # -- DeBERTa
    "DeBERTa without content to position": Planted(
        "deberta-v2", every(DEBERTA_SCORES, "content to position missing"), terms(types=["p2c"])),
    "DeBERTa without position to content": Planted(
        "deberta-v2", every(DEBERTA_SCORES, "position to content missing"), terms(types=["c2p"])),
    "DeBERTa's distances turned round": Planted(
        "deberta-v2", every(DEBERTA_SCORES, "distances in the wrong direction"), terms(distances=lambda x: -x)),
    "DeBERTa's far distances clipped": Planted(
        "deberta-v2", every(DEBERTA_SCORES, "distances without log buckets"), terms(distances=unsqueezed)),
    "DeBERTa's scale for one term": Planted(
        "deberta-v2", every(DEBERTA_SCORES, "terms not counted in the scale"), scale_of_one_term),
    "MPNet's relative bias": Planted("mpnet", every("encoder.layer.{i}.attention.attn.scores", "relative bias missing"),
                                     weight("encoder.relative_attention_bias", lambda x: x * 0)),
    # -- T5, umT5
    "T5's scores divided by sqrt(head_dim)": Planted(
        "t5", every(f"{T5}.scores", "division by sqrt(head_dim)"),
        several(*(setting(T5.format(i=i), scaling=8**-0.5) for i in range(DEPTH)))),
    "T5's bias to a distance of 64": Planted(
        "t5", every(f"{T5}.context", "relative bias to a distance of 64"),
        setting(f"{T5.format(i=0)}", relative_attention_max_distance=64)),
    "T5's bias in block 0 alone": Planted(
        "t5", {f"{T5.format(i=i)}.scores": "relative bias in the first block alone" for i in range(1, DEPTH)},
        several(*(without_bias(T5.format(i=i)) for i in range(1, DEPTH)))),
    "T5's buckets by query - key": Planted("t5", every(f"{T5}.scores", "relative bias transposed"),
                                           weight(f"{T5.format(i=0)}.relative_attention_bias", other_side)),
    "umT5's blocks with block 0's bias": Planted(
        "umt5", {f"{T5.format(i=i)}.scores": "relative bias of the first block" for i in range(1, DEPTH)},
        several(*(taken(f"{T5.format(i=i)}.{TABLE}", f"{T5.format(i=0)}.{TABLE}") for i in range(1, DEPTH)))),
}  # fmt: skip


def _not_activated(own: Any, x: Any) -> Any:
    hidden = own.c_fc(x)
    own.act(hidden)
    return own.c_proj(hidden)


def _exchanged(own: Any, x: Any) -> Any:
    gate, value = own.Wi(x).chunk(2, dim=-1)
    return own.Wo(own.act(value) * gate)


HONEST: dict[str, Planted] = {
    "transformers": Planted("bert", {}),
    "-1e4 for the mask": Planted("bert", {}, attention=mask_as(0, -1e4)),
    "-inf for the mask": Planted("bert", {}, attention={"mask": lambda mask: mask.masked_fill(mask != 0, -math.inf)}),
    "GPT-2": Planted("gpt2", {}),
    "Qwen3": Planted("qwen3", {}),
    "ModernBERT": Planted("modernbert", {}),
    "ALBERT": Planted("albert", {}),
    "DeBERTa": Planted("deberta-v2", {}),
}
