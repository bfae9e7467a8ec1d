"""The second part of the page of `minibert explain --html`: what the blocks after the input layer do with a text.

`page_blocks.html` and `page_blocks.js` are its template and its script. The attention weights are those of the trace,
to the bit: 4 bytes for each head and each pair of tokens, times 4/3 for base64. So the page grows with the square of
the number of tokens, and `page_parts.check_size` refuses a text that is too long.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from minibert.equations import blocks as equations
from minibert.equations.input_layer import Array
from minibert.equations.similarity import cosine_similarity
from minibert.models.encoder import Encoder

from .page_parts import as_json, docstring, packed

NEAREST = 5  # most similar tokens that are listed


def part(encoder: Encoder, trace: Mapping[str, Array]) -> dict[str, str]:
    """What the second part adds to the template: its style, its elements ("blocks"), its script.

    `trace` is of one text that has tokens.
    """
    stack = encoder.stack
    data = {
        "blocks": len(stack.blocks),
        "heads": stack.heads,
        "attention": packed(np.stack([trace[f"attentions.{i}"][0] for i in range(len(stack.blocks))])),
        "moves": moves(encoder, trace),
    }
    frame = Path(__file__).with_name("page_blocks.html").read_text(encoding="utf-8")
    order = (
        "Both add to the vector. LayerNorm is applied to what enters them, so the vector itself can grow."
        if stack.pre_norm
        else "LayerNorm follows each sum, so the vector does not grow from block to block."
    )
    filled = {
        "order": order,
        "causal": " Here no token sees those after it." * stack.causal,
        "formulas": "\n".join(f"<li><h3><code>{f.__name__}</code></h3>{docstring(f)}</li>" for f in _formulas(encoder)),
        "data": as_json(data),
    }
    script = Path(__file__).with_name("page_blocks.js").read_text(encoding="utf-8")
    style, end, elements = frame.partition("</style>\n")
    return {
        "style": style + end,
        "blocks": re.sub(r"<!--(\w+)-->", lambda mark: filled[mark[1]], elements),
        "script": f"<script>\n{script}</script>",
    }


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
                "attention": _sizes(trace[block.attention.output][0]),
                "feed_forward": _sizes(trace[block.feed_forward.output][0]),
                "turn": np.diagonal(cosine_similarity(states[i - 1], state)).tolist(),
            }
            for place, line in enumerate(entry):
                line |= {name: numbers[place] for name, numbers in more.items()}
        told.append(entry)
    return told


def _sizes(rows: Array) -> list[float]:
    lengths: list[float] = np.linalg.norm(rows.astype(np.float64), axis=-1).tolist()
    return lengths


def _formulas(encoder: Encoder) -> Iterator[Callable[..., Any]]:
    """Give the functions that these blocks are, in the order of `equations.blocks`."""
    stack = encoder.stack
    used: set[Callable[..., Any]] = {
        equations.linear, equations.softmax, equations.split_heads, equations.join_heads, equations.additive_mask,
        equations.attention_scores, equations.attention, equations.self_attention, equations.feed_forward,
        equations.pre_norm_block if stack.pre_norm else equations.post_norm_block,
        *(block.feed_forward.activate for block in stack.blocks),
    }  # fmt: skip
    return (function for function in vars(equations).values() if inspect.isfunction(function) and function in used)
