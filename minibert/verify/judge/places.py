"""The parts of a model with a port's own numbers fed: each step gets what the port's step got."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property
from typing import Any

import numpy as np

from minibert.equations.fast import faster
from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError
from minibert.families.parts.plan import REAL, Plan, Step
from minibert.verify.mistakes.mistake import At, Mistake, all_places, begin, kept, with_mistake
from minibert.verify.sides.traces import HEAD, Traces

from .compare import OF_A_PORT, Difference, Shares, in_float64, over_kinds
from .formats import FORMS, narrowed, rounded_step, weighed
from .input_layer import Subject

NORM_ALONE = 1e-6  # of one norm on the same input; measured between right ones: 4e-7. An eps shows only here
FLOAT32 = 1e-5  # of any module of a port in float32 that is compared in a narrower format
SAME_SCORE = 1e-3  # so near, scores that are seen are taken for right, and those that are hidden for what a mask left
IMPOSSIBLE = (CheckpointError, ValueError, IndexError, TypeError, KeyError)  # it cannot be made with these inputs
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


class Lazy(dict[str, Any]):
    """Values that are computed when they are asked for."""

    def __init__(self, make: Callable[[str], Any], known: Mapping[str, Any] = {}) -> None:
        super().__init__(known)
        self.make = make

    def __missing__(self, key: str) -> Any:
        self[key] = self.make(key)
        return self[key]


class Wide(Fed):
    """The same batch in float64, computed when it is asked for. `before`: rows that the port does not show."""

    def __init__(self, narrow: Fed, plan: Plan, before: Mapping[str, Array]) -> None:
        self.plan, self.fed, values = plan, narrow.fed, narrow.flow

        def passed_on(name: str) -> Any:
            if name in plan and name not in self.fed:
                return self.found[name]
            x, there = values[name], narrow.theirs.get(name)
            if there is not None and there.dtype == np.float64 and name in self.fed:
                return np.where(there.astype(x.dtype) == x, there, x)  # with all the digits that the port has
            return _wide(x)

        self.found = Lazy(lambda key: plan[key].formula(*(self.flow[name] for name in plan[key].of)))
        self.flow = Lazy(passed_on, before)


def _fast(step: Step) -> Step:
    return step._replace(formula=faster(step.formula)) if step.kind == "activation" else step


def _wide(x: Any) -> Any:
    return x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x


class Place:
    """The input layer, a block or the head, with every batch fed: what it gives from the port's own numbers.

    at_wide  the same in float64
    inputs   of the batches that reach it
    form     the narrower format in which the port is meant to compute
    """

    def __init__(
        self, subject: Subject, at: At, at_wide: At, fed: Mapping[str, Fed], wide: Mapping[str, Fed], inputs: Traces,
        theirs: Traces, form: str = "",
    ) -> None:  # fmt: skip
        self.subject, self.at, self.at_wide, self.fed, self.wide = subject, at, at_wide, fed, wide
        self.inputs, self.theirs, self.form = inputs, theirs, form
        self.own = next((each.plan for each in fed.values()), at.plan)
        self.plan, self.compared = cache(self._plan), cache(self._compared)

    def _plan(self, mistake: Mistake, wide: bool = False) -> Plan | None:
        """The steps with a mistake, in the port's format; None where it changes none."""
        plan = with_mistake(mistake, self.at_wide if wide else self.at)
        if plan is None or wide or not self.form:
            return plan
        own, right = FORMS[self.form], self.at.plan
        return {k: self.own[k] if step is right.get(k) else rounded_step(own, step) for k, step in plan.items()}

    def _compared(self, mistake: Mistake | None = None) -> list[Difference]:
        """Compare what it gives, with a mistake if there is one, with the port's own."""
        found, plan = self._right, self.plan(mistake) if mistake else None
        if plan:
            values = (
                (kind, key, self.fed[kind].value(key, plan)) for kind in self.inputs for key in self.fed[kind].found
            )
            wrong = Traces()
            for kind, key, x in values:
                if x is not None:
                    wrong.setdefault(kind, {})[key] = x
            again = self._weigh(wrong, mistake)
            gone = {(d.kinds, d.key) for d in again}
            found = [*again, *(d for d in found if (d.kinds, d.key) not in gone)]
        return weighed(found) if self.form else found

    @cached_property
    def _right(self) -> list[Difference]:
        return self._weigh({kind: self.fed[kind].found for kind in self.inputs})

    def _weigh(self, ours: Traces, mistake: Mistake | None = None) -> list[Difference]:
        """Compare some intermediates; where the tolerance does not decide, float64 does."""

        def asked(d: Difference) -> bool:
            return bool(self.form) or (d.weighed and not d.passes)

        def exactly(kind: str, named: dict[str, Array]) -> list[Difference]:
            plan = self.plan(mistake, True) if mistake else None
            return self._compare({kind: named}, {kind: self.wide[kind].values(plan, named)})

        shares = Shares() if self.form else OF_A_PORT
        return in_float64(self._compare(ours, {}), ours, exactly, shares, self.follows, asked)

    def follows(self, kind: str, key: str, wrong: Collection[str]) -> bool:
        """Whether it is gathered by weights that are not in a batch, where scores or weights are wrong."""
        own = self.at.block.attention if self.at.block else None
        here = own is not None and key == own.context and own.probabilities not in self.theirs[kind]
        return here and own is not None and bool({own.scores, own.probabilities} & {*wrong})

    def _compare(self, ours: Traces, truth: Traces) -> list[Difference]:
        return [
            d._replace(tolerance=NORM_ALONE) if d.weighed and self.at.plan[d.key].kind == "norm" else d
            for d in self.subject.compare(self.inputs, ours, self.theirs, truth)
        ]

    def in_float32(self) -> list[Difference]:
        """Compare in a narrower format, by what float32 rounds."""
        made = {kind: self.wide[kind].values(None, self.fed[kind].found) for kind in self.inputs}
        return [d.loosened(FLOAT32) for d in self.subject.compare(self.inputs, made, self.theirs, {})]

    def with_padding(self) -> Place:
        """The same with every token compared."""
        real = {kind: {k: x for k, x in batch.items() if k != "attention_mask"} for kind, batch in self.inputs.items()}
        return Place(self.subject, self.at, self.at_wide, self.fed, self.wide, real, self.theirs, self.form)

    def explained_by(self, known: Iterable[Mistake], tolerance: float) -> list[Mistake]:
        """Select the changes that give the port's numbers here, within the port's own rounding."""
        return [each for each in known if self._wrong_with(each, tolerance) == set()]

    def spoils(self, mistake: Mistake, of: str) -> bool:
        """Whether a mistake of one intermediate changes another that the port has right."""
        wrong = self._wrong_with(mistake) or set()
        return bool(wrong - {d.key for d in differing(self.compared())} - {of})

    def _wrong_with(self, mistake: Mistake, tolerance: float = 0.0) -> set[str] | None:
        """Name the intermediates that differ from the port's with a mistake; None where it cannot be made."""
        with suppress(*IMPOSSIBLE):
            return {d.key for d in differing([d.loosened(tolerance) for d in self.compared(mistake)])}
        return None


def places(subject: Subject, inputs: Traces, theirs: Traces, form: str = "") -> Iterator[Place]:
    """Feed every batch through the model, and give each part when all batches have gone through it."""
    fed = {kind: Fed(theirs[kind], begin(batch)) for kind, batch in inputs.items()}
    before: Traces = {kind: {} for kind in inputs}
    for at, at_wide in zip(*(all_places(each.model, each.head) for each in (subject, subject.exact)), strict=True):
        here = {kind: batch for kind, batch in inputs.items() if at.part != HEAD or subject.reaches_head(batch)}
        at = at._replace(plan={key: _fast(step) for key, step in at.plan.items()})
        plan = narrowed(FORMS[form], at) if form else at.plan
        for kind in here:
            fed[kind].go(plan)
        narrow = {kind: fed[kind] for kind in here}
        wide = {kind: Wide(own, at_wide.plan, before[kind]) for kind, own in narrow.items()}
        yield Place(subject, at, at_wide, narrow, wide, here, theirs, form)
        for kind, own in wide.items():
            rows = (key for key in plan if key.startswith("hidden_states.") and key not in own.fed)
            before[kind] |= {key: own.flow[key] for key in rows}
