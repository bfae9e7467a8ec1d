"""The numbers behind attention weights: the nine terms of block 0's scores, one cell, the kind of a head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minibert.equations import blocks as equations
from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array
from minibert.equations.nine_terms import normed_parts, score_terms, term_shares
from minibert.families.parts.modules import LayerNorm, Linear
from minibert.families.parts.plan import REAL, Plan, Trace, layer_plan, value
from minibert.families.parts.steps import Positions
from minibert.files.tables import ScratchBuffer
from minibert.models.encoder import Encoder

# -- the nine terms: see `equations.nine_terms` ------------------------------------------------------------------

PARTS = ("word", "position", "rest")
ADVICE = "name a model such as BERT or GPT-2"


def terms_of(encoder: Encoder, batch: Mapping[str, Any]) -> Array:
    """Split block 0's scores of one text without padding into nine: (3, 3, heads, query, key), float64, by `PARTS`.

    Raises ValueError unless positions are added only in the input layer, and there is one LayerNorm and nothing else
    between the sum and block 0's queries.
    """
    norm, block, layer = _only_norm(encoder), encoder.stack.blocks[0], encoder.embeddings
    plan, trace = layer_plan(layer.steps, layer.config), layer.trace(**batch)
    addends = addend_keys(plan)
    position = next(step.key for step, _ in layer.steps if isinstance(step, Positions))
    rows = {key: trace[key][0].astype(np.float64) for key in addends if key in trace}
    words, positions = rows.pop(addends[0]), rows.pop(position)
    parts = np.stack([words, np.broadcast_to(positions, words.shape), sum(rows.values(), np.zeros(words.shape))])
    attention = block.attention
    maps = [block.modules[path] for path in attention.maps]
    if len(maps) == 1:
        maps = [maps[0].part(slice(*ends)) for ends in ((0, attention.qkv_splits[0]), attention.qkv_splits)]
    query, key = (equations.Linear(*_float64(module)) for module in maps[:2])
    return score_terms(normed_parts(parts, *_float64(norm), norm.eps), query, key, attention.heads, attention.scale)


def addend_keys(plan: Plan) -> list[str]:
    """List the values that an input layer adds, beginning with the word rows."""
    # an `embeds` step hides the word rows; take its input
    return [plan[key].of[1] if plan[key].kind == "embeds" else key for key in plan["sum"].of]


def shares_of(encoder: Encoder, terms: Array) -> Array:
    """Compute each term's share by head, (3, 3, heads), over the keys that the model's queries see."""
    return term_shares(terms, np.tri(terms.shape[-1], dtype=bool) if encoder.stack.causal else None)


def _only_norm(encoder: Encoder) -> LayerNorm:
    """Return the LayerNorm between the sum and block 0's queries. Raises ValueError for other modules there."""
    layer, stack = encoder.embeddings, encoder.stack
    family, steps = layer.family.model_type, layer_plan(layer.steps, layer.config)
    if not any(isinstance(step, Positions) for step, _ in layer.steps):
        raise ValueError(f"{family} adds no positions in its input layer, so its scores have no such terms; {ADVICE}")
    if not stack.blocks:
        raise ValueError("a static model has no blocks, and so no attention; name a whole model")
    block = stack.blocks[0]
    if more := [term.says for term in block.attention.terms]:
        raise ValueError(f"{family} adds {more[0]} to block 0's scores, so they have more than nine terms; {ADVICE}")
    modules = [step.part for step in list(steps.values())[list(steps).index("sum") + 1 :]]
    modules += [block.modules[path] for path in (block.parts[0].pre_norm, *block.attention.norms) if path]
    if len(modules) != 1 or type(norm := modules[0]) is not LayerNorm:
        between = " and ".join(map(repr, modules)) or "nothing"
        raise ValueError(f"nine terms need one LayerNorm between the sum and block 0's queries, but {family} has "
                         f"{between} there; {ADVICE}")  # fmt: skip
    return norm


def _float64(module: LayerNorm | Linear) -> tuple[Array, Array]:
    """Return weight and bias in float64; the weight of a map as (out, in)."""
    weight = module.matrix(ScratchBuffer()) if isinstance(module, Linear) else module.weight
    bias = np.zeros(len(weight)) if module.bias is None else module.bias
    return weight.astype(np.float64), bias.astype(np.float64)


# -- one cell ----------------------------------------------------------------------------------------------------


