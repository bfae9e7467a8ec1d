"""One cell of attention, number by number: query times key, scale, the terms added, softmax, value.

The queries, keys and values are those of the trace, taken through the block's own steps: norms of each head, rotation,
shared heads. See `families.parts.plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array
from minibert.families.parts.plan import REAL, value
from minibert.models.encoder import Encoder


def opened_cell(
    encoder: Encoder, trace: Mapping[str, Array], block: int, head: int, query: int, key: int
) -> dict[str, Any]:
    """Give one cell of one head: `score = scale * sum of q * k + terms`, and the weight that softmax makes of it.

    `trace` is of one text. q and k are multiplied; `turned` has them before their rotation, where there is one.
    `score` is the run's own number, float32; `sum` is that of the numbers here, in float64. Where the head is switched
    off, `weight` is 0 and `softmax` the weight without that. value: that of the key, whose products by `weight` go into
    `context`, the sum over all keys.

    Raises ValueError for a block, head or token that is not there.
    """
    stack = encoder.stack
    seq = trace["hidden_states.0"].shape[1]
    for what, number, count in (("block", block, len(stack.blocks)), ("head", head, stack.heads),
                                ("query", query, seq), ("key", key, seq)):  # fmt: skip
        if not 0 <= number < count:
            raise ValueError(f"{what} {number} is not there, only 0..{count - 1}; choose one of them")
    own, plan = stack.blocks[block].attention, stack.blocks[block].plan(block, stack)
    values: dict[str, Any] = {path: trace[path] for path in own.maps} | {REAL: np.ones((1, seq), bool)}
    values |= {name: trace[name] for name in (own.scores, own.probabilities)}
    q_name, k_name, *terms = plan[own.scores].of
    q, k = (value(name, plan, values)[0, head] for name in (q_name, k_name))
    v = value(plan[f".{block}.gathered"].of[1], plan, values)[0, head]
    scores, weights = (trace[name][0, head].astype(np.float64) for name in (own.scores, own.probabilities))
    keep = np.broadcast_to(value(f".{block}.keep", plan, values), (1, 1, seq, seq))[0, 0, query]
    added: list[dict[str, Any]] = [
        {
            "name": name.removeprefix(f".{block}."),
            "says": plan[name].says,
            "number": float(np.broadcast_to(value(name, plan, values), (1, own.heads, seq, seq))[0, head, query, key]),
        }
        for name in terms
    ]
    context = trace[own.context][0, query].reshape(own.heads, own.head_dim)[head]
    products = q[query].astype(np.float64) * k[key]
    found: dict[str, Array] = {
        "q": q[query], "k": k[key], "products": products, "value": v[key],
        "weighted": weights[query, key] * v[key].astype(np.float64), "context": context,
        "scores": scores[query], "keep": keep, "weights": weights[query],
        "softmax": softmax(np.where(keep, scores[query], -np.inf)),
    }  # fmt: skip
    if own.rotated:
        heads = {"q": head, "k": head // (own.heads // own.key_heads)}
        found |= {
            f"turned_{letter}": value(f".{block}.{letter}", plan, values)[0, heads[letter]][place]
            for letter, place in (("q", query), ("k", key))
        }
    return {
        "block": block, "head": head, "query": query, "key": key, "scale": float(own.scale), "terms": added,
        "dot": float(products.sum()), "score": float(scores[query, key]), "seen": bool(keep[key]),
        "sum": float(own.scale * products.sum() + sum(each["number"] for each in added)),
        **{name: numbers.tolist() for name, numbers in found.items()},
    }  # fmt: skip
