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

from .block_gradients import linear_gradient, pre_norm_block_gradient
from .blocks import Affine, Block, additive_mask, pre_norm_block
from .gradients import gpt2_input_gradient, layer_norm_gradient
from .input_layer import Array, gpt2_input, layer_norm
from .whole_models import Gpt2Weights


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
