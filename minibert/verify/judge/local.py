"""Local checks: each module of a port, on the port's own input of it. A wrong one shows by itself, whatever came
before.

Our module gets what theirs got. What differs then is that module's own mistake; differences inherited from earlier
modules vanish. A mistake of the list is tried where it changes a step behind the module.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from minibert.equations.input_layer import Array
from minibert.verify.mistakes import MISTAKES
from minibert.verify.mistakes.mistake import Mistake
from minibert.verify.sides.traces import INPUT_LAYER, Traces

from .below_rounding import evidence, weighed_up
from .compare import Difference
from .input_layer import Subject
from .places import IMPOSSIBLE, Place, differing, places
from .wrong_module import WrongModule


class Local(NamedTuple):
    """A module that is wrong by itself: its key, how far from ours on the same input, and which mistakes fit it.

    excluded: the mistakes that were tried, where none fits. kind: of its step. share: how far as a share of its size
    """

    key: str
    place: str
    largest: float
    fits: list[str]
    excluded: list[str]
    kind: str = ""
    share: float = 0.0


class Judged(NamedTuple):
    """The findings of local checks.

    found  every module that is wrong by itself, in the order of computing
    keys   all of blocks and head that is judged: where scores or attention weights are wrong, what is gathered is not
           judged in a batch that lacks the weights
    maps   how many linear maps are judged
    whole  the mistakes that explain all of each part of the model in which a module is wrong: of the input layer, of
           the blocks, of the head
    """

    found: list[Local]
    keys: set[str]
    maps: int
    whole: list[Mistake]


class InFormat(NamedTuple):
    """A port's verdict in a format: how each module differs, mistakes that are there, and those that rounding can hide.

    float32  whether every module is right in float32 too, so that nothing shows the format
    """

    differences: list[Difference]
    found: list[Mistake]
    hidden: list[Mistake]
    float32: bool


def in_format(subject: Subject, inputs: Traces, theirs: Traces, form: str) -> InFormat:
    """Compare every module in a format, from the port's own input of it, and weigh each mistake of the list."""
    differences, float32 = list[Difference](), True
    weighed: dict[int, list[Array]] = {}
    known = [each for each in MISTAKES if not each.rounding and each.where != "local"]
    for place in places(subject, inputs, theirs, form):
        differences += place.compared()
        float32 = float32 and not differing(place.in_float32())
        for number, mistake in enumerate(known):
            with suppress(*IMPOSSIBLE):
                if (told := evidence(place, mistake)) is not None:
                    weighed.setdefault(number, []).append(told)
    said: dict[str, list[Mistake]] = {"found": [], "hidden": [], "excluded": [], "": []}
    for number, several in weighed.items():
        everywhere, alone = weighed_up(several), [weighed_up([each]) for each in several]
        said["found" if "found" in alone else everywhere].append(known[number])
    return InFormat(differences, said["found"], said["hidden"], float32)


def local_mistakes(subject: Subject, inputs: Traces, theirs: Traces, tolerance: float = 0.0, form: str = "") -> Judged:
    """Find every module that is wrong by itself, which mistake it is, and which explain all of a model's parts.

    tolerance: how much a mistake that explains a difference may leave of it, where the port rounds more than we do.
    """
    found, keys, maps = list[Local](), set[str](), 0
    whole, right = Whole(tolerance), dict[int, str]()  # right: places before the first wrong one of their part
    for number, place in enumerate(places(subject, inputs, theirs, form)):
        at, compared = place.at, place.compared()
        here = {d.key for d in differing(compared)}
        wrong = differing([d for d in compared if not place.follows(d.kinds[0], d.key, here)])
        keys |= {d.key for d in compared if at.part != INPUT_LAYER}
        maps += len({d.key for d in compared} & {step.key for step in at.steps("dense")})
        modules = [WrongModule(place, d, tolerance) for d in wrong if subject.has_places]
        if wrong or at.part in whole.parts:
            whole.narrow(place, modules[:1])
        else:
            right[number] = at.part
        for d, module in zip(wrong, modules, strict=False):
            fits = module.names()
            excluded = [] if fits else module.excluded()
            found.append(Local(d.key, subject.place(d.key), d.largest, fits, excluded, module.step.kind,
                               module.share_of_size()))  # fmt: skip
    last = max((number for number, part in right.items() if part in whole.parts), default=-1)
    for number, place in enumerate(islice(places(subject, inputs, theirs, form), last + 1)):
        if not whole.known:
            break
        if right.get(number) in whole.parts:
            whole.narrow(place)
    names = whole.strict or whole.known or []
    return Judged(_named_by(names, found), keys, maps, names)


class Whole:
    """The mistakes that explain every place that was narrowed to."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance, self.parts = tolerance, set[str]()
        self.known: list[Mistake] | None = None
        self.strict: list[Mistake] = []  # the same with every token compared: some of the mask differ only at padding

    def narrow(self, place: Place, first: Sequence[WrongModule] = ()) -> None:
        """Keep the mistakes that explain one more place; in the beginning those that explain its first module."""
        self.parts.add(place.at.part)
        if self.known is None:
            fit = (each for each in MISTAKES if each.where != "local")
            self.known = [each for each in fit if all(module.left_by(each) is not None for module in first)]
            self.strict = self.known
        self.known = place.explained_by(self.known, self.tolerance)
        self.strict = [each for each in self.strict if each in self.known]
        if len(self.strict) > 1:
            self.strict = place.with_padding().explained_by(self.strict, self.tolerance)


def _named_by(whole: list[Mistake], found: list[Local]) -> list[Local]:
    """Use the name of a mistake that explains all blocks for modules that got none or another."""
    names = list(dict.fromkeys(mistake.name for mistake in whole))
    unnamed = {each.place for each in found if not each.fits}
    return [
        each._replace(fits=names, excluded=[])
        if names and each.place in unnamed and not {*names} & {*each.fits}
        else each
        for each in found
    ]
