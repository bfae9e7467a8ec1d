"""The parts of a model replayed with a port's own numbers: each step reads what the port's step read.

A port may compute in a narrower format. Then parameters and every intermediate of our own computation are rounded, and
a module of the port is right if its rms error, from the port's own input, is at most `ROUNDS` times that computation's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, cached_property, partial
from typing import Any

import numpy as np

from minibert.equations.fast import faster
from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError
from minibert.families.parts.plan import PIECES, REAL, Plan, Step
from minibert.verify.mistakes.mistake import At, Mistake, all_places, begin, kept, with_mistake
from minibert.verify.mistakes.wrong_modules import FORMATS, Formula, rounded, to_q8_0

from .report import OF_A_PORT, Difference, Shares, in_float64, over_kinds, rms
from .subjects import HEAD, Subject
from .traces import Traces

NORM_ALONE = 1e-6  # tolerance of one norm on the same input; 4e-7 measured. A wrong eps shows only here
FLOAT32 = 1e-5  # tolerance of each module of a float32 port that is compared in a narrower format
SAME_SCORE = 1e-3  # nearer visible scores count as right, and nearer hidden scores as not yet masked
MASKED = 1e3  # a score so far below ours has a mask added; the smallest mask in use is 1e4
IMPOSSIBLE = (CheckpointError, ValueError, IndexError, TypeError, KeyError)  # a mistake does not fit these inputs
ROUNDS = 3.0  # a port's rms error, divided by that of our own computation; measured at most 1.8
MASKS = ("mask", "masked", "keep")  # steps that no format rounds
HALF, TWICE = 0.5, 2.0  # shares of a mistake; more than twice of it is another mistake, a larger one
SURE, TELL = 5.0, 3.0  # standard errors of that share
OFF_GRID = 1.37  # numbers in a narrow format are none of its numbers after this factor
BROKEN, ZEROS = "NaN or infinity", "only zeros"  # numbers that no formula of the list computes
CAUSES: Mapping[str, str] = {
    BROKEN: "The cause is a division by 0, a mask that hides all tokens, or a number too large for its format (float16 "
    "ends at 65,504)",
    ZEROS: "The array was not filled, or its input was 0",
}


def differing(compared: list[Difference]) -> list[Difference]:
    """Select the differences that are larger than a port's rounding."""
    return [d for d in over_kinds(compared) if not d.accepted(OF_A_PORT)]


# -- narrower formats --------------------------------------------------------------------------------------------


def narrowed(rounding: Formula, at: At) -> Plan:
    """Return the steps with every parameter and every output rounded."""
    plan = {**at.plan, **{step.key: step for step in rounded(rounding, at)}}
    return {key: rounded_step(rounding, step) for key, step in plan.items()}


def rounded_step(rounding: Formula, step: Step) -> Step:
    """Return the step with its output rounded, which Q8_0 leaves in float32."""
    if step.kind in MASKS or rounding is to_q8_0:
        return step
    return step._replace(formula=lambda *x: _on_floats(rounding, step.formula(*x)))


def _on_floats(change: Formula, x: Any) -> Any:
    return change(x) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x


def judged_by_errors(compared: Sequence[Difference]) -> list[Difference]:
    """Judge by rms errors beyond the tolerance; a small batch is judged by the error over all batches."""
    pooled = {d.key: d.error_ours for d in over_kinds(compared)}
    return [
        d._replace(weighed=True, share=ROUNDS, error_ours=max(d.error_ours, pooled[d.key]))
        if np.isfinite(d.error_ours) else d for d in compared
    ]  # fmt: skip


# -- one batch through the steps ---------------------------------------------------------------------------------


