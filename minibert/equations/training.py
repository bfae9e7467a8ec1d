"""A GPT-2 learns: its parts backward, the whole model backward, and the step that Adam takes then.

Read `gradients` first: each function here calls those in the reverse order of its twin in `blocks` and `whole_models`.
Gradients come in the same tuples as weights: a `Block` of gradients, a `Gpt2Weights` of gradients.

Sources
    Rumelhart, Hinton, Williams 1986, "Learning representations by back-propagating errors"
    Kingma, Ba 2014, "Adam: A Method for Stochastic Optimization" (arXiv:1412.6980)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .blocks import (
    Affine,
    Block,
    additive_mask,
    attention,
    gelu_tanh,
    join_heads,
    linear,
    pre_norm_block,
    self_attention,
    split_heads,
)
from .gradients import (
    attention_gradient,
    gelu_tanh_gradient,
    gpt2_input_gradient,
    layer_norm_gradient,
    linear_gradient,
)
from .input_layer import Array, gpt2_input, layer_norm
from .whole_models import Gpt2Weights


class SelfAttentionGradients(NamedTuple):
    """Gradients of `self_attention`: x has the shape of x, the four maps those of the block."""

    x: Array
    query: Affine
    key: Affine
    value: Affine
    output: Affine


def self_attention_gradient(
    grad: Array, x: Array, block: Block, heads: int, mask: Array | None = None
) -> SelfAttentionGradients:
    """Backward of `self_attention`: x was used three times, so its gradient is a sum of three.

        g_x = g_q @ W_q + g_k @ W_k + g_v @ W_v

    grad and x (batch, seq, dim), mask (batch, 1, query, key) -> x (batch, seq, dim), and one `Affine` for each map.

    >>> one = Affine(np.eye(1), np.zeros(1))
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
    query, key, value = (Affine(g.weight, g.bias) for g in maps)
    return SelfAttentionGradients(
        maps[0].x + maps[1].x + maps[2].x, query, key, value, Affine(output.weight, output.bias)
    )


class FeedForwardGradients(NamedTuple):
    """Gradients of `feed_forward`: x has the shape of x, the two maps those of the block."""

    x: Array
    up: Affine
    down: Affine


def feed_forward_gradient(grad: Array, x: Array, up: Affine, down: Affine) -> FeedForwardGradients:
    """Backward of `feed_forward` with GPT-2's gelu: down, the activation, up.

    grad and x (..., dim) -> x (..., dim), and one `Affine` for each map.

    >>> up, down = Affine(np.array([[1.0]]), np.zeros(1)), Affine(np.array([[4.0]]), np.zeros(1))
    >>> g = feed_forward_gradient(np.array([[1.0]]), np.array([[0.0]]), up, down)
    >>> g.x, g.down.bias  # gelu' is 1/2 at 0
    (array([[2.]]), array([1.]))
    """
    inner = linear(x, *up)
    g_down = linear_gradient(grad, gelu_tanh(inner), down.weight)
    g_up = linear_gradient(gelu_tanh_gradient(g_down.x, inner), x, up.weight)
    return FeedForwardGradients(g_up.x, Affine(g_up.weight, g_up.bias), Affine(g_down.weight, g_down.bias))


class BlockGradients(NamedTuple):
    """Gradients of `pre_norm_block`: x has the shape of x, the others are those of the block's arrays."""

    x: Array
    block: Block


