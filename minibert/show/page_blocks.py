"""The second part of the page of `minibert explain --html`: attention and the vectors' changes, block by block.

`page_blocks.html` and `page_blocks.js` are its template and its script. The attention weights are those of the trace,
to the bit: 4 bytes for each head and each pair of tokens, times 4/3 for base64. So the page grows with the square of
the number of tokens, and `page.check_size` refuses a text that is too long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from minibert.equations import activations, attention_positions, blocks, gated_blocks, input_layer, rotary
from minibert.equations.input_layer import Array
from minibert.equations.similarity import cosine_similarity

from .page_parts import listed, packed, rendered_part

if TYPE_CHECKING:
    from minibert.models.encoder import Encoder
    from minibert.models.run.blocks import Stack

NEAREST = 5  # most similar tokens that are listed


def block_numbers(encoder: Encoder, trace: Mapping[str, Array]) -> dict[str, Any]:
    """Compute the numbers that the script draws for one text with tokens."""
    stack = encoder.stack
    return {
        "blocks": len(stack.blocks),
        "heads": stack.heads,
        "attention": packed(np.stack([trace[f"attentions.{i}"][0] for i in range(len(stack.blocks))])),
        "scores": scores(encoder, trace),
        "moves": moves(encoder, trace),
    }


def blocks_part(encoder: Encoder, data: str, listed_before: set[Any]) -> dict[str, str]:
    """Render this part of the page: its elements ("blocks") and its script.

    data: its numbers, as JSON; listed_before: the functions that the first part lists.
    """
    stack = encoder.stack
    last = stack.blocks[-1].parts[-1]
    norm = type(stack.blocks[-1].modules[last.pre_norm or last.post_norm]).__name__
    order = (
        f"Both add to the vector. {norm} is applied to what enters them, so the vector itself can grow."
        if last.pre_norm
        else f"{norm} follows each sum and sets the vector's size anew, so what is added does not pile up."
    )
    used = _functions(stack) - listed_before
    positions = rotary, attention_positions
    return rendered_part(
        "blocks",
        order=order,
        causal=" Here no token sees those after it." * stack.causal,
        formulas=listed(used, input_layer, *positions, activations, blocks, gated_blocks),
        data=data,
    )


def _functions(stack: Stack) -> set[Any]:
    """List the functions of `equations` that compute the blocks: each step, the attention and the feed-forward."""
    used = {step.function for i, block in enumerate(stack.blocks) for step in block.plan(i, stack).values()} - {None}
    for block in stack.blocks:
        rotated, gated = block.attention.rotated, block.feed_forward.gate
        used |= {blocks.attention, gated_blocks.rotary_attention if rotated else blocks.self_attention}
        used.add(gated_blocks.gated_feed_forward if gated else blocks.feed_forward)
    return used


def scores(encoder: Encoder, trace: Mapping[str, Array]) -> dict[str, Any]:
    """Compute the numbers from which the page's script derives scores and attention weights.

        weight[i, j] = exp(score[i, j]) / sum over k of exp(score[i, k])
        score[i, j] = log(weight[i, j]) + logs[i]

    score[i, j] is `scale * q . k + bias`. A page holds one number per query of a head, `logs`, the logarithm of the
    sum, and not one per pair. `bias` is each head's bias by distance, key - query, starting at -(seq - 1): once for all
    blocks, or once per block if they differ; None without a bias. `terms` names the terms of a score that depend on
    the text.
    """
    stack, attentions = encoder.stack, [block.attention for block in encoder.stack.blocks]
    rows = []
    for attention in attentions:
        # a masked score has no weight, and is not part of the sum
        weights, all_scores = (trace[name][0] for name in (attention.probabilities, attention.scores))
        visible = np.where(weights > 0, all_scores.astype(np.float64), -np.inf)
        most = np.maximum(visible.max(axis=-1, keepdims=True), -np.finfo(np.float64).max)
        with np.errstate(divide="ignore"):  # a head that is switched off has no sum, and no weight to explain
            rows.append(np.log(np.exp(visible - most).sum(axis=-1)) + most[..., 0])
    seq = rows[0].shape[-1]
    terms = [[term for term in attention.terms if term.alone] for attention in attentions]
    distinct = terms if len({term.scheme for each in terms for term in each}) > 1 else terms[:1]
    bias = np.stack([np.sum([term.shared(seq) for term in each], axis=0) for each in distinct]) if terms[0] else None
    return {
        "logs": packed(np.stack(rows)),
        "scales": [attention.scale for attention in attentions],
        "windows": [attention.window for attention in attentions],
        "rotated": [attention.rotated for attention in attentions],
        "normed": [bool(any(attention.norms)) for attention in attentions],
        "width": attentions[0].head_dim,
        "key_heads": attentions[0].key_heads,
        "causal": stack.causal,
        "terms": [term.name for term in attentions[0].terms if not term.alone],
        "bias": None if bias is None else packed(np.concatenate([bias[:, :, :0:-1, 0], bias[:, :, 0]], axis=2)),
    }


def moves(encoder: Encoder, trace: Mapping[str, Array]) -> list[list[dict[str, Any]]]:
    """Measure how each token's vector changes: one entry for the input layer, then one for each block.

    Sizes are Euclidean lengths. `largest` is the number farthest from 0: its dimension, its value, its share of the
    squared size. `turn` is the cosine of the vectors before and after the block. `nearest` are the positions of the
    most similar other tokens, most similar first, and `cosines` their cosines.
    """
    states = [trace[f"hidden_states.{i}"][0] for i in range(len(encoder.stack.blocks) + 1)]
    moves_by_block = []
    for i, state in enumerate(states):
        size, more, entry = _sizes(state), dict[str, list[float]](), list[dict[str, Any]]()
        if i:
            parts = zip(("attention", "feed_forward"), encoder.stack.blocks[i - 1].parts, strict=False)
            more = {name: _sizes(trace[part.output_norm or part.work.output][0]) for name, part in parts}
            more["turn"] = np.diagonal(cosine_similarity(states[i - 1], state)).tolist()
        for position, row in enumerate(cosine_similarity(state)):
            order = [other for other in np.argsort(-row, kind="stable").tolist() if other != position][:NEAREST]
            entry.append(
                {
                    "size": size[position],
                    "largest": _largest(state[position], size[position]),
                    "nearest": order,
                    "cosines": row[order].tolist(),
                    **{name: numbers[position] for name, numbers in more.items()},
                }
            )
        moves_by_block.append(entry)
    return moves_by_block


def _largest(row: Array, size: float) -> tuple[int, float, float]:
    dimension = int(np.abs(row).argmax())
    number = float(row[dimension])
    return dimension, number, (number / size) ** 2 if size else 0.0


def _sizes(rows: Array) -> list[float]:
    lengths: list[float] = np.linalg.norm(rows.astype(np.float64), axis=-1).tolist()
    return lengths