class Replay:
    """One batch through the steps, in which each step reads the port's intermediates.

    outputs: ours of the part computed last; flow: the values that later steps read, theirs, or ours if the port
    has none; fed: the keys of the port's values among them.
    """

    def __init__(self, theirs: Mapping[str, Array], values: dict[str, Any]) -> None:
        self.theirs, self.flow = theirs, values
        self.fed = set[str]()
        self.plan: Plan = {}

    def go(self, plan: Plan) -> None:
        """Compute the steps of the input layer, of a block, or of a head."""
        self.plan, self.outputs = plan, dict[str, Array]()
        self.flow = kept(self.flow)
        for key, step in plan.items():
            x = self.flow[key] = step.formula(*(self.flow[name] for name in step.of))
            if not step.hidden and x is not None:
                self.outputs[key] = x
                self.flow[key] = self._passed_on(step, x)

    def _passed_on(self, step: Step, x: Array) -> Array:
        """Return the port's value, with our numbers instead of NaN and infinity, which padding may contain.

        Scores that the port has already masked are replaced too: they would hide the effect of its next step.
        """
        there = self.theirs.get(step.key)
        if there is None or there.shape[1:] != x.shape[1:]:
            return x
        self.fed.add(step.key)
        there = there.astype(x.dtype)
        good = np.isfinite(there)
        if step.kind == "scores":
            (kept,) = (keep.formula(self.flow[REAL]) for keep in self.plan.values() if keep.kind == "keep")
            seen = kept & self.flow[REAL][:, None, :, None]
            right = good & (np.abs(there - x) <= SAME_SCORE * np.maximum(1, np.abs(x)))
            good &= kept if np.all(right | ~seen) else there > x - MASKED
        return np.where(good, there, x)

    def value(self, key: str, wrong: Plan) -> Array | None:
        """Compute one key with a mistake from the port's own numbers; None if the mistake does not change it."""
        values: dict[str, Any] = {}

        def of(name: str) -> Any:
            step = wrong.get(name)
            if step is None or (name != key and name in self.fed):
                return self.flow[name]
            if name not in values:
                inputs = [of(source) for source in step.of]
                same = step is self.plan.get(name) and all(
                    x is self.flow[source] for x, source in zip(inputs, step.of, strict=True)
                )
                values[name] = (None if name == key else self.flow[name]) if same else step.formula(*inputs)
            return values[name]

        computed: Array | None = of(key)
        return computed

    def values(self, wrong: Plan | None, keys: Iterable[str] = ()) -> dict[str, Array]:
        """Compute all keys, or some, with a mistake, each from the port's own numbers."""
        changed = {key: self.value(key, wrong) if wrong else None for key in keys or self.outputs}
        return {key: self.outputs[key] if x is None else x for key, x in changed.items()}


class Lazy(dict[str, Any]):
    """Values that are computed when they are read."""

    def __init__(self, make: Callable[[str], Any], known: Mapping[str, Any] = {}) -> None:
        super().__init__(known)
        self.make = make

    def __missing__(self, key: str) -> Any:
        self[key] = self.make(key)
        return self[key]


class Replay64(Replay):
    """The same batch in float64, computed when it is read; `before` has hidden states that the port does not show."""

    def __init__(self, narrow: Replay, plan: Plan, before: Mapping[str, Array], change: Formula = np.asarray) -> None:
        self.plan, self.fed, values, self.before = plan, narrow.fed, narrow.flow, before

        def passed_on(name: str) -> Any:
            if name in plan and name not in self.fed:
                return self.outputs[name]
            x, there = values[name], narrow.theirs.get(name)
            if there is not None and there.dtype == np.float64 and name in self.fed:
                return change(np.where(there.astype(x.dtype) == x, there, x))  # keep all digits of the port
            return _on_floats(lambda x: (change(x) if name in self.fed else x).astype(np.float64), x)

        self.outputs = Lazy(lambda key: plan[key].formula(*(self.flow[name] for name in plan[key].of)))
        self.flow = Lazy(passed_on, before)


# -- one part of the model, with every batch ---------------------------------------------------------------------


