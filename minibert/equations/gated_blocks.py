"""Llama and its relatives: each change since BERT and GPT-2 as one formula, and the whole model at the end.

Read `blocks` first: it has RMSNorm (`rms_norm`) and the window (`visible`); `rotary` has the rotation (`rotate`). This
file has key heads that several query heads share, and the gate; `llama_model` computes logits from ids. Mistral, Qwen
and Gemma are made of the same parts; ModernBERT and NomicBERT have some of these parts.

Sources
    Su et al. 2021, "RoFormer" (arXiv:2104.09864): queries and keys are rotated by their token's position
    Ainslie et al. 2023, "GQA" (arXiv:2305.13245): several query heads share a key head and a value head
    Shazeer 2020, "GLU Variants Improve Transformer" (arXiv:2002.05202): the gate
    Touvron et al. 2023, "LLaMA" (arXiv:2302.13971): a block of all these parts
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .activations import Activation, silu
from .blocks import Linear, additive_mask, attention, join_heads, linear, rms_norm, split_heads
from .heads import tied_logits
from .input_layer import Array, lookup
from .rotary import rotary_angles, rotate


class GatedBlock(NamedTuple):
    """All arrays of one block. Norms have a weight and no bias; Qwen3 and Gemma have norms of each head's queries and
    keys.
    """

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    norm_1: Array
    gate: Linear
    up: Linear
    down: Linear
    norm_2: Array
    query_norm: Array | None = None
    key_norm: Array | None = None


def share_heads(x: Array, heads: int) -> Array:
    """Repeat key heads, one for each query head: query head h uses key head `h // (heads / key_heads)`.

    x (..., key_heads, seq, head_dim) -> (..., heads, seq, head_dim). The trap: `h % key_heads` fits too, and is wrong.

    >>> share_heads(np.array([[[1]], [[2]]]), heads=4).tolist()
    [[[1]], [[1]], [[2]], [[2]]]
    """
    return np.repeat(x, heads // x.shape[-3], axis=-3)


def rotary_attention(
    x: Array, block: GatedBlock, heads: int, key_heads: int, cos: Array, sin: Array,
    eps: float = 1e-6, mask: Array | None = None,
) -> Array:  # fmt: skip
    """Compute attention with rotated queries and keys: `softmax(rotate(q) @ rotate(k)^T / sqrt(head_dim) + mask) @ v`.

    x (batch, seq, dim), cos and sin (seq, head_dim) from `rotary_angles`, mask (batch, 1, query, key) -> (batch, seq,
    dim). Queries and keys are rotated after their norms, if the block has them; values are not rotated.

    >>> one, quarter = Linear(np.eye(2)), (np.array([[1.0, 1.0], [0.0, 0.0]]), np.array([[0.0, 0.0], [1.0, 1.0]]))
    >>> block = GatedBlock(one, one, one, one, np.ones(2), one, one, one, np.ones(2))
    >>> x = np.array([[[8.0, 0.0], [0.0, -8.0]]])  # alike, once the second is rotated by 90 degrees
    >>> rotary_attention(x, block, 1, 1, *quarter)
    array([[[ 4., -4.],
            [ 4., -4.]]])
    """
    q, k, v = (
        split_heads(linear(x, *part), count)  # (batch, heads or key_heads, seq, head_dim)
        for part, count in ((block.query, heads), (block.key, key_heads), (block.value, key_heads))
    )
    q = q if block.query_norm is None else rms_norm(q, block.query_norm, eps)
    k = k if block.key_norm is None else rms_norm(k, block.key_norm, eps)
    q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    context = attention(q, share_heads(k, heads), share_heads(v, heads), mask)  # (batch, heads, seq, head_dim)
    return linear(join_heads(context), *block.output)


def gated_feed_forward(x: Array, gate: Linear, up: Linear, down: Linear, activation: Activation = silu) -> Array:
    """Compute a gated feed-forward for each token by itself: `y = (f(x @ gate^T) * (x @ up^T)) @ down^T`.

    x (..., dim) -> (..., width) -> (..., dim). With silu it is called SwiGLU, with gelu GEGLU. The trap: f is applied
    to the gate, not to the other factor. ModernBERT's file holds both in one weight `Wi`, the gate's rows first.

    >>> gate, up, down = (Linear(np.array([[number]])) for number in (1.0, 10.0, 1.0))
    >>> gated_feed_forward(np.array([[2.0], [-3.0]]), gate, up, down, activation=lambda x: np.maximum(x, 0))
    array([[40.],
           [ 0.]])
    """
    return linear(activation(linear(x, *gate)) * linear(x, *up), *down)


def gated_block(
    x: Array, block: GatedBlock, heads: int, key_heads: int, cos: Array, sin: Array,
    eps: float = 1e-6, activation: Activation = silu, mask: Array | None = None,
) -> Array:  # fmt: skip
    """Compute Llama's block: `x = x + attention(rms_norm(x)); x = x + gated_feed_forward(rms_norm(x))`.

    x (batch, seq, dim) -> (batch, seq, dim).

    >>> one, silent = Linear(np.eye(2)), Linear(np.zeros((2, 2)))
    >>> block = GatedBlock(one, one, one, one, np.ones(2), silent, silent, silent, np.ones(2))
    >>> gated_block(np.array([[[1.0, 7.0]]]), block, 1, 1, np.ones((1, 2)), np.zeros((1, 2)), eps=0.0)  # one token
    array([[[1.2, 8.4]]])
    """
    x = x + rotary_attention(rms_norm(x, block.norm_1, eps), block, heads, key_heads, cos, sin, eps, mask)
    return x + gated_feed_forward(rms_norm(x, block.norm_2, eps), block.gate, block.up, block.down, activation)


class LlamaWeights(NamedTuple):
    """All arrays of Llama: word (vocab, dim), the blocks, last_norm (dim,) and output (vocab, dim).

    In large Llamas `output` is a second table; in small Llamas `word` is used again.
    """

    word: Array
    blocks: Sequence[GatedBlock]
    last_norm: Array
    output: Array


def llama_model(
    input_ids: Array, attention_mask: Array, weights: LlamaWeights, heads: int, key_heads: int, frequencies: Array,
    eps: float = 1e-6,
) -> Array:  # fmt: skip
    """Compute Llama's logits from ids: word rows, blocks that rotate queries and keys, `rms_norm(x) @ output^T`.

    input_ids and attention_mask (batch, seq), frequencies (head_dim / 2,) from `rotary_frequencies` or a rule of
    `rotary_scaling` -> (batch, seq, vocab). No position row is added: only attention knows the tokens'
    order. Row t scores each word as the word after token t. Source: Touvron et al. 2023.

    >>> table = np.array([[0.0, 1.0], [1.0, 7.0]])
    >>> weights = LlamaWeights(table, [], last_norm=np.ones(2), output=table)
    >>> llama_model(np.array([[1]]), np.array([[1]]), weights, heads=1, key_heads=1, frequencies=np.ones(1), eps=0.0)
    array([[[ 1.4, 10. ]]])
    """
    x = lookup(weights.word, input_ids)  # (batch, seq, dim)
    cos, sin = rotary_angles(np.arange(x.shape[1]), frequencies)
    keep = np.tri(x.shape[1], dtype=bool) & (attention_mask[:, None, None, :] != 0)  # (batch, 1, query, key)
    mask = additive_mask(keep, x.dtype)
    for block in weights.blocks:
        x = gated_block(x, block, heads, key_heads, cos, sin, eps, silu, mask)
    return tied_logits(rms_norm(x, weights.last_norm, eps), weights.output)  # (batch, seq, vocab)
