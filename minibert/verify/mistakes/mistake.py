"""A mistake is data: a name, one reason, and the steps that it puts in the place of a bound model's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from minibert.families.parts.bound_blocks import BoundBlock
from minibert.families.parts.plan import Plan, Step
from minibert.models.encoder import Encoder
from minibert.models.input_layer import EmbeddingLayer
from minibert.models.run.blocks import Stack


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

    def of(self, kind: str) -> list[Step]:
        """The steps of one kind."""
        return [step for step in self.plan.values() if step.kind == kind]


Wrong = Callable[[At], Iterable[Step]]


class Mistake(NamedTuple):
    """One mistake.

    where       "local" ones are tried only on single modules, "whole" ones only on whole models
    on_vectors  tried where there are vectors alone: one word of config.json or one line makes it in a whole model
    rounding    the narrower format that it is in, float16, bfloat16 or int8
    keys        keys of config.json that decide it, the first that a model has
    """

    name: str
    why: str
    wrong: Wrong
    where: str = ""
    on_vectors: bool = False
    rounding: str = ""
    keys: tuple[str, ...] = ()


def reason(mistake: Mistake, model: EmbeddingLayer | Encoder) -> str:
    """Say why it is one, with what this model's config.json says."""
    for key in mistake.keys:
        if (value := model.config.get(key)) is not None:
            return f"{mistake.why} Here {key} is {value}."
    return mistake.why


def with_mistake(mistake: Mistake, at: At) -> Plan | None:
    """The steps with a mistake among them; None where it changes none of these."""
    changed = {step.key: step for step in mistake.wrong(at)}
    return {**at.plan, **changed} if changed else None


def on(kind: str, change: Callable[[Step], Step | None]) -> Wrong:
    """Other steps in the place of all of one kind for which there is another."""
    return lambda at: [made for step in at.of(kind) if (made := change(step)) is not None]


def by_part(kind: str, make: Callable[[Any], Callable[..., Any] | None]) -> Wrong:
    """Another formula, made of the bound part."""

    def change(step: Step) -> Step | None:
        formula = make(step.part)
        return None if formula is None else step._replace(formula=formula)

    return on(kind, change)
