"""The textbook's weights from the tensors of a file with two blocks: what whole models take."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from minibert.equations.blocks import Affine, Block, Linear
from minibert.equations.gated_blocks import GatedBlock, LlamaWeights
from minibert.equations.input_layer import Array
from minibert.equations.whole_models import BertWeights, Gpt2Weights

Tensors = Mapping[str, Array]


def affine(tensors: Tensors, path: str) -> Affine:
    return Affine(tensors[f"{path}.weight"], tensors[f"{path}.bias"])


def bert_blocks(tensors: Tensors, prefix: str = "") -> list[Block]:
    parts = (
        "attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
        "attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm",
    )  # fmt: skip
    paths = [f"{prefix}encoder.layer.{i}." for i in range(2)]
    return [Block(*(affine(tensors, path + part) for part in parts)) for path in paths]


def bert_weights(tensors: Tensors, prefix: str = "") -> BertWeights:
    at, head = f"{prefix}embeddings.", "cls.predictions"
    tables = (tensors[f"{at}{name}_embeddings.weight"] for name in ("word", "token_type", "position"))
    return BertWeights(
        *tables, affine(tensors, f"{at}LayerNorm"), bert_blocks(tensors, prefix),
        affine(tensors, f"{head}.transform.dense"), affine(tensors, f"{head}.transform.LayerNorm"),
        tensors[f"{head}.bias"],
    )  # fmt: skip


def gpt2_weights(tensors: Tensors, prefix: str = "") -> Gpt2Weights:
    """GPT-2's files store a map as (in, out), those of query, key and value as one."""

    def turned(path: str) -> Affine:
        weight, bias = affine(tensors, prefix + path)
        return Affine(weight.T, bias)

    def block(at: str) -> Block:
        parts = zip(*(np.split(array, 3) for array in turned(f"{at}.attn.c_attn")), strict=True)
        rest = ("attn.c_proj", "ln_1", "mlp.c_fc", "mlp.c_proj", "ln_2")
        return Block(*(Affine(*part) for part in parts), *(turned(f"{at}.{name}") for name in rest))

    tables = (tensors[f"{prefix}{name}.weight"] for name in ("wte", "wpe"))
    return Gpt2Weights(*tables, [block("h.0"), block("h.1")], turned("ln_f"))


def llama_weights(tensors: Tensors, blocks: int = 2) -> LlamaWeights:
    def block(at: str) -> GatedBlock:
        maps = [Linear(tensors[f"{at}self_attn.{name}_proj.weight"]) for name in "qkvo"]
        gate, up, down = (Linear(tensors[f"{at}mlp.{name}_proj.weight"]) for name in ("gate", "up", "down"))
        norm_1, norm_2 = (tensors[f"{at}{name}_layernorm.weight"] for name in ("input", "post_attention"))
        return GatedBlock(*maps, norm_1, gate, up, down, norm_2)

    parts = [block(f"model.layers.{i}.") for i in range(blocks)]
    return LlamaWeights(
        tensors["model.embed_tokens.weight"], parts, tensors["model.norm.weight"], tensors["lm_head.weight"]
    )