def opened_cell(encoder: Encoder, trace: Trace, block: int, head: int, query: int, key: int) -> dict[str, Any]:
    """Compute one cell of one head: `score = scale * sum of q * k + terms`, and its weight after softmax.

    `trace` holds one text. The block's own steps compute the queries, keys and values from it (norms of each head,
    rotation, shared heads: see `families.parts.plan`). The fields of the result:

        q, k        the two rows that are multiplied; turned_q, turned_k are the same rows before a rotation
        score       the run's number, float32; sum is the same number computed here in float64
        weight      0 if the head is switched off; softmax is the weight without that change
        value       the key's row, which is multiplied by the weight and added up over all keys to `context`

    Raises ValueError for a block, head or token that is not there.
    """
    stack = encoder.stack
    seq = trace["hidden_states.0"].shape[1]
    for name, number, count in (("block", block, len(stack.blocks)), ("head", head, stack.heads),
                                ("query", query, seq), ("key", key, seq)):  # fmt: skip
        if not 0 <= number < count:
            raise ValueError(f"{name} {number} is not there, only 0..{count - 1}; choose one of them")
    attention, plan = stack.blocks[block].attention, stack.blocks[block].plan(block, stack)
    values: dict[str, Any] = {path: trace[path] for path in attention.maps} | {REAL: np.ones((1, seq), bool)}
    values |= {name: trace[name] for name in (attention.scores, attention.probabilities)}
    q_name, k_name, *terms = plan[attention.scores].of
    q, k = (value(name, plan, values)[0, head] for name in (q_name, k_name))
    v = value(plan[f".{block}.gathered"].of[1], plan, values)[0, head]
    scores, weights = (trace[name][0, head].astype(np.float64) for name in (attention.scores, attention.probabilities))
    visible = np.broadcast_to(value(f".{block}.keep", plan, values), (1, 1, seq, seq))[0, 0, query]
    shape = (1, attention.heads, seq, seq)
    added = list[dict[str, Any]]()
    for name in terms:
        term_number = float(np.broadcast_to(value(name, plan, values), shape)[0, head, query, key])
        added.append({"name": name.removeprefix(f".{block}."), "says": plan[name].says, "number": term_number})
    context = trace[attention.context][0, query].reshape(attention.heads, attention.head_dim)[head]
    products = q[query].astype(np.float64) * k[key]
    arrays: dict[str, Array] = {
        "q": q[query], "k": k[key], "products": products, "value": v[key],
        "weighted": weights[query, key] * v[key].astype(np.float64), "context": context,
        "scores": scores[query], "keep": visible, "weights": weights[query],
        "softmax": softmax(np.where(visible, scores[query], -np.inf)),
    }  # fmt: skip
    if attention.rotated:
        heads = {"q": head, "k": head // (attention.heads // attention.key_heads)}
        for letter, position in (("q", query), ("k", key)):
            arrays[f"turned_{letter}"] = value(f".{block}.{letter}", plan, values)[0, heads[letter]][position]
    return {
        "block": block, "head": head, "query": query, "key": key, "scale": float(attention.scale), "terms": added,
        "dot": float(products.sum()), "score": float(scores[query, key]), "seen": bool(visible[key]),
        "sum": float(attention.scale * products.sum() + sum(term["number"] for term in added)),
        **{name: numbers.tolist() for name, numbers in arrays.items()},
    }  # fmt: skip


# -- the kind of a head ------------------------------------------------------------------------------------------

KINDS = ("previous token", "next token", "first token", "same word")
LEAST = 0.5  # a head with at least this mean weight on one kind of key is named after it
FIRST_QUERY = 2  # for token 1 the previous token and the first token are the same


def head_kinds(weights: Array, input_ids: Array, separator: int | None = None) -> Array:
    """Compute the mean weight that a head's queries put on one kind of key; nan if no key is of that kind.

        previous token  mean over i of w[i, i - 1]
        next token      mean over i of w[i, i + 1]
        first token     mean over i of w[i, 0]
        same word       mean over i of sum over j of w[i, j], where token j is token i's id at another place
        separator       mean over i of sum over j of w[i, j], where token j is the separator, as [SEP] of BERT

    The means are over the queries i from 2 on that have such a j; a separator is not a word.
    weights (..., heads, query, key), input_ids (seq,) -> (..., heads, 5). Source: Clark et al. 2019, "What Does BERT
    Look At?" (arXiv:1906.04341).

    >>> weights = np.array([[[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0.5, 0.5, 0]]])
    >>> head_kinds(weights, np.array([7, 8, 9, 8]), separator=9)
    array([[0.75, 0.  , 0.  , 0.5 , 0.25]])
    """
    query, key = np.indices(weights.shape[-2:])
    separators = input_ids == (-1 if separator is None else separator)
    same_word = (input_ids[:, None] == input_ids) & (query != key) & ~separators
    means = []
    for mask in (key == query - 1, key == query + 1, key == 0, same_word, np.broadcast_to(separators, same_word.shape)):
        has_key = mask[FIRST_QUERY:].any(axis=1)
        sums = (weights[..., FIRST_QUERY:, :].astype(np.float64) * mask[FIRST_QUERY:]).sum(axis=-1)[..., has_key]
        means.append(sums.mean(axis=-1) if has_key.any() else np.full(weights.shape[:-2], np.nan))
    return np.stack(means, axis=-1)


def named_kinds(weights: Array, input_ids: Array, separator: int | None, name: str | None) -> dict[str, Any]:
    """Name each head's largest mean of `head_kinds` if it reaches `LEAST`, else "none", as the page shows it.

    weights (blocks, heads, query, key); name: the separator's.
    """
    kinds = (*KINDS, name or "separator")
    means = head_kinds(weights, input_ids, separator)
    known = np.nan_to_num(means, nan=-1.0)
    shares = [[[None if np.isnan(x) else x for x in head] for head in block] for block in means.tolist()]
    names = np.where(known.max(-1) >= LEAST, np.array(kinds)[known.argmax(-1)], "none").tolist()
    return {"kinds": kinds, "least": LEAST, "shares": shares, "names": names}
