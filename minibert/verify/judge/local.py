"""Local checks: each module of a port, on the port's own input of it. A wrong one shows by itself, whatever came
before.

Our module gets what theirs got. What differs then is that module's own mistake; differences inherited from earlier
modules vanish. A mistake of the list is tried where it changes a step behind the module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from minibert.verify.mistakes.mistake import Mistake
from minibert.verify.mistakes.mistakes import mistakes
from minibert.verify.sides.traces import INPUT_LAYER, Traces

from . import formats
from .compare import Difference
from .input_layer import Subject
from .places import Place, differing, places
from .wrong_module import WrongModule

MOST_IN_VAIN = 2  # of the longest search, which would take minutes where every block has a mistake without a name


class Local(NamedTuple):
    """A module that is wrong by itself: its key, how far from ours on the same input, and which mistakes fit it.

    excluded: the mistakes that were tried, where none fits
    """

    key: str
    place: str
    largest: float
    fits: list[str]
    excluded: list[str]


class Judged(NamedTuple):
    """What local checks find.

    found  every module that is wrong by itself, in the order of computing
    keys   all of blocks and head that is judged: where scores or attention weights are wrong, what is gathered is not
           judged in a batch that lacks the weights
    whole  the mistakes that explain all of each part of the model in which a module is wrong: of the input layer, of
           the blocks, of the head
    """

    found: list[Local]
    keys: set[str]
    whole: list[Mistake]


def in_format(subject: Subject, inputs: Traces, theirs: Traces, name: str) -> Iterator[list[Difference]]:
    """Compare every module in a format, from the port's own input of it: the input layer, each block, the head."""
    with subject.exact() as exact, np.errstate(all="ignore"):
        for place in places(subject, exact, inputs, theirs, formats.FORMS[name]):
            yield place.compared()


def right_in(subject: Subject, inputs: Traces, theirs: Traces) -> list[str]:
    """Name the formats in which all modules of a port are right."""
    return [
        name for name in formats.FORMS if not any(differing(each) for each in in_format(subject, inputs, theirs, name))
    ]


def local_mistakes(
    subject: Subject, inputs: Traces, theirs: Traces, tolerance: float = 0.0, form: formats.Form | None = None
) -> Judged:
    """Find every module that is wrong by itself, which mistake it is, and which explain all of a model's parts.

    tolerance: how much a mistake that explains a difference may leave of it, where the port rounds more than we do.
    """
    found, keys, parts, known = list[Local](), set[str](), set[str](), mistakes(subject.model)
    in_vain = 0
    whole = [mistake for mistake in known if mistake.where != "local"]
    with subject.exact() as exact, np.errstate(all="ignore"):  # a mistake may go beyond what float32 holds
        for place in places(subject, exact, inputs, theirs, form):
            at, compared = place.at, place.compared()
            wrong = differing(compared)
            own = at.block.attention if at.block is not None else None
            if own is not None and {d.key for d in wrong} & {own.scores, own.probabilities}:
                seen = [d for d in compared if d.key != own.context or own.probabilities in theirs[d.kinds[0]]]
                wrong = differing(seen)
            keys |= {d.key for d in compared if at.part != INPUT_LAYER}
            parts |= {at.part for _ in wrong}
            for d in wrong if subject.has_places else ():
                module = WrongModule(place, d, known, tolerance)
                if not found:
                    whole = [mistake for mistake in whole if module.left_by(mistake) is not None]
                fits = module.names(thorough=in_vain < MOST_IN_VAIN)
                in_vain += module.in_vain
                tried = [] if fits else list(dict.fromkeys(x.name for x in known if x.name in module.changing))
                found.append(Local(d.key, subject.place(d.key), d.largest, fits, tried))

        def explaining(known: list[Mistake], change: Callable[[Place], Place] = lambda place: place) -> list[Mistake]:
            for place in (each for each in places(subject, exact, inputs, theirs) if each.at.part in parts):
                known = change(place).explained_by(known, tolerance)
            return known

        whole = explaining(whole) if parts else []
        if len(whole) > 1:  # some mistakes of the mask differ only at padding
            whole = explaining(whole, Place.with_padding) or whole
    return Judged(_named_by(whole, found), keys, whole)


def _named_by(whole: list[Mistake], found: list[Local]) -> list[Local]:
    """Name by what explains the whole what by itself has no name, or looks like another mistake or a part of one."""
    names = list(dict.fromkeys(mistake.name for mistake in whole))
    unnamed = {each.place for each in found if not each.fits}

    def is_other(each: Local) -> bool:
        part = any(fit.startswith(f"{name} in ") for fit in each.fits for name in names)
        return bool(names) and (part or each.place in unnamed) and not {*names} & {*each.fits}

    return [each._replace(fits=names, excluded=[]) if is_other(each) else each for each in found]


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
