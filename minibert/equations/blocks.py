"""The blocks follow the input layer: the blocks of BERT and GPT-2, every formula, from the leaves to the root.

Read `input_layer` first, then this from top to bottom. Each function is one formula; the last two, `bert_encoder` and
`gpt2_blocks`, are all blocks of a model. Nothing here knows a file, a checkpoint or a model's name. `Encoder` computes
some of the formulas in fewer passes: `fast` has these versions, and a test compares both.

Axes are written as words: batch, seq, dim, heads, head_dim. Attention has two more names for seq: `query` is the token
whose vector is computed, `key` a token that the query may use. Arrays are float32 unless you pass float64.

Sources
    Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762): attention, feed-forward, a norm after each sum
    Devlin et al. 2018, "BERT" (arXiv:1810.04805): that block with gelu, and every token sees all others
    Radford et al. 2019, "Language Models are Unsupervised Multitask Learners": GPT-2, the norm before
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .activations import Activation, gelu, gelu_tanh
from .input_layer import Array, layer_norm


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Map each row to another width: `y = x @ weight^T + bias`.

    x (..., dim), weight (out, dim), bias (out,) -> (..., out). A matrix product, so the last bits of a row depend on
    how many rows there are. Weights that a file holds as (dim, out) are passed as `weight.T`.

    >>> linear(np.array([[1.0, 2.0]]), weight=np.array([[1.0, 1.0], [0.0, 3.0]]), bias=np.array([0.0, 10.0]))
    array([[ 3., 16.]])
    """
    y: Array = x @ weight.T
    return y if bias is None else y + bias


def softmax(x: Array) -> Array:
    """Turn each row into positive numbers with sum 1: `y[i] = exp(x[i]) / sum_j exp(x[j])`.

    x (..., n) -> (..., n). The largest x is subtracted first: the result is the same, and exp cannot overflow.

    >>> softmax(np.log([[1.0, 3.0]]))
    array([[0.25, 0.75]])
    """
    y: Array = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(y / y.sum(axis=-1, keepdims=True))


def rms_norm(x: Array, weight: Array, eps: float = 1e-6) -> Array:
    """Divide each row by the root of its mean square: `y = x / sqrt(mean(x^2) + eps) * weight`.

    x (..., dim), weight (dim,) -> (..., dim). A LayerNorm that neither subtracts the mean nor adds a bias.
    Gemma's files hold the weight less 1: for Gemma pass `1 + weight`. With eps 0 a row of zeros becomes nan.
    Source: Zhang, Sennrich 2019 (arXiv:1910.07467); Llama, Qwen and Gemma use it.

    >>> rms_norm(np.array([[1.0, 7.0]]), weight=np.array([1.0, 2.0]), eps=0.0)
    array([[0.2, 2.8]])
    """
    square = np.mean(x * x, axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):  # no warning if eps is 0
        return np.asarray(x / np.sqrt(square + x.dtype.type(eps)) * weight)


def split_heads(x: Array, heads: int) -> Array:
    """Cut each row into as many parts as there are heads: (..., seq, dim) -> (..., heads, seq, head_dim), a view.

    >>> split_heads(np.array([[1, 2, 3, 4], [5, 6, 7, 8]]), heads=2).tolist()
    [[[1, 2], [5, 6]], [[3, 4], [7, 8]]]
    """
    return x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads).swapaxes(-2, -3)


def join_heads(x: Array) -> Array:
    """Join the heads' parts side by side again: (..., heads, seq, head_dim) -> (..., seq, dim).

    >>> join_heads(np.array([[[1, 2], [5, 6]], [[3, 4], [7, 8]]])).tolist()
    [[1, 2, 3, 4], [5, 6, 7, 8]]
    """
    x = x.swapaxes(-2, -3)  # (..., seq, heads, head_dim)
    return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])


def additive_mask(keep: Array, dtype: np.dtype[np.floating] | str = "float32") -> Array:
    """Turn a mask into numbers to add to scores: 0 for True, the most negative number of the dtype for False.

    After softmax a masked token has a probability of 0; in a row that is masked everywhere all probabilities are equal.
    With -inf, a row that is masked everywhere would become NaN. Combine masks as booleans.

    >>> additive_mask(np.array([True, False]))
    array([ 0.0000000e+00, -3.4028235e+38], dtype=float32)
    """
    return np.where(keep, 0, np.finfo(dtype).min).astype(dtype)