class Place:
    """The input layer, a block or the head, computed from the port's own numbers in every batch that reaches it.

    at_wide: the same part in float64; form: the narrower format in which the port is meant to compute, or "".
    """

    def __init__(
        self, subject: Subject, at: At, at_wide: At, fed: Mapping[str, Replay], wide: Mapping[str, Replay64],
        inputs: Traces, theirs: Traces, form: str = "",
    ) -> None:  # fmt: skip
        self.subject, self.at, self.at_wide, self.fed, self.wide = subject, at, at_wide, fed, wide
        self.inputs, self.theirs, self.form = inputs, theirs, form
        self.right_plan = next((replay.plan for replay in fed.values()), at.plan)  # in the port's format
        self.plan, self.compared, self.broken = cache(self._plan), cache(self._compared), cache(self._broken)
        self.rounded = cache(self._rounded)

    def _plan(self, mistake: Mistake, wide: bool = False) -> Plan | None:
        """Return the steps with a mistake, in the port's format; None if it changes none."""
        plan = with_mistake(mistake, self.at_wide if wide else self.at)
        if plan is None or wide or not self.form:
            return plan
        rounding, right = FORMATS[self.form], self.at.plan
        return {key: self.right_plan[key] if step is right.get(key) else rounded_step(rounding, step)
                for key, step in plan.items()}  # fmt: skip

    def _compared(self, mistake: Mistake | None = None) -> list[Difference]:
        """Compare our outputs, with a mistake if one is passed, with the port's."""
        differences, plan = self._right, self.plan(mistake) if mistake else None
        if plan:
            wrong = Traces()
            for kind in self.inputs:
                for key in self.fed[kind].outputs:
                    if (x := self.fed[kind].value(key, plan)) is not None:
                        wrong.setdefault(kind, {})[key] = x
            changed = {(d.kinds, d.key): d for d in self._weigh(wrong, mistake)}
            differences = [*changed.values(), *(d for d in differences if (d.kinds, d.key) not in changed)]
        return [self._with_rounded_input(d) for d in judged_by_errors(differences)] if self.form else differences

    def _with_rounded_input(self, d: Difference) -> Difference:
        """Allow a port what rounded inputs and parameters change without a rounded output, if it differs by more."""
        if d.accepted(OF_A_PORT) or not np.isfinite(d.error_theirs + d.error_ours):
            return d
        (kind,) = d.kinds
        both = (self.subject.select(self.inputs, kind, d.key, replay.outputs[d.key])
                for replay in (self.wide[kind], self.rounded(kind)))  # fmt: skip
        return d._replace(error_ours=float(np.hypot(d.error_ours, rms(np.subtract(*both)))))

    def _rounded(self, kind: str) -> Replay64:
        """Return the batch in float64, with parameters in the port's format and inputs rounded once more."""
        rounding = FORMATS[self.form]
        plan = {**self.at_wide.plan, **{step.key: step for step in rounded(rounding, self.at_wide)}}
        return Replay64(self.fed[kind], plan, self.wide[kind].before, lambda x: rounding(x * OFF_GRID) / OFF_GRID)

    @cached_property
    def _right(self) -> list[Difference]:
        return self._weigh({kind: self.fed[kind].outputs for kind in self.inputs})

    def _weigh(self, ours: Traces, mistake: Mistake | None = None) -> list[Difference]:
        """Compare some intermediates; if the tolerance does not decide, float64 does."""

        def undecided(d: Difference) -> bool:
            return bool(self.form) or (d.weighed and not d.passes)

        def exactly(kind: str, named: dict[str, Array]) -> list[Difference]:
            plan = self.plan(mistake, True) if mistake else None
            return self._compare({kind: named}, {kind: self.wide[kind].values(plan, named)})

        shares = Shares() if self.form else OF_A_PORT
        return in_float64(self._compare(ours, {}), ours, exactly, shares, self.follows, undecided)

    def follows(self, kind: str, key: str, wrong: Collection[str]) -> bool:
        """Whether `key` is not judged: an input is broken, or it is a weighted sum of wrong weights, not shown."""
        bound = self.at.block.attention if self.at.block else None
        unshown = bound and key == bound.context and bound.probabilities not in self.theirs[kind]
        if bound and unshown and {bound.scores, bound.probabilities} & {*wrong}:
            return True
        return any(self.broken(kind, name) for name in self._sources(kind, key))

    def _sources(self, kind: str, key: str) -> Iterator[str]:
        """List the port's intermediates from which a step computes."""
        for name in self.at.plan[key].of:
            if name in self.fed[kind].fed:
                yield name
            elif name in self.at.plan:
                yield from self._sources(kind, name)

    def _broken(self, kind: str, key: str) -> str:
        """Return `BROKEN` or `ZEROS` if an intermediate of the port has such numbers and ours has not; else ""."""
        replay, there = self.fed[kind], self.theirs[kind].get(key)
        if there is None or key not in replay.fed or there.dtype.kind != "f":
            return ""
        numbers = self.subject.select(self.inputs, kind, key, there)
        if not np.isfinite(numbers).all():
            return BROKEN
        return ZEROS if not numbers.any() and np.any(replay.outputs.get(key, np.ones(()))) else ""

    def _compare(self, ours: Traces, truth: Traces) -> list[Difference]:
        return [
            d._replace(tolerance=NORM_ALONE) if d.weighed and self.at.plan[d.key].kind == "norm" else d
            for d in self.subject.compare(self.inputs, ours, self.theirs, truth)
        ]

    def in_float32(self) -> list[Difference]:
        """Compare with float32's tolerance, though a narrower format was named."""
        ours = {kind: self.wide[kind].values(None, self.fed[kind].outputs) for kind in self.inputs}
        return [d.loosened(FLOAT32) for d in self.subject.compare(self.inputs, ours, self.theirs, {})]

    def with_padding(self) -> Place:
        """Return this place with padding included in the comparison."""
        real = {kind: {k: x for k, x in batch.items() if k != "attention_mask"} for kind, batch in self.inputs.items()}
        return Place(self.subject, self.at, self.at_wide, self.fed, self.wide, real, self.theirs, self.form)

    def explained_by(self, known: Iterable[Mistake], tolerance: float) -> list[Mistake]:
        """Select the mistakes that compute the port's numbers here, within the port's own rounding."""
        return [mistake for mistake in known if self._wrong_with(mistake, tolerance) == set()]

    def spoils(self, mistake: Mistake, key: str) -> bool:
        """Whether a mistake at `key` changes another intermediate that the port has right."""
        wrong = self._wrong_with(mistake) or set()
        return bool(wrong - {d.key for d in differing(self.compared())} - {key})

    def _wrong_with(self, mistake: Mistake, tolerance: float = 0.0) -> set[str] | None:
        """Name the intermediates that differ from the port's with a mistake; None if it cannot be made here."""
        with suppress(*IMPOSSIBLE):
            return {d.key for d in differing([d.loosened(tolerance) for d in self.compared(mistake)])}
        return None

    def evidence(self, mistake: Mistake) -> Array | None:
        """Compare one mistake with the right model; None if it changes nothing here. Returns three rows.

        The products of the mistake's change with the port's error and with ours, and its square. Each intermediate is
        divided by our own rounding error, so that the most exact intermediates have the most weight.
        """
        plan, rows = self.plan(mistake, wide=True), list[Array]()
        for kind in self.inputs if plan else ():
            wide, narrow = self.wide[kind], self.fed[kind]
            for key in (key for key in narrow.outputs if key in self.theirs[kind]):
                wrong, right = wide.value(key, plan or {}), wide.outputs[key]
                there = self.theirs[kind][key]
                if wrong is None or wrong.shape != right.shape or there.shape != right.shape or right.dtype.kind != "f":
                    continue
                select = partial(self.subject.select, self.inputs, kind, key)
                numbers = [select(np.asarray(x, float) - right) for x in (wrong, there, narrow.outputs[key])]
                off, theirs, ours = (x.reshape(-1, x.shape[-1] if x.ndim > 1 else 1) for x in numbers)
                size = float(np.mean(ours**2)) if ours.size else 0.0
                if size > 0 and np.isfinite(off).all() and np.isfinite(theirs).all():
                    rows.append(np.stack([(off * x).sum(-1) / size for x in (theirs, ours, off)]))
        return np.concatenate(rows, axis=1) if rows else None