def pre_norm_block_gradient(
    grad: Array, x: Array, block: Block, heads: int, eps: float = 1e-5, mask: Array | None = None
) -> BlockGradients:
    """Backward of GPT-2's block: what is added to x hands the gradient on unchanged, and adds one of its own.

        y = x + attention(LayerNorm(x)),   z = y + feed_forward(LayerNorm(y))
        g_y = g_z + back through the feed-forward,   g_x = g_y + back through attention

    grad and x (batch, seq, dim) -> x (batch, seq, dim), and a `Block` of gradients. The first terms reach the first
    block without a factor, however many blocks there are.

    >>> silent, norm = Affine(np.zeros((2, 2)), np.zeros(2)), Affine(np.ones(2), np.zeros(2))
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


def gpt2_model_gradient(
    grad: Array, input_ids: Array, weights: Gpt2Weights, heads: int, eps: float = 1e-5
) -> Gpt2Weights:
    """Backward of the whole `gpt2_model`, from the logits to the tables: a gradient for every array of the weights.

    grad (batch, seq, vocab), input_ids (batch, seq) -> `Gpt2Weights` of gradients. The word table is used twice, where
    ids become rows and where rows become logits, so its gradient is a sum: from the logits every row gets one, from the
    lookup each row that was looked up. No token sees those after it, so padding at the end changes nothing before it:
    give its positions grad 0. A block's input is all that is kept of the way forward.

    Raises as `lookup_gradient`.

    >>> table, norm = np.array([[0.0, 1.0], [2.0, 5.0]]), Affine(np.ones(2), np.zeros(2))
    >>> weights = Gpt2Weights(table, np.zeros((1, 2)), [], norm)
    >>> g = gpt2_model_gradient(np.array([[[1.0, 0.0]]]), np.array([[1]]), weights, heads=1, eps=0.0)
    >>> g.wte[0], g.last_norm.bias  # row 0 gets LayerNorm's result, -1 and 1, as logit 0 is its product with row 0
    (array([-1.,  1.]), array([0., 1.]))
    """
    wte, wpe, blocks, last_norm = weights
    x = gpt2_input(input_ids, wte, wpe)
    mask = additive_mask(np.tri(x.shape[1], dtype=bool), x.dtype)
    entered = []  # what entered each block
    for block in blocks:
        entered.append(x)
        x = pre_norm_block(x, block, heads, eps, mask=mask)
    logits = linear_gradient(grad, layer_norm(x, *last_norm, eps), wte)
    norm = layer_norm_gradient(logits.x, x, last_norm.weight, eps)
    g_x = norm.x
    g_blocks: list[Block] = []
    for block, before in zip(reversed(blocks), reversed(entered), strict=True):
        g_x, g_block = pre_norm_block_gradient(g_x, before, block, heads, eps, mask)
        g_blocks.insert(0, g_block)
    rows = gpt2_input_gradient(g_x, input_ids, wte, wpe)
    return Gpt2Weights(rows.wte + logits.weight, rows.wpe, g_blocks, Affine(norm.weight, norm.bias))


class AdamStep(NamedTuple):
    """What `adam` gives: the weights after the step, and the two averages that the next step needs."""

    weight: Array
    mean: Array
    square: Array


def adam(
    weight: Array, grad: Array, mean: Array, square: Array, step: int, rate: float,
    beta_1: float = 0.9, beta_2: float = 0.999, eps: float = 1e-8,
) -> AdamStep:  # fmt: skip
    """Take one step against the gradient, larger for a weight whose past gradients agree.

        mean = beta_1 mean + (1 - beta_1) grad,   square = beta_2 square + (1 - beta_2) grad^2
        weight = weight - rate * (mean / (1 - beta_1^step)) / (sqrt(square / (1 - beta_2^step)) + eps)

    Arrays of any one shape -> three of it; `mean` and `square` are zeros before step 1. Both begin too small, which the
    divisions by `1 - beta^step` make good. Where all gradients were equal a weight moves by `rate`, whatever their
    size; where they point both ways it hardly moves. Raises ValueError for a step below 1. Source: Kingma, Ba 2014.

    >>> adam(np.array([5.0, 5.0]), np.array([100.0, -0.01]), np.zeros(2), np.zeros(2), step=1, rate=0.5).weight.round(3)
    array([4.5, 5.5])
    """
    if step < 1:
        raise ValueError(f"step must be an integer >= 1, found {step}; the first step is 1")
    mean = beta_1 * mean + (1 - beta_1) * grad
    square = beta_2 * square + (1 - beta_2) * grad * grad
    size = np.sqrt(square / (1 - beta_2**step)) + eps
    return AdamStep(weight - rate * (mean / (1 - beta_1**step)) / size, mean, square)
