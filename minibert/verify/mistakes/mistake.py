"""A mistake is data: a name, one reason, and the wrong steps that replace a bound model's right steps.

`all_places` lists the places of a model, each with its right steps; `begin` makes the values with which the steps of a
batch begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from minibert.families.parts.bound_blocks import BoundBlock
from minibert.families.parts.heads import BoundHead
from minibert.families.parts.plan import GIVEN, IDS, PIECES, REAL, Plan, Step, given, layer_plan
from minibert.models.encoder import Encoder
from minibert.models.input_layer import EmbeddingLayer
from minibert.models.run.blocks import Stack
from minibert.verify.subjects import BLOCKS, HEAD, INPUT_LAYER, tokens_of


class At(NamedTuple):
    """The place of a mistake: the input layer of a model, block `i` of it, or its head; and the right steps there."""

    model: EmbeddingLayer | Encoder
    part: str
    plan: Plan
    i: int | None = None

    @property
    def layer(self) -> EmbeddingLayer:
        return self.model.embeddings if isinstance(self.model, Encoder) else self.model

    @property
    def stack(self) -> Stack:
        """Only an encoder has one."""
        assert isinstance(self.model, Encoder)
        return self.model.stack

    @property
    def block(self) -> BoundBlock | None:
        return None if self.i is None else self.stack.blocks[self.i]

    def steps(self, kind: str) -> list[Step]:
        """Return the steps of one kind."""
        return [step for step in self.plan.values() if step.kind == kind]


Wrong = Callable[[At], Iterable[Step]]


class Mistake(NamedTuple):
    """One mistake.

    where       "local": tried only on single modules; "whole": tried only on whole models
    on_vectors  also tried if only vectors are compared: one key of config.json or one line of code makes the mistake
    rounding    the narrower format to which it rounds: float16, bfloat16 or int8
    keys        keys of config.json that cause it; the first one that a model has is used
    """

    name: str
    why: str
    wrong: Wrong
    where: str = ""
    on_vectors: bool = False
    rounding: str = ""
    keys: tuple[str, ...] = ()


WITH_EPS = ", with eps "  # before the eps of a mistake whose name without it is a mistake too
UNNORMED = ".unnormed"  # the input of the last norm, for the head


def plainest(names: Iterable[str]) -> list[str]:
    """Leave out a name with an eps if the name without it fits too.

    >>> plainest(["eps outside the root", "eps outside the root, with eps 1e-08", "eps 1e-06"])
    ['eps outside the root', 'eps 1e-06']
    """
    listed = list(dict.fromkeys(names))
    return [name for name in listed if WITH_EPS not in name or name.partition(WITH_EPS)[0] not in listed]


def reason(mistake: Mistake, model: EmbeddingLayer | Encoder) -> str:
    """Return why it is a mistake, with the value in this model's config.json."""
    for key in mistake.keys:
        if (value := model.config.get(key)) is not None:
            return f"{mistake.why} Here {key} is {value}."
    return mistake.why


def with_mistake(mistake: Mistake, at: At) -> Plan | None:
    """Return the steps with a mistake among them; None if the mistake changes no step."""
    changed = {step.key: step for step in mistake.wrong(at)}
    return {**at.plan, **changed} if changed else None


def on(kind: str, change: Callable[[Step], Step | None]) -> Wrong:
    """Replace the steps of one kind; a step for which `change` returns None stays."""
    return lambda at: [changed for step in at.steps(kind) if (changed := change(step)) is not None]


def by_part(kind: str, make: Callable[[Any], Callable[..., Any] | None]) -> Wrong:
    """Replace the formula of each step of one kind by one that `make` returns for its bound part; None keeps it."""
    return on(kind, lambda step: None if (formula := make(step.part)) is None else step._replace(formula=formula))


def then(step: Step, change: Callable[[Any], Any]) -> Step:
    """Change the output of a step, if it has any."""
    return step._replace(formula=lambda *x: None if (y := step.formula(*x)) is None else np.asarray(change(y)))


def curried(wrong: Callable[..., Iterable[Step]]) -> Callable[..., Wrong]:
    """Let a function of a place and of other values take these values first."""
    return lambda *values, **named: lambda at: wrong(at, *values, **named)


# -- the places of a model ---------------------------------------------------------------------------------------


def all_places(model: EmbeddingLayer | Encoder, head: BoundHead | None = None) -> Iterator[At]:
    """List the input layer with its steps, then an encoder's blocks and the head."""
    if not isinstance(model, Encoder):
        yield At(model, INPUT_LAYER, layer_plan(model.steps, model.config))
        return
    plan = layer_plan(model.embeddings.steps, model.embeddings.config)
    state = Step("hidden_states.0", "state", lambda x: x, (list(plan)[-1],))
    yield At(model, INPUT_LAYER, {**plan, state.key: state})
    blocks = model.stack.blocks
    for i, block in enumerate(blocks):
        plan = block.plan(i, model.stack)
        if (norm := model.stack.last_norm) in plan and i + 1 == len(blocks):
            plan = {**plan, UNNORMED: Step(UNNORMED, "state", lambda x: x, plan[norm].of)}
        yield At(model, BLOCKS, plan, i)
    if head is not None:
        yield At(model, HEAD, head.plan(f"hidden_states.{len(blocks)}"))


def begin(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with which the steps of a batch begin."""
    ids, real = tokens_of(batch)
    return {REAL: real, IDS: ids, GIVEN: given(batch)}


def kept(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that later places need: the batch's, the pieces of the blocks, and the hidden states."""
    lasting = (REAL, IDS, GIVEN, PIECES, UNNORMED)
    return {key: x for key, x in values.items() if key in lasting or key.startswith("hidden_states.")}
