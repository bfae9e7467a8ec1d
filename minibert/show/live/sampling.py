"""The next word by temperature, top-k and top-p, with the words that stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array
from minibert.equations.sampling import drawn, next_word_probabilities

SHOWN = 12  # words


def sampled(
    logits: Array, temperature: float, k: int, p: float, seed: int, name: Callable[[int], str]
) -> dict[str, Any]:
    """Give the likeliest words with their probabilities before and after, and one drawn at random by `seed`.

    logits (vocab,). k 0 leaves top-k out, temperature 0 takes the likeliest. Raises ValueError for other settings than
    those of `next_word_probabilities`.
    """
    logits = logits.astype(np.float64)
    plain = softmax(logits)
    if temperature == 0:
        after = np.eye(1, len(logits), int(logits.argmax()))[0]
    else:
        after = next_word_probabilities(logits, temperature, k or None, p)
    word = drawn(after, np.random.default_rng(seed).random())
    shown = np.argsort(-logits, kind="stable")[:SHOWN].tolist()
    return {
        "words": [[name(i), float(plain[i]), float(after[i])] for i in shown],
        "kept": int(np.count_nonzero(after)),
        "sampled": [name(word), float(after[word])],
        "id": word,
    }
