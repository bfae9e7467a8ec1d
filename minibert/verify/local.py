"""Local checks: each module of a port, on the port's own input of it. A wrong one shows by itself, whatever came
before.

Our module gets what theirs got. What differs then is that module's own mistake; what was only the consequence of an
earlier difference is right here. The mistakes of that one formula (`module_mistakes`) are tried on it alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.bound_blocks import BoundResidual, Dense, FeedForward
from minibert.families.heads import BoundHead
from minibert.families.modules import LayerNorm
from minibert.models.encoder import Encoder
from minibert.models.heads import run_head

from .blocks import EncoderSubject, tokens_of
from .compare import OF_A_PORT, PORT_SHARE, Difference, over_kinds
from .heads_mistakes import HEAD_MISTAKES
from .local_input import local_input
from .module_mistakes import activations, by_size, changed, of_block, of_dense, of_norm, pairs
from .plain_blocks import Choices, Formula, PlainBlocks
from .subject import INPUT_LAYER, Subject
from .traces import Traces
from .vector_mistakes import to_bfloat16, to_float16

LEFT = 0.05  # of the right module's difference: a mistake that leaves at most so much explains it
ROUNDED = 10.0  # and at most so many tolerances
ALIKE = 10.0  # two mistakes of which one leaves so many times what the other leaves can be told apart
NORM_ALONE = 1e-6  # of one norm on the same input; measured between right ones: 4e-7. An eps shows only here
MASKED = 1e3  # a score so far below ours has a mask added; the smallest that is in use is 1e4

SUMS = {  # how often what is added to counts, and what is added
    "residual missing": (0, 1), "residual added twice": (2, 1), "nothing added to the residual": (1, 0),
    "subtracted from the residual": (1, -1), "added twice to the residual": (1, 2),
}  # fmt: skip

Made = Callable[[str], "Array | None"]  # kind of batch -> what a module with a mistake gives


class Local(NamedTuple):
    """A module that is wrong by itself: its key, how far from ours on the same input, and which mistakes fit it."""

    key: str
    place: str
    largest: float
    fits: list[str]


class Fed(PlainBlocks):
    """The blocks, in which every intermediate is replaced by the port's as soon as ours is computed."""

    def __init__(
        self, encoder: Encoder, ids: Array | None, mask: Array, theirs: Mapping[str, Array],
        choices: Choices | None = None,
    ) -> None:  # fmt: skip
        self.entered: dict[str, Array] = {}  # what enters each module, by its path
        self.flow: dict[str, Array] = {}  # what goes on: theirs, or ours where they have none
        self.encoder, self.theirs, self.ids, self.mask = encoder, theirs, ids, mask
        self._paths = {id(module): path for path, module in modules_of(encoder).items()}
        self._scores = {block.attention.scores for block in encoder.stack.blocks}
        super().__init__(encoder.stack, choices or Choices(dense=self._noting, norm=self._noting), mask, {})

    def record(self, name: str, x: Array) -> Array:
        """Keep ours, go on with theirs; a number of padding that is none must not spread."""
        self.found[name] = x
        if name in self.theirs and self.theirs[name].shape == x.shape:
            there = self.theirs[name].astype(x.dtype)
            good = np.isfinite(there)
            if name in self._scores:  # where a mask has been added already, it would hide what is done with it next
                good &= there > x - MASKED
            x = np.where(good, there, x)
        self.flow[name] = x
        return x

    def block_by(self, i: int, choices: Choices) -> dict[str, Array]:
        """What block i gives by other choices, from the same numbers: of what they have."""
        wrong = Fed(self.encoder, self.ids, self.mask, self.theirs, choices)
        wrong.numbered(i, self.flow[f"hidden_states.{i}"])
        masked = {_with_mask(key): wrong.found[key] + x for key, x in wrong.masks.items() if key in self.theirs}
        return {key: x for key, x in wrong.found.items() if key in self.theirs} | masked

    def head(self, head: BoundHead) -> None:
        """Go on from their last hidden states."""
        last = self.flow[f"hidden_states.{len(self.stack.blocks)}"]
        run_head(head, last, self.ids, self.mask, self.record)

    def head_by(self, head: BoundHead) -> dict[str, Array]:
        """What another head gives, from the same numbers."""
        wrong = Fed(self.encoder, self.ids, self.mask, self.theirs)
        wrong.flow = dict(self.flow)
        wrong.head(head)
        return wrong.found

    def _noting(self, module: Any) -> Formula:
        def apply(x: Array) -> Array:
            self.entered[self._paths[id(module)]] = x
            return np.asarray(module(x))

        return apply


