"""Heads follow the last block: a number for each word or class (logits), how good a prediction was, the next word.

Read `blocks` first. `softmax` there turns logits into probabilities if one answer of several is right; if each label is
a question by itself, `sigmoid` of `activations` does.

The last four functions draw the next word instead of always taking the likeliest. Temperature makes likely words
likelier or less likely, top-k and top-p leave the unlikely words out, and one random number then chooses. The order of
these steps is that of transformers' `generate`.

Sources
    Press, Wolf 2016, "Using the Output Embedding to Improve Language Models" (arXiv:1608.05859): the word table again
    Devlin et al. 2018, "BERT" (arXiv:1810.04805): tanh pooling of the first token
    Ackley, Hinton, Sejnowski 1985, "A Learning Algorithm for Boltzmann Machines": temperature
    Fan, Lewis, Dauphin 2018, "Hierarchical Neural Story Generation" (arXiv:1805.04833): top-k
    Holtzman et al. 2019, "The Curious Case of Neural Text Degeneration" (arXiv:1904.09751): top-p
"""

from __future__ import annotations

import numpy as np

from .activations import tanh
from .blocks import linear, softmax
from .fast import check_ids
from .input_layer import Array


def tied_logits(x: Array, table: Array, bias: Array | None = None) -> Array:
    """Compare each vector with every row of the word table: `logits = x @ table^T + bias`.

    x (..., dim), table (vocab, dim), bias (vocab,) -> (..., vocab). The table that gave each id its row is used again:
    a logit is large if the vector and that word's row point the same way. Most models store the table once.

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
    """Compute the logarithm of each probability: `y[i] = x[i] - log(sum_j exp(x[j]))`.

    x (..., n) -> (..., n), all <= 0. `log(softmax(x))` would be minus infinity for a probability that is too small for
    the format. The largest x is subtracted first, so that exp cannot overflow.

    >>> np.exp(log_softmax(np.log([[1.0, 3.0]])))
    array([[0.25, 0.75]])
    """
    y = x - x.max(axis=-1, keepdims=True)
    return np.asarray(y - np.log(np.exp(y).sum(axis=-1, keepdims=True)))


def cross_entropy(logits: Array, targets: Array) -> Array:
    """Compute how surprising the right answer was: `y = -log(p[target])`, p = softmax(logits).

    logits (..., n), targets (...) of integers from 0 to n - 1 -> (...). The result is 0 if the model was sure of the
    answer, and log(n) if it had no idea. The mean of these numbers is a model's loss; exp of the loss is its
    perplexity. Raises as `check_ids`: a target of -1 or -100 is not skipped.

    >>> cross_entropy(np.log([[1.0, 3.0]]), np.array([0])).round(4)  # log(4)
    array([1.3863])
    """
    targets = check_ids(targets, logits.shape[-1], "targets")
    return np.asarray(-np.take_along_axis(log_softmax(logits), targets[..., None], axis=-1)[..., 0])


def top_k(logits: Array, k: int) -> Array:
    """Leave out all but the k likeliest words: `y[i] = x[i] if x[i] >= the k-th largest, else -infinity`.

    logits (..., vocab) -> the same; softmax turns minus infinity into a probability of 0. All words as likely as the
    k-th stay. A k above the number of words changes nothing. Raises ValueError for k below 1. Source: Fan et al. 2018.

    >>> top_k(np.array([1.0, 4.0, 3.0, 2.0]), k=2)
    array([-inf,   4.,   3., -inf])
    """
    if k < 1:
        raise ValueError(f"k must be an integer >= 1, found {k}; one word must stay")
    k = min(k, logits.shape[-1])
    smallest = np.partition(logits, -k, axis=-1)[..., -k, None]
    return np.where(logits >= smallest, logits, -np.inf)


def top_p(logits: Array, p: float) -> Array:
    """Leave out the unlikely words: the likeliest stay until their probabilities add up to p (nucleus sampling).

        y[i] = x[i] if the probabilities of all likelier words add up to less than p, else -infinity

    logits (..., vocab) -> the same. How many words stay depends on how sure the model is; the likeliest always stays.
    At p = 1 all stay. Raises ValueError for a p that is not above 0 and at most 1. Source: Holtzman et al. 2019.

    >>> top_p(np.log([0.1, 0.6, 0.3]), p=0.8).round(2)  # 0.6 is not enough, 0.6 + 0.3 is
    array([ -inf, -0.51, -1.2 ])
    """
    if not 0 < p <= 1:
        raise ValueError(f"p must be above 0 and at most 1, found {p}; it is a share of the probability")
    order = np.argsort(-logits, axis=-1, kind="stable")
    falling = np.take_along_axis(softmax(logits), order, axis=-1)
    likelier = np.cumsum(falling, axis=-1) - falling  # the sum over all likelier words
    y = np.empty_like(logits)
    kept = np.where((likelier < p) | (p == 1), np.take_along_axis(logits, order, axis=-1), -np.inf)
    np.put_along_axis(y, order, kept, axis=-1)
    return y


def next_word_probabilities(
    logits: Array, temperature: float = 1.0, k: int | None = None, p: float | None = None
) -> Array:
    """Compute each word's probability of being drawn: `softmax(top_p(top_k(logits / temperature, k), p))`.

    logits (..., vocab) -> the same. Below temperature 1 the likely words become likelier, towards 0 only the likeliest
    is left; above 1 all words become more alike. Without k or p that step is left out. The largest logit is subtracted
    first, so that a small temperature cannot make all logits infinite. Raises as `top_k` and `top_p`, and ValueError
    for a temperature that is not above 0: at 0 take the likeliest.

    >>> next_word_probabilities(np.log([0.2, 0.4, 0.4]), temperature=0.5).round(3)  # as 1, 4 and 4
    array([0.111, 0.444, 0.444])
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, found {temperature}; at 0 the likeliest word is taken")
    x = (logits - logits.max(axis=-1, keepdims=True)) / temperature
    x = x if k is None else top_k(x, k)
    return softmax(x if p is None else top_p(x, p))


def drawn(probabilities: Array, uniform: float) -> int:
    """Draw a word with a random number from 0 to 1: the first i where `p[0] + ... + p[i] > uniform`.

    probabilities (vocab,) with sum 1 -> an id. Each word is a piece of the line from 0 to 1, as long as the word is
    likely, and the random number falls on one piece: a word of probability 0 has no length and is never drawn.

    >>> [drawn(np.array([0.25, 0.0, 0.75]), u) for u in (0.1, 0.3, 0.9)]
    [0, 2, 2]
    """
    line = np.cumsum(probabilities)
    return int(np.searchsorted(line / line[-1], uniform, side="right"))
