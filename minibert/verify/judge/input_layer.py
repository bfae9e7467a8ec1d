"""The input layer as a subject: batches of every kind that it takes, and its tolerances."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.parts.heads import BoundHead
from minibert.families.parts.steps import Add, Lookup, Norm, Positions, Project
from minibert.models.input_layer import EmbeddingLayer
from minibert.verify.sides.traces import INPUT_LAYER, Traces, trace

from .compare import Difference, compare

# |difference| / max(1, |value|) after a norm or a projection. Measured against torch: 5.7e-7 on 65 tiny checkpoints,
# 3.6e-7 on all-MiniLM-L6-v2 and on BERT's own sizes. Before them nothing may differ: rows are copied, sums round alike.
AFTER_NORM = 2e-6

SEQUENCES, LENGTH, PAST = 3, 7, 3  # three sequences of seven tokens; three tokens in the cache
UNMASKED = {"right_pad": "right_pad_no_mask", "pads_inside_mask": "pads_inside"}
NAMED = {"token_type_ids": "types", "langs": "languages", "task_type_ids": "tasks"}


class Subject:
    """The input layer of one checkpoint, or more of it: batches, traces, and what each intermediate may differ by."""

    noun = "layer"  # what the report calls it
    has_places = False  # whether there are several places in which a difference can arise
    weighed: frozenset[str] = frozenset()  # intermediates where a larger difference passes if the rms errors agree

    # where the reference shows what it has between its modules: the modules of blocks, what enters which, the scores
    leaving: Sequence[str] = ()
    entering: Mapping[str, str] = {}
    scores: Sequence[str] = ()
    head: BoundHead | None = None  # whose logits are compared too
    pooler: Any = None  # the map of the first token, where no head takes it
    without_head: str = ""  # why those of a head that is there are not
    transposed_in_reference: Sequence[str] = ()  # whose output there has the second and the third axis exchanged

    def __init__(self, model: Any, again: Callable[..., Any]) -> None:
        self.model: Any = model  # an EmbeddingLayer or an Encoder
        self.layer: EmbeddingLayer = model.embeddings if self.has_places else model
        self._again, self._opened = again, ExitStack()
        self.allowed = {**tolerances(self.layer), "input_ids": 0.0}  # the tolerance of each intermediate
        side = f", {self.layer.side} side" if len(self.layer.family.sides) > 1 else ""
        self.about = f"{self.layer.family.model_type}{side}"  # what else the first line says

    @cached_property
    def exact(self) -> Subject:
        """The same in float64, open until this one is closed."""
        return type(self)(self._opened.enter_context(self._again(dtype="float64")), self._again)

    def close(self) -> None:
        """Close what was opened in float64."""
        self._opened.close()

    def batches(self) -> Traces:
        """Make a batch of every kind that the model takes: kind -> keywords of a call."""
        return batches(self.layer)

    def trace(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Trace one batch."""
        return trace(self.model, batch)

    def beyond(self, inputs: Traces) -> str:
        """Say what longer texts than these would show; "" for nothing."""
        return ""

    def reaches_head(self, batch: Mapping[str, Array]) -> bool:
        """Whether a trace of this batch goes on to the logits."""
        return False

    def traces(self, inputs: Traces, theirs: Traces) -> Traces:
        """Trace all batches; the ids of a text come first where the other program has its own."""
        made = {kind: self.trace(batch) for kind, batch in inputs.items()}
        return {
            kind: {"input_ids": inputs[kind]["input_ids"], **named} if "input_ids" in theirs.get(kind, {}) else named
            for kind, named in made.items()
        }

    def seen(self, inputs: Traces) -> Callable[[str, str, Array], Array]:
        """Select the part of an array to compare, from kind, key and array."""
        return lambda kind, key, x: x

    def compare(self, inputs: Traces, ours: Traces, theirs: Traces, truth: Traces) -> list[Difference]:
        """Compare two traces of these inputs; `truth` is one in float64."""
        return compare(ours, theirs, truth, self.allowed, self.weighed, self.seen(inputs))

    def place(self, key: str) -> str:
        """Find the step that computes an intermediate: "block 3", or before or after the blocks."""
        return INPUT_LAYER

    def words(self, whose: str, against: str) -> str:
        """Explain a table's numbers and the allowed differences; `against` names the float64 side of the errors."""
        return (
            "difference: |here - there| / max(1, |there|); 0 is allowed before a norm or a projection, "
            f"{AFTER_NORM:g} after; rms error: against {against} in float64"
        )


def tolerances(layer: EmbeddingLayer) -> dict[str, float]:
    """Give the allowed difference of each intermediate: 0 before the first norm or projection, then `AFTER_NORM`."""
    allowed, so_far = {"position_ids": 0.0}, 0.0
    for step, _ in layer.steps:
        if isinstance(step, Norm):
            allowed["sum"] = so_far
        if isinstance(step, Norm | Project):
            so_far = AFTER_NORM
        allowed[step.key] = 0.0 if isinstance(step, Lookup) else so_far
    allowed.setdefault("sum", so_far)
    return allowed


