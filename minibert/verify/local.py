"""The search for the mistake, in a whole model and in each module. Imported only if something differs.

Each module of a port is checked on the port's own input: our module reads what theirs read, so that a remaining
difference is that module's own mistake. A mistake of the list is tried on the modules that it changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import some_of
from minibert.families.parts.block_names import module_path
from minibert.families.parts.modules import Linear
from minibert.verify.mistakes import MISTAKES
from minibert.verify.mistakes.mistake import Mistake, all_places, plainest, reason, with_mistake
from minibert.verify.mistakes.wrong_modules import ROUNDINGS, Formula

from .places import CAUSES, IMPOSSIBLE, ROUNDS, ZEROS, Place, differing, places, weighed_up
from .report import OF_A_PORT, PORT_SHARE, SHOWN, Comparison, Difference, over_kinds, rms
from .subjects import INPUT_LAYER, Subject
from .traces import Traces

# A mistake explains a difference if it leaves at most this share of it, and at most this many tolerances
LEFT, ROUNDED = 0.05, 10.0
ALIKE = 10.0  # two mistakes can be told apart if one leaves this many times what the other leaves
OF_ONE = ("dense", "norm", "activation")  # kinds of steps that read one intermediate
TINY = 1e-30
OTHER = "Each module has its own numbers and input."
FEW_MAPS = 4  # this many wrong linear maps show a wrong file rather than a wrong map


# -- the lines of a report ---------------------------------------------------------------------------------------


def look(
    report: Comparison, subject: Subject, inputs: Traces, theirs: Traces, tolerance: float, local: bool, form: str = ""
) -> None:
    """Look for the mistake; local: whether each module of an encoder is named too; form: a port's narrower format."""
    judged = local_mistakes(subject, inputs, theirs, tolerance, form)
    local = local and subject.has_places
    wrong, there = {wrong.key for wrong in judged.modules}, report.accepted.keys() & {*subject.module_outputs}
    if local and not form and 2 * len(wrong & there) > len(there):  # a narrower format affects most modules
        for name in (name for name, rounding in ROUNDINGS.items() if _are_in(rounding, theirs, wrong)):
            narrower = local_mistakes(subject, inputs, theirs, tolerance, name)
            if 2 * len(narrower.modules) <= len(judged.modules):
                judged, report.rounding = narrower, "" if narrower.modules else name
                right = "all" if not narrower.modules else "most"
                report.headline(f"{right} modules that are shown are right in {name}; if that is meant, compare in "
                                "that format")  # fmt: skip
                break
        if report.rounding:
            return
    _say_matches(report, subject, judged.whole, local and any(wrong.fits for wrong in judged.modules))
    if local:
        _say_local(report, judged)


def _are_in(rounding: Formula, theirs: Traces, keys: set[str]) -> bool:
    """Whether more than a fourth of a port's wrong intermediates hold only numbers of a narrower format."""
    arrays = [np.asarray(x, np.float32) for named in theirs.values() for key, x in named.items() if key in keys]
    return 4 * sum(np.array_equal(rounding(x), x, equal_nan=True) for x in arrays) > len(arrays)


def say_format(report: Comparison, subject: Subject, form: str, verdict: InFormat) -> None:
    """Report that a port is right in a format, or its mistake, and the mistakes that such rounding can hide."""
    for mistake in {mistake.name: mistake for mistake in verdict.mistakes}.values():
        report.matches.append(mistake.name)
        report.fail(f"matches: {mistake.name}. {reason(mistake, subject.model)}")
    if verdict.mistakes:
        report.headline(f"not right in {form}: {' or '.join(report.matches)}")
        return
    report.rounding = form
    if verdict.float32:
        report.say(f"right in float32, not computed in {form}")
        return
    report.hidden = list(dict.fromkeys(mistake.name for mistake in verdict.hidden))
    names = ", ".join(report.hidden)
    hides = f"; such rounding can hide: {names}" if names else "; no mistake of the list can hide below such rounding"
    report.say(f"every module that is shown is right in {form}{hides}")


