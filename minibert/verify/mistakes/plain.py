"""A whole model by its steps, one padded batch, as a port does it; with a mistake, if there is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.parts.heads import BoundHead
from minibert.families.parts.plan import IDS, REAL, run
from minibert.models.encoder import Encoder
from minibert.verify.sides.traces import trace

from .wrong_steps import At, Mistake, with_mistake


def places(encoder: Encoder, head: BoundHead | None = None) -> Iterator[At]:
    """The steps of each block, then those of the head."""
    for i, block in enumerate(encoder.stack.blocks):
        yield At(encoder, i, block.plan(i, encoder.stack))
    if head is not None:
        yield At(encoder, None, head.plan(f"hidden_states.{len(encoder.stack.blocks)}"))


def tokens_of(batch: Mapping[str, Array]) -> tuple[Array | None, Array]:
    """A batch's ids and which of its tokens are no padding, both (batch, seq)."""
    ids = batch.get("input_ids")
    shape = np.shape(batch["inputs_embeds"])[:-1] if ids is None else np.shape(ids)
    shape = shape if len(shape) == 2 else (1, *shape)
    mask = np.reshape(batch.get("attention_mask", np.ones(shape)), shape) != 0
    return None if ids is None else np.reshape(ids, shape), np.asarray(mask)


def begin(batch: Mapping[str, Array], x: Array) -> dict[str, Any]:
    """The values with which the steps of a batch begin; x enters the first block."""
    ids, real = tokens_of(batch)
    return {REAL: real, IDS: ids, "hidden_states.0": x}


def plain_parts(
    encoder: Encoder, batch: Mapping[str, Array], mistake: Mistake | None = None, only: bool | None = None,
    head: BoundHead | None = None,
) -> Iterator[dict[str, Array]]:  # fmt: skip
    """Trace one batch part by part: the input layer, each block, the head. Padding has numbers, not zeros.

    only: the mistake is made in the blocks alone (False), or in the head alone (True).
    """
    found = trace(encoder.embeddings, batch)
    values = begin(batch, found[next(reversed(found))])
    yield found | {"hidden_states.0": values["hidden_states.0"]}
    for at in places(encoder, head):
        wrong = with_mistake(mistake, at) if mistake and only in (None, at.i is None) else None
        yield dict(run(wrong or at.plan, values))
        values = {key: x for key, x in values.items() if key in (REAL, IDS) or key.startswith("hidden_states.")}