def visible(queries: Array, keys: Array, causal: bool = False, window: float | None = None) -> Array:
    """Compute which tokens each token sees: `keep[i, j] = (j <= i if causal) and |i - j| <= window`.

    The positions of the tokens, (query,) and (key,) -> bool (query, key). `window`: how many tokens away a
    token still sees; None: all. Configs count the window in several ways. Mistral's `sliding_window` w counts the token
    itself: window is w - 1, or w if `is_causal` is false. ModernBERT's `local_attention` w is split: window is w // 2.
    Source: Jiang et al. 2023, "Mistral 7B" (arXiv:2310.06825), section 2.

    >>> visible(np.arange(4), np.arange(4), causal=True, window=1).astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 1, 1, 0],
           [0, 0, 1, 1]])
    """
    back = queries[:, None] - keys  # how far the key is before the query
    keep: Array = back >= 0 if causal else np.ones(back.shape, bool)
    return keep if window is None else keep & (np.abs(back) <= window)


def attention_scores(q: Array, k: Array, scale: float, bias: Array | None = None) -> Array:
    """Compare each query with each key: `scores = scale * q @ k^T + bias`, scale = 1 / sqrt(head_dim).

    q (..., query, head_dim), k (..., key, head_dim), bias (..., query, key) -> (..., query, key). Without the scale the
    scores grow with head_dim, and softmax sees only the largest.

    >>> attention_scores(np.array([[2.0, 2.0]]), np.array([[4.0, 0.0], [0.0, 8.0]]), scale=0.5)
    array([[4., 8.]])
    """
    scores: Array = (q * q.dtype.type(scale)) @ k.swapaxes(-1, -2)
    return scores if bias is None else scores + bias


def attention(q: Array, k: Array, v: Array, mask: Array | None = None, bias: Array | None = None) -> Array:
    """Compute for each token a mean of all values, weighted by its probabilities: `softmax(scores + mask) @ v`.

    q, k, v (..., heads, seq, head_dim), mask and bias (..., query, key) -> (..., heads, seq, head_dim).

    >>> q, k, v = np.zeros((1, 1)), np.array([[1.0], [2.0]]), np.array([[10.0], [20.0]])
    >>> attention(q, k, v), attention(q, k, v, mask=additive_mask(np.array([[True, False]]), "float64"))
    (array([[15.]]), array([[10.]]))
    """
    scores = attention_scores(q, k, 1 / math.sqrt(q.shape[-1]), bias)  # (..., heads, query, key)
    probabilities = softmax(scores if mask is None else scores + mask)
    return np.asarray(probabilities @ v)  # (..., heads, query, head_dim)


class Linear(NamedTuple):
    """The weight (out, dim) of `linear`, and its bias (out,) or None."""

    weight: Array
    bias: Array | None = None


class Affine(NamedTuple):
    """The weight (dim,) and the bias (dim,) of a norm."""

    weight: Array
    bias: Array


class Block(NamedTuple):
    """All arrays of one block. `up` maps to the feed-forward's larger width, `down` maps back."""

    query: Linear
    key: Linear
    value: Linear
    output: Linear
    norm_1: Affine
    up: Linear
    down: Linear
    norm_2: Affine


def self_attention(x: Array, block: Block, heads: int, mask: Array | None = None, bias: Array | None = None) -> Array:
    """Map x to queries, keys and values, compute attention in each head, and map the joined heads once more.

    x (batch, seq, dim), mask (batch, 1, query, key), bias (heads, query, key) -> (batch, seq, dim). Each token's result
    is a mean of all values. Papers call it multi-head attention. Source: Vaswani et al. 2017, section 3.2.2.

    >>> one = Linear(np.eye(1), np.zeros(1))
    >>> self_attention(np.array([[[0.0], [4.0]]]), Block(*[one] * 8), heads=1).round(3)
    array([[[2.],
            [4.]]])
    """
    parts = block.query, block.key, block.value
    q, k, v = (split_heads(linear(x, *part), heads) for part in parts)  # each (batch, heads, seq, head_dim)
    context = join_heads(attention(q, k, v, mask, bias))  # (batch, seq, dim)
    return linear(context, *block.output)