def _say_matches(report: Comparison, subject: Subject, mistakes: Iterable[Mistake], by_module: bool = False) -> None:
    for mistake in mistakes:
        if mistake.name not in report.matches:
            report.matches.append(mistake.name)
            report.say(f"matches: {mistake.name}. {reason(mistake, subject.model)}")
    if report.matches:
        report.headline(f"all of it is explained by: {' or '.join(report.matches)}")
    elif by_module:
        report.say("no single mistake explains the whole model; module by module:")
    else:
        model_places = list(all_places(subject.model, subject.head))
        known = (mistake for mistake in MISTAKES if mistake.where != "local")
        tried = {mistake.name for mistake in known if any(with_mistake(mistake, at) for at in model_places)}
        report.say(f"none of the {len(tried)} classic mistakes that this model allows fits")


def _say_local(report: Comparison, judged: Findings) -> None:
    """Name every module that is wrong by itself."""
    report.local = judged.modules
    if not report.local:
        left = [d.key for d in over_kinds(report.compared) if d.key not in judged.keys and not report.accepted[d.key]]
        report.say(
            f"not checked on the port's own inputs: {', '.join(left)}" if left else
            "every module in the file is right on the port's own inputs"
        )  # fmt: skip
        return
    size = "beyond what float32 rounds to" if report.passed else "wrong"
    if not report.matches:
        report.headline(f"{size} by itself: {some_of([wrong.key for wrong in report.local], SHOWN)}")
    report.say(f"{size} by itself, on the port's own input; all else follows from this or is right:")
    others = _other_weights(report, judged)
    groups: dict[tuple[str, str], list[Finding]] = {}  # by place and mistakes; by mistakes if they explain all of it
    for wrong in report.local:
        if wrong in others:
            continue
        everywhere = wrong.fits and {*wrong.fits} <= {*report.matches}
        groups.setdefault(("" if everywhere else wrong.place, " or ".join(wrong.fits)), []).append(wrong)
    for (_, names), several in groups.items():
        many, largest = len(several) >= FEW_MAPS, max(wrong.largest for wrong in several)
        more = f" and {len(several) - 1} more modules" if many else ""
        for wrong in [several[0]._replace(largest=largest)] if many else several:
            tried = f"; none of {len(wrong.excluded)} mistakes fits" if wrong.excluded else ""
            fits = f"; fits: {names}" if names else tried
            report.say(f"  {wrong.place}: {wrong.key}{more} by {wrong.largest:.2g}{fits}")
    fitting = {name for wrong in report.local for name in wrong.fits}
    report.say(*(f"{name}: {cause}" for name, cause in CAUSES.items() if name in fitting))


def _other_weights(report: Comparison, judged: Findings) -> list[Finding]:
    """Report once that the weights come from another file, if most linear maps are wrong and no mistake fits."""
    maps = [wrong for wrong in judged.modules if wrong.kind == "dense" and not wrong.fits]
    if len(maps) < FEW_MAPS or 2 * len(maps) <= judged.maps:
        return []
    shares = sorted(wrong.share for wrong in maps)
    report.say(
        f"  the weights are not this model's: {len(maps)} of {judged.maps} linear maps differ by {shares[0]:.2g} to "
        f"{shares[-1]:.2g} of the size of their output; compare with the file that the port reads, or allow a tolerance"
    )
    return maps


# -- local checks ------------------------------------------------------------------------------------------------


class Finding(NamedTuple):
    """A module that is wrong by itself: its key, its distance from ours on the same input, and the mistakes that fit.

    excluded: the mistakes that were tried, if none fits. kind: the kind of its step. share: the distance as a share of
    its size
    """

    key: str
    place: str
    largest: float
    fits: list[str]
    excluded: list[str]
    kind: str = ""
    share: float = 0.0


class Findings(NamedTuple):
    """The findings of local checks.

    modules  every module that is wrong by itself, in the order of computation
    keys     the judged intermediates of blocks and head: see `Place.follows`
    maps     how many linear maps are judged
    whole    the mistakes that explain all of each part with a wrong module
    """

    modules: list[Finding]
    keys: set[str]
    maps: int
    whole: list[Mistake]


