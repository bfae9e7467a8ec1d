"""BERT and GPT-2 once more, token by token and head by head, as somebody ports them who has never seen this package.

It shares no line with what judges it: it reads the file by safetensors, and computes with `@`, loops and math. `wrong`
names one classic mistake, which is then made at the place where people make it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

Array = np.ndarray[Any, Any]
LOWEST = np.finfo(np.float32).min
ORDERS = {f"q k v in another order: {' '.join(o)}": o for o in ("kqv", "vkq", "qvk", "kvq", "vqk")}


class Port:
    """One model folder; `run` gives every intermediate of one batch by the names of a trace."""

    def __init__(self, folder: Path, wrong: str = "", dtype: type = np.float32) -> None:
        """dtype: of the blocks; the input layer is float32, since its bits are compared."""
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.tensors = load_file(folder / "model.safetensors")
        self.wrong, self.dtype, self.gpt2 = wrong, dtype, self.config["model_type"] == "gpt2"
        self.heads = self.config["n_head" if self.gpt2 else "num_attention_heads"]
        self.eps = dtype(self.config["layer_norm_epsilon" if self.gpt2 else "layer_norm_eps"])
        self.names = GPT2 if self.gpt2 else BERT
        self.before = self.gpt2 != (wrong in ("norm before instead of after", "norm after instead of before"))

    def run(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        return one_by_one(self.text, batch)

    def text(self, given: Mapping[str, Array]) -> dict[str, Array]:
        kept: dict[str, Array] = {}
        dtype, self.dtype = self.dtype, np.float32
        x = self.input_layer({k: v.astype(self.dtype) if "embeds" in k else v for k, v in given.items()}, kept)
        self.dtype = dtype
        x = x.astype(dtype)
        mask = given.get("attention_mask", np.ones(len(x)))
        for i in range(self.config["n_layer" if self.gpt2 else "num_hidden_layers"]):
            kept[f"hidden_states.{i}"] = x
            x = self.block(i, x, mask, kept)
        if self.gpt2 and self.wrong != "last norm forgotten":
            x = kept["ln_f"] = self.norm("ln_f", x)
        kept[f"hidden_states.{i + 1}"] = x
        return kept

    def input_layer(self, given: Mapping[str, Array], kept: dict[str, Array]) -> Array:
        word, place, kind = INPUT[self.gpt2]
        seq = len(next(iter(given.values())))
        positions = kept["position_ids"] = given.get("position_ids", np.arange(seq))
        if "input_ids" in given:
            x = kept[word] = np.stack([self.tensors[f"{word}.weight"][i] for i in given["input_ids"]])
        else:
            x = given["inputs_embeds"].astype(self.dtype)
        where = kept[place] = np.stack([self.tensors[f"{place}.weight"][p] for p in positions])
        if self.gpt2:
            x = x + where
            if "token_type_ids" in given:
                types = kept["wte (types)"] = np.stack([self.tensors["wte.weight"][t] for t in given["token_type_ids"]])
                x = x + types
            kept["sum"] = x
            return x
        types = given.get("token_type_ids", np.zeros(seq, int))
        kept[kind] = np.stack([self.tensors[f"{kind}.weight"][t] for t in types])
        kept["sum"] = x + kept[kind] + where
        kept["embeddings.LayerNorm"] = self.norm("embeddings.LayerNorm", kept["sum"])
        return kept["embeddings.LayerNorm"]

    def norm(self, path: str, rows: Array) -> Array:
        weight, bias = self.tensors[f"{path}.weight"], self.tensors[f"{path}.bias"]
        made = []
        for x in rows:
            centred = x - x.sum() / self.dtype(len(x))
            made.append(centred / np.sqrt((centred * centred).sum() / self.dtype(len(x)) + self.eps) * weight + bias)
        return np.stack(made)

    def dense(self, path: str, rows: Array) -> Array:
        weight, bias = self.tensors[f"{path}.weight"], self.tensors[f"{path}.bias"]
        if self.gpt2:
            weight = weight.T
        if self.wrong == "weight transposed" and weight.shape[0] == weight.shape[1]:
            weight = weight.T
        return np.stack([np.array([(w * x).sum() for w in weight], self.dtype) + bias for x in rows])

    def block(self, i: int, x: Array, mask: Array, kept: dict[str, Array]) -> Array:
        at, n = ("h" if self.gpt2 else "encoder.layer") + f".{i}.", self.names

        def keep(name: str, value: Array) -> Array:
            kept[at + name] = value
            return value

        if self.before:
            normed = keep(n["norm_1"], self.norm(at + n["norm_1"], x))
            attended = self.attention(i, at, normed, mask, kept)
            first = self.wrong in ("residual from the normed x", "first residual from the normed x")
            x = keep(n["sum_1"], (normed if first else x) + attended)
            normed = keep(n["norm_2"], self.norm(at + n["norm_2"], x))
            second = self.wrong in ("residual from the normed x", "second residual from the normed x")
            return keep(n["sum_2"], (normed if second else x) + self.feed_forward(at, normed, kept))
        total = keep(n["sum_1"], x + self.attention(i, at, x, mask, kept))
        x = keep(n["norm_1"], self.norm(at + n["norm_1"], total))
        again = total if self.wrong == "residual from before the norm" else x
        total = keep(n["sum_2"], again + self.feed_forward(at, x, kept))
        return keep(n["norm_2"], self.norm(at + n["norm_2"], total))

    def looks(self, at: str, x: Array, kept: dict[str, Array]) -> list[Array]:
        order = ["qkv".index(letter) for letter in ORDERS.get(self.wrong, "qkv")]
        if self.gpt2:
            kept[at + "attn.c_attn"] = self.dense(at + "attn.c_attn", x)
            parts = np.split(kept[at + "attn.c_attn"], 3, axis=1)
            return [parts[k] for k in order]
        paths = [f"{at}attention.self.{name}" for name in ("query", "key", "value")]
        for path, k in zip(paths, order, strict=True):
            kept[path] = self.dense(paths[k], x)
        return [kept[path] for path in paths]

    def head(self, x: Array, h: int) -> Array:
        """The columns of one head: (seq, dim) -> (seq, size)."""
        size = x.shape[1] // self.heads
        if self.wrong == "heads interleaved":
            return x[:, h :: self.heads]
        if self.wrong == "heads split without transposing":
            return x.reshape(self.heads, len(x), size)[h]
        return x[:, h * size : (h + 1) * size]

    def hidden(self, query: int, key: int, mask: Array) -> bool:
        causal = self.gpt2
        if self.wrong in ("causal mask forgotten", "causal mask where there is none"):
            causal = not causal
        last = query + {"causal mask one token too far": 1, "causal mask hides the token itself": -1}.get(self.wrong, 0)
        return bool(mask[key] == 0 or (causal and key > last))

    def attention(self, i: int, at: str, x: Array, mask: Array, kept: dict[str, Array]) -> Array:
        seq, dim = x.shape
        q, k, v = self.looks(at, x, kept)
        divisor = {"no division by sqrt(head_dim)": 1.0, "division by sqrt(dim)": math.sqrt(dim)}
        by = self.dtype(divisor.get(self.wrong, math.sqrt(dim // self.heads)))
        scores = np.zeros((self.heads, seq, seq), self.dtype)
        added = np.zeros((seq, seq), self.dtype)
        for query in range(seq):
            for key in range(seq):
                hidden = self.hidden(query, key, mask)
                if self.wrong == "mask added as 0 and 1":
                    added[query, key] = not hidden
                elif self.wrong != "mask ignored":
                    added[query, key] = LOWEST if hidden else 0
                for h in range(self.heads):
                    scores[h, query, key] = (self.head(q, h)[query] * self.head(k, h)[key]).sum() / by
        kept[f"{at}{self.names['scores']}"] = scores
        axis = {"softmax over the queries": 1, "softmax over the heads": 0}.get(self.wrong, 2)
        total = scores + added
        shares = np.exp(total - total.max(axis=axis, keepdims=True))
        shares = kept[f"attentions.{i}"] = shares / shares.sum(axis=axis, keepdims=True)
        parts = [
            np.stack([sum(shares[h, t, s] * self.head(v, h)[s] for s in range(seq)) for t in range(seq)])
            for h in range(self.heads)
        ]
        if self.wrong == "heads joined without transposing":
            context = np.stack(parts).reshape(seq, dim)
        else:
            context = np.concatenate(parts, axis=1)
        kept[f"{at}{self.names['context']}"] = context
        out = kept[f"{at}{self.names['output']}"] = self.dense(f"{at}{self.names['output']}", context)
        return out

    def feed_forward(self, at: str, x: Array, kept: dict[str, Array]) -> Array:
        up, act, down = (self.names[part] for part in ("up", "act", "down"))
        hidden = kept[at + up] = self.dense(at + up, x)
        by_tanh = self.gpt2 != (self.wrong in ("activation gelu_new", "activation gelu"))
        gelu = np.vectorize(gelu_by_tanh if by_tanh else gelu_by_erf, otypes=[self.dtype])
        kept[at + act] = gelu(hidden)
        kept[at + down] = self.dense(at + down, kept[at + act])
        return kept[at + down]


def one_by_one(run: Callable[[Mapping[str, Array]], dict[str, Array]], batch: Mapping[str, Array]) -> dict[str, Array]:
    texts = [run(dict(zip(batch, rows, strict=True))) for rows in zip(*batch.values(), strict=True)]
    return {key: np.stack([text[key] for text in texts]) for key in texts[0]}


def gelu_by_erf(x: float) -> float:
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def gelu_by_tanh(x: float) -> float:
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


INPUT = (
    ("embeddings.word_embeddings", "embeddings.position_embeddings", "embeddings.token_type_embeddings"),
    ("wte", "wpe", ""),
)
BERT = {
    "scores": "attention.self.scores", "context": "attention.self.context", "output": "attention.output.dense",
    "sum_1": "attention.output.sum", "norm_1": "attention.output.LayerNorm", "up": "intermediate.dense",
    "act": "intermediate.intermediate_act_fn", "down": "output.dense", "sum_2": "output.sum",
    "norm_2": "output.LayerNorm",
}  # fmt: skip
GPT2 = {
    "scores": "attn.scores", "context": "attn.context", "output": "attn.c_proj", "sum_1": "attn.sum", "norm_1": "ln_1",
    "up": "mlp.c_fc", "act": "mlp.act", "down": "mlp.c_proj", "sum_2": "mlp.sum", "norm_2": "ln_2",
}  # fmt: skip