def feed_forward(x: Array, up: Linear, down: Linear, activation: Activation = gelu) -> Array:
    """Compute two maps with an activation between them, for each token by itself: `y = f(x @ up^T + b1) @ down^T + b2`.

    x (..., dim) -> (..., width) -> (..., dim).

    >>> up, down = Linear(np.array([[1.0], [-1.0]]), np.zeros(2)), Linear(np.array([[1.0, 10.0]]), np.ones(1))
    >>> feed_forward(np.array([[2.0], [-3.0]]), up, down, activation=lambda x: np.maximum(x, 0))
    array([[ 3.],
           [31.]])
    """
    return linear(activation(linear(x, *up)), *down)


def post_norm_block(
    x: Array, block: Block, heads: int, eps: float = 1e-12, activation: Activation = gelu,
    mask: Array | None = None, bias: Array | None = None,
) -> Array:  # fmt: skip
    """Compute BERT's block: `x = LayerNorm(x + attention(x)); x = LayerNorm(x + feed_forward(x))`.

    x (batch, seq, dim) -> (batch, seq, dim). Each norm is applied to a sum.

    >>> silent = Linear(np.zeros((2, 2)), np.zeros(2))  # attention and feed-forward that add nothing
    >>> norm = Affine(np.ones(2), np.zeros(2))
    >>> block = Block(silent, silent, silent, silent, norm, silent, silent, norm)
    >>> post_norm_block(np.array([[[1.0, 5.0]]]), block, heads=1)
    array([[[-1.,  1.]]])
    """
    x = layer_norm(x + self_attention(x, block, heads, mask, bias), *block.norm_1, eps)
    return layer_norm(x + feed_forward(x, block.up, block.down, activation), *block.norm_2, eps)


def pre_norm_block(
    x: Array, block: Block, heads: int, eps: float = 1e-5, activation: Activation = gelu_tanh, mask: Array | None = None
) -> Array:
    """Compute GPT-2's block: `x = x + attention(LayerNorm(x)); x = x + feed_forward(LayerNorm(x))`.

    x (batch, seq, dim) -> (batch, seq, dim). x itself is never normalized: each block only adds to x. One sum therefore
    runs from the first block to the last, the residual stream: blocks read from it and add to it.

    >>> silent = Linear(np.zeros((2, 2)), np.array([0.0, 3.0]))
    >>> norm = Affine(np.ones(2), np.zeros(2))
    >>> block = Block(silent, silent, silent, silent, norm, silent, silent, norm)
    >>> pre_norm_block(np.array([[[1.0, 5.0]]]), block, heads=1)
    array([[[ 1., 11.]]])
    """
    x = x + self_attention(layer_norm(x, *block.norm_1, eps), block, heads, mask)
    return x + feed_forward(layer_norm(x, *block.norm_2, eps), block.up, block.down, activation)


def bert_encoder(x: Array, attention_mask: Array, blocks: Sequence[Block], heads: int, eps: float = 1e-12) -> Array:
    """Run BERT's blocks, one after the other; every token sees all tokens that are not padding.

    x (batch, seq, dim) from `bert_input`, attention_mask (batch, seq) of 1 and 0 -> (batch, seq, dim).

    >>> bert_encoder(np.array([[[-1.0, 1.0]]]), np.array([[1]]), [], heads=1)
    array([[[-1.,  1.]]])
    """
    mask = additive_mask(attention_mask[:, None, None, :] != 0, x.dtype)  # (batch, 1, 1, key)
    for block in blocks:
        x = post_norm_block(x, block, heads, eps, gelu, mask)
    return x


def gpt2_blocks(
    x: Array, attention_mask: Array, blocks: Sequence[Block], last_norm: Affine, heads: int, eps: float = 1e-5
) -> Array:
    """Run GPT-2's blocks and its last norm: no token sees a later one.

    x (batch, seq, dim) from `gpt2_input`, attention_mask (batch, seq) -> (batch, seq, dim); the product with `wte.T` is
    the logits. A new token changes nothing before it: a program that continues a text keeps the keys and values of the
    earlier tokens (a KV cache). GPT-2's files hold weights as (dim, out), query, key and value side by side in one.

    >>> gpt2_blocks(np.array([[[1.0, 5.0]]]), np.array([[1]]), [], Affine(np.ones(2), np.zeros(2)), heads=1, eps=0.0)
    array([[[-1.,  1.]]])
    """
    keep = np.tri(x.shape[1], dtype=bool) & (attention_mask[:, None, None, :] != 0)  # (batch, 1, query, key)
    mask = additive_mask(keep, x.dtype)
    for block in blocks:
        x = pre_norm_block(x, block, heads, eps, gelu_tanh, mask)
    return layer_norm(x, *last_norm, eps)
