"""Local checks of the input layer: rows, sum and norm, each from the port's own numbers before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array, mask_position_ids
from minibert.families.parts.plan import normed
from minibert.families.parts.steps import Lookup, Norm, Positions, Project, Tokens
from minibert.models.encoder import Encoder
from minibert.verify.mistakes.mistakes import MISTAKES
from minibert.verify.mistakes.wrong_formulas import format_of
from minibert.verify.mistakes.wrong_steps import At, with_mistake
from minibert.verify.sides.traces import Traces, trace

from .blocks import EncoderSubject
from .compare import over_kinds
from .input_layer import AFTER_NORM

FITS = 10.0  # so many tolerances a norm with a mistake may be from theirs; rows and sums must be equal
Named = Iterator[tuple[str, Array]]  # a mistake, and what it gives


class FedInput:
    """One batch through the input layer, in which every intermediate is replaced by the port's."""

    def __init__(self, encoder: Encoder, batch: Mapping[str, Array], theirs: Mapping[str, Array]) -> None:
        self.encoder, self.layer, self.batch, self.theirs = encoder, encoder.embeddings, batch, theirs
        layer = self.layer
        right = trace(layer, batch)
        self.found: dict[str, Array] = {key: x for key, x in right.items() if key == "position_ids"}
        self.parts: list[str] = []  # what is added up
        x, last = np.zeros(1, np.float32), ""
        for step, module in layer.steps:
            if isinstance(step, Norm):
                x = self._go("sum", x)
            if isinstance(step, Lookup):
                if step.key not in right and not (isinstance(step, Tokens) and "inputs_embeds" in batch):
                    continue
                rows = right.get(step.key, batch.get("inputs_embeds"))
                assert rows is not None  # one of the two
                if isinstance(step, Positions) and "position_ids" in theirs:
                    positions = np.clip(self._at("position_ids") + step.extra, 0, module.table.shape[0] - 1)
                    rows = module.table.rows(positions).reshape(*positions.shape, -1)
                self.parts += [step.key] if step.key in right else []
                x = x + (self._go(step.key, rows) if step.key in right else rows)
            elif isinstance(step, Norm | Project):
                x, last = self._go(step.key, np.asarray(module(x))), step.key
        if not last:
            x = self._go("sum", x)
        self._go("hidden_states.0", x)

    def _at(self, key: str) -> Array:
        right = self.found[key] if key in self.found else self.theirs[key]
        return np.asarray(self.theirs.get(key, right)).astype(right.dtype)

    def _go(self, key: str, x: Array) -> Array:
        self.found[key] = x
        there = self._at(key)
        return there if there.ndim == x.ndim and there.shape[1:] == x.shape[1:] and np.isfinite(there).all() else x

    def mistakes(self, key: str) -> Named:
        """What can be wrong with one intermediate, and what it then is."""
        steps = {step.key: (step, module) for step, module in self.layer.steps}
        if key == "position_ids":
            yield from self._of_positions()
        elif key == "sum":
            yield from self._of_sum()
        elif key in steps and isinstance(step := steps[key][0], Lookup):
            yield from self._of_rows(key, step, steps[key][1])
        elif key in steps and isinstance(step, Norm):
            plan = {key: normed(key, steps[key][1], "sum")}
            for mistake in MISTAKES:
                if wrong := with_mistake(mistake, At(self.encoder, None, plan)):
                    x = self._at("sum") if "sum" in self.theirs else self.found["sum"]
                    yield mistake.name, np.asarray(wrong[key].formula(x))
        elif key == "hidden_states.0":
            yield from ((f"it is {other}", self._at(other)) for other in (*self.parts, "sum") if other in self.found)

    def _of_positions(self) -> Named:
        right = self.found["position_ids"]
        for start in (-2, -1, 1, 2):
            yield f"counted from {start:+d} on", right + start
        yield "all 0", right * 0
        if "attention_mask" in self.batch:
            yield "counted by the mask", mask_position_ids(self.batch["attention_mask"])

    def _of_sum(self) -> Named:
        parts = {key: self._at(key) for key in self.parts}
        whole = self.found["sum"] - sum(parts.values())  # the caller's own rows
        for key, x in parts.items():
            others = [x for other, x in parts.items() if other != key]
            yield f"{key} left out", np.asarray(sum(others, whole))
            yield f"{key} added twice", np.asarray(self.found["sum"] + x)
        for order in list(permutations(parts.values()))[1:] if 2 < len(parts) < 5 else ():
            yield "added in another order", np.asarray(sum(order[1:], order[0]))

    def _of_rows(self, key: str, step: Lookup, module: Any) -> Named:
        table, right = module.table, self.found[key]
        yield "left out: all 0", right * 0
        ids = self.batch.get(step.ids)
        if isinstance(step, Positions):
            ids = self._at("position_ids") + step.extra
        if ids is not None:
            for further in (-2, -1, 1, 2):
                if np.min(ids) + further >= 0 and np.max(ids) + further < table.shape[0]:
                    yield f"rows of ids {further:+d}", table.rows(np.asarray(ids) + further)
        for row in range(min(3, table.shape[0])) if not isinstance(step, Tokens) else ():
            yield f"row {row} for all tokens", np.broadcast_to(table.rows(np.array([row])), right.shape)


def local_input(
    subject: EncoderSubject, inputs: Traces, theirs: Traces
) -> Iterator[tuple[str, tuple[float, list[str]]]]:
    """Give every intermediate of the input layer that is wrong by itself: key, largest difference, what fits."""
    fed = {kind: FedInput(subject.encoder, batch, theirs[kind]) for kind, batch in inputs.items()}
    ours = {kind: each.found for kind, each in fed.items()}
    for d in over_kinds(subject.compare(inputs, ours, theirs, {})):
        if d.passes:
            continue
        kinds = [kind for kind in d.kinds if d.key in theirs[kind]]
        if name := format_of((theirs[kind][d.key], ours[kind][d.key]) for kind in kinds):
            yield d.key, (d.largest, [name])
            continue
        made = {kind: list(fed[kind].mistakes(d.key)) for kind in kinds}
        fits = set.intersection(*({name for name, x in made[kind] if _fits(subject, d.key, x, fed[kind], inputs, kind)}
                                  for kind in kinds))  # fmt: skip
        yield d.key, (d.largest, [name for name in dict.fromkeys(name for name, _ in made[kinds[0]]) if name in fits])


def _fits(subject: EncoderSubject, key: str, x: Array, fed: FedInput, inputs: Traces, kind: str) -> bool:
    """Whether theirs are what a mistake gives; positions may be of one row for all texts."""
    if x.shape[1:] != fed.found[key].shape[1:]:
        return False
    x = np.broadcast_to(x, np.broadcast_shapes(x.shape, fed.found[key].shape))
    mine = {"hidden_states.0": fed.found["hidden_states.0"], key: x}
    found = subject.compare({kind: inputs[kind]}, {kind: mine}, {kind: {key: fed.theirs[key]}}, {})
    allowed = FITS * AFTER_NORM if subject.allowed[key] else 0.0
    return all(d.largest <= allowed for d in found if d.key == key)
