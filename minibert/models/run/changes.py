"""A run with changed values: heads or blocks knocked out, one text's values put into another's.

`change` of `Encoder.__call__`, `logits` and `trace` is a mapping: a name that `trace` has -> an array of that shape, or
a function that is given the values and returns those to go on with. Everything after is computed from them.

    scores = trace["attentions.3"]                                           # (batch, heads, query, key)
    encoder(**ids, change={"attentions.3": lambda weights: 0 * weights})     # block 3 attends to nothing
    encoder.trace(**ids, change={"hidden_states.2": other["hidden_states.2"]})  # patching: another text's values

Sequences of one length are computed together, each length by itself. So a function sees (texts, length, ...), or
(texts, heads, length, length), without padding, and is called once for each length. An array has the shape of the whole
batch, or stands for each of its sequences as (1, seq, ...).

What cannot be changed: `position_ids`, which are passed; the modules of a head; queries and keys after they are rotated
(Llama and its kin), of which no trace has a name: change the scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import nearest_name
from minibert.families.parts.steps import Inputs
from minibert.models.input_layer import EmbeddingLayer

from .blocks import Stack, run_blocks
from .packing import Packed, unpadded
from .recorders import Change, Recorder


def run_changed(
    layer: EmbeddingLayer,
    stack: Stack,
    inputs: Inputs,
    keep: Array,
    change: Mapping[str, Change],
    trace: dict[str, Array] | None = None,
) -> Array:
    """Give the last hidden state of a run with changes: (batch, seq, dim). `trace` receives every intermediate.

    keep (batch, seq) says which tokens are no padding. Raises TypeError and ValueError for a change that no run can go
    on with, and ValueError for a name that this run has not.
    """
    shape, seen = (inputs.batch, inputs.seq), set[str]()
    _check_names(layer, stack, change)
    y = np.zeros((*shape, layer.dim), layer.dtype)
    for tile in _by_length(inputs, keep, stack):
        recorder = Recorder(tile, shape, trace, change)
        y[recorder.where] = run_blocks(stack, _embedded(layer, tile, recorder), tile, hook=recorder)
        seen |= recorder.seen
    if unseen := sorted(change.keys() - seen):
        raise ValueError(f"change names {unseen[0]!r}, which this call does not compute; leave it out")
    return y


def _check_names(layer: EmbeddingLayer, stack: Stack, change: Any) -> None:
    if not isinstance(change, Mapping):
        raise TypeError(
            "change must be a dict, name of an intermediate -> array or function of the values; found "
            f"{type(change).__name__}"
        )
    known = [*(key for step, _ in layer.steps for key in (step.key, "sum")), "hidden_states.0"]
    known += [key for i, block in enumerate(stack.blocks) for key in block.keys(i, stack)]
    if "position_ids" in change:
        raise ValueError("change cannot name 'position_ids', which the input layer is given; pass position_ids=")
    for name in change:
        if not name or name not in known:
            near = nearest_name(str(name), known)
            hint = f"; did you mean {near!r}?" if near else "; its names are those of encoder.trace"
            raise ValueError(f"change names {name!r}, which this encoder does not have{hint}")


def _by_length(inputs: Inputs, keep: Array, stack: Stack) -> Iterator[Packed]:
    """Cut a batch into tiles of sequences of one length, which attention takes in one piece."""
    whole = unpadded(inputs, keep)
    kinds: dict[tuple[int, bytes], list[Array]] = {}
    for group in whole.groups(stack.by_distance):
        gaps = b"" if group.positions is None else group.positions.tobytes()
        kinds.setdefault((group.length, gaps), []).append(group.texts)
    for texts in kinds.values() or [[whole.texts]]:
        yield unpadded(inputs, keep, np.concatenate(texts))


def _embedded(layer: EmbeddingLayer, tile: Packed, recorder: Recorder) -> Array:
    """The input layer's rows of one tile, changed: (tokens, dim)."""
    names: list[str] = []

    def record(name: str, rows: Array) -> None:
        names.append(name)
        recorder.rows(name, rows[0])

    x = layer.rows(tile, record)
    if "sum" not in names:  # a layer without a norm
        recorder.rows("sum", x)
    recorder.rows("hidden_states.0", x)
    return x
