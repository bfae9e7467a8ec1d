"""Which mistake a module has that is wrong by itself: what is tried on it, and what is left then."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property, partial
from itertools import combinations, combinations_with_replacement

import numpy as np

from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array
from minibert.families.parts.bound_blocks import BoundAttention, Dense
from minibert.families.parts.modules import RMSNorm
from minibert.families.parts.plan import REAL, Plan, Step
from minibert.verify.mistakes.mistake import Mistake, with_mistake
from minibert.verify.mistakes.wrong_formulas import ROUNDINGS, Formula, format_of, one_pass, share_of_format
from minibert.verify.mistakes.wrong_masks import window_of
from minibert.verify.mistakes.wrong_steps import rounded_weight

from .compare import PORT_SHARE, Difference, over_kinds, rms
from .factors import WHOLE, fitted, other_eps, other_gelu, other_map, other_order, times_as_large
from .other_modules import of_others
from .places import MASKED, Fed, Place

# A mistake explains a difference if it leaves at most this share of it, and at most this many tolerances
LEFT, ROUNDED = 0.05, 10.0
BY_FACTOR = 1e-6  # what a factor that is found by its size may leave, where nothing is allowed
ALIKE = 10.0  # two mistakes can be told apart if one leaves this many times what the other leaves
IMPOSSIBLE = (ValueError, IndexError, TypeError)  # a mistake cannot be made with these shapes
OF_ONE = ("dense", "norm", "activation")  # kinds of what is computed from one intermediate
SEEN = 1e-4  # an attention weight above it has digits enough for its logarithm
SAME_SHARE = 0.05  # between the share of numbers that are 0 and the one that their factor makes up for
TINY = 1e-30  # an attention weight so small is of a token that is hidden

Made = Callable[..., "Array | None"]  # kind of batch, and whether in float64 -> what a module with a mistake gives


def alike(left: Mapping[str, float], rounding: float) -> list[str]:
    """Those that leave about as little as the one that leaves least, or as rounding does."""
    least = ALIKE * max(min(left.values()), rounding)
    return [name for name, rest in left.items() if rest <= least]


class WrongModule:
    """One module that is wrong by itself, and what is tried on it."""

    def __init__(self, place: Place, d: Difference, known: list[Mistake], tolerance: float) -> None:
        self.subject, self.at, self.at_wide, self.fed, self.wide, self.inputs, self.theirs, _ = place
        self.known = known
        self.key, self.rounding = d.key, d.error_ours
        narrow = share_of_format(self.theirs[kind][d.key] for kind in d.kinds)
        self.allowed = max(ROUNDED * self.subject.allowed[d.key], tolerance, 2 * narrow)
        self.step = self.at.plan[d.key]
        kinds = sorted(d.kinds, key=lambda kind: self.theirs[kind][d.key].size)
        same = {kind: self._compared(kind, self.fed[kind].found[d.key]).passes for kind in kinds}
        self.kinds = sorted(kinds, key=same.__getitem__)  # what rules a mistake out soonest comes first
        self.left_by = cache(self._left_by)
        self.in_vain = False  # whether each step before it was tried by itself and none explains it
        self.changed = False  # by the mistake that is tried
        self.changing = set[str]()  # names of mistakes that change it

    def names(self, thorough: bool = True) -> list[str]:
        """Name what explains the difference in all batches: a narrower format, else what the formula can have wrong,
        else from what else it was computed, else two mistakes of the scores at once, else what a module before it can
        have wrong whose output the port does not have, in all its places or, if it is to be `thorough`, in one.
        """
        if name := format_of((self.theirs[kind][self.key], self.fed[kind].found[self.key]) for kind in self.kinds):
            return [name]
        fits, left = list[tuple[Mistake, float]](), dict[str, float]()
        for some in (self._of_list(), self._of_rest(), self._of_windows()):
            if left:
                break
            found = [(each, rest) for each in some if (rest := self.left_by(each)) is not None]
            left = {each.name: rest for each, rest in found if not self._would_show_elsewhere(each)}
            fits = fits or found
        if self.step.kind not in OF_ONE:  # others are never computed from what another module gives
            left = left or {each.name: rest for each, rest in fits}
        for tier in (self._of_input, self._of_pairs, self._of_eps, self._of_factor, self._of_temperature,
                     self._of_parts, self._of_bias, self._of_activation, self._of_order,
                     self._of_other_weights, self._of_other_blocks, self._of_dropout):  # fmt: skip
            if left:
                break
            least = BY_FACTOR if tier in (self._of_factor, self._of_parts, self._of_dropout) else 0.0
            left = {name: rest for name, made in tier() if (rest := self._left(made, least)) is not None}
            left = left or {each.name: rest for each, rest in fits}
        if not left:
            unseen = ((each, self.left_by(each)) for each in self.known if not self._is_here(each))
            left = {each.name: rest for each, rest in unseen if rest is not None}
        if not left and thorough:
            left = {name: rest for name, made in self._of_one_step() if (rest := self._left(made)) is not None}
            self.in_vain = not left
        if not left:
            return self._of_size()
        return alike(left, self.rounding)

    def _of_list(self) -> Iterator[Mistake]:
        """Those of the list that change something here, and other modules' numbers."""
        for each in self.known:
            if each.where not in ("whole", "rest") and self._is_here(each):
                yield each
        yield from of_others(self.key, self.at)

    def _of_rest(self) -> Iterator[Mistake]:
        """Those whose numbers here others can have too."""
        return (each for each in self.known if each.where == "rest" and self._is_here(each))

    def _of_windows(self) -> Iterator[Mistake]:
        """A window where there is none, as wide as the last token of a text shows."""
        own = self.at.block and self.at.block.attention
        if own and self.key in (own.scores, own.probabilities, own.context):
            reach = self._reach(own)
            yield Mistake(f"window that reaches {reach} tokens", "", window_of(reach))

    def _reach(self, own: BoundAttention) -> int:
        """How far back the last token sees: by its scores, by its weights, else by what it gathers."""
        kind = self.kinds[0]
        flow, theirs, ours = self.fed[kind].flow, self.theirs[kind][self.key][0], self.fed[kind].found[self.key][0]
        real = np.flatnonzero(flow[REAL][0])
        last, back = real[-1], real[::-1]
        if self.key == own.context:
            (gather,) = self.at.of("gather")
            weights, values = (flow[name][0] for name in gather.of)
            weights = weights[:, last, back]
            gathered = np.cumsum(weights[..., None] * values[:, back], axis=1) / np.cumsum(weights, axis=1)[..., None]
            off = gathered - theirs[last].reshape(len(values), 1, -1)
            return int(last - back[np.argmin(np.square(off).sum((0, 2)))])
        hidden = theirs[:, last, back] < (ours[:, last, back] - MASKED if self.key == own.scores else TINY)
        return int(last - back[np.argmax(hidden.all(0)) - 1]) if hidden.all(0).any() else int(last)

    def _would_show_elsewhere(self, mistake: Mistake) -> bool:
        """Whether it changes another intermediate of this place that the port has right."""
        plan = with_mistake(mistake, self.at) or {}
        for kind in self.inputs:
            fed = self.fed[kind]
            for key in (key for key in fed.found if key in self.theirs[kind] and key != self.key):
                few, ours = ROUNDED * self.subject.allowed[key], fed.found[key]
                with suppress(*IMPOSSIBLE):
                    x = fed.value(key, plan)
                    right = x is not None and self._off(kind, key, ours, self.theirs[kind][key]) <= few
                    if x is not None and right and self._off(kind, key, x, ours) > few:
                        return True
        return False

    def _off(self, kind: str, key: str, x: Array, of: Array) -> float:
        made = {kind: {key: np.asarray(x, np.float32)}}, {kind: {key: np.asarray(of, float)}}
        (found,) = self.subject.compare(self.inputs, made[0], made[1], {})
        return found.largest

    def _is_here(self, mistake: Mistake) -> bool:
        """Whether it is not the mistake of another module, whose output the port does not have."""
        return any(step.key == self.key or step.kind not in OF_ONE for step in mistake.wrong(self.at))

    def _left_by(self, mistake: Mistake) -> float | None:
        """What a mistake of the list leaves; scores may have the mask added already."""
        plans = cache(lambda wide: with_mistake(mistake, self.at_wide if wide else self.at) or {})
        if not plans(False):
            return None
        self.changed = False
        rest = self._left(partial(self._by, plans, self.key))
        if rest is None and self.step.kind == "scores":
            rest = self._left(partial(self._by, plans, f".{self.at.i}.masked"))
        if self.changed:
            self.changing.add(mistake.name)
        return rest

    def _by(self, plans: Callable[[bool], Plan], key: str, kind: str, wide: bool = False) -> Array | None:
        fed, plan = (self.wide if wide else self.fed)[kind], plans(wide)
        if key == self.key:
            return fed.value(key, plan)
        masked = [fed.value(name, plan) for name in plan[key].of[1:]]
        if plan[key] is fed.plan[key] and masked[0] is None:
            return None
        right = (fed.flow[name] for name in plan[key].of[1:])
        given = (r if x is None else x for x, r in zip(masked, right, strict=True))
        return np.asarray(plan[key].formula(fed.found[self.key], *given))

    def _left(self, made: Made, least: float = 0.0) -> float | None:
        """What a mistake leaves of the difference, rms over all batches; None where it does not explain it."""
        rests, allowed = [], max(self.allowed, least)
        for kind in self.kinds:
            try:
                x = made(kind)
            except IMPOSSIBLE:
                return None
            self.changed = self.changed or x is not None
            if x is None and kind != self.kinds[0]:  # what it changes is not behind this key, where they have more
                x = self.fed[kind].found[self.key]
            if x is None or x.shape[1:] != self.theirs[kind][self.key].shape[1:]:
                return None
            rest = self._compared(kind, x)
            far = rest.error_ours > self.before  # rounding is less
            if not rest.largest <= allowed and (far or not self._rounds_so(made, kind, x)):
                return None
            rests.append(rest)
        (rest,) = over_kinds(rests)
        return rest.error_ours if rest.error_ours <= LEFT * self.before else None

    def _rounds_so(self, made: Made, kind: str, x: Array) -> bool:
        """Whether theirs is about as far from the mistake in float64 as ours is: some mistakes round much."""
        if self.key not in self.subject.weighed or not isinstance(made, partial) or made.func != self._by:
            return False
        exact = made(kind, wide=True)
        if exact is None or not (here := self._compared(kind, exact, of=x).error_ours) > 0:
            return False
        return self._compared(kind, exact).error_ours <= PORT_SHARE * here

    @cached_property
    def before(self) -> float:
        """What is to be explained, rms over all batches."""
        (found,) = over_kinds(self._compared(kind, self.fed[kind].found[self.key]) for kind in self.kinds)
        return found.error_ours

    def _compared(self, kind: str, x: Array, of: Array | None = None) -> Difference:
        """Compare with theirs, or with `of`, which is in the place of float64 too: the error is what is left."""
        there = {kind: {self.key: np.asarray(self.theirs[kind][self.key] if of is None else of, float)}}
        mine = {kind: {self.key: np.asarray(x, np.float32)}}
        (found,) = self.subject.compare(self.inputs, mine, there, there)
        return found

    # -- what is tried where no mistake of the list explains it ------------------------------------------------

    def _of_input(self) -> Iterator[tuple[str, Made]]:
        """The same formula of another intermediate; a sum of others; an output that is another one."""
        step, of = self.step, self.step.of
        for other in self._others():
            if step.kind in OF_ONE:
                yield f"computed from {other}", partial(self._again, step._replace(of=(other,)))
            elif step.kind == "sum":
                yield f"residual of {other}", partial(self._again, step._replace(of=(other, of[1])))
                yield f"{other} added", partial(self._again, step._replace(of=(of[0], other)))
            elif step.kind == "state":
                yield f"it is {other}", partial(self._again, step._replace(of=(other,)))
        product = self.at.plan.get(of[0])
        if product is not None and product.kind == "product":
            activation, up = product.of
            yield from self._of_products(activation, up)

    def _of_products(self, activation: str, up: str) -> Iterator[tuple[str, Made]]:
        """The map after a gate, of another product of what there is."""
        gate, act = self.at.plan[activation].of[0], self.at.plan[activation].formula
        named: dict[str, tuple[str, Formula]] = {
            "the activation": (activation, np.asarray), "the gate": (gate, np.asarray), "up": (up, np.asarray),
            "the activation of up": (up, act),
        }  # fmt: skip

        def made(factors: list[tuple[str, Formula]], kind: str) -> Array:
            flow = self.fed[kind].flow
            return np.asarray(self.step.formula(np.prod([own(flow[name]) for name, own in factors], axis=0)))

        for one, other in combinations_with_replacement([*named, "1"], 2):
            if one != "1":
                factors = [named[name] for name in (one, other) if name != "1"]
                yield f"computed from {one} times {other}", partial(made, factors)

    def _again(self, step: Step, kind: str) -> Array:
        flow = self.fed[kind].flow
        return np.asarray(step.formula(*(flow[name] for name in step.of)))

    def _others(self) -> list[str]:
        """What else there was before this or beside it, without a second name for the same numbers."""
        flow, kept = self.fed[self.kinds[0]].flow, list[str]()
        for key in flow:
            if key == self.key or key.startswith(".") or flow[key] is None:
                continue
            if not any(np.array_equal(flow[key], flow[other]) for other in kept):
                kept.append(key)
        return kept

    def _of_pairs(self) -> Iterator[tuple[str, Made]]:
        """Two mistakes of the scores at once, of different steps, such as the scale and the heads."""
        if self.step.kind != "scores" or self.kinds[0] == "long":  # there each takes its time
            return
        single = [
            (mistake.name, changed)
            for mistake in self.known
            if (changed := {step.key: step for step in mistake.wrong(self.at)})
            and self.fed[self.kinds[0]].value(self.key, {**self.at.plan, **changed}) is not None
        ]
        for (first, one), (second, other) in combinations(single, 2):
            if not one.keys() & other.keys():
                plan = {**self.at.plan, **one, **other}
                yield f"{first} + {second}", partial(self._value, plan)

    def _of_factor(self) -> Iterator[tuple[str, Made]]:
        """All numbers times one."""
        pairs = [
            np.broadcast_arrays(self.fed[kind].found[self.key], np.asarray(self.theirs[kind][self.key], np.float32))
            for kind in self.kinds
        ]
        ours, there = (np.concatenate([x.ravel() for x in each]) for each in zip(*pairs, strict=True))
        good = np.isfinite(there) & (np.abs(there) < 1e30)  # a mask may have been added
        factor = float(ours[good] @ there[good] / max(float(ours[good] @ ours[good]), 1e-30))
        yield times_as_large(factor, self.at), lambda kind: np.asarray(self.fed[kind].found[self.key] * factor)

    def _of_temperature(self) -> Iterator[tuple[str, Made]]:
        """Softmax of scores times a number, which is that of their logarithms' differences."""
        if self.step.kind != "softmax":
            return
        masked, ours, there = self.step.of[0], list[Array](), list[Array]()
        for kind in self.kinds:
            scores, weights = self.fed[kind].flow[masked], np.asarray(self.theirs[kind][self.key], np.float64)
            seen = self.fed[kind].flow[REAL][:, None, :, None] & (weights > SEEN)
            for x, found in ((scores, ours), (np.log(np.where(seen, weights, 1)), there)):
                count = np.maximum(seen.sum(-1, keepdims=True), 1)
                mean = np.where(seen, x, 0).sum(-1, keepdims=True) / count
                found.append(np.where(seen, x - mean, 0).ravel())
        (factor,) = fitted([np.concatenate(ours)], np.concatenate(there))
        step = self.step._replace(formula=lambda x: softmax(x * np.float32(factor)))
        yield f"softmax of scores {times_as_large(factor, self.at)}", partial(self._again, step)

    def _of_parts(self) -> Iterator[tuple[str, Made]]:
        """A sum in which a part is more than once, or less."""
        if self.step.kind not in ("sum", "add"):
            return
        of = [name for name in self.step.of if self.fed[self.kinds[0]].flow[name] is not None]
        kinds = [kind for kind in self.kinds if all(self.fed[kind].flow[name] is not None for name in of)]
        shape = {kind: self.theirs[kind][self.key].shape for kind in kinds}
        parts = [
            np.concatenate([np.broadcast_to(self.fed[kind].flow[name], shape[kind]).ravel() for kind in kinds])
            for name in of
        ]
        factors = fitted(parts, np.concatenate([self.theirs[kind][self.key].ravel() for kind in kinds]))
        names = ("residual", "what is added") if self.step.kind == "sum" else of
        said = [
            f"{name.removeprefix('.').removesuffix(' or embeds')} {times_as_large(factor, self.at)}"
            for name, factor in zip(names, factors, strict=True)
            if abs(factor - 1) > WHOLE
        ]
        if said and kinds == self.kinds:
            yield (
                " + ".join(said),
                lambda kind: sum(
                    np.float32(factor) * self.fed[kind].flow[name] for name, factor in zip(of, factors, strict=True)
                ),
            )

    def _rows(self, array: Callable[[Fed, str], Array]) -> Array:
        """Of every batch what is no padding, row by row."""
        made = [(self.fed[kind], array(self.fed[kind], kind)) for kind in self.kinds]
        real = [x[fed.flow[REAL]] if x.ndim > 2 else x for fed, x in made]
        return np.concatenate([x.reshape(-1, x.shape[-1]) for x in real])

    def _entering(self) -> Array:
        return self._rows(lambda fed, kind: fed.flow[self.step.of[0]])

    def _ours(self) -> Array:
        return self._rows(lambda fed, kind: fed.found[self.key])

    def _leaving(self) -> Array:
        return self._rows(lambda fed, kind: np.broadcast_to(self.theirs[kind][self.key], fed.found[self.key].shape))

    def _of_eps(self) -> Iterator[tuple[str, Made]]:
        """A norm by an eps that the list does not have."""
        own = self.step.part
        if self.step.kind == "norm" and (eps := other_eps(own, self._entering(), self._leaving())) > 0:
            name = f"{eps:.2g}"
            formula = type(own)(own.weight, own.bias, float(name))
            yield f"eps {name}", partial(self._again, self.step._replace(formula=formula))

    def _of_bias(self) -> Iterator[tuple[str, Made]]:
        """A linear map of which the product or the bias is more than once, or less."""
        own = self.step.part
        if self.step.kind != "dense" or own.bias is None:
            return
        bare = Dense(own.weight, None, own.transposed)
        made = {kind: bare(self.fed[kind].flow[self.step.of[0]]) for kind in self.kinds}
        product = self._rows(lambda fed, kind: made[kind])
        factors = fitted([product, own.bias], self._leaving())
        said = [
            f"{name} {times_as_large(factor, self.at)}"
            for name, factor in zip(("weight", "bias"), factors, strict=True)
            if abs(factor - 1) > WHOLE
        ]
        one, other = map(np.float32, factors)
        yield " + ".join(said), lambda kind: one * made[kind] + other * own.bias

    def _of_activation(self) -> Iterator[tuple[str, Made]]:
        """A gelu or a silu by other numbers than the right ones."""
        if self.step.kind == "activation" and (found := other_gelu(self._entering(), self._leaving())) is not None:
            formula, words = found
            yield f"activation {words}", partial(self._again, self.step._replace(formula=formula))

    def _of_order(self) -> Iterator[tuple[str, Made]]:
        """Each row's numbers at other places, as by a weight stored for another layout."""
        if self.step.kind in ("dense", "join"):
            order = other_order(self._ours(), self._leaving())
            yield "the same numbers in another order", lambda kind: self.fed[kind].found[self.key][..., order]

    def _of_other_weights(self) -> Iterator[tuple[str, Made]]:
        """A linear map of the right rows by weights that are nowhere in the model."""
        if self.step.kind != "dense":
            return
        leaving = self._leaving()
        off = np.abs(leaving - self._ours()).max(axis=-1) > self.allowed
        # normed rows leave a direction free, in which weights that fit one wrong row fit the right ones as well
        weights = other_map(self._entering(), leaving) if 2 * off.sum() > off.size else None
        if weights is not None:
            name = "weights of its own, not the word table's" if self._is_tied() else "other weights"
            x = self.step.of[0]
            yield name, lambda kind: self.fed[kind].flow[x] @ weights[:-1] + weights[-1]

    def _is_tied(self) -> bool:
        own, table = self.step.part.weight, self.at.layer.steps[0].module.table
        return own.shape == table.shape and np.array_equal(own, table.array())

    def _of_dropout(self) -> Iterator[tuple[str, Made]]:
        """Some numbers are 0, and the others as much larger as makes up for them."""
        ratios = list[Array]()
        for kind in self.kinds:
            real, ours, there = self.fed[kind].flow[REAL], self.fed[kind].found[self.key], self.theirs[kind][self.key]
            if len(ours) == len(there) == len(real) and (ours.ndim == 3 or self.step.kind == "softmax"):
                seen = (real[..., None] if ours.ndim == 3 else real[:, None, :, None]) & (ours != 0)
                ratios.append(there[seen] / ours[seen])
        every = np.concatenate(ratios) if len(ratios) == len(self.kinds) else np.zeros(0)
        kept = every[every != 0]
        if 0 < len(kept) < len(every) and abs(len(kept) / len(every) * np.median(kept) - 1) < SAME_SHARE:
            ratio = np.float32(np.median(kept))

            def made(kind: str) -> Array:
                return np.where(self.theirs[kind][self.key] == 0, 0, self.fed[kind].found[self.key] * ratio)

            yield f"dropout of {1 - 1 / ratio:.2g} left on", made

    def _of_other_blocks(self) -> Iterator[tuple[str, Made]]:
        """What leaves a block computed by another one, where the port has nothing from within."""
        for i, block in enumerate(self.at.stack.blocks if self.step.kind == "state" and self.at.i is not None else ()):
            if i != self.at.i and self.at.i is not None:
                plan = {**self.at.plan, **block.plan(self.at.i, self.at.stack)}
                if not plan.keys() & self.fed[self.kinds[0]].fed - {self.key}:
                    yield f"weights of block {i}", partial(self._value, plan)

    def _of_one_step(self) -> Iterator[tuple[str, Made]]:
        """A mistake of the list in one of several places before this, or another module's numbers there, where the port
        does not have what is there.
        """
        order = {key: number for number, key in enumerate(self.at.plan)}
        for mistake in self.known:
            changed = {step.key: step for step in mistake.wrong(self.at)}
            if len(changed) < 2 or not changed.keys() <= order.keys():
                continue
            # each by itself is one more way, if it takes nothing that another changed step gives
            free = [key for key, step in changed.items() if all(order.get(x, -1) < order[key] for x in step.of)]
            for name, keys in self._where().items():
                some = {key: changed[key] for key in keys if key in free}
                if some and len(some) < len(changed) and (len(some) > 1 or name in some):
                    yield f"{mistake.name} in {name}", partial(self._value, {**self.at.plan, **some})
        for key in self.at.plan if self.step.kind == "state" else ():
            for mistake in of_others(key, self.at):
                (step,) = mistake.wrong(self.at)
                yield f"{mistake.name} in {key}", partial(self._value, {**self.at.plan, key: step})

    def _where(self) -> dict[str, Collection[str]]:
        """Parts of this place by their names: single steps, attention, feed-forward."""
        block = self.at.block
        parts: dict[str, Collection[str]] = {key: [key] for key in self.at.plan}
        if block is not None:
            parts |= {"attention": block.attention.keys, "the feed-forward": block.feed_forward.keys}
        return parts

    def _value(self, plan: Plan, kind: str) -> Array | None:
        return self.fed[kind].value(self.key, plan)

    def _is_seen(self, name: str, kind: str) -> bool:
        """Whether the port has it, or what is added up to it."""
        step = self.at.plan.get(name)
        fed = self.fed[kind].fed
        return name in fed or (step is not None and step.kind == "sum" and all(self._is_seen(x, kind) for x in step.of))

    def _of_size(self) -> list[str]:
        """Mistakes that round otherwise from port to port, by the size of the difference."""
        module = self.step.part
        if self.at.i is None or self.step.kind not in ("dense", "norm") or isinstance(module, RMSNorm):
            return []
        if not all(self._is_seen(self.step.of[0], kind) for kind in self.kinds):
            return []  # what enters may be what rounds
        entering = self._entering()
        if isinstance(module, Dense):
            wrong = {f"a weight in {name}": rounded_weight(module, f)(entering) for name, f in ROUNDINGS.items()}
        else:
            rows = one_pass(entering, module.eps) * module.weight + (0 if module.bias is None else module.bias)
            wrong = {"a variance in one pass": rows}
        sizes = {name: rms(x - module(entering)) for name, x in wrong.items()}
        return [f"by its size alone, {name}" for name, size in sizes.items() if size / 3 < self.before < 3 * size]
