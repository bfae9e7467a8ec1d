"""Blocks backward: linear maps, softmax, activations, attention and the loss, then a whole block of GPT-2.

Read it beside `blocks` and `heads`, after `gradients`: each formula's argument `grad` is the gradient of the loss with
respect to the result of the forward formula, and its result has the gradients with respect to the inputs. The formula
of a block calls the formulas of its parts in reverse order. Gradients come in the same tuples as weights: a `Block` of
gradients.

Sources
    Rumelhart, Hinton, Williams 1986, "Learning representations by back-propagating errors"
    Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762): attention
    Hendrycks, Gimpel 2016, "Gaussian Error Linear Units" (arXiv:1606.08415): gelu
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from gradients import layer_norm_gradient

from minibert.equations.activations import erf, gelu_tanh
from minibert.equations.blocks import (
    Affine,
    Block,
    Linear,
    attention,
    attention_scores,
    join_heads,
    linear,
    self_attention,
    softmax,
    split_heads,
)
from minibert.equations.fast import check_ids
from minibert.equations.input_layer import Array, layer_norm


class LinearGradients(NamedTuple):
    """Gradients of `linear`: x has the shape of x; weight (out, dim), bias (out,)."""

    x: Array
    weight: Array
    bias: Array


def linear_gradient(grad: Array, x: Array, weight: Array) -> LinearGradients:
    """Backward of `linear`, `y = x @ weight^T + bias`: back through the matrix that is not transposed.

        g_x = grad @ weight,   g_weight = sum(outer(grad, x)),   g_bias = sum(grad)

    grad (..., out), x (..., dim), weight (out, dim) -> x (..., dim), weight (out, dim), bias (out,). The sums run over
    the rows of all texts and positions. `project` of the input layer is this formula, and so is `tied_logits`, with
    the word table as the weight. Source: Rumelhart et al. 1986.

    >>> g = linear_gradient(np.array([[1.0], [10.0]]), x=np.array([[2.0], [3.0]]), weight=np.array([[4.0]]))
    >>> g.x.ravel(), g.weight, g.bias
    (array([ 4., 40.]), array([[32.]]), array([11.]))
    """
    rows = tuple(range(x.ndim - 1))
    # tensordot over every axis but the last is the sum of outer products
    return LinearGradients(grad @ weight, np.tensordot(grad, x, axes=(rows, rows)), np.sum(grad, axis=rows))


def softmax_gradient(grad: Array, x: Array) -> Array:
    """Backward of `softmax`: each probability's gain above the mean of all.

        y = softmax(x),   g_x = y * (grad - sum_j y[j] grad[j])

    grad and x (..., n) -> (..., n). The probabilities have sum 1, so a probability grows only if the rest shrink: every
    row of g_x sums to zero. Source: Rumelhart et al. 1986, by the chain rule.

    >>> softmax_gradient(np.array([4.0, 0.0]), x=np.log([1.0, 3.0]))  # y = 1/4 and 3/4, mean of grad: 1
    array([ 0.75, -0.75])
    """
    y = softmax(x)
    return np.asarray(y * (grad - np.sum(y * grad, axis=-1, keepdims=True)))


def gelu_gradient(grad: Array, x: Array) -> Array:
    """Backward of `gelu`, `y = x * P(x)` with P the normal distribution and p its density.

        g_x = grad * (P(x) + x * p(x)),   P(x) = (1 + erf(x / sqrt(2))) / 2,   p(x) = exp(-x^2 / 2) / sqrt(2 pi)

    Any shape -> the same. Source: Hendrycks, Gimpel 2016.

    >>> gelu_gradient(np.ones(3), np.array([-1.0, 0.0, 1.0])).round(4)  # P(1) = 0.8413, p(1) = 0.2420
    array([-0.0833,  0.5   ,  1.0833])
    """
    half, factor = map(x.dtype.type, (0.5, 1 / math.sqrt(2 * math.pi)))
    return np.asarray(grad * (half * (1 + erf(x * np.sqrt(half))) + x * factor * np.exp(-half * x * x)))


def gelu_tanh_gradient(grad: Array, x: Array) -> Array:
    """Backward of `gelu_tanh`, GPT-2's "gelu_new": `y = x * (1 + t) / 2` with `t = tanh(u(x))`.

        u = sqrt(2 / pi) * (x + 0.044715 x^3),   u' = sqrt(2 / pi) * (1 + 3 * 0.044715 x^2)
        g_x = grad * ((1 + t) / 2 + x * (1 - t^2) * u' / 2)

    Any shape -> the same. Source: Hendrycks, Gimpel 2016.

    >>> gelu_tanh_gradient(np.ones(3), np.array([-1.0, 0.0, 1.0])).round(3)
    array([-0.083,  0.5  ,  1.083])
    """
    half, factor, cubic = map(x.dtype.type, (0.5, math.sqrt(2 / math.pi), 0.044715))
    square = x * x
    t = np.tanh(factor * x * (1 + cubic * square))
    return np.asarray(grad * half * (1 + t + x * (1 - t * t) * factor * (1 + 3 * cubic * square)))


class AttentionGradients(NamedTuple):
    """Gradients of `attention`, each with the shape of the array it belongs to."""

    q: Array
    k: Array
    v: Array


def attention_gradient(grad: Array, q: Array, k: Array, v: Array, mask: Array | None = None) -> AttentionGradients:
    """Backward of `attention`: through the mean of the values, then through softmax and the scores.

        p = softmax(scores + mask),   scores = q @ k^T / sqrt(head_dim)
        g_v = p^T @ grad,   g_scores = softmax_gradient(grad @ v^T)
        g_q = g_scores @ k / sqrt(head_dim),   g_k = g_scores^T @ q / sqrt(head_dim)

    grad, q, k, v (..., heads, seq, head_dim), mask (..., query, key) -> the shapes of q, k and v. A masked key has
    probability 0, so its gradient is 0. Source: Vaswani et al. 2017, by the chain rule.

    >>> q, k, v = np.zeros((1, 1)), np.array([[0.0], [2.0]]), np.array([[10.0], [20.0]])  # p = 1/2 and 1/2
    >>> g = attention_gradient(np.array([[1.0]]), q, k, v)
    >>> g.q, g.k.ravel(), g.v.ravel()
    (array([[5.]]), array([0., 0.]), array([0.5, 0.5]))
    """
    scale = 1 / math.sqrt(q.shape[-1])
    scores = attention_scores(q, k, scale)
    scores = scores if mask is None else scores + mask
    g_scores = softmax_gradient(grad @ v.swapaxes(-1, -2), scores) * q.dtype.type(scale)
    return AttentionGradients(
        q=g_scores @ k, k=g_scores.swapaxes(-1, -2) @ q, v=softmax(scores).swapaxes(-1, -2) @ grad
    )


def cross_entropy_gradient(grad: Array, logits: Array, targets: Array) -> Array:
    """Backward of `cross_entropy`: the probabilities, less 1 at the right answer.

        g_logits = grad * (softmax(logits) - onehot(target))

    grad and targets (...), logits (..., n) -> (..., n). For a mean over all positions, grad is 1 / positions
    everywhere; a position that should not count has grad 0. Every row sums to zero. Raises as `cross_entropy`.
    Source: Rumelhart et al. 1986, by the chain rule.

    >>> cross_entropy_gradient(np.array([1.0]), np.log([[1.0, 3.0]]), np.array([0]))
    array([[-0.75,  0.75]])
    """
    g = softmax(logits)
    positions = check_ids(targets, logits.shape[-1], "targets")[..., None]
    np.put_along_axis(g, positions, np.take_along_axis(g, positions, axis=-1) - 1, axis=-1)
    return np.asarray(g * grad[..., None])


class SelfAttentionGradients(NamedTuple):
    """Gradients of `self_attention`: x has the shape of x, the four maps have the block's shapes."""

    x: Array
    query: Linear
    key: Linear
    value: Linear
    output: Linear


def self_attention_gradient(
    grad: Array, x: Array, block: Block, heads: int, mask: Array | None = None
) -> SelfAttentionGradients:
    """Backward of `self_attention`: x was used three times, so its gradient is a sum of three.

        g_x = g_q @ W_q + g_k @ W_k + g_v @ W_v

    grad and x (batch, seq, dim), mask (batch, 1, query, key) -> x (batch, seq, dim), and one `Linear` for each map.

    >>> one = Linear(np.eye(1), np.zeros(1))
    >>> g = self_attention_gradient(np.array([[[1.0], [2.0]]]), np.zeros((1, 2, 1)), Block(*[one] * 8), heads=1)
    >>> g.x.ravel(), g.output.bias  # all scores are equal: each token took half of each value
    (array([1.5, 1.5]), array([3.]))
    """
    parts = block.query, block.key, block.value
    q, k, v = (split_heads(linear(x, *part), heads) for part in parts)
    context = join_heads(attention(q, k, v, mask))
    output = linear_gradient(grad, context, block.output.weight)
    each_head = attention_gradient(split_heads(output.x, heads), q, k, v, mask)
    maps = [linear_gradient(join_heads(g), x, part.weight) for g, part in zip(each_head, parts, strict=True)]
    query, key, value = (Linear(g.weight, g.bias) for g in maps)
    return SelfAttentionGradients(
        maps[0].x + maps[1].x + maps[2].x, query, key, value, Linear(output.weight, output.bias)
    )


class FeedForwardGradients(NamedTuple):
    """Gradients of `feed_forward`: x has the shape of x, the two maps have the block's shapes."""

    x: Array
    up: Linear
    down: Linear


def feed_forward_gradient(grad: Array, x: Array, up: Linear, down: Linear) -> FeedForwardGradients:
    """Backward of `feed_forward` with GPT-2's gelu: down, the activation, up.

    grad and x (..., dim) -> x (..., dim), and one `Linear` for each map.

    >>> up, down = Linear(np.array([[1.0]]), np.zeros(1)), Linear(np.array([[4.0]]), np.zeros(1))
    >>> g = feed_forward_gradient(np.array([[1.0]]), np.array([[0.0]]), up, down)
    >>> g.x, g.down.bias  # gelu' is 1/2 at 0
    (array([[2.]]), array([1.]))
    """
    inner = linear(x, *up)
    g_down = linear_gradient(grad, gelu_tanh(inner), down.weight)
    g_up = linear_gradient(gelu_tanh_gradient(g_down.x, inner), x, up.weight)
    return FeedForwardGradients(g_up.x, Linear(g_up.weight, g_up.bias), Linear(g_down.weight, g_down.bias))


class BlockGradients(NamedTuple):
    """Gradients of `pre_norm_block`: x has the shape of x, the rest the shapes of the block's arrays."""

    x: Array
    block: Block


def pre_norm_block_gradient(
    grad: Array, x: Array, block: Block, heads: int, eps: float = 1e-5, mask: Array | None = None
) -> BlockGradients:
    """Backward of GPT-2's block: each sum passes its gradient to x unchanged, and to the sublayer that was added.

        y = x + attention(LayerNorm(x)),   z = y + feed_forward(LayerNorm(y))
        g_y = g_z + back through the feed-forward,   g_x = g_y + back through attention

    grad and x (batch, seq, dim) -> x (batch, seq, dim), and a `Block` of gradients. The first terms reach the first
    block without a factor, however many blocks there are.

    >>> silent, norm = Linear(np.zeros((2, 2)), np.zeros(2)), Affine(np.ones(2), np.zeros(2))
    >>> block = Block(silent, silent, silent, silent, norm, silent, silent, norm)
    >>> pre_norm_block_gradient(np.array([[[7.0, 3.0]]]), np.array([[[1.0, 5.0]]]), block, heads=1).x
    array([[[7., 3.]]])
    """
    normed_1 = layer_norm(x, *block.norm_1, eps)
    y = x + self_attention(normed_1, block, heads, mask)
    work = feed_forward_gradient(grad, layer_norm(y, *block.norm_2, eps), block.up, block.down)
    norm_2 = layer_norm_gradient(work.x, y, block.norm_2.weight, eps)
    g_y = grad + norm_2.x
    look = self_attention_gradient(g_y, normed_1, block, heads, mask)
    norm_1 = layer_norm_gradient(look.x, x, block.norm_1.weight, eps)
    own = Block(
        query=look.query, key=look.key, value=look.value, output=look.output, up=work.up, down=work.down,
        norm_1=Affine(norm_1.weight, norm_1.bias), norm_2=Affine(norm_2.weight, norm_2.bias),
    )  # fmt: skip
    return BlockGradients(g_y + norm_1.x, own)
