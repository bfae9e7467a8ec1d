"""BERT, GPT-2, Qwen3 and Gemma 3 once more, token by token and head by head, as somebody ports them who has never seen
this package.

It shares no line with what judges it: it reads the file by safetensors, and computes with `@`, loops and math. `wrong`
names one classic mistake, which is then made at the place where people make it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

Array = np.ndarray[Any, Any]
LOWEST = np.finfo(np.float32).min
SIZES = ("hidden_size", "num_attention_heads", "num_hidden_layers")
ORDERS = {f"q k v in another order: {' '.join(o)}": o for o in ("kqv", "vkq", "qvk", "kvq", "vqk")}


def gelu_by_erf(x: float) -> float:
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def gelu_by_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


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
            y = x / np.sqrt((x * x).sum() / self.dtype(len(x)) + self.eps) * weight
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
        total = x
        for part, which in (("1", "first"), ("2", "second")):

            def normed(name: str, rows: Array) -> Array:
                kept[at + name] = self.norm(at + name, rows)
                return kept[at + name]

            residual = total if part == "2" and self.wrong == "residual from before the norm" else x
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
            parts = np.split(kept[paths[0]], 3, axis=1)
            return [parts[k] for k in order]
        for path, k in zip(paths, order, strict=True):
            kept[path] = self.dense(paths[k], x)
        looks = [kept[path] for path in paths]
        for place, name in enumerate(self.names.get("norms", ())):
            rows = looks[place].reshape(len(x), -1, self.size)
            normed = kept[at + name] = self.norm(at + name, rows)
            rows = self.rotated(i, rows if self.wrong == "norm of queries and keys not applied" else normed)
            looks[place] = rows.reshape(len(x), -1)
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
        theta = 1e6 if self.gemma and not sliding else 1e4
        y, half, ahead = x.copy(), self.size // 2, of_query and self.wrong == "queries rotated by position +1"
        slower = 4 if self.wrong == "rotary positions divided by 4" else 1
        sign = -1 if self.wrong == "one sign of the rotation wrong" else 1
        for place in range(len(x)):
            for pair in range(half):
                a, b = (pair, pair + half) if "neighbours" not in self.wrong else (2 * pair, 2 * pair + 1)
                angle = (place + ahead) / slower / theta ** (2 * pair / self.size)
                first, second = x[place, :, a], x[place, :, b]
                y[place, :, a] = first * math.cos(angle) - sign * second * math.sin(angle)
                y[place, :, b] = second * math.cos(angle) + first * math.sin(angle)
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
        return bool(padding or (causal and key > last))

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
                   "scores divided by the root of 64": 8.0, "scores divided by block + 1": usual * (i + 1)}  # fmt: skip
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
        named = {"activation gelu_new": gelu_by_tanh, "activation gelu": gelu_by_erf, "activation relu6": relu6}
        activate = np.vectorize(named.get(self.wrong, n["activation"]), otypes=[self.dtype])
        kept[at + n["act"]] = activate(entered)
        product = kept[at + n["act"]] if other is None else kept[at + n["act"]] * other
        kept[at + n["down"]] = self.dense(at + n["down"], product)
        return kept[at + n["down"]]
