"""The nine terms of block 0's scores, of a model and a text: see `equations.nine_terms`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from minibert.equations.blocks import Affine
from minibert.equations.input_layer import Array
from minibert.equations.nine_terms import normed_parts, score_terms, term_shares
from minibert.families.parts.bound_blocks import Dense
from minibert.families.parts.modules import LayerNorm
from minibert.families.parts.plan import layer_plan
from minibert.families.parts.steps import Positions
from minibert.files.tables import ScratchBuffer
from minibert.models.encoder import Encoder

PARTS = ("word", "position", "rest")
OTHERS = "name a model such as BERT or GPT-2"


def terms_of(encoder: Encoder, batch: Mapping[str, Any]) -> Array:
    """Part block 0's scores of one text without padding: (3, 3, heads, query, key), float64, by `PARTS`.

    Raises ValueError where positions are not in the input layer, or not there alone, and where anything but one
    LayerNorm stands between its sum and block 0's queries.
    """
    norm, block, layer = _norm_of(encoder), encoder.stack.blocks[0], encoder.embeddings
    plan, trace = layer_plan(layer.steps, layer.config), layer.trace(**batch)
    # words, where a caller could have passed rows, are behind a step that no trace shows
    addends = [plan[key].of[1] if plan[key].kind == "embeds" else key for key in plan["sum"].of]
    position = next(step.key for step, _ in layer.steps if isinstance(step, Positions))
    rows = {key: trace[key][0].astype(np.float64) for key in addends if key in trace}
    word, place = rows.pop(addends[0]), rows.pop(position)
    parts = np.stack([word, np.broadcast_to(place, word.shape), sum(rows.values(), np.zeros(word.shape))])
    own = block.attention
    maps = [block.modules[path] for path in own.maps]
    if len(maps) == 1:
        maps = [maps[0].part(slice(*ends)) for ends in ((0, own.edges[0]), own.edges)]
    query, key = map(_vectors, maps[:2])
    return score_terms(normed_parts(parts, *_vectors(norm), norm.eps), query, key, own.heads, own.scale)


def shares_of(encoder: Encoder, terms: Array) -> Array:
    """Compute each term's share by head, (3, 3, heads), over the keys that this model's queries see."""
    return term_shares(terms, np.tri(terms.shape[-1], dtype=bool) if encoder.stack.causal else None)


def _norm_of(encoder: Encoder) -> LayerNorm:
    """Find the one LayerNorm between the sum and block 0's queries."""
    layer, stack = encoder.embeddings, encoder.stack
    family, steps = layer.family.model_type, layer_plan(layer.steps, layer.config)
    if not any(isinstance(step, Positions) for step, _ in layer.steps):
        raise ValueError(f"{family} adds no positions in its input layer, so no term is of them; {OTHERS}")
    if not stack.blocks:
        raise ValueError("a static model has no blocks, and so no attention; name a whole model")
    block = stack.blocks[0]
    if more := [term.says for term in block.attention.terms]:
        raise ValueError(f"{family} adds {more[0]} to block 0's scores, so they have more than nine terms; {OTHERS}")
    modules = [step.part for step in list(steps.values())[list(steps).index("sum") + 1 :]]
    modules += [block.modules[path] for path in (block.parts[0].before, *block.attention.norms) if path]
    if len(modules) != 1 or type(norm := modules[0]) is not LayerNorm:
        found = " and ".join(map(repr, modules)) or "nothing"
        raise ValueError(f"nine terms need one LayerNorm between the sum and block 0's queries; {family} has {found} "
                         f"there; {OTHERS}")  # fmt: skip
    return norm


def _vectors(module: LayerNorm | Dense) -> Affine:
    """Give the weight and the bias in float64; a map's as (out, in)."""
    weight = module.matrix(ScratchBuffer()) if isinstance(module, Dense) else module.weight
    bias = np.zeros(len(weight)) if module.bias is None else module.bias
    return Affine(weight.astype(np.float64), bias.astype(np.float64))