def weighed_up(evidence: Sequence[Array]) -> str:
    """Return "found" for a mistake, "excluded", or "hidden" below the rounding; "" if it changes too little to show.

    A port with the mistake has about one share of it more than our own computation, which rounds as the port does.
    """
    theirs, ours, square = np.concatenate(evidence, axis=1)
    whole = float(square.sum())
    if not whole > 0:
        return ""
    there, here = float(theirs.sum()) / whole, float(ours.sum()) / whole
    error = max(float(np.sqrt(np.square(x - a * square).sum())) / whole for x, a in ((theirs, there), (ours, here)))
    if min(there, there - here) > max(HALF, SURE * error):
        return "found" if there - here < TWICE else "hidden"
    return "excluded" if max(there, there - here) + TELL * error < HALF else "hidden"


def places(subject: Subject, inputs: Traces, theirs: Traces, form: str = "") -> Iterator[Place]:
    """Replay every batch through the model part by part, and yield each part once all batches have passed it."""
    replays = {kind: Replay(theirs[kind], begin(batch)) for kind, batch in inputs.items()}
    before: Traces = {kind: {} for kind in inputs}
    for at, at_wide in zip(*(all_places(x.model, x.head) for x in (subject, subject.exact)), strict=True):
        here = {kind: batch for kind, batch in inputs.items() if at.part != HEAD or subject.reaches_head(batch)}
        fast = {step.key: step._replace(formula=faster(step.formula)) for step in at.steps("activation")}
        at = at._replace(plan={**at.plan, **fast})
        plan = narrowed(FORMATS[form], at) if form else at.plan
        for kind in here:
            replays[kind].go(plan)
        narrow = {kind: replays[kind] for kind in here}
        wide = {kind: Replay64(replay, at_wide.plan, before[kind]) for kind, replay in narrow.items()}
        yield Place(subject, at, at_wide, narrow, wide, here, theirs, form)
        for kind, replay in wide.items():
            lasting = (key for key in plan if key == PIECES or key.startswith("hidden_states."))
            rows = (key for key in lasting if key not in replay.fed)
            before[kind] |= {key: replay.flow[key] for key in rows}
