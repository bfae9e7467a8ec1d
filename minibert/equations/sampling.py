"""Sampling: draw the next word instead of always taking the likeliest.

Read `heads` first. Temperature makes the likely words likelier or less so, top-k and top-p leave the unlikely ones out,
and one random number then chooses. The order is that of transformers' `generate`.

Sources
    Ackley, Hinton, Sejnowski 1985, "A Learning Algorithm for Boltzmann Machines": temperature
    Fan, Lewis, Dauphin 2018, "Hierarchical Neural Story Generation" (arXiv:1805.04833): top-k
    Holtzman et al. 2019, "The Curious Case of Neural Text Degeneration" (arXiv:1904.09751): top-p
"""

from __future__ import annotations

import numpy as np

from .blocks import softmax
from .input_layer import Array


def top_k(logits: Array, k: int) -> Array:
    """Leave out all but the k likeliest words: `y[i] = x[i] where x[i] >= the k-th largest, else -infinity`.

    logits (..., vocab) -> the same; softmax turns minus infinity into a probability of 0. Words as likely as the k-th
    all stay. A k above the number of words changes nothing. Raises ValueError for a k below 1. Source: Fan et al. 2018.

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

        y[i] = x[i] where the probabilities of all likelier words add up to less than p, else -infinity

    logits (..., vocab) -> the same. How many words stay depends on how sure the model is; the likeliest always does. At
    p = 1 all stay. Raises ValueError for a p that is not above 0 and at most 1. Source: Holtzman et al. 2019.

    >>> top_p(np.log([0.1, 0.6, 0.3]), p=0.8).round(2)  # 0.6 is not enough, 0.6 + 0.3 is
    array([ -inf, -0.51, -1.2 ])
    """
    if not 0 < p <= 1:
        raise ValueError(f"p must be above 0 and at most 1, found {p}; it is a share of the probability")
    order = np.argsort(-logits, axis=-1, kind="stable")
    falling = np.take_along_axis(softmax(logits), order, axis=-1)
    likelier = np.cumsum(falling, axis=-1) - falling  # what the likelier words add up to
    y = np.empty_like(logits)
    kept = np.where((likelier < p) | (p == 1), np.take_along_axis(logits, order, axis=-1), -np.inf)
    np.put_along_axis(y, order, kept, axis=-1)
    return y


def next_word_probabilities(
    logits: Array, temperature: float = 1.0, k: int | None = None, p: float | None = None
) -> Array:
    """Give each word the probability to be drawn: `softmax(top_p(top_k(logits / temperature, k), p))`.

    logits (..., vocab) -> the same. Below temperature 1 the likely words become likelier, towards 0 the likeliest alone
    is left; above 1 all become more alike. Without k or p that step is left out. The largest logit is subtracted first,
    so that a small temperature cannot make all of them infinite. Raises as `top_k` and `top_p`, and ValueError for a
    temperature that is not above 0: at 0 take the likeliest.

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

    probabilities (vocab,) with sum 1 -> an id. Each word takes as much of the line from 0 to 1 as it is likely, and the
    random number falls on one of them: a word of probability 0 takes nothing, and never comes.

    >>> [drawn(np.array([0.25, 0.0, 0.75]), u) for u in (0.1, 0.3, 0.9)]
    [0, 2, 2]
    """
    line = np.cumsum(probabilities)
    return int(np.searchsorted(line / line[-1], uniform, side="right"))