class InFormat(NamedTuple):
    """A port's verdict in a format: how each module differs, mistakes that are there, and mistakes that may hide."""

    differences: list[Difference]
    mistakes: list[Mistake]
    hidden: list[Mistake]
    float32: bool  # whether every module is right in float32 too, so that nothing shows the format


def in_format(subject: Subject, inputs: Traces, theirs: Traces, form: str) -> InFormat:
    """Compare every module in a format, from the port's own input, and weigh each mistake of the list."""
    differences, float32 = list[Difference](), True
    evidence: dict[int, dict[str, list[Array]]] = {}  # number of a mistake -> part of the model -> its places
    known = [mistake for mistake in MISTAKES if mistake.where != "local" and not _is_of_format(mistake, form)]
    for place in places(subject, inputs, theirs, form):
        differences += place.compared()
        float32 = float32 and not differing(place.in_float32())
        for number, mistake in enumerate(known):
            with suppress(*IMPOSSIBLE):
                if (rows := place.evidence(mistake)) is not None:
                    evidence.setdefault(number, {}).setdefault(place.at.part, []).append(rows)
    mistakes, hidden = list[Mistake](), list[Mistake]()
    for number, parts in evidence.items():  # one part may hide what another excludes: a head has its own activation
        alone = [weighed_up([rows]) for several in parts.values() for rows in several]
        everywhere = {weighed_up([*chain(*parts.values())]), *map(weighed_up, parts.values())}
        if "found" in (*alone, *everywhere):
            mistakes.append(known[number])
        elif "hidden" in everywhere:
            hidden.append(known[number])
    return InFormat(differences, mistakes, hidden, float32)


def _is_of_format(mistake: Mistake, form: str) -> bool:
    """Whether a mistake only rounds weights, to a format that rounds no more than this one."""
    order = {"float16": 0, "bfloat16": 1, "q8_0": 2, "int8": 2}
    return mistake.name.startswith(("parameters in", "weights in")) and order[mistake.rounding] <= order[form]


def local_mistakes(
    subject: Subject, inputs: Traces, theirs: Traces, tolerance: float = 0.0, form: str = ""
) -> Findings:
    """Check every module by itself; return the wrong ones with their mistakes, and mistakes that explain all parts.

    tolerance: how much of a difference a mistake may leave, for a port that rounds more than we do.
    """
    modules, keys, maps = list[Finding](), set[str](), 0
    whole, right = Whole(tolerance), dict[int, str]()  # right: places before the first wrong one of their part
    for number, place in enumerate(places(subject, inputs, theirs, form)):
        at, compared = place.at, place.compared()
        here = {d.key for d in differing(compared)}
        wrong = differing([d for d in compared if not place.follows(d.kinds[0], d.key, here)])
        keys |= {d.key for d in compared if at.part != INPUT_LAYER}
        maps += len({d.key for d in compared} & {step.key for step in at.steps("dense")})
        tested = [WrongModule(place, d, tolerance) for d in wrong if subject.has_places]
        if wrong or at.part in whole.parts:
            whole.narrow(place, tested[:1])
        else:
            right[number] = at.part
        for d, module in zip(wrong, tested, strict=False):
            fits = module.names()
            if {*fits} & CAUSES.keys() and any(other.fits == fits for other in modules):
                continue  # the first one shows the cause
            excluded = [] if fits else list(dict.fromkeys(x.name for x in MISTAKES if x.name in module.tried))
            kind, share = module.step.kind, module.share_of_size()
            modules.append(Finding(d.key, subject.place(d.key), d.largest, fits, excluded, kind, share))
    last = max((number for number, part in right.items() if part in whole.parts), default=-1)
    for number, place in enumerate(islice(places(subject, inputs, theirs, form), last + 1)):
        if not whole.known:
            break
        if right.get(number) in whole.parts:
            whole.narrow(place)
    mistakes = whole.strict or whole.known or []
    names = plainest(mistake.name for mistake in mistakes)
    mistakes = [mistake for mistake in mistakes if mistake.name in names]
    return Findings(_named_by(mistakes, _as_in_other_blocks(modules)), keys, maps, mistakes)


