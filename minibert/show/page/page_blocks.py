"""The second part of the page of `minibert explain --html`: a text's way through the blocks.

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
from minibert.show.text.blocks import functions

from .page_parts import filled_part, listed, packed

if TYPE_CHECKING:
    from minibert.models.encoder import Encoder

NEAREST = 5  # most similar tokens that are listed


def numbers(encoder: Encoder, trace: dict[str, Array]) -> dict[str, Any]:
    """Give the numbers that the script draws of one text with tokens."""
    stack = encoder.stack
    return {
        "blocks": len(stack.blocks),
        "heads": stack.heads,
        "attention": packed(np.stack([trace[f"attentions.{i}"][0] for i in range(len(stack.blocks))])),
        "scores": scores(encoder, trace),
        "moves": moves(encoder, trace),
    }


def part(encoder: Encoder, data: str, listed_before: set[Any]) -> dict[str, str]:
    """Give the second part of the page: its elements ("blocks") and its script.

    data: its `numbers`, as JSON; `listed_before` are the formulas of the first part.
    """
    stack = encoder.stack
    last = stack.blocks[-1].parts[-1]
    norm = type(stack.blocks[-1].modules[last.before or last.after]).__name__
    order = (
        f"Both add to the vector. {norm} is applied to what enters them, so the vector itself can grow."
        if last.before
        else f"{norm} follows each sum and sets the vector's size anew, so what is added does not pile up."
    )
    used = functions(stack) - listed_before
    positions = rotary, attention_positions
    return filled_part(
        "blocks",
        order=order,
        causal=" Here no token sees those after it." * stack.causal,
        formulas=listed(used, input_layer, *positions, activations, blocks, gated_blocks),
        data=data,
    )


def scores(encoder: Encoder, trace: Mapping[str, Array]) -> dict[str, Any]:
    """Give the script its terms to write a weight as the softmax of its score, and the score as `scale * q . k + bias`.

        weight[i, j] = exp(score[i, j]) / sum over k of exp(score[i, k])
        score[i, j] = log(weight[i, j]) + logs[i]

    So a page has one number for each row of a head, `logs`, the logarithm of that sum, and not one for each pair.
    `bias` is that of each head by distance, key - query, from -(seq - 1) on, of each block where blocks have their own;
    None without such a bias. `terms` names the other terms of a score, which depend on the text.
    """
    stack, works = encoder.stack, [block.attention for block in encoder.stack.blocks]
    rows = []
    for work in works:
        # a masked score is of no weight, and not of the sum
        counted = np.where(trace[work.probabilities][0] > 0, trace[work.scores][0].astype(np.float64), -np.inf)
        most = np.maximum(counted.max(axis=-1, keepdims=True), -np.finfo(np.float64).max)
        with np.errstate(divide="ignore"):  # of a head that is switched off there is no sum, and no weight to explain
            rows.append(np.log(np.exp(counted - most).sum(axis=-1)) + most[..., 0])
    seq = rows[0].shape[-1]
    terms = [[term for term in work.terms if term.alone] for work in works]
    own = terms if len({term.scheme for each in terms for term in each}) > 1 else terms[:1]
    bias = np.stack([np.sum([term.shared(seq) for term in each], axis=0) for each in own]) if terms[0] else None
    return {
        "logs": packed(np.stack(rows)),
        "scales": [work.scale for work in works],
        "windows": [work.window for work in works],
        "rotated": [work.rotated for work in works],
        "normed": [bool(any(work.norms)) for work in works],
        "width": works[0].head_dim,
        "key_heads": works[0].key_heads,
        "causal": stack.causal,
        "terms": [term.name for term in works[0].terms if not term.alone],
        "bias": None if bias is None else packed(np.concatenate([bias[:, :, :0:-1, 0], bias[:, :, 0]], axis=2)),
    }


def moves(encoder: Encoder, trace: Mapping[str, Array]) -> list[list[dict[str, Any]]]:
    """Measure how each token's vector changes: one entry for the input layer, then one for each block.

    Sizes are Euclidean lengths; `largest` is the dimension of the number that is farthest from 0, the number, and its
    share of the squared size; `turn` is the cosine of the vectors before and after the block; `nearest` are the
    positions of the most similar other tokens, most similar first, and `cosines` their cosines.
    """
    states = [trace[f"hidden_states.{i}"][0] for i in range(len(encoder.stack.blocks) + 1)]
    told = []
    for i, state in enumerate(states):
        size, more, entry = _sizes(state), dict[str, list[float]](), list[dict[str, Any]]()
        if i:
            parts = zip(("attention", "feed_forward"), encoder.stack.blocks[i - 1].parts, strict=False)
            more = {name: _sizes(trace[part.within or part.work.output][0]) for name, part in parts}
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
        told.append(entry)
    return told


def _largest(row: Array, size: float) -> tuple[int, float, float]:
    dimension = int(np.abs(row).argmax())
    number = float(row[dimension])
    return dimension, number, (number / size) ** 2 if size else 0.0


def _sizes(rows: Array) -> list[float]:
    lengths: list[float] = np.linalg.norm(rows.astype(np.float64), axis=-1).tolist()
    return lengths