# -- batches -----------------------------------------------------------------------------------------------------


def batches(layer: EmbeddingLayer) -> Traces:
    """Make a batch of every kind the layer takes: kind -> keywords of a call (past_length as an array of one number).

    plain; with a mask right_pad, left_pad, pads_inside_mask, mask_unlike_ids; without one pads_inside,
    right_pad_no_mask; inputs_embeds; types, languages, tasks; explicit_positions, full_length; cached and cached_mask.
    Made by integer arithmetic, the same on every machine.
    """
    longest = layer.max_length
    seq = LENGTH if longest is None else max(1, min(LENGTH, longest - PAST))
    ids = ids_of((SEQUENCES, seq), layer, salt=1)
    kinds: Traces = {"plain": {"input_ids": ids}}
    for kind, mask in _masks(ids.shape).items():
        padded = np.where(mask == 1, ids, padding_id(layer))
        kinds[kind] = {"input_ids": padded, "attention_mask": mask}
        if kind != "left_pad":
            kinds[UNMASKED[kind]] = {"input_ids": padded}
    kinds["mask_unlike_ids"] = _mask_unlike_ids(ids, padding_id(layer))
    numbers = _hash((*ids.shape, layer.steps[0].module.table.shape[1]), 2)
    kinds["inputs_embeds"] = {"inputs_embeds": (numbers % 2001 / 10000 - 0.1).astype(np.float32)}
    for step, module in layer.steps:
        if isinstance(step, Add):
            rows = _hash(ids.shape, 3) % min(3, module.table.shape[0])
            kinds[NAMED.get(step.ids, step.ids)] = {"input_ids": ids, step.ids: rows}
        elif isinstance(step, Positions):
            kinds |= _positions(layer, step, module.table.shape[0] - step.extra, ids)
    return kinds


def _positions(layer: EmbeddingLayer, step: Positions, rows: int, ids: Array) -> Traces:
    """The batches that only layers with a position table take."""
    assert layer.max_length is not None  # there is a table
    batch, seq = ids.shape
    scattered = np.stack([np.arange(seq)[::-1], *(_hash((batch - 1, seq), 4) % rows)])
    scattered[-1, -1] = rows - 1
    kinds: Traces = {
        "explicit_positions": {"input_ids": ids, "position_ids": scattered},
        "full_length": {"input_ids": ids_of((1, layer.max_length), layer, salt=5)},
    }
    if not step.cached or (layer.side == "encoder" and "decoder" in layer.family.sides):
        return kinds
    kinds["cached"] = {"input_ids": ids, "past_length": np.array(PAST)}
    if step.rule == "mask":
        mask = np.ones((batch, PAST + seq), np.int64)
        mask[1, : PAST - 1] = 0
        kinds["cached_mask"] = {**kinds["cached"], "attention_mask": mask}
    return kinds


def padding_id(layer: EmbeddingLayer) -> int:
    """The id of padding, or 0 where the config names none that is a row."""
    for step, _ in layer.steps:
        if isinstance(step, Positions) and step.rule == "padding":
            return step.padding(layer.config)
    pad = layer.config.get("pad_token_id")
    return pad if type(pad) is int and 0 <= pad < layer.steps[0].module.table.shape[0] else 0


def _hash(shape: tuple[int, ...], salt: int) -> Array:
    """Scattered integers of 31 bits, made by multiplications that overflow."""
    index = np.arange(1, 1 + int(np.prod(shape)), dtype=np.uint64) + np.uint64(salt << 32)
    mixed = index * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return np.asarray((mixed >> np.uint64(33)).astype(np.int64).reshape(shape))


def ids_of(shape: tuple[int, int], layer: EmbeddingLayer, salt: int) -> Array:
    """Ids other than padding, among them the table's last row."""
    vocab, pad = layer.steps[0].module.table.shape[0], padding_id(layer)
    other = _hash(shape, salt) % max(1, vocab - 1)
    ids: Array = np.minimum(other + (other >= pad), vocab - 1)
    if pad != vocab - 1:
        ids[0, -1] = vocab - 1
    return ids


def _masks(shape: tuple[int, ...]) -> dict[str, Array]:
    right, left, inside = (np.ones(shape, np.int64) for _ in range(3))
    right[1, shape[1] // 2 :] = 0
    left[1, : shape[1] // 2] = 0
    inside[0, 1::3] = inside[1, ::2] = 0
    return {"right_pad": right, "left_pad": left, "pads_inside_mask": inside}


def _mask_unlike_ids(ids: Array, padding: int) -> dict[str, Array]:
    """Words that the mask hides, and padding that it keeps: positions count by the one or by the other."""
    mask, padded = np.ones_like(ids), ids.copy()
    mask[0, 1::3] = 0
    padded[1, ::3] = padding
    return {"input_ids": padded, "attention_mask": mask}
