"""The second part of the page of `minibert explain --html`: what the blocks after the input layer do with a text.

`page_blocks.html` and `page_blocks.js` are its template and its script. The attention weights are those of the trace,
to the bit: 4 bytes for each head and each pair of tokens, times 4/3 for base64. So the page grows with the square of
the number of tokens, and `page_parts.check_size` refuses a text that is too long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from minibert.equations import attention_positions as positions
from minibert.equations import blocks as equations
from minibert.equations import gated_blocks
from minibert.equations.input_layer import Array
from minibert.equations.similarity import cosine_similarity
from minibert.families.block_parts import RMSNorm

from .page_parts import as_json, filled, listed, packed

if TYPE_CHECKING:
    from minibert.models.blocks import Stack
    from minibert.models.encoder import Encoder

NEAREST = 5  # most similar tokens that are listed


def part(encoder: Encoder, trace: Mapping[str, Array]) -> dict[str, str]:
    """What the second part adds to the template: its elements ("blocks") and its script.

    `trace` is of one text that has tokens.
    """
    stack = encoder.stack
    data = {
        "blocks": len(stack.blocks),
        "heads": stack.heads,
        "attention": packed(np.stack([trace[f"attentions.{i}"][0] for i in range(len(stack.blocks))])),
        "moves": moves(encoder, trace),
    }
    used = _formulas(stack)
    norm = "RMSNorm" if equations.rms_norm in used else "LayerNorm"
    order = (
        f"Both add to the vector. {norm} is applied to what enters them, so the vector itself can grow."
        if stack.pre_norm
        else f"{norm} follows each sum, so the vector does not grow from block to block."
    )
    elements = filled(
        "page_blocks.html",
        order=order,
        causal=" Here no token sees those after it." * stack.causal,
        formulas="\n".join(
            filter(
                None,
                (
                    listed(module, {f for f in used if f.__module__ == module.__name__})
                    for module in (positions, equations, gated_blocks)
                ),
            )
        ),
        data=as_json(data),
    )
    return {"blocks": elements, "script": f"<script>\n{filled('page_blocks.js')}</script>"}


def _formulas(stack: Stack) -> set[Any]:
    """The functions of the equations that these blocks are made of."""
    own, feed = stack.blocks[0].attention, stack.blocks[0].feed_forward
    used: set[Any] = {
        equations.linear, equations.softmax, equations.split_heads, equations.join_heads, equations.additive_mask,
        equations.attention_scores, equations.attention, *(block.feed_forward.activate for block in stack.blocks),
        gated_blocks.gated_feed_forward if feed.gate else equations.feed_forward,
    }  # fmt: skip
    used |= {positions.rotate, gated_blocks.rotary_attention} if own.rotated else {equations.self_attention}
    if any(isinstance(module, RMSNorm) for block in stack.blocks for module in block.modules.values()):
        used.add(equations.rms_norm)
    elif not own.rotated:
        used.add(equations.pre_norm_block if stack.pre_norm else equations.post_norm_block)
    if any(block.attention.reach is not None for block in stack.blocks):
        used.add(equations.visible)
    return used | ({gated_blocks.share_heads} if own.key_heads < own.heads else set())


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