def local_mistakes(subject: EncoderSubject, inputs: Traces, theirs: Traces) -> tuple[list[Local], set[str]]:
    """Find every module of the encoder that is wrong by itself, in the order of computing, and name all that is judged.

    Where scores or attention weights are wrong, what is gathered is not judged in a batch that lacks the weights.
    """
    first = [Local(key, INPUT_LAYER, *found) for key, found in local_input(subject, inputs, theirs)]
    fed = {kind: _feed(subject, batch, theirs[kind]) for kind, batch in inputs.items()}
    modules, floor = modules_of(subject.encoder, subject.head), max(subject.tolerance, NORM_ALONE)
    with subject.exact() as exact:
        wide = {kind: _feed(exact, batch, theirs[kind]) for kind, batch in inputs.items()}
        ours, truth = ({kind: each.found for kind, each in made.items()} for made in (fed, wide))
        compared = [
            d._replace(tolerance=floor) if isinstance(modules.get(d.key), LayerNorm) else d
            for d in subject.compare(inputs, ours, theirs, truth)
        ]
        wrong = _wrong(subject, compared)
        weights = {
            own.context: own.probabilities for own in (block.attention for block in subject.encoder.stack.blocks)
            if {d.key for d in wrong} & {own.scores, own.probabilities}
        }  # fmt: skip
        wrong = _wrong(subject, [d for d in compared if weights.get(d.key, d.key) in theirs[d.kinds[0]]])
        known: dict[Any, dict[str, Array]] = {}
        suspects = {d: Suspect(subject, d, inputs, (fed, wide), theirs, known) for d in wrong}
        with np.errstate(all="ignore"):  # a mistake may go beyond what float32 holds
            found = [Local(d.key, subject.place(d.key), d.largest, each.names()) for d, each in suspects.items()]
        return first + found, {d.key for d in compared}


def _wrong(subject: EncoderSubject, compared: list[Difference]) -> list[Difference]:
    return [d for d in over_kinds(compared) if d.key in subject.weighed and not d.accepted(OF_A_PORT)]


def taken_together(found: list[Local]) -> Iterator[str]:
    """Say where all modules that are wrong in a block have the weights of one other block."""
    places: dict[str, list[set[str]]] = {}
    for each in found:
        others = set()
        for fit in each.fits:
            of = re.fullmatch(r"weight(?: and bias)? of (.+)", fit)
            if of and re.sub(r"\d+", "", of[1]) == re.sub(r"\d+", "", each.key):
                others |= set(re.findall(r"\d+", of[1])[:1])
        places.setdefault(each.place, []).append(others)
    for place, several in places.items():
        for other in sorted(set.intersection(*several)) if len(several) > 1 else ():
            yield f"  {place} computes with the weights of block {other}"


def _with_mask(key: str) -> str:
    return f"{key} with its mask"


def modules_of(encoder: Encoder, head: BoundHead | None = None) -> dict[str, Any]:
    """The modules by what a trace calls their output: one that several blocks use is there once for each of them."""
    stack, found = encoder.stack, dict(encoder.embeddings.modules)
    for block in stack.blocks:
        found |= {key: module for key, module in block.modules.items() if callable(module)}
    works = () if head is None else (*head.works, (head.path, head.last))
    return found | stack.others | {path: work for path, work in works if hasattr(work, "weight")}


def _feed(subject: Subject, batch: Mapping[str, Array], theirs: Mapping[str, Array]) -> Fed:
    keywords: dict[str, Any] = dict(batch)
    x = subject.layer(keywords.pop("input_ids", None), **keywords)
    fed = Fed(subject.model, *tokens_of(batch), theirs)
    fed.run(fed.record("hidden_states.0", x))
    if subject.head is not None and subject.reaches_head(batch):
        fed.head(subject.head)
    return fed


# -- which mistake it is -----------------------------------------------------------------------------------------


