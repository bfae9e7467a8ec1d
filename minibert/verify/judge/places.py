"""The parts of a model with a port's own numbers fed: each step gets what the port's step got."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.fast import faster
from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError
from minibert.families.parts.plan import REAL, Plan, Step
from minibert.verify.mistakes.mistake import At, Mistake, with_mistake
from minibert.verify.mistakes.plain import all_places, begin, kept
from minibert.verify.sides.traces import HEAD, Traces

from .compare import OF_A_PORT, Difference, over_kinds
from .formats import FORMS, narrowed, rounded_step, weighed
from .input_layer import Subject

NORM_ALONE = 1e-6  # of one norm on the same input; measured between right ones: 4e-7. An eps shows only here
FLOAT32 = 1e-5  # of any module of a port in float32 that is compared in a narrower format
SAME_SCORE = 1e-3  # so near, scores that are seen are taken for right, and those that are hidden for what a mask left
MASKED = 1e3  # a score so far below ours has a mask added; the smallest that is in use is 1e4


def differing(compared: list[Difference]) -> list[Difference]:
    """Select the differences that are larger than a port's rounding."""
    return [d for d in over_kinds(compared) if not d.accepted(OF_A_PORT)]


class Fed:
    """One batch through the steps, in which every intermediate goes on as the port has it.

    found: ours, of the place that was fed last; flow: what goes on, theirs, or ours where they have none.
    """

    def __init__(self, theirs: Mapping[str, Array], values: dict[str, Any]) -> None:
        self.theirs, self.flow = theirs, values
        self.fed = set[str]()  # what is theirs
        self.plan: Plan = {}

    def go(self, plan: Plan) -> None:
        """Take the batch through the steps of the input layer, of a block, or of a head."""
        self.plan, self.found = plan, dict[str, Array]()
        self.flow = kept(self.flow)
        for key, step in plan.items():
            x = self.flow[key] = step.formula(*(self.flow[name] for name in step.of))
            if not step.hidden and x is not None:
                self.found[key] = x
                self.flow[key] = self._theirs(step, x)

    def _theirs(self, step: Step, x: Array) -> Array:
        """The value passed on. NaN and infinity at padding must not spread."""
        there = self.theirs.get(step.key)
        if there is None or there.shape[1:] != x.shape[1:]:
            return x
        self.fed.add(step.key)
        there = there.astype(x.dtype)
        good = np.isfinite(there)
        if step.kind == "scores":  # where they are hidden already, that would hide what is done with them next
            (kept,) = (keep.formula(self.flow[REAL]) for keep in self.plan.values() if keep.kind == "keep")
            seen = kept & self.flow[REAL][:, None, :, None]
            right = good & (np.abs(there - x) <= SAME_SCORE * np.maximum(1, np.abs(x)))
            good &= kept if np.all(right | ~seen) else there > x - MASKED
        return np.where(good, there, x)

    def value(self, key: str, wrong: Plan) -> Array | None:
        """Compute one key with a mistake, from the port's own numbers; None where it does not change it."""
        made: dict[str, Any] = {}

        def of(name: str) -> Any:
            step = wrong.get(name)
            if step is None or (name != key and name in self.fed):
                return self.flow[name]
            if name not in made:
                given = [of(each) for each in step.of]
                same = step is self.plan.get(name) and all(
                    x is self.flow[each] for x, each in zip(given, step.of, strict=True)
                )
                made[name] = (None if name == key else self.flow[name]) if same else step.formula(*given)
            return made[name]

        found: Array | None = of(key)
        return found

    def values(self, wrong: Plan | None, keys: Iterable[str] = ()) -> dict[str, Array]:
        """Compute all, or some, with a mistake, each from the port's own numbers."""
        made = {key: self.value(key, wrong) if wrong else None for key in keys or self.found}
        return {key: self.found[key] if x is None else x for key, x in made.items()}


class Widened(dict[str, Fed]):
    """Every batch in float64, fed when it is asked for: most batches of most places are right in float32."""

    def __init__(self, fed: Mapping[str, Fed], narrow: Mapping[str, Fed], plan: Plan) -> None:
        super().__init__()
        self.before, self.narrow, self.plan = fed, narrow, plan

    def __missing__(self, kind: str) -> Fed:
        self[kind] = self.before[kind]
        self[kind].go(self.plan)
        return self[kind]

    def leave(self) -> None:
        """Go on to the next place: with the port's own rows where it shows them, else with those in float64."""
        for kind, narrow in self.narrow.items():
            if kind in self or not any(key in narrow.fed for key in narrow.found if key.startswith("hidden_states.")):
                self[kind]
            else:
                rows = {key: _wide(x) for key, x in kept(narrow.flow).items()}
                self.before[kind].flow = rows


