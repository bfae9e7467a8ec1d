"""A GPT-2 learns: the whole model backward, and then a step: its gradients clipped, by Adam or AdamW.

Read `block_gradients` first: `gpt2_model_gradient` calls its functions in the reverse order of `gpt2_model`. Gradients
come in the same tuples as weights. Many models add `dropout` to all this while they learn.

Sources
    Rumelhart, Hinton, Williams 1986, "Learning representations by back-propagating errors"
    Pascanu, Mikolov, Bengio 2012, "On the difficulty of training recurrent neural networks" (arXiv:1211.5063): clipping
    Srivastava et al. 2014, "Dropout: A Simple Way to Prevent Neural Networks from Overfitting"
    Kingma, Ba 2014, "Adam: A Method for Stochastic Optimization" (arXiv:1412.6980)
    Loshchilov, Hutter 2017, "Decoupled Weight Decay Regularization" (arXiv:1711.05101): AdamW
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from block_gradients import linear_gradient, pre_norm_block_gradient
from gradients import gpt2_input_gradient, layer_norm_gradient

from minibert.equations.blocks import Affine, Block, additive_mask, pre_norm_block
from minibert.equations.input_layer import Array, gpt2_input, layer_norm
from minibert.equations.whole_models import Gpt2Weights


def gpt2_model_gradient(
    grad: Array, input_ids: Array, weights: Gpt2Weights, heads: int, eps: float = 1e-5
) -> Gpt2Weights:
    """Backward of the whole `gpt2_model`, from the logits to the tables: a gradient for every array of the weights.

    grad (batch, seq, vocab), input_ids (batch, seq) -> `Gpt2Weights` of gradients. The word table is used twice, for
    the lookup and for the logits, so its gradient is a sum: the logits contribute to every row, the lookup to each row
    that was looked up. No token sees later tokens, so padding at the end changes nothing before it: set grad to 0 at
    its positions. Only the blocks' inputs are kept from the forward pass.

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
    entered = []  # each block's input
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


def dropout(x: Array, keep: Array, rate: float) -> Array:
    """Set numbers to 0 at random while a model learns: `y = x / (1 - rate) if keep, else 0`.

    x and keep of any one shape -> the same; keep is True with probability 1 - rate, drawn anew in each step:
    `random.random(x.shape) >= rate`. The division preserves the mean, so a trained model leaves nothing out and needs
    no other factor. Backward is the same formula, applied to the gradient. BERT and GPT-2 use rate 0.1 after their
    input layer, on attention's probabilities and on the output of each sublayer.

    Raises ValueError for a rate outside 0 <= rate < 1. Source: Srivastava et al. 2014.

    >>> dropout(np.array([1.0, 2.0, 3.0]), np.array([True, False, True]), rate=0.5)
    array([2., 0., 6.])
    """
    if not 0 <= rate < 1:
        raise ValueError(f"rate must be at least 0 and below 1, found {rate}; it is the share that is left out")
    return np.asarray(x * keep / x.dtype.type(1 - rate))


def clipped_gradients(gradients: Sequence[Array], longest: float) -> list[Array]:
    """Shorten all gradients of a step by one factor if they are too long: `g = g * min(1, longest / length)`.

        length = sqrt(sum of the squares of all numbers of all gradients)

    Arrays of any shapes -> the same shapes. The direction of the step stays the same; a single odd batch cannot move
    the weights far. torch divides by length + 1e-6.

    Raises ValueError for a `longest` that is not above 0. Source: Pascanu et al. 2012.

    >>> clipped_gradients([np.array([3.0]), np.array([[4.0]])], longest=1.0)  # together they are 5 long
    [array([0.6]), array([[0.8]])]
    """
    if not longest > 0:
        raise ValueError(f"longest must be above 0, found {longest}; it is the length that all gradients have at most")
    length = np.sqrt(sum(float(np.sum(g * g)) for g in gradients))
    factor = 1.0 if length <= longest else float(longest / length)
    return [g * g.dtype.type(factor) for g in gradients]


class AdamStep(NamedTuple):
    """The result of `adam` and `adamw`: the weights after the step, and the two averages for the next step."""

    weight: Array
    mean: Array
    square: Array


def adam(
    weight: Array, grad: Array, mean: Array, square: Array, step: int, rate: float,
    beta_1: float = 0.9, beta_2: float = 0.999, eps: float = 1e-8,
) -> AdamStep:  # fmt: skip
    """Compute one step against the gradient, larger for a weight whose past gradients agree.

        mean = beta_1 mean + (1 - beta_1) grad,   square = beta_2 square + (1 - beta_2) grad^2
        weight = weight - rate * (mean / (1 - beta_1^step)) / (sqrt(square / (1 - beta_2^step)) + eps)

    Arrays of any one shape -> three of it; `mean` and `square` are zeros before step 1. Both averages begin too small;
    the divisions by `1 - beta^step` correct this. If all gradients were equal, a weight moves by `rate`, whatever their
    size; if their signs differ, it hardly moves. Raises ValueError for a step below 1. Source: Kingma, Ba 2014.

    >>> adam(np.array([5.0, 5.0]), np.array([100.0, -0.01]), np.zeros(2), np.zeros(2), step=1, rate=0.5).weight.round(3)
    array([4.5, 5.5])
    """
    if step < 1:
        raise ValueError(f"step must be an integer >= 1, found {step}; the first step is 1")
    mean = beta_1 * mean + (1 - beta_1) * grad
    square = beta_2 * square + (1 - beta_2) * grad * grad
    size = np.sqrt(square / (1 - beta_2**step)) + eps
    return AdamStep(weight - rate * (mean / (1 - beta_1**step)) / size, mean, square)


def adamw(
    weight: Array, grad: Array, mean: Array, square: Array, step: int, rate: float, decay: float = 0.01,
    beta_1: float = 0.9, beta_2: float = 0.999, eps: float = 1e-8,
) -> AdamStep:  # fmt: skip
    """Compute a step of `adam` from a weight that is first pulled towards 0: `weight = weight - rate * decay * weight`.

    As `adam`. A weight that the data does not need decays to 0 (weight decay). The older method adds decay / 2 *
    weight^2 to the loss; Adam then divides this pull like a gradient, so it is weak if gradients are large. Biases and
    norms often get decay 0. Raises as `adam`. Source: Loshchilov, Hutter 2017.

    >>> none = np.zeros(1)
    >>> adamw(np.array([10.0]), none, none, none, step=1, rate=0.5, decay=0.1).weight
    array([9.5])
    """
    return adam(weight - rate * decay * weight, grad, mean, square, step, rate, beta_1, beta_2, eps)