class Suspect:
    """One module that is wrong by itself, and what is tried on it.

    known: what blocks have given by other choices, kept for all modules of a block.
    """

    def __init__(
        self, subject: EncoderSubject, d: Difference, inputs: Traces,
        fed: tuple[Mapping[str, Fed], Mapping[str, Fed]], theirs: Traces, known: dict[Any, dict[str, Array]],
    ) -> None:  # fmt: skip
        self.subject, self.inputs, self.theirs, self.known = subject, inputs, theirs, known
        self.fed, self.wide = fed  # in float32 and in float64
        self.key, self.allowed, self.rounding = d.key, ROUNDED * subject.allowed[d.key], d.error_ours
        kinds = sorted((kind for kind in d.kinds if d.key in theirs[kind]), key=lambda kind: theirs[kind][d.key].size)
        same = {kind: self._compared(kind, self.fed[kind].found[d.key]).passes for kind in kinds}
        self.kinds = sorted(kinds, key=same.__getitem__)  # what rules a mistake out soonest comes first
        self.in_long_alone = self.kinds[0] == "long"
        self.number = next(
            (i for i, b in enumerate(subject.encoder.stack.blocks) if d.key in (*b.keys, f"hidden_states.{i + 1}")),
            len(subject.encoder.stack.blocks) - 1,
        )
        self.block = subject.encoder.stack.blocks[self.number]
        self.modules = modules_of(subject.encoder, subject.head)
        self.of_head = subject.place(d.key).startswith("head ")

    def names(self) -> list[str]:
        """Name what explains the difference in all batches: what the formula can have wrong, else from what else it
        was computed, else two mistakes of attention at once, else a narrower format."""
        for tier in (self._of_formula, self._of_input, self._of_pairs, self._of_factor):
            if tier == self._of_pairs and (name := self._format()):
                return [name]
            left = {name: rest for name, made in tier() if (rest := self._left(made)) is not None}
            least = ALIKE * max(min(left.values(), default=0), self.rounding)
            if left:
                return [name for name, rest in left.items() if rest <= least]
        return self._of_size()

    def _left(self, made: Made) -> float | None:
        """What a mistake leaves of the difference, rms over all batches; None where it does not explain it."""
        rests = []
        for kind in self.kinds:
            try:
                x = made(kind)
            except (ValueError, IndexError):  # it cannot be made with these shapes
                return None
            if x is None or x.shape != self.theirs[kind][self.key].shape:
                return None
            rest = self._compared(kind, x)
            far = rest.error_ours > self.before  # rounding is less
            if not rest.largest <= self.allowed and (far or not self._rounds_so(made, kind, x)):
                return None
            rests.append(rest)
        (rest,) = over_kinds(rests)
        return rest.error_ours if rest.error_ours <= LEFT * self.before else None

    def _rounds_so(self, made: Made, kind: str, x: Array) -> bool:
        """Whether the mistake itself rounds so much that theirs may be as far from it in float64 as ours."""
        if not isinstance(made, partial) or made.func != self._by:
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
        first = {"hidden_states.0": self.fed[kind].found["hidden_states.0"]}
        there = {kind: {self.key: np.asarray(self.theirs[kind][self.key] if of is None else of)}}
        mine = {kind: first | {self.key: np.asarray(x, np.float32)}}
        (found,) = [d for d in self.subject.compare(self.inputs, mine, there, there) if d.key == self.key]
        return found

    # -- what is tried, best first -----------------------------------------------------------------------------

    def _of_formula(self) -> Iterator[tuple[str, Made]]:
        module = self.modules.get(self.key)
        if module is not None:
            tried = of_dense if isinstance(module, Dense) else of_norm
            for name, formula in tried(self.key, self.modules):
                yield name, partial(self._applied, formula)
        if self.of_head:
            yield from ((name, partial(self._by_head, head)) for name, head in self._heads())
            return
        for name, choices in of_block(self.subject.encoder.stack, self.block).items():
            yield name, partial(self._by, name, choices, self.key)
            if self.key == self.block.attention.scores and changed(choices) & {"mask", "causal", "ahead", "reach"}:
                yield name, partial(self._by, name, choices, _with_mask(self.key))

    def _heads(self) -> Iterator[tuple[str, BoundHead]]:
        """The mistakes of a whole head, and of its activation."""
        head = self.subject.head
        assert head is not None  # it is judged
        for mistake in HEAD_MISTAKES:
            if (wrong := mistake.make(self.subject.encoder)) is not None:
                yield mistake.name, wrong
        right = dict(head.works).get(self.key)
        for word, formula in activations(right).items() if right and self.key not in self.modules else ():
            yield f"activation {word}", self._with(formula)

    def _with(self, formula: Any) -> BoundHead:
        """The head with another formula in the place of this module."""
        head = self.subject.head
        assert head is not None  # it is judged
        if self.key == head.path:
            return head._replace(last=formula)
        return head._replace(works=tuple((path, formula if path == self.key else work) for path, work in head.works))

    def _by_head(self, head: BoundHead, kind: str) -> Array | None:
        return self.fed[kind].head_by(head).get(self.key)

    def _applied(self, formula: Formula, kind: str) -> Array | None:
        if self.of_head:
            return self._by_head(self._with(formula), kind)
        return np.asarray(formula(self.fed[kind].entered[self.key]))

    def _by(self, name: str, choices: Choices, key: str, kind: str, wide: bool = False) -> Array | None:
        """What the block gives by other choices."""
        asked = (kind, self.number, name, wide)
        if asked not in self.known:
            try:
                self.known[asked] = (self.wide if wide else self.fed)[kind].block_by(self.number, choices)
            except (ValueError, IndexError):
                self.known[asked] = {}
        return self.known[asked].get(key)

    def _of_input(self) -> Iterator[tuple[str, Made]]:
        """The same formula of another intermediate; a sum of others; an output that is another one."""
        module, part = self.modules.get(self.key), self._part()
        for other in self._others():
            there = partial(self._flow, other)
            if module is not None:
                yield f"computed from {other}", partial(self._from, module, other)
            elif part is not None:
                yield f"residual of {other}", partial(self._sum, part, (1, 1), rest=there)
                yield f"{other} added", partial(self._sum, part, (1, 1), added=there)
            elif self.key.startswith("hidden_states."):
                yield f"it is {other}", there
        if part is not None:
            for name, factors in SUMS.items():
                yield name, partial(self._sum, part, factors)
        feed = self.block.feed_forward
        if module is not None and self.key == feed.output and feed.gate:
            for one, other in combinations_with_replacement(("the activation", "the gate", "up", "1"), 2):
                if one != "1":
                    yield f"computed from {one} times {other}", partial(self._gated, module, feed, one, other)

    def _gated(self, module: Any, feed: FeedForward, one: str, other: str, kind: str) -> Array:
        """The last map of another product than activation and up."""
        flow = self.fed[kind].flow
        gate, up = np.split(flow[feed.up], 2, -1) if feed.gate == feed.up else (flow[feed.gate], flow[feed.up])
        parts = {"the activation": flow[feed.activation], "the gate": gate, "up": up, "1": np.ones_like(up)}
        return np.asarray(module(parts[one] * parts[other]))

    def _sum(
        self, part: BoundResidual, factors: tuple[int, int], kind: str, rest: Made | None = None,
        added: Made | None = None,
    ) -> Array:  # fmt: skip
        """Another sum: of something else, or with other factors of what is added to and what is added."""
        right = self._flow(part.within or part.work.output, kind)
        one, other = rest and rest(kind), added and added(kind)
        one = self.fed[kind].found[part.sum] - right if one is None else one
        return np.asarray(factors[0] * one + factors[1] * (right if other is None else other))

    def _part(self) -> BoundResidual | None:
        return next((part for part in self.block.parts if part.sum == self.key), None)

    def _others(self) -> list[str]:
        """What else there was before this or beside it, without a second name for the same numbers."""
        flow = self.fed[self.kinds[0]].flow
        near = [key for key in flow if key in self.block.keys or key.startswith("hidden_states.")]
        kept: list[str] = []
        for key in near:
            if key != self.key and not any(np.array_equal(flow[key], flow[other]) for other in kept):
                kept.append(key)
        return kept

    def _flow(self, key: str, kind: str) -> Array:
        return self.fed[kind].flow[key]

    def _from(self, module: Any, other: str, kind: str) -> Array:
        return np.asarray(module(self._flow(other, kind)))

    def _of_pairs(self) -> Iterator[tuple[str, Made]]:
        own = self.block.attention
        if self.key in (own.scores, own.probabilities, own.context) and not self.in_long_alone:
            for name, choices in pairs(of_block(self.subject.encoder.stack, self.block)):
                yield name, partial(self._by, name, choices, self.key)

    def _of_factor(self) -> Iterator[tuple[str, Made]]:
        """All numbers times one."""
        ours = np.concatenate([self.fed[kind].found[self.key].ravel() for kind in self.kinds])
        there = np.concatenate([np.asarray(self.theirs[kind][self.key], np.float32).ravel() for kind in self.kinds])
        good = np.isfinite(there) & (np.abs(there) < 1e30)  # a mask may have been added
        factor = float(ours[good] @ there[good] / max(float(ours[good] @ ours[good]), 1e-30))
        yield f"{factor:.4g} times as large", lambda kind: np.asarray(self.fed[kind].found[self.key] * factor)

    def _of_size(self) -> list[str]:
        """Mistakes that round otherwise from port to port, by the size of the difference."""
        module = self.modules.get(self.key)
        if module is None or self.of_head:
            return []
        fed = [self.fed[kind] for kind in self.kinds]
        entering = np.concatenate([each.entered[self.key][each.mask] for each in fed])
        return by_size(module, entering, self.before)

    def _format(self) -> str:
        """The narrower format that theirs are in, and are right in; "" for none."""
        for name, rounding, share in (("float16", to_float16, 2**-9), ("bfloat16", to_bfloat16, 2**-6)):
            if all(self._is_rounded(kind, rounding, share) for kind in self.kinds):
                return f"numbers in {name}"
        return ""

    def _is_rounded(self, kind: str, rounding: Formula, share: float) -> bool:
        x = np.asarray(self.theirs[kind][self.key], np.float32)
        x = np.where(np.isfinite(x), x, 0)
        ours = self.fed[kind].found[self.key]
        near = np.abs(x - ours) <= share * np.maximum(np.abs(ours), np.sqrt(np.mean(ours**2)))
        return bool(np.array_equal(rounding(x), x) and np.mean(near) > 0.99)
