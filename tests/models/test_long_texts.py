"""Texts of thousands of tokens: the whole's result, in memory that grows with the length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from encoder_files import CASE
from peaks import peak

from minibert.equations.fast import attention_scores
from minibert.equations.input_layer import Array
from minibert.models.run import blocks

GROWTH = 2.2  # memory of twice the tokens; measured 1.9 to 2.0
NAMES = ("llama", "mistral", "modernbert", "nomic_bert", "gemma3_text")


def ids(length: int) -> Array:
    return np.arange(length)[None] % 20 + 5


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_twice_the_tokens_take_twice_the_memory(name: str) -> None:
    """All scores of one head of 8,192 tokens would be 268 MB, four times those of 4,096."""
    with CASE[name].load(threads=1) as encoder:
        encoder(ids(4))
        half, whole = (peak(lambda n=n: encoder(ids(n))) for n in (4096, 8192))
    assert whole < GROWTH * half, (half, whole)
    assert whole < 24e6, whole


@pytest.mark.parametrize("name", NAMES)
def test_no_score_is_computed_beyond_a_window_nor_after_a_token(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece of queries takes the keys that its mask can let through, and no more."""
    length, counted = 2048, list[int]()

    def counting(q: Array, k: Array, *others: Any) -> Array:
        counted.append(q.shape[-3] * q.shape[-2] * k.shape[-2])
        return attention_scores(q, k, *others)

    monkeypatch.setattr(blocks, "attention_scores", counting)
    with CASE[name].load(threads=1) as encoder:
        encoder(ids(length))
        stack = encoder.stack
    most = 0
    for block in stack.blocks:
        window, sides = block.attention.window, 1 if stack.causal else 2
        for first in range(0, length, blocks.QUERIES):
            keys = first + blocks.QUERIES if stack.causal else length
            keys = keys if window is None else min(keys, blocks.QUERIES + sides * window)
            most += stack.heads * blocks.QUERIES * keys
    assert 0 < sum(counted) <= most
