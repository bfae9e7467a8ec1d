"""Two texts side by side, on the page of `minibert explain --html --beside`: one word in two contexts.

`page_beside.html` and `page_beside.js` are its template and its script. The attention weights are those of the other
text's trace, to the bit; the cosines are of every token of one text and every token of the other, after each block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.similarity import cosine_similarity
from minibert.show.text.text import visible

from .page_parts import filled_part, packed

if TYPE_CHECKING:
    from minibert.models.encoder import Encoder


def common_token(tokens: Sequence[str], others: Sequence[str], positions: Sequence[int]) -> int | None:
    """Find the position of the longest token that both texts have; None if they share no token."""
    both = [i for i in positions if tokens[i] in others]
    return max(both, key=lambda i: len(tokens[i]), default=None)


def numbers(
    encoder: Encoder, trace: Mapping[str, Array], tokens: Sequence[str], other: Mapping[str, Array]
) -> dict[str, Any]:
    """Give the numbers that the script draws. `trace`: of the page's text; `other`, `tokens`: of the text beside."""
    blocks = len(encoder.stack.blocks)
    states = [f"hidden_states.{i}" for i in range(blocks + 1)]
    cosines = [cosine_similarity(trace[name][0], other[name][0]) for name in states]
    return {
        "tokens": list(tokens),
        "first": min(1, len(tokens) - 1),
        "attention": packed(np.stack([other[f"attentions.{i}"][0] for i in range(blocks)])),
        "cosines": packed(np.stack(cosines).astype(np.float32)),
    }


def part(text: str, data: str) -> dict[str, str]:
    """Give this part of the page: its elements ("beside") and its script; data: its `numbers`, as JSON."""
    return filled_part("beside", text=escape(visible(text)), data=data)
