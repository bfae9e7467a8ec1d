"""The input layer backward (backpropagation): how a loss changes when a table, a weight or an input changes.

Read it beside `input_layer`; the functions are in the same order, from the leaves to the root. Each function's argument
`grad` is the gradient of the loss with respect to the formula's result (same shape as that result); the function
returns the gradients with respect to the formula's inputs. Nothing is recorded forward: if a formula needs a number of
the forward pass, it computes that number again. Two formulas have no function here: backward of `scale` is the same
factor again, and backward of `project` is `linear_gradient` of `block_gradients`, which continues with the blocks;
`model_gradients` continues with a whole GPT-2.

Everything is the chain rule: if a result depends on x in several places, the gradients from all places are added.

Sources
    Rumelhart, Hinton, Williams 1986, "Learning representations by back-propagating errors"
    Ba, Kiros, Hinton 2016, "Layer Normalization" (arXiv:1607.06450)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from minibert.equations.fast import check_ids
from minibert.equations.input_layer import Array, default_position_ids, gpt2_input, lookup


def lookup_gradient(grad: Array, ids: Array, rows: int, padding_idx: int | None = None) -> Array:
    """Backward of `lookup`: add each gradient to the row it came from: `g[ids[i]] += grad[i]`.

    grad (..., dim), ids (...) -> (rows, dim). A row that was looked up twice receives the sum of both gradients, a row
    that was not looked up zero. Row `padding_idx` receives zero even if it was looked up; a negative `padding_idx`
    counts from the end, as in `torch.nn.Embedding`. The forward formula has no such rule. This is only the gradient of
    the lookup: if an output layer uses the same table, every row receives a second gradient from there.

    Raises the errors of `check_ids`, and ValueError if grad and ids disagree in shape or padding_idx is not a row.

    >>> lookup_gradient(np.array([[1.0], [2.0], [4.0]]), np.array([2, 0, 2]), rows=4)
    array([[2.],
           [0.],
           [5.],
           [0.]])
    """
    ids = check_ids(ids, rows)
    if grad.shape[:-1] != ids.shape:
        raise ValueError(f"grad must have shape {(*ids.shape, 'dim')}, one row for each id; found {grad.shape}")
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise ValueError(f"padding_idx is {padding_idx}, but the table has rows 0..{rows - 1}; use None for no padding")
    table = np.zeros((rows, grad.shape[-1]), grad.dtype)
    # `table[ids] += grad` would keep only the last gradient of a row that occurs twice
    np.add.at(table, ids, grad)
    if padding_idx is not None:
        table[padding_idx] = 0
    return table


class NormGradients(NamedTuple):
    """Gradients of `layer_norm`: x has the shape of x; weight and bias are (dim,)."""

    x: Array
    weight: Array
    bias: Array


def layer_norm_gradient(grad: Array, x: Array, weight: Array, eps: float = 1e-12) -> NormGradients:
    """Backward of `layer_norm`, whose mean and variance depend on x as well.

        n = (x - mean) / s,   s = sqrt(variance + eps),   h = grad * weight
        g_x = (h - mean(h) - n * mean(h * n)) / s
        g_weight = sum(grad * n),   g_bias = sum(grad)

    grad and x (..., dim), weight (dim,) -> x (..., dim), weight (dim,), bias (dim,). The means run over one row, the
    sums over all rows. The two subtracted terms remove the directions that LayerNorm ignores: every row of g_x sums to
    zero (a shift of x changes nothing) and is at a right angle to n (stretching x changes nothing, up to eps). The bias
    itself is not needed; for a norm without a bias, ignore its gradient. Source: Ba, Kiros, Hinton 2016, by the chain
    rule.

    >>> x, ones = np.array([[1.0, 3.0, 2.0]]), np.ones(3)
    >>> layer_norm_gradient(np.array([[0.0, 0.0, 3.0]]), x, ones, eps=0.0).x.round(4)
    array([[-1.2247, -1.2247,  2.4495]])
    """
    dim = x.shape[-1]
    centred = x - np.add.reduce(x, axis=-1, keepdims=True) / dim
    deviation = np.sqrt(np.vecdot(centred, centred)[..., None] / dim + eps)
    normed = centred / deviation
    h = grad * weight
    along = np.vecdot(h, normed)[..., None] / dim
    rows = tuple(range(x.ndim - 1))
    return NormGradients(
        x=(h - np.add.reduce(h, axis=-1, keepdims=True) / dim - normed * along) / deviation,
        weight=np.sum(grad * normed, axis=rows),
        bias=np.sum(grad, axis=rows),
    )


class BertGradients(NamedTuple):
    """Gradients of `bert_input`, each with the shape of the array it belongs to."""

    word: Array
    token_type: Array
    position: Array
    weight: Array
    bias: Array


def bert_input_gradient(
    grad: Array,
    input_ids: Array,
    token_type_ids: Array,
    word: Array,
    token_type: Array,
    position: Array,
    weight: Array,
    eps: float = 1e-12,
    padding_idx: int | None = None,
) -> BertGradients:
    """Backward of BERT's whole input layer: through LayerNorm once, then the same gradient to all three tables.

        x = word[input_ids] + token_type[token_type_ids] + position[0..seq-1]
        g = layer_norm_gradient(grad, x).x,   then scatter g by word, by type and by position

    grad (batch, seq, dim), ids (batch, seq) -> one gradient for each table and for weight and bias. A sum passes its
    gradient to every addend unchanged. A position row is used by every text of the batch, so its gradient is the sum
    over the batch. All three tables learn, positions and types too. The reference's word table has padding_idx 0: this
    layer gives the row of [PAD] no gradient, but an output layer that shares the table (BertForMaskedLM) does. Source:
    Devlin et al. 2018, by the chain rule.

    Raises as `lookup_gradient`.

    >>> table, ones, ids = np.array([[0.0, 1.0, 3.0], [2.0, 5.0, 3.0]]), np.ones(3), np.array([[1, 0]])
    >>> g = bert_input_gradient(np.array([[[1.0, 0, 0], [0, 0, 0]]]), ids, ids, table, table, table, ones)
    >>> np.array_equal(g.word[1], g.position[0]), g.word[0], g.bias
    (True, array([0., 0., 0.]), array([1., 0., 0.]))
    """
    position_ids = default_position_ids(input_ids.shape[-1])
    x = lookup(word, input_ids) + lookup(token_type, token_type_ids) + lookup(position, position_ids)
    norm = layer_norm_gradient(grad, x, weight, eps)
    return BertGradients(
        word=lookup_gradient(norm.x, input_ids, len(word), padding_idx),
        token_type=lookup_gradient(norm.x, token_type_ids, len(token_type)),
        position=lookup_gradient(np.sum(norm.x, axis=0, keepdims=True), position_ids, len(position)),
        weight=norm.weight,
        bias=norm.bias,
    )


class GPT2Gradients(NamedTuple):
    """Gradients of `gpt2_input`, each with the shape of the table it belongs to."""

    wte: Array
    wpe: Array


def gpt2_input_gradient(grad: Array, input_ids: Array, wte: Array, wpe: Array) -> GPT2Gradients:
    """Backward of GPT-2's whole input layer: the same gradient, scattered by word and by position.

    grad (batch, seq, dim), input_ids (batch, seq) -> wte (vocab, dim), wpe (positions, dim). A sum is linear, so the
    values of the tables do not matter, only their numbers of rows. GPT-2 has no padding row.

    Raises as `lookup_gradient`.

    >>> g = gpt2_input_gradient(np.array([[[1.0], [2.0]]]), np.array([[1, 1]]), np.zeros((2, 1)), np.zeros((3, 1)))
    >>> g.wte.ravel(), g.wpe.ravel()
    (array([0., 3.]), array([1., 2., 0.]))
    """
    position_ids = default_position_ids(input_ids.shape[-1])
    return GPT2Gradients(
        wte=lookup_gradient(grad, input_ids, len(wte)),
        wpe=lookup_gradient(np.sum(grad, axis=0, keepdims=True), position_ids, len(wpe)),
    )


def learn_word_table(
    target: Array, input_ids: Array, wte: Array, wpe: Array, rate: float = 1.0, steps: int = 300
) -> tuple[Array, list[float]]:
    """Learn GPT-2's word table by plain gradient descent until the output is `target`.

        loss = sum((gpt2_input(ids, wte, wpe) - target)^2) / (2 * tokens),   wte <- wte - rate * g_wte

    target (batch, seq, dim), input_ids (batch, seq) -> the learned word table and the loss before each step. The input
    table is not changed. The error of a word that occurs k times among n tokens shrinks by the factor 1 - rate * k / n
    each step: rate 1 is stable for every batch, frequent words learn first, and a word that does not occur never moves,
    because no output layer uses the table here. If some table reaches the target, the loss falls to the rounding error.

    >>> ids, target = np.array([[1, 1]]), np.array([[[4.0], [6.0]]])
    >>> table, losses = learn_word_table(target, ids, wte=np.zeros((2, 1)), wpe=np.array([[0.0], [2.0]]), steps=2)
    >>> table.ravel(), losses
    (array([0., 4.]), [8.0, 0.0])
    """
    learned, losses = wte.copy(), []
    for _ in range(steps):
        error = gpt2_input(input_ids, learned, wpe) - target
        losses.append(float(np.sum(error * error)) / (2 * input_ids.size))
        learned -= rate * gpt2_input_gradient(error / input_ids.size, input_ids, learned, wpe).wte
    return learned, losses
