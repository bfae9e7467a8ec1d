"""The second part of the page of `minibert explain --html`: what the blocks after the input layer do with a text.

`page_blocks.html` and `page_blocks.js` are its template and its script. The attention weights are those of the trace,
to the bit: 4 bytes for each head and each pair of tokens, times 4/3 for base64. So the page grows with the square of
the number of tokens, and `page_parts.check_size` refuses a text that is too long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from minibert.equations import attention_positions, blocks, gated_blocks, input_layer
from minibert.equations.input_layer import Array
from minibert.equations.similarity import cosine_similarity

from .blocks import functions
from .page_parts import as_json, filled, listed, packed

if TYPE_CHECKING:
    from minibert.models.encoder import Encoder

NEAREST = 5  # most similar tokens that are listed


def part(encoder: Encoder, trace: dict[str, Array], listed_before: set[Any]) -> dict[str, str]:
    """What the second part adds to the template: its elements ("blocks") and its script.

    `trace` is of one text that has tokens; `listed_before` are the formulas of the first part.
    """
    stack = encoder.stack
    data = {
        "blocks": len(stack.blocks),
        "heads": stack.heads,
        "attention": packed(np.stack([trace[f"attentions.{i}"][0] for i in range(len(stack.blocks))])),
        "moves": moves(encoder, trace),
    }
    last = stack.blocks[-1].parts[-1]
    norm = type(stack.blocks[-1].modules[last.before or last.after]).__name__
    order = (
        f"Both add to the vector. {norm} is applied to what enters them, so the vector itself can grow."
        if stack.pre_norm
        else f"{norm} follows each sum, so the vector does not grow from block to block."
    )
    used = functions(encoder, trace) - listed_before
    elements = filled(
        "page_blocks.html",
        order=order,
        causal=" Here no token sees those after it." * stack.causal,
        formulas=listed(used, input_layer, attention_positions, blocks, gated_blocks),
        data=as_json(data),
    )
    return {"blocks": elements, "script": f"<script>\n{filled('page_blocks.js')}</script>"}


def moves(encoder: Encoder, trace: Mapping[str, Array]) -> list[list[dict[str, Any]]]:
    """How each token's vector changes: one entry for the input layer, then one for each block.

    Sizes are Euclidean lengths; `turn` is the cosine of the vectors before and after the block; `nearest` are the
    positions of the most similar other tokens, most similar first, and `cosines` their cosines.
    """
    states = [trace[f"hidden_states.{i}"][0] for i in range(len(encoder.stack.blocks) + 1)]
    told = []
    for i, state in enumerate(states):
        cosines = cosine_similarity(state)
        size = _sizes(state)
        entry: list[dict[str, Any]] = []
        for place, row in enumerate(cosines):
            order = [other for other in np.argsort(-row, kind="stable").tolist() if other != place][:NEAREST]
            entry.append({"size": size[place], "nearest": order, "cosines": row[order].tolist()})
        if i:
            block = encoder.stack.blocks[i - 1]
            more = {
                name: _sizes(trace[part.within or part.work.output][0])
                for name, part in zip(("attention", "feed_forward"), block.parts, strict=True)
            } | {
                "turn": np.diagonal(cosine_similarity(states[i - 1], state)).tolist(),
            }
            for place, line in enumerate(entry):
                line |= {name: numbers[place] for name, numbers in more.items()}
        told.append(entry)
    return told


def _sizes(rows: Array) -> list[float]:
    lengths: list[float] = np.linalg.norm(rows.astype(np.float64), axis=-1).tolist()
    return lengths
