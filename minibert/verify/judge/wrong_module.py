"""Names the mistake of a module that is wrong by itself: of the list, or that it is computed from another input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.parts.block_names import module_path
from minibert.families.parts.bound_blocks import Dense
from minibert.verify.mistakes import MISTAKES
from minibert.verify.mistakes.mistake import Mistake

from .compare import PORT_SHARE, Difference, over_kinds, rms
from .formats import ROUNDS
from .places import IMPOSSIBLE, Place

# A mistake explains a difference if it leaves at most this share of it, and at most this many tolerances
LEFT, ROUNDED = 0.05, 10.0
ALIKE = 10.0  # two mistakes can be told apart if one leaves this many times what the other leaves
OF_ONE = ("dense", "norm", "activation")  # kinds of what is computed from one intermediate
TINY = 1e-30
OTHER = "Each module has its own numbers and input."


def alike(left: Mapping[str, float], rounding: float) -> list[str]:
    """Select the mistakes that leave about as little as the best one, or as rounding does."""
    least = ALIKE * max(min(left.values()), rounding)
    return [name for name, rest in left.items() if rest <= least]


class WrongModule:
    """One module that is wrong by itself, and the mistakes tried on it."""

    def __init__(self, place: Place, d: Difference, tolerance: float) -> None:
        self.place, self.key, self.rounding, self.step = place, d.key, d.error_ours, place.at.plan[d.key]
        self.allowed = max(ROUNDED * place.subject.allowed[d.key], tolerance)
        self._wide = cache(lambda kind: np.asarray(place.theirs[kind][d.key], float))
        right = {kind: self._compared(kind, place.fed[kind].found[d.key]) for kind in d.kinds}
        # what rules a mistake out soonest comes first
        self.kinds = sorted(right, key=lambda kind: (right[kind].passes, self._wide(kind).size))
        (whole,) = over_kinds(right.values())
        self.before = whole.error_ours  # the difference to be explained, rms over all batches
        self.left_by = cache(self._left_by)
        self.tried = set[str]()  # names of the list that change it

    def names(self) -> list[str]:
        """Name what explains the difference in all batches: mistakes of the list, else another input or module."""
        made = self._explaining(each for each in MISTAKES if each.where != "whole")
        here = {each: rest for each, rest in made.items() if self._is_here(each)}
        alone = {each: rest for each, rest in here.items() if not self.place.spoils(each, self.key)}
        if not alone and self.step.kind not in OF_ONE:  # these are never computed from what another module gives
            alone = here
        left = alone or self._explaining(self._others()) or here or made
        return alike({each.name: rest for each, rest in left.items()}, self.rounding) if left else []

    def _explaining(self, mistakes: Iterable[Mistake]) -> dict[Mistake, float]:
        """Select those that explain the difference, with what each leaves of it."""
        return {each: rest for each in mistakes if (rest := self.left_by(each)) is not None}

    def excluded(self) -> list[str]:
        """Name the mistakes of the list that change it and do not explain it."""
        return list(dict.fromkeys(each.name for each in MISTAKES if each.name in self.tried))

    def _is_here(self, mistake: Mistake) -> bool:
        """Whether it is not the mistake of another module, whose output the port does not have."""
        plan, own = self.place.plan(mistake) or {}, self.place.own
        changed = (step for key, step in plan.items() if step is not own.get(key))
        return any(step.key == self.key or step.kind not in OF_ONE for step in changed)

    def _left_by(self, mistake: Mistake) -> float | None:
        """Measure what a mistake leaves; scores may have the mask added already."""
        if not self.place.plan(mistake):
            return None
        self.tried.add(mistake.name)
        masked = [f".{self.place.at.i}.masked"] if self.step.kind == "scores" else []
        rests = (self._left(partial(self._by, mistake, key)) for key in [self.key, *masked])
        return next((rest for rest in rests if rest is not None), None)

    def _by(self, mistake: Mistake, key: str, kind: str, wide: bool = False) -> Array | None:
        fed, plan = (self.place.wide if wide else self.place.fed)[kind], self.place.plan(mistake, wide) or {}
        if key == self.key:
            return fed.value(key, plan)
        masks = [fed.value(name, plan) for name in plan[key].of[1:]]
        if plan[key] is fed.plan[key] and masks[0] is None:
            return None
        right = (fed.flow[name] for name in plan[key].of[1:])
        given = (r if x is None else x for x, r in zip(masks, right, strict=True))
        return np.asarray(plan[key].formula(fed.found[self.key], *given))

    def _left(self, made: Callable[..., Array | None]) -> float | None:
        """Measure the difference that remains, rms over all batches; None where the mistake does not explain it."""
        rests = list[Difference]()
        for kind in self.kinds:
            try:
                x = made(kind)
            except IMPOSSIBLE:
                return None
            if x is None and rests:  # what it changes is not behind this key, where they have more
                x = self._found(kind)
            if x is None or x.shape[1:] != self._wide(kind).shape[1:]:
                return None
            rest = self._compared(kind, x)
            far = rest.error_ours > self.before  # rounding is less
            if not rest.largest <= self.allowed and (far or not self._rounds_so(made, kind, x)):
                return None
            rests.append(rest)
        (rest,) = over_kinds(rests)
        most = max(LEFT * self.before, min(ROUNDS * self.rounding, self.before / 2) if self.place.form else 0.0)
        return rest.error_ours if rest.error_ours <= most else None

    def _rounds_so(self, made: Callable[..., Array | None], kind: str, x: Array) -> bool:
        """Whether theirs is about as far from the mistake in float64 as ours is: some mistakes round much."""
        exact, form = made(kind, wide=True), bool(self.place.form)
        if exact is None or not (form or self.key in self.place.subject.weighed):
            return False
        here = self._compared(kind, exact, x).error_ours
        return 0 < self._compared(kind, exact).error_ours <= (ROUNDS if form else PORT_SHARE) * here

    def share_of_size(self) -> float:
        """Give the rms difference as a share of the rms size of ours."""
        return self.before / max(rms(np.concatenate([self._found(kind).ravel() for kind in self.kinds])), TINY)

    def _found(self, kind: str) -> Array:
        return self.place.fed[kind].found[self.key]

    def _compared(self, kind: str, x: Array, of: Array | None = None) -> Difference:
        """Compare with theirs, or with `of`, which is in the place of float64 too: the error is what is left."""
        there = {kind: {self.key: self._wide(kind) if of is None else np.asarray(of, float)}}
        mine = {kind: {self.key: np.asarray(x, np.float32)}}
        (found,) = self.place.subject.compare(self.place.inputs, mine, there, there)
        return found

    # -- computed from another input ---------------------------------------------------------------------------

    def _others(self) -> Iterator[Mistake]:
        """The same formula of another intermediate, another module's numbers, another block, another order."""
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
        """List what else there was before this or beside it, without a second name for the same numbers."""
        fed, order, kept = self.place.fed[self.kinds[0]], [*self.place.at.plan], list[str]()
        flow, unknown = fed.flow, {*order[order.index(self.key) :]} - fed.fed  # what comes of this by our own steps
        for key in flow:
            if key == self.key or key.startswith(".") or flow[key] is None or key in unknown:
                continue
            if not any(np.array_equal(flow[key], flow[other]) for other in kept):
                kept.append(key)
        return kept

    def _order(self) -> Array:
        """Match each of their columns with an equal one of ours, by the order of one mixture of their rows."""
        place, kind = self.place, self.kinds[0]
        ours = self._found(kind)
        theirs = np.broadcast_to(place.theirs[kind][self.key], ours.shape)
        ours, theirs = (x.reshape(-1, x.shape[-1]) for x in (ours, theirs))
        mixture, order = np.cos(np.arange(len(ours))), np.empty(ours.shape[1], int)
        order[np.argsort(mixture @ theirs)] = np.argsort(mixture @ ours)
        return order

    def _other_modules(self) -> Iterator[Mistake]:
        """Another module's numbers: of the same kind and shape elsewhere in the model."""
        at, own = self.place.at, self.step.part
        found = dict(at.layer.modules) | at.stack.others
        for block in at.stack.blocks:
            found |= block.modules
        for path, module in found.items():
            path = module_path(path)
            fits = type(module) is type(own) and module.weight.shape == own.weight.shape
            if not fits or path == module_path(self.key):
                continue
            both = "weight" if own.bias is None else "weight and bias"
            formula = module if isinstance(own, Dense) else type(own)(module.weight, module.bias, own.eps)
            yield self._instead(f"{both} of {path}", formula=formula)
