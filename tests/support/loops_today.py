"""Qwen3 and Gemma 3 once more, token by token and head by head, as somebody ports them: see `loops`.

It shares no line with what judges it. `wrong` names one classic mistake, which is then made where people make it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from loops import LOWEST, Array, gelu_by_tanh, one_by_one
from safetensors.numpy import load_file


class Port:
    """One model folder; `run` gives every intermediate of one batch by the names of a trace."""

    def __init__(self, folder: Path, wrong: str = "", dtype: type = np.float32) -> None:
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.tensors = load_file(folder / "model.safetensors")
        self.wrong, self.dtype, self.gemma = wrong, dtype, self.config["model_type"] == "gemma3_text"
        self.heads, self.key_heads = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        self.size = self.config["head_dim"]

    def run(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        return one_by_one(self.text, batch)

    def text(self, given: Mapping[str, Array]) -> dict[str, Array]:
        kept: dict[str, Array] = {}
        x = np.stack([self.tensors["embed_tokens.weight"][i] for i in given["input_ids"]])
        if self.gemma:
            x = x * np.float32(math.sqrt(self.config["hidden_size"]))
        kept["embed_tokens"] = kept["sum"] = x
        x = x.astype(self.dtype)
        mask = given.get("attention_mask", np.ones(len(x)))
        for i in range(self.config["num_hidden_layers"]):
            kept[f"hidden_states.{i}"] = x
            x = self.block(i, x, mask, kept)
        if self.wrong != "last norm forgotten":
            x = kept["norm"] = self.norm("norm", x)
        kept[f"hidden_states.{i + 1}"] = x
        return kept

    def norm(self, path: str, rows: Array) -> Array:
        weight = self.tensors[f"{path}.weight"].astype(self.dtype)
        if self.gemma and self.wrong != "weight without 1 +":
            weight = weight + 1
        made = []
        for x in rows.reshape(-1, rows.shape[-1]):
            if self.wrong == "mean subtracted in RMSNorm":
                x = x - sum(x) / self.dtype(len(x))
            square = sum(number * number for number in x) / self.dtype(len(x))
            made.append(x / math.sqrt(square + self.config["rms_norm_eps"]) * weight)
        return np.stack(made).astype(self.dtype).reshape(rows.shape)

    def dense(self, path: str, rows: Array) -> Array:
        weight = self.tensors[f"{path}.weight"]
        return np.stack([np.array([(w * x).sum() for w in weight], self.dtype) for x in rows])

    def block(self, i: int, x: Array, mask: Array, kept: dict[str, Array]) -> Array:
        at = f"layers.{i}."
        sandwich = self.gemma and self.wrong != "norm within forgotten"
        before = "pre_feedforward_layernorm" if self.gemma else "post_attention_layernorm"

        def normed(name: str, rows: Array) -> Array:
            kept[at + name] = self.norm(at + name, rows)
            return kept[at + name]

        y = self.attention(i, at, normed("input_layernorm", x), mask, kept)
        x = kept[at + "self_attn.sum"] = x + (normed("post_attention_layernorm", y) if sandwich else y)
        y = self.feed_forward(at, normed(before, x), kept)
        kept[at + "mlp.sum"] = x + (normed("post_feedforward_layernorm", y) if sandwich else y)
        return kept[at + "mlp.sum"]

    def sliding(self, i: int) -> bool:
        return self.gemma and bool(self.config["layer_types"][i] == "sliding_attention")

    def rotated(self, i: int, x: Array) -> Array:
        """x (seq, heads, size), each pair of numbers by an angle that grows with the token's position."""
        if self.wrong == "queries and keys not rotated":
            return x
        sliding = self.sliding(i) != (self.wrong == "rotation of the other layer type")
        theta = {(True, True): 1e4, (True, False): 1e6}.get((self.gemma, sliding), 1e4)
        y, half = x.copy(), self.size // 2
        for place in range(len(x)):
            for pair in range(half):
                a, b = (pair, pair + half) if "neighbours" not in self.wrong else (2 * pair, 2 * pair + 1)
                angle = place / theta ** (2 * pair / self.size)
                first, second = x[place, :, a], x[place, :, b]
                y[place, :, a] = first * math.cos(angle) - second * math.sin(angle)
                y[place, :, b] = second * math.cos(angle) + first * math.sin(angle)
        return y

    def sees(self, i: int, query: int, key: int, mask: Array) -> bool:
        if not mask[key] or key > query:
            return False
        if not self.sliding(i) or self.wrong == "window forgotten":
            return True
        wider = {"window one token too wide": 1, "window one token too narrow": -1}.get(self.wrong, 0)
        return bool(query - key < self.config["sliding_window"] + wider)

    def attention(self, i: int, at: str, x: Array, mask: Array, kept: dict[str, Array]) -> Array:
        seq, at = len(x), at + "self_attn."
        looks = []
        for name, heads in (("q", self.heads), ("k", self.key_heads), ("v", self.key_heads)):
            kept[f"{at}{name}_proj"] = self.dense(f"{at}{name}_proj", x)
            looks.append(kept[f"{at}{name}_proj"].reshape(seq, heads, self.size))
        for place, name in enumerate("qk"):
            normed = kept[f"{at}{name}_norm"] = self.norm(f"{at}{name}_norm", looks[place])
            looks[place] = self.rotated(i, looks[place] if self.wrong == "queries and keys not normed" else normed)
        q, k, v = looks
        own = self.gemma and self.wrong != "scale by head_dim"
        by = self.dtype(math.sqrt(self.config["query_pre_attn_scalar"] if own else self.size))
        scores = np.zeros((self.heads, seq, seq), self.dtype)
        context = np.zeros((seq, self.heads, self.size), self.dtype)
        weights = np.zeros_like(scores)
        for h in range(self.heads):
            shared = h % self.key_heads if "modulo" in self.wrong else h // (self.heads // self.key_heads)
            for query in range(seq):
                for key in range(seq):
                    scores[h, query, key] = (q[query, h] * k[key, shared]).sum() / by
                hidden = [0 if self.sees(i, query, key, mask) else LOWEST for key in range(seq)]
                row = scores[h, query] + np.array(hidden, self.dtype)
                row = np.exp(row - row.max())
                weights[h, query] = row / row.sum()
                context[query, h] = sum(weights[h, query, key] * v[key, shared] for key in range(seq))
        kept[at + "scores"], kept[f"attentions.{i}"] = scores, weights
        kept[at + "context"] = context.reshape(seq, -1)
        kept[at + "o_proj"] = self.dense(at + "o_proj", kept[at + "context"])
        return kept[at + "o_proj"]

    def feed_forward(self, at: str, x: Array, kept: dict[str, Array]) -> Array:
        at += "mlp."
        gate = kept[at + "gate_proj"] = self.dense(at + "gate_proj", x)
        up = kept[at + "up_proj"] = self.dense(at + "up_proj", x)
        if self.wrong == "gate and up exchanged":
            gate, up = up, gate
        act = np.vectorize(gelu_by_tanh if self.gemma else silu, otypes=[self.dtype])
        kept[at + "act_fn"] = act(gate)
        kept[at + "down_proj"] = self.dense(at + "down_proj", kept[at + "act_fn"] * up)
        return kept[at + "down_proj"]


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))