class Whole:
    """The mistakes that explain every place so far."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance, self.parts = tolerance, set[str]()
        self.known: list[Mistake] | None = None
        self.strict: list[Mistake] = []  # compare padding too: some mistakes of the mask differ only there

    def narrow(self, place: Place, first: Sequence[WrongModule] = ()) -> None:
        """Keep the mistakes that explain one more place, beginning with its `first` wrong module."""
        self.parts.add(place.at.part)
        if self.known is None:
            known = (mistake for mistake in MISTAKES if mistake.where != "local")
            self.known = [mistake for mistake in known if all(module.left_by(mistake) is not None for module in first)]
            self.strict = self.known
        self.known = place.explained_by(self.known, self.tolerance)
        self.strict = [mistake for mistake in self.strict if mistake in self.known]
        if len(self.strict) > 1:
            self.strict = place.with_padding().explained_by(self.strict, self.tolerance)


def _as_in_other_blocks(modules: list[Finding]) -> list[Finding]:
    """Keep the names that fit one module in every block, if some do: one block alone may not tell two names apart."""
    groups: dict[str, list[set[str]]] = {}
    for wrong in modules:
        groups.setdefault(re.sub(r"\d+", "", wrong.key), []).append({*wrong.fits})
    common = {path: set.intersection(*several) for path, several in groups.items()}
    named = [(wrong, common[re.sub(r"\d+", "", wrong.key)]) for wrong in modules]
    return [wrong._replace(fits=[x for x in wrong.fits if x in both or not both]) for wrong, both in named]


def _named_by(whole: list[Mistake], modules: list[Finding]) -> list[Finding]:
    """Name a mistake that explains all blocks in each module of a place, if some module there has no explanation."""
    names = list(dict.fromkeys(mistake.name for mistake in whole))
    unnamed = {wrong.place for wrong in modules if not wrong.fits}
    other = {wrong.key for wrong in modules if names and wrong.place in unnamed and not {*names} & {*wrong.fits}}
    return [wrong._replace(fits=names, excluded=[]) if wrong.key in other else wrong for wrong in modules]


# -- one wrong module --------------------------------------------------------------------------------------------


class WrongModule:
    """One module that is wrong by itself, and the mistakes tried on it."""

    def __init__(self, place: Place, d: Difference, tolerance: float) -> None:
        self.place, self.key, self.rounding, self.step = place, d.key, d.error_ours, place.at.plan[d.key]
        self.allowed = max(ROUNDED * place.subject.allowed[d.key], tolerance)
        self._wide = cache(lambda kind: np.asarray(place.theirs[kind][d.key], float))
        right = {kind: self._compared(kind, place.fed[kind].outputs[d.key]) for kind in d.kinds}
        # the batch that rules most mistakes out comes first
        self.kinds = sorted(right, key=lambda kind: (right[kind].passes, self._wide(kind).size))
        (whole,) = over_kinds(right.values())
        self.before = whole.error_ours  # the difference to be explained, rms over all batches
        self.left_by = cache(self._left_by)
        self.tried = set[str]()  # names of mistakes that change it

    def names(self) -> list[str]:
        """Name what explains the difference in all batches: mistakes of the list, else another input or module."""
        broken = next(filter(None, (self.place.broken(kind, self.key) for kind in self.kinds)), "")
        numbers = (x for kind in self.kinds for x in self.place.theirs[kind].values() if x.dtype.kind == "f")
        if broken and not (broken == ZEROS and self.step.kind == "rows" and any(map(np.any, numbers))):
            return [broken]  # rows of zeros alone were left out
        listed = self._explaining(mistake for mistake in MISTAKES if mistake.where != "whole")
        listed = {mistake: rest for mistake, rest in listed.items() if not self._is_refuted(mistake)}
        here = {mistake: rest for mistake, rest in listed.items() if self._is_here(mistake)}
        alone = {mistake: rest for mistake, rest in here.items() if not self.place.spoils(mistake, self.key)}
        if not alone and self.step.kind not in OF_ONE:  # these never read another module's output by mistake
            alone = here
        left = alone or self._explaining(self._others()) or here or listed
        return alike({mistake.name: rest for mistake, rest in left.items()}, self.rounding) if left else []

    def _explaining(self, mistakes: Iterable[Mistake]) -> dict[Mistake, float]:
        """Select the mistakes that explain the difference, with the rest that each leaves."""
        return {mistake: rest for mistake in mistakes if (rest := self.left_by(mistake)) is not None}

    def _is_here(self, mistake: Mistake) -> bool:
        """Whether it is this module's mistake, and not one of a module whose output the port does not show."""
        plan, right = self.place.plan(mistake) or {}, self.place.right_plan
        changed = (step for key, step in plan.items() if step is not right.get(key))
        return any(step.key == self.key or step.kind not in OF_ONE for step in changed)

    def _is_refuted(self, mistake: Mistake) -> bool:
        """Whether a batch in which the port does not show this key shows that it is not this mistake."""
        place, plan = self.place, self.place.plan(mistake) or {}
        others = {kind for kind in place.inputs if self.key not in place.theirs[kind]}
        return bool(others) and any(
            d.kinds[0] in others and place.fed[d.kinds[0]].value(d.key, plan) is not None
            for d in place.compared(mistake) if not d.accepted(OF_A_PORT)
        )  # fmt: skip

    def _left_by(self, mistake: Mistake) -> float | None:
        """Measure the difference that a mistake leaves; a port's scores may have the mask added already."""
        if not self.place.plan(mistake):
            return None
        self.tried.add(mistake.name)
        masked = [f".{self.place.at.i}.masked"] if self.step.kind == "scores" else []
        rests = (self._left(partial(self._by, mistake, key)) for key in [self.key, *masked])
        return next((rest for rest in rests if rest is not None), None)

    def _by(self, mistake: Mistake, key: str, kind: str, wide: bool = False) -> Array | None:
        """Compute `key` with a mistake; in masked scores, only the mask may be wrong."""
        fed, plan = (self.place.wide if wide else self.place.fed)[kind], self.place.plan(mistake, wide) or {}
        if key == self.key:
            return fed.value(key, plan)
        masks = [fed.value(name, plan) for name in plan[key].of[1:]]
        if plan[key] is fed.plan[key] and masks[0] is None:
            return None
        right = (fed.flow[name] for name in plan[key].of[1:])
        terms = (r if x is None else x for x, r in zip(masks, right, strict=True))
        return np.asarray(plan[key].formula(fed.outputs[self.key], *terms))

    def _left(self, compute: Callable[..., Array | None]) -> float | None:
        """Measure the difference that remains, rms over all batches; None if the mistake does not explain it."""
        rests = list[Difference]()
        for kind in self.kinds:
            try:
                x = compute(kind)
            except IMPOSSIBLE:
                return None
            if x is None and rests:  # in this batch the port shows more, so that the mistake does not change this key
                x = self._ours(kind)
            if x is None or x.shape[1:] != self._wide(kind).shape[1:]:
                return None
            rest = self._compared(kind, x)
            far = rest.error_ours > self.before  # rounding is less
            if not rest.largest <= self.allowed and (far or not self._rounds_so(compute, kind, x)):
                return None
            rests.append(rest)
        (rest,) = over_kinds(rests)
        most = max(LEFT * self.before, min(ROUNDS * self.rounding, self.before / 2) if self.place.form else 0.0)
        return rest.error_ours if rest.error_ours <= most else None

    def _rounds_so(self, compute: Callable[..., Array | None], kind: str, x: Array) -> bool:
        """Whether their error against the mistake in float64 is about as large as ours: some mistakes round a lot."""
        exact, form = compute(kind, wide=True), bool(self.place.form)
        if exact is None or not (form or self.key in self.place.subject.weighed):
            return False
        here = self._compared(kind, exact, x).error_ours
        return 0 < self._compared(kind, exact).error_ours <= (ROUNDS if form else PORT_SHARE) * here

    def share_of_size(self) -> float:
        """Return the rms difference as a share of the rms size of ours."""
        return self.before / max(rms(np.concatenate([self._ours(kind).ravel() for kind in self.kinds])), TINY)

    def _ours(self, kind: str) -> Array:
        return self.place.fed[kind].outputs[self.key]

    def _compared(self, kind: str, x: Array, target: Array | None = None) -> Difference:
        """Compare with theirs, or with `target`, in float64 too: the error is then the difference that is left."""
        there = {kind: {self.key: self._wide(kind) if target is None else np.asarray(target, float)}}
        mine = {kind: {self.key: np.asarray(x, np.float32)}}
        (difference,) = self.place.subject.compare(self.place.inputs, mine, there, there)
        return difference

    # -- computed from another input ---------------------------------------------------------------------------

    def _others(self) -> Iterator[Mistake]:
        """Yield other explanations: the input, the module, the block or the order of columns is another one."""
        step, of = self.step, self.step.of
        for other in self._other_inputs():
            if step.kind in OF_ONE:
                yield self._instead(f"computed from {other}", of=(other,))
            elif step.kind == "sum":
                yield self._instead(f"residual of {other}", of=(other, of[1]))
                yield self._instead(f"{other} added", of=(of[0], other))
            elif step.kind == "state":
                yield self._instead(f"it is {other}", of=(other,))
        if step.kind in ("dense", "norm"):
            yield from self._other_modules()
        if step.kind in ("dense", "join"):
            order, right = self._order(), step.formula
            yield self._instead("the same numbers in another order", formula=lambda *x: right(*x)[..., order])
        at = self.place.at
        for i, block in enumerate(at.stack.blocks if step.kind == "state" and at.i is not None else ()):
            plan = block.plan(at.i or 0, at.stack)
            if i != at.i and not plan.keys() & self.place.fed[self.kinds[0]].fed - {self.key}:
                yield Mistake(f"weights of block {i}", OTHER, lambda at, plan=plan: plan.values())  # type: ignore[misc]

    def _instead(self, name: str, **changes: Any) -> Mistake:
        return Mistake(name, OTHER, lambda at: [at.plan[self.key]._replace(**changes)])

    def _other_inputs(self) -> list[str]:
        """List the other intermediates before this one or beside it; each array has one name."""
        fed, order, kept = self.place.fed[self.kinds[0]], [*self.place.at.plan], list[str]()
        flow, unknown = fed.flow, {*order[order.index(self.key) :]} - fed.fed  # our own steps compute these from it
        for key in flow:
            if key == self.key or key.startswith(".") or flow[key] is None or key in unknown:
                continue
            if not any(np.array_equal(flow[key], flow[other]) for other in kept):
                kept.append(key)
        return kept

    def _order(self) -> Array:
        """Match each of their columns with an equal column of ours, by sorting one weighted sum of the rows."""
        place, kind = self.place, self.kinds[0]
        ours = self._ours(kind)
        theirs = np.broadcast_to(place.theirs[kind][self.key], ours.shape)
        ours, theirs = (x.reshape(-1, x.shape[-1]) for x in (ours, theirs))
        mixture, order = np.cos(np.arange(len(ours))), np.empty(ours.shape[1], int)
        order[np.argsort(mixture @ theirs)] = np.argsort(mixture @ ours)
        return order

    def _other_modules(self) -> Iterator[Mistake]:
        """Use another module's parameters: a module of the same kind and shape elsewhere in the model."""
        at, right = self.place.at, self.step.part
        modules = dict(at.layer.modules) | at.stack.others
        for block in at.stack.blocks:
            modules |= block.modules
        for path, module in modules.items():
            path = module_path(path)
            fits = type(module) is type(right) and module.weight.shape == right.weight.shape
            if not fits or path == module_path(self.key):
                continue
            both = "weight" if right.bias is None else "weight and bias"
            formula = module if isinstance(right, Linear) else type(right)(module.weight, module.bias, right.eps)
            yield self._instead(f"{both} of {path}", formula=formula)


def alike(left: Mapping[str, float], rounding: float) -> list[str]:
    """Select the mistakes whose remaining difference is near the smallest one, or near the rounding error."""
    least = ALIKE * max(min(left.values()), rounding)
    return plainest(name for name, rest in left.items() if rest <= least)
