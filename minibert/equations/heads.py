"""Heads follow the last block: a number for each word or class (logits), and how good a prediction was.

Read `blocks` first. `softmax` there turns logits into probabilities where one answer of several is right, `sigmoid` of
`activations` where each label is a question of its own.

Sources
    Press, Wolf 2016, "Using the Output Embedding to Improve Language Models" (arXiv:1608.05859): the word table again
    Devlin et al. 2018, "BERT" (arXiv:1810.04805): tanh pooling of the first token
"""

from __future__ import annotations

import numpy as np

from .activations import tanh
from .blocks import linear
from .fast import check_ids
from .input_layer import Array


def tied_logits(x: Array, table: Array, bias: Array | None = None) -> Array:
    """Compare each vector with every row of the word table: `logits = x @ table^T + bias`.

    x (..., dim), table (vocab, dim), bias (vocab,) -> (..., vocab). The table that gave each id its row is used again:
    a logit is large where the vector points the same way as that word's row. Most models store it once.

    >>> tied_logits(np.array([[1.0, 2.0]]), table=np.array([[1.0, 0.0], [0.0, 1.0], [3.0, 3.0]]))
    array([[1., 2., 9.]])
    """
    return linear(x, table, bias)


def tanh_pooling(x: Array, weight: Array, bias: Array) -> Array:
    """Turn a text's first token into one vector: `y = tanh(x[0] @ weight^T + b)`, each number between -1 and 1.

    x (..., seq, dim), weight (dim, dim), bias (dim,) -> (..., dim). BERT's pooler. Text classifiers use this vector.

    >>> tanh_pooling(np.array([[0.0, 1.0], [7.0, 7.0]]), weight=np.eye(2), bias=np.zeros(2)).round(4)
    array([0.    , 0.7616])
    """
    return tanh(linear(x[..., 0, :], weight, bias))


def log_softmax(x: Array) -> Array:
    """Give the logarithm of each probability: `y[i] = x[i] - log(sum_j exp(x[j]))`.

    x (..., n) -> (..., n), all <= 0. `log(softmax(x))` would be minus infinity where a probability is too small for
    the format. The largest x is subtracted first, so that exp cannot overflow.

    >>> np.exp(log_softmax(np.log([[1.0, 3.0]])))
    array([[0.25, 0.75]])
    """
    y = x - x.max(axis=-1, keepdims=True)
    return np.asarray(y - np.log(np.exp(y).sum(axis=-1, keepdims=True)))


def cross_entropy(logits: Array, targets: Array) -> Array:
    """Say how surprising the right answer was: `y = -log(p[target])`, p = softmax(logits).

    logits (..., n), targets (...) of integers from 0 to n - 1 -> (...). 0 where the model was sure of it, log(n) where
    it had no idea; a model's loss is the mean, and exp of that its perplexity. Raises
    as `check_ids`: a target of -1 or -100 is not passed over.

    >>> cross_entropy(np.log([[1.0, 3.0]]), np.array([0])).round(4)  # log(4)
    array([1.3863])
    """
    targets = check_ids(targets, logits.shape[-1], "targets")
    return np.asarray(-np.take_along_axis(log_softmax(logits), targets[..., None], axis=-1)[..., 0])
