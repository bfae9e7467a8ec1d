"""BERT, GPT-2, Qwen3 and Gemma 3 once more, token by token and head by head, as somebody ports them who has never seen
this package.

It shares no line with what judges it: it reads the file by safetensors, and computes with `@`, loops and math. `wrong`
names one classic mistake, which is then made at the place where people make it. `PLANTED` has mistakes in one block,
with the modules that are wrong and their names, and `WHOLE` has mistakes in all blocks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file

Array = np.ndarray[Any, Any]
LOWEST = np.finfo(np.float32).min
SIZES = ("hidden_size", "num_attention_heads", "num_hidden_layers")
SLOWER, ROTATED_NEIGHBOURS = "rotary positions divided by", "neighbours rotated instead of halves"
SIDE_BY_SIDE = "queries, keys and values side by side for each head"
ORDERS = {f"q k v in another order: {' '.join(o)}": o for o in ("kqv", "vkq", "qvk", "kvq", "vqk")}


def gelu_by_erf(x: float) -> float:
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def gelu_by_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def quick_gelu(x: float) -> float:
    return x / (1 + math.exp(-1.702 * x))


def relu6(x: float) -> float:
    return min(max(x, 0.0), 6.0)


TODAY: dict[str, Any] = {
    "input": ("embed_tokens", "", ""), "block": "layers.{i}.", "before": True, "causal": True, "last": "norm",
    "looks": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "norms": ("self_attn.q_norm",
    "self_attn.k_norm"), "scores": "self_attn.scores", "context": "self_attn.context", "output": "self_attn.o_proj",
    "norm_1": "input_layernorm", "sum_1": "self_attn.sum", "gate": "mlp.gate_proj", "up": "mlp.up_proj",
    "act": "mlp.act_fn", "down": "mlp.down_proj", "sum_2": "mlp.sum", "settings": (*SIZES, "rms_norm_eps"),
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "bert": {
        "input": tuple(f"embeddings.{name}_embeddings" for name in ("word", "position", "token_type")),
        "norm": "embeddings.LayerNorm", "block": "encoder.layer.{i}.", "before": False, "causal": False, "last": "",
        "looks": tuple(f"attention.self.{name}" for name in ("query", "key", "value")),
        "scores": "attention.self.scores", "context": "attention.self.context", "output": "attention.output.dense",
        "sum_1": "attention.output.sum", "norm_1": "attention.output.LayerNorm", "up": "intermediate.dense",
        "act": "intermediate.intermediate_act_fn", "down": "output.dense", "sum_2": "output.sum",
        "norm_2": "output.LayerNorm", "activation": gelu_by_erf, "settings": (*SIZES, "layer_norm_eps"),
    },
    "gpt2": {
        "input": ("wte", "wpe", ""), "block": "h.{i}.", "before": True, "causal": True, "last": "ln_f",
        "looks": ("attn.c_attn",), "scores": "attn.scores", "context": "attn.context", "output": "attn.c_proj",
        "sum_1": "attn.sum", "norm_1": "ln_1", "up": "mlp.c_fc", "act": "mlp.act", "down": "mlp.c_proj",
        "sum_2": "mlp.sum", "norm_2": "ln_2", "activation": gelu_by_tanh,
        "settings": ("n_embd", "n_head", "n_layer", "layer_norm_epsilon"),
    },
    "qwen3": {**TODAY, "norm_2": "post_attention_layernorm", "activation": silu},
    "gemma3_text": {
        **TODAY, "norm_2": "pre_feedforward_layernorm", "activation": gelu_by_tanh,
        "within_1": "post_attention_layernorm", "within_2": "post_feedforward_layernorm",
    },
}  # fmt: skip


class Port:
    """One model folder; `run` gives every intermediate of one batch by the names of a trace."""

    def __init__(self, folder: Path, mistake: str = "", dtype: type = np.float32, blocks: Sequence[int] = ()) -> None:
        """dtype: of the blocks; the input layer is float32, since its bits are compared.

        blocks: the blocks with the mistake, () for all; then the mistake is also made after the blocks.
        """
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.tensors = load_file(folder / "model.safetensors")
        self.mistake, self.dtype, self.blocks, self.wrong = mistake, dtype, blocks, "" if blocks else mistake
        self.names, kind = MODELS[self.config["model_type"]], self.config["model_type"]
        self.gpt2, self.gemma = kind == "gpt2", kind == "gemma3_text"
        dim, self.heads, self.depth, eps = (self.config[key] for key in self.names["settings"])
        self.key_heads, self.eps = self.config.get("num_key_value_heads", self.heads), dtype(eps)
        self.size = self.config.get("head_dim", dim // self.heads)

    def run(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        texts = [self.text(dict(zip(batch, rows, strict=True))) for rows in zip(*batch.values(), strict=True)]
        return {key: np.stack([text[key] for text in texts]) for key in texts[0]}

    def text(self, given: Mapping[str, Array]) -> dict[str, Array]:
        kept: dict[str, Array] = {}
        dtype, self.dtype = self.dtype, np.float32
        x = self.input_layer({k: v.astype(self.dtype) if "embeds" in k else v for k, v in given.items()}, kept)
        self.dtype = dtype
        x = x.astype(dtype)
        mask = given.get("attention_mask", np.ones(len(x)))
        for i in range(self.depth):
            kept[f"hidden_states.{i}"] = x
            self.wrong = self.mistake if not self.blocks or i in self.blocks else ""
            x = self.block(i, x, mask, kept)
        self.wrong = self.mistake if not self.blocks else ""
        if (last := self.names["last"]) and self.wrong != "last norm not applied":
            x = kept[last] = self.norm(last, x)
        kept[f"hidden_states.{i + 1}"] = x
        return kept

    def input_layer(self, given: Mapping[str, Array], kept: dict[str, Array]) -> Array:
        word, place, kind = self.names["input"]
        positions = given.get("position_ids", np.arange(len(next(iter(given.values())))))
        if "input_ids" in given:
            x = np.stack([self.tensors[f"{word}.weight"][i] for i in given["input_ids"]])
            x = kept[word] = x * np.float32(math.sqrt(self.config["hidden_size"])) if self.gemma else x
        else:
            x = given["inputs_embeds"].astype(self.dtype)
        if place:
            kept["position_ids"] = positions
            where = kept[place] = np.stack([self.tensors[f"{place}.weight"][p] for p in positions])
        if kind:
            types = given.get("token_type_ids", np.zeros(len(x), int))
            kept[kind] = np.stack([self.tensors[f"{kind}.weight"][t] for t in types])
            x = x + kept[kind]
        x = kept["sum"] = x + where if place else x
        if self.gpt2 and "token_type_ids" in given:
            kept["wte (types)"] = np.stack([self.tensors["wte.weight"][t] for t in given["token_type_ids"]])
            x = kept["sum"] = x + kept["wte (types)"]
        if norm := self.names.get("norm"):
            x = kept[norm] = self.norm(norm, x)
        return x

    def norm(self, path: str, rows: Array) -> Array:
        weight, bias = self.tensors[f"{path}.weight"], self.tensors.get(f"{path}.bias")
        if self.gemma and self.wrong != "weight without 1 +":
            weight = weight + 1
        made = []
        for x in rows.reshape(-1, rows.shape[-1]):
            if bias is not None or self.wrong == "mean subtracted in RMSNorm":
                x = x - x.sum() / self.dtype(len(x))
            count = 1 if self.wrong == "RMSNorm by the sum of squares" else len(x)
            y = x / np.sqrt((x * x).sum() / self.dtype(count) + self.eps) * weight
            made.append(y if bias is None else y + bias)
        return np.stack(made).reshape(rows.shape)

    def dense(self, path: str, rows: Array) -> Array:
        weight, bias = self.tensors[f"{path}.weight"], self.tensors.get(f"{path}.bias")
        if self.gpt2 != (self.wrong == "weight transposed" and weight.shape[0] == weight.shape[1]):
            weight = weight.T
        made = np.stack([np.array([(w * x).sum() for w in weight], self.dtype) for x in rows])
        return made if bias is None else made + bias

    def block(self, i: int, x: Array, mask: Array, kept: dict[str, Array]) -> Array:
        at, n = self.names["block"].format(i=i), self.names
        before = n["before"] != (self.wrong in ("norm before instead of after", "norm after instead of before"))
        total = entered = x
        for part, which in (("1", "first"), ("2", "second")):

            def normed(name: str, rows: Array) -> Array:
                kept[at + name] = self.norm(at + name, rows)
                return kept[at + name]

            residual = total if part == "2" and self.wrong == "residual from before the norm" else x
            if part == "2" and self.wrong == "feed-forward from the block's input":
                x = entered
            if before:
                x = normed(n[f"norm_{part}"], x)
                if self.wrong in ("residual from the normed x", f"{which} residual from the normed x"):
                    residual = x
            if part == "2" and self.wrong == "feed-forward beside attention":
                x = kept[at + n["norm_1"]]
            y = self.attention(i, at, x, mask, kept) if part == "1" else self.feed_forward(at, x, kept)
            if f"within_{part}" in n and self.wrong != "norm before the sum not applied":
                y = normed(n[f"within_{part}"], y)
            x = total = kept[at + n[f"sum_{part}"]] = residual + y
            if not before:
                x = normed(n[f"norm_{part}"], x)
        return x

    def looks(self, i: int, at: str, x: Array, kept: dict[str, Array]) -> list[Array]:
        order = ["qkv".index(letter) for letter in ORDERS.get(self.wrong, "qkv")]
        paths = [at + name for name in self.names["looks"]]
        if len(paths) == 1:
            kept[paths[0]] = self.dense(paths[0], x)
            if self.wrong == SIDE_BY_SIDE:
                by_head = kept[paths[0]].reshape(len(x), self.heads, 3, self.size)
                return [by_head[:, :, k].reshape(len(x), -1) for k in range(3)]
            parts = np.split(kept[paths[0]], 3, axis=1)
            return [parts[k] for k in order]
        for path, k in zip(paths, order, strict=True):
            kept[path] = self.dense(paths[k], x)
        looks = [kept[path] for path in paths]
        for place, name in enumerate(self.names.get("norms", ())):
            rows = looks[place].reshape(len(x), -1, self.size)
            normed = kept[at + name] = self.norm(at + name, rows)
            if self.wrong == "queries and keys normed after the rotation":
                made = kept[at + name] = self.norm(at + name, self.rotated(i, rows))
            else:
                made = self.rotated(i, rows if self.wrong == "norm of queries and keys not applied" else normed)
            looks[place] = made.reshape(len(x), -1)
        for place in (0, 1) if self.wrong == "rotated where nothing rotates" else ():
            looks[place] = self.rotated(i, looks[place].reshape(len(x), -1, self.size)).reshape(len(x), -1)
        return looks

    def sliding(self, i: int) -> bool:
        return self.gemma and bool(self.config["layer_types"][i] == "sliding_attention")

    def rotated(self, i: int, x: Array) -> Array:
        """x (seq, heads, size), each pair of numbers by an angle that grows with the token's position."""
        of_query = x.shape[1] == self.heads  # there are fewer heads of keys
        one = "keys alone rotated" if of_query else "queries alone rotated"
        if self.wrong in ("queries and keys not rotated", one):
            return x
        sliding = self.sliding(i) != (self.wrong == "rotation of the other layer type")
        theta = 1e6 if (self.gemma and not sliding) or self.wrong == "theta 1e+06" else 1e4
        size = self.size // 2 if self.wrong == "half of each head rotated" else self.size
        y, half, by_neighbours = x.copy(), size // 2, self.wrong == "cos and sin repeated by neighbours"
        ahead = {"queries rotated by position +1": 1, "queries rotated by position -1": -1}.get(self.wrong, 0)
        slower = {"rotated the other way": -1, **{f"{SLOWER} {n}": n for n in (2, 4, 8)}}.get(self.wrong, 1)
        power = 1 if self.wrong == "exponent of the frequencies j / d" else 2
        sign = -1 if self.wrong == "one sign of the rotation wrong" else 1
        for place in range(len(x)):
            turns = [(place + ahead * of_query) / slower / theta ** (power * pair / size) for pair in range(half)]
            for pair in range(half):
                a, b = (2 * pair, 2 * pair + 1) if self.wrong == ROTATED_NEIGHBOURS else (pair, pair + half)
                of_a, of_b = (turns[a // 2], turns[b // 2]) if by_neighbours else (turns[pair], turns[pair])
                first, second = x[place, :, a], x[place, :, b]
                y[place, :, a] = first * math.cos(of_a) - sign * second * math.sin(of_a)
                y[place, :, b] = second * math.cos(of_b) + first * math.sin(of_b)
        return y

    def split(self, x: Array, heads: int) -> list[Array]:
        """The columns of each head: (seq, size)."""
        if self.wrong == "heads split without transposing":
            return list(x.reshape(heads, len(x), self.size))
        return [x[:, h * self.size : (h + 1) * self.size] for h in range(heads)]

    def hidden(self, i: int, query: int, key: int, mask: Array) -> bool:
        causal = self.names["causal"]
        if self.wrong in ("causal mask forgotten", "causal mask where there is none"):
            causal = not causal
        last = query + {"causal mask one token too far": 1, "causal mask hides the token itself": -1}.get(self.wrong, 0)
        if self.sliding(i) and self.wrong != "window forgotten":
            wider = {"window one token too wide": 1, "window one token too narrow": -1}.get(self.wrong, 0)
            if query - key >= self.config["sliding_window"] + wider:
                return True
        padding = key >= mask.sum() if self.wrong == "mask taken as a length" else mask[key] == 0
        return bool((padding and self.wrong != "padding seen") or (causal and key > last))

    def attention(self, i: int, at: str, x: Array, mask: Array, kept: dict[str, Array]) -> Array:
        seq, n = len(x), self.names
        looks = self.looks(i, at, x, kept)
        q, k, v = (
            self.split(rows, heads) for rows, heads in zip(looks, (self.heads, *[self.key_heads] * 2), strict=True)
        )
        shared = [h % self.key_heads if "modulo" in self.wrong else h * self.key_heads // self.heads
                  for h in range(self.heads)]  # fmt: skip
        own = self.gemma and self.wrong != "scale by head_dim"
        usual = math.sqrt(self.config["query_pre_attn_scalar"] if own else self.size)
        divisor = {"no division by sqrt(head_dim)": 1.0, "division by sqrt(dim)": math.sqrt(x.shape[1]),
                   "scores divided by the root of 64": 8.0, "scores divided by the root of 128": math.sqrt(128),
                   "division by sqrt(dim / heads)": math.sqrt(x.shape[1] / self.heads),
                   "scores divided by block + 1": usual * (i + 1)}  # fmt: skip
        by = self.dtype(divisor.get(self.wrong, usual))
        scores = np.zeros((self.heads, seq, seq), self.dtype)
        added = np.zeros((seq, seq), self.dtype)
        for query in range(seq):
            for key in range(seq):
                hidden = self.hidden(i, query, key, mask)
                if self.wrong == "mask added as 0 and 1":
                    added[query, key] = not hidden
                elif self.wrong != "mask ignored":
                    added[query, key] = LOWEST if hidden else 0
                for h in range(self.heads):
                    scores[h, query, key] = (q[h][query] * k[shared[h]][key]).sum() / by
        kept[at + n["scores"]] = scores
        axis = {"softmax over the queries": 1, "softmax over the heads": 0}.get(self.wrong, 2)
        total = scores + added
        weights = np.exp(total - total.max(axis=axis, keepdims=True))
        weights = kept[f"attentions.{i}"] = weights / weights.sum(axis=axis, keepdims=True)
        parts = [
            np.stack([sum(weights[h, t, s] * v[shared[h]][s] for s in range(seq)) for t in range(seq)])
            for h in range(self.heads)
        ]
        joined = np.concatenate(parts, axis=1)
        if self.wrong == "heads joined without transposing":
            joined = np.stack(parts).reshape(joined.shape)
        kept[at + n["context"]] = joined
        kept[at + n["output"]] = self.dense(at + n["output"], joined)
        return kept[at + n["output"]]

    def feed_forward(self, at: str, x: Array, kept: dict[str, Array]) -> Array:
        n, up = self.names, at + self.names["up"]
        kept[up] = self.dense(up, x)
        gate: Array | None = None
        if "gate" in n:
            gate = kept[at + n["gate"]] = self.dense(at + n["gate"], x)
        entered, other = (kept[up], gate) if gate is None or self.wrong == "gate and up exchanged" else (gate, kept[up])
        named = {"activation gelu_new": gelu_by_tanh, "activation gelu": gelu_by_erf, "activation relu6": relu6,
                 "activation quick_gelu": quick_gelu, "activation left out": float}  # fmt: skip
        activate = np.vectorize(named.get(self.wrong, n["activation"]), otypes=[self.dtype])
        kept[at + n["act"]] = activate(entered)
        product = kept[at + n["act"]] if other is None else kept[at + n["act"]] * other
        kept[at + n["down"]] = self.dense(at + n["down"], product)
        return kept[at + n["down"]]


# -- mistakes ----------------------------------------------------------------------------------------------------------


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


BLOCK, ATTENTION, QVK = "encoder.layer.{i}.", "layers.{i}.self_attn.", "q k v in another order: q v k"
_PLANTED = (
    _one("bert", "residual from before the norm", 0, BLOCK + "output.sum"),
    _one("bert", "softmax over the heads", 1, "attentions.{i}"),
    _one("bert", "mask added as 0 and 1", 0, "attentions.{i}"),
    _one("bert", "causal mask where there is none", 1, "attentions.{i}"),
    _one("bert", "mask taken as a length", 0, "attentions.{i}"),
    _one("bert", "division by sqrt(dim)", 1, BLOCK + "attention.self.scores"),
    _one("bert", "heads joined without transposing", 0, BLOCK + "attention.self.context"),
    _one("gpt2", "first residual from the normed x", 1, "h.{i}.attn.sum", name="residual from the normed x"),
    _one("gpt2", "feed-forward beside attention", 1, "h.{i}.mlp.c_fc", name="computed from h.1.ln_1"),
    _one("gpt2", "causal mask hides the token itself", 0, "attentions.{i}"),
    Planted("gpt2", QVK, (0,), {"h.0.attn.scores": QVK, "h.0.attn.context": "k gathered in place of v"}),
    _one("gpt2", SIDE_BY_SIDE, 0, "h.{i}.attn.scores", "h.{i}.attn.context"),
    Planted("gpt2", "last norm not applied", (), {"hidden_states.2": "last norm not applied"}),
    _one("gpt2", "norm after instead of before", 1, "h.{i}.ln_1", "h.{i}.ln_2", "h.{i}.attn.c_attn", "h.{i}.mlp.c_fc",
         "h.{i}.mlp.sum", "ln_f"),
    _one("qwen3", "norm of queries and keys not applied", 1, ATTENTION + "scores"),
    _one("qwen3", ROTATED_NEIGHBOURS, 0, ATTENTION + "scores"),
    _one("qwen3", "gate and up exchanged", 1, "layers.{i}.mlp.act_fn", "layers.{i}.mlp.down_proj"),
    _one("gemma3_text", "rotation of the other layer type", 0, ATTENTION + "scores"),
    _one("gemma3_text", "window one token too narrow", 0, "attentions.{i}"),
    _one("gemma3_text", "norm before the sum not applied", 1, ATTENTION + "sum", "layers.{i}.mlp.sum"),
)  # fmt: skip
# each mistake in all blocks, by a model in which it shows, and the first intermediate that it spoils
_WHOLE: dict[tuple[str, str], tuple[str, ...]] = {
    ("bert", "encoder.layer.0.attention.self.query"): ("norm before instead of after",),
    ("bert", "encoder.layer.0.attention.self.key"): (QVK,),
    ("bert", "encoder.layer.0.attention.self.scores"): (
        "no division by sqrt(head_dim)", "heads split without transposing", "scores divided by the root of 64",
        "scores divided by the root of 128", "rotated where nothing rotates"),
    ("bert", "attentions.0"): ("mask ignored", "softmax over the queries"),
    ("bert", "encoder.layer.0.intermediate.intermediate_act_fn"): ("activation gelu_new",),
    ("gpt2", "h.0.attn.scores"): ("q k v in another order: k q v",),
    ("gpt2", "attentions.0"): ("causal mask one token too far", "causal mask forgotten", "padding seen"),
    ("gpt2", "h.0.attn.c_proj"): ("weight transposed",),
    ("gpt2", "h.0.attn.sum"): ("residual from the normed x",),
    ("gpt2", "h.0.mlp.act"): ("activation gelu", "activation quick_gelu"),
    ("qwen3", "layers.0.input_layernorm"): ("mean subtracted in RMSNorm", "RMSNorm by the sum of squares"),
    ("qwen3", "layers.0.self_attn.q_norm"): ("queries and keys normed after the rotation",),
    ("qwen3", "layers.0.self_attn.scores"): (
        "queries and keys not rotated", "queries alone rotated", "keys alone rotated", "one sign of the rotation wrong",
        "rotated the other way", "queries rotated by position +1", "queries rotated by position -1",
        *(f"{SLOWER} {n}" for n in (2, 4, 8)), "theta 1e+06", "exponent of the frequencies j / d",
        "half of each head rotated", "cos and sin repeated by neighbours", "key head taken modulo",
        "division by sqrt(dim / heads)"),
    ("qwen3", "layers.0.mlp.act_fn"): ("activation left out",),
    ("gemma3_text", "layers.0.input_layernorm"): ("weight without 1 +",),
    ("gemma3_text", "layers.0.self_attn.scores"): ("scale by head_dim",),
    ("gemma3_text", "attentions.0"): ("window one token too wide", "window forgotten"),
}  # fmt: skip
WHOLE = {name: where for where, names in _WHOLE.items() for name in names}
# what fits single modules too
FITS_TOO = {"norm before instead of after": {"residual from before the norm"},
            "q k v in another order: k q v": {"scores of k and q"},
            "queries and keys normed after the rotation": {"queries and keys not rotated"}}  # fmt: skip
PLANTED = {f"{each.model}: {each.mistake}": each for each in _PLANTED}
