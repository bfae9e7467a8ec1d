"""The next word by temperature, top-k and top-p, with the words that stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array

SHOWN = 12  # words


def kept(logits: Array, k: int, p: float) -> Array:
    """Which words stay, bool (vocab,): the k largest logits, of them the fewest whose probabilities sum to p or more.

    k 0 keeps all, and so does p 1.
    """
    order = np.argsort(-logits, kind="stable")
    stay = np.zeros(len(logits), bool)
    stay[order[: k or None]] = True
    if p < 1:
        before = np.cumsum(softmax(np.where(stay, logits, -np.inf))[order])
        stay[order[1:][before[:-1] >= p]] = False
    return stay


def sampled(
    logits: Array, temperature: float, k: int, p: float, seed: int, name: Callable[[int], str]
) -> dict[str, Any]:
    """Give the likeliest words with their probabilities before and after, and one chosen at random by `seed`.

    logits (vocab,). Divided by the temperature first; 0 takes the likeliest. Raises ValueError for other settings.
    """
    for what, number, fits in (
        ("temperature", temperature, temperature >= 0),
        ("top-k", k, k >= 0),
        ("top-p", p, 0 < p <= 1),
    ):
        if not fits:
            raise ValueError(f"{what} must be {'in (0, 1]' if what == 'top-p' else 'at least 0'}, found {number!r:.40}")
    logits = logits.astype(np.float64)
    plain = softmax(logits)
    if temperature == 0:
        after = np.eye(1, len(logits), int(logits.argmax()))[0]
    else:
        scaled = (logits - logits.max()) / temperature
        after = softmax(np.where(kept(scaled, k, p), scaled, -np.inf))
    word = int(np.random.default_rng(seed).choice(len(logits), p=after))
    shown = np.argsort(-logits, kind="stable")[:SHOWN].tolist()
    return {
        "words": [[name(i), float(plain[i]), float(after[i])] for i in shown],
        "kept": int(np.count_nonzero(after)),
        "sampled": [name(word), float(after[word])],
        "id": word,
    }