def _fast(step: Step) -> Step:
    return step._replace(formula=faster(step.formula)) if step.kind == "activation" else step


def _wide(x: Any) -> Any:
    return x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x


class Place(NamedTuple):
    """The input layer, a block or the head, with every batch fed: what it gives from the port's own numbers."""

    subject: Subject
    at: At
    at_wide: At  # the same in float64
    fed: Mapping[str, Fed]
    wide: Mapping[str, Fed]
    inputs: Traces  # of the batches that reach it
    theirs: Traces
    form: str = ""  # the narrower format in which the port is meant to compute

    def plan(self, mistake: Mistake, wide: bool = False) -> Plan | None:
        """The steps with a mistake, in the port's format; None where it changes none."""
        at = self.at_wide if wide else self.at
        plan = with_mistake(mistake, at)
        if plan is None or wide or not self.form:
            return plan
        own, narrow = FORMS[self.form], next(iter(self.fed.values())).plan
        return {key: narrow[key] if step is at.plan.get(key) else rounded_step(own, step) for key, step in plan.items()}

    def compared(self, mistake: Mistake | None = None) -> list[Difference]:
        """Compare what it gives, with a mistake if there is one, with the port's own."""
        plan = self.plan(mistake) if mistake else None
        ours = {kind: self.fed[kind].values(plan) for kind in self.inputs}
        found = self._compare(ours, {})
        far: Traces = {}
        for d in found:
            if self.form or (d.weighed and not d.passes):
                far.setdefault(d.kinds[0], {})[d.key] = ours[d.kinds[0]][d.key]
        if not far:
            return found
        plan = self.plan(mistake, wide=True) if mistake else None
        exact = {kind: self.wide[kind].values(plan, named) for kind, named in far.items()}
        again = self._compare(far, exact)
        left = [d for d in found if d.key not in far.get(d.kinds[0], {})]
        return weighed(again) if self.form else [*left, *again]

    def _compare(self, ours: Traces, truth: Traces) -> list[Difference]:
        return [
            d._replace(tolerance=NORM_ALONE) if d.weighed and self.at.plan[d.key].kind == "norm" else d
            for d in self.subject.compare(self.inputs, ours, self.theirs, truth)
        ]

    def in_float32(self) -> list[Difference]:
        """Compare in a narrower format, by what float32 rounds."""
        made = {kind: self.wide[kind].found for kind in self.inputs}
        return [d.loosened(FLOAT32) for d in self.subject.compare(self.inputs, made, self.theirs, {})]

    def with_padding(self) -> Place:
        """The same with every token compared."""
        all_real = {kind: dict(batch) for kind, batch in self.inputs.items()}
        for batch in all_real.values():
            batch.pop("attention_mask", None)
        return self._replace(inputs=all_real)

    def explained_by(self, known: Iterable[Mistake], tolerance: float) -> list[Mistake]:
        """Select the changes that give the port's numbers here, within the port's own rounding.

        What changes nothing here gives what the right model does: that is compared once.
        """
        right = cache(partial(self._fits, None, tolerance))
        return [each for each in known if (self._fits(each, tolerance) if with_mistake(each, self.at) else right())]

    def _fits(self, mistake: Mistake | None, tolerance: float) -> bool:
        try:
            return not differing([d.loosened(tolerance) for d in self.compared(mistake)])
        except (CheckpointError, ValueError, TypeError, IndexError, KeyError):
            return False  # it cannot be made with these inputs


def places(subject: Subject, exact: Subject, inputs: Traces, theirs: Traces, form: str = "") -> Iterator[Place]:
    """Feed every batch through the model, and give each part when all batches have gone through it."""
    fed, wide = ({kind: Fed(theirs[kind], begin(batch)) for kind, batch in inputs.items()} for _ in range(2))
    both = zip(all_places(subject.model, subject.head), all_places(exact.model, exact.head), strict=True)
    for at, at_wide in both:
        here = {kind: batch for kind, batch in inputs.items() if at.part != HEAD or subject.reaches_head(batch)}
        at = at._replace(plan={key: _fast(step) for key, step in at.plan.items()})
        plan = narrowed(FORMS[form], at) if form else at.plan
        for kind in here:
            fed[kind].go(plan)
        exactly = Widened(wide, {kind: fed[kind] for kind in here}, at_wide.plan)
        yield Place(subject, at, at_wide, fed, exactly, here, theirs, form)
        exactly.leave()
