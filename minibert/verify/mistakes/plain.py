"""The places of a whole model, each with its steps, and the values with which the steps of a batch begin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from minibert.equations.input_layer import Array
from minibert.families.parts.heads import BoundHead
from minibert.families.parts.layer_plan import GIVEN, given, layer_plan
from minibert.families.parts.plan import IDS, REAL, Step
from minibert.models.encoder import Encoder
from minibert.models.input_layer import EmbeddingLayer
from minibert.verify.traces import BLOCKS, HEAD, INPUT_LAYER, tokens_of

from .mistake import At

FIRST = "hidden_states.0"


def places(encoder: Encoder, head: BoundHead | None = None) -> Iterator[At]:
    """The steps of each block, then those of the head."""
    for i, block in enumerate(encoder.stack.blocks):
        yield At(encoder, BLOCKS, block.plan(i, encoder.stack), i)
    if head is not None:
        yield At(encoder, HEAD, head.plan(f"hidden_states.{len(encoder.stack.blocks)}"))


def all_places(model: EmbeddingLayer | Encoder, head: BoundHead | None = None) -> Iterator[At]:
    """The steps of the input layer, and of an encoder what comes after it."""
    if not isinstance(model, Encoder):
        yield At(model, INPUT_LAYER, layer_plan(model.steps, model.config))
        return
    plan = layer_plan(model.embeddings.steps, model.embeddings.config)
    first = Step(FIRST, "state", lambda x: x, (list(plan)[-1],))
    yield At(model, INPUT_LAYER, {**plan, FIRST: first})
    yield from places(model, head)


def begin(batch: Mapping[str, Any], x: Array | None = None) -> dict[str, Any]:
    """The values with which the steps of a batch begin; x enters the first block, if the input layer is left out."""
    ids, real = tokens_of(batch)
    return {REAL: real, IDS: ids, GIVEN: given(batch)} | ({} if x is None else {FIRST: x})


def kept(values: Mapping[str, Any]) -> dict[str, Any]:
    """The beginning of later places' keys: of those before only the hidden states."""
    return {key: x for key, x in values.items() if key in (REAL, IDS, GIVEN) or key.startswith("hidden_states.")}
