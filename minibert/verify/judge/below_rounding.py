"""Weighs each mistake against a port's rounding: it is there, it is excluded, or such rounding can hide it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minibert.equations.input_layer import Array
from minibert.verify.mistakes.mistake import Mistake

from .places import Place

HALF, TWICE = 0.5, 2.0  # of a mistake: more of one than that is of another one that is larger
SURE, TELL = 5.0, 3.0  # standard errors of how much of it there is


def evidence(place: Place, mistake: Mistake) -> Array | None:
    """Weigh one mistake against the right model, on what a place shows; None where it changes nothing there.

    Gives three rows: the mistake's products with theirs and with ours, and its square. Each intermediate counts by our
    own rounding of it, so that the most exact ones say most.
    """
    plan, rows = place.plan(mistake, wide=True), list[Array]()
    for kind in place.inputs if plan else ():
        wide, narrow = place.wide[kind], place.fed[kind]
        for key in (key for key in narrow.found if key in place.theirs[kind]):
            wrong, right = wide.value(key, plan or {}), wide.found[key]
            there = place.theirs[kind][key]
            if wrong is None or wrong.shape != right.shape or there.shape != right.shape or right.dtype.kind != "f":
                continue
            seen = place.subject.seen(place.inputs)
            off, theirs, ours = (
                _rows(seen(kind, key, np.asarray(x, float) - right)) for x in (wrong, there, narrow.found[key])
            )
            size = float(np.mean(ours**2)) if ours.size else 0.0
            if size > 0 and np.isfinite(off).all() and np.isfinite(theirs).all():
                rows.append(np.stack([(off * x).sum(-1) / size for x in (theirs, ours, off)]))
    return np.concatenate(rows, axis=1) if rows else None


def _rows(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1] if x.ndim > 1 else 1)


def weighed_up(several: Sequence[Array]) -> str:
    """Say of a mistake "found", "excluded", or "hidden" below the rounding; "" where it changes too little to show.

    A port with the mistake has about once of it more than our own computation, which rounds as the port does.
    """
    theirs, ours, square = np.concatenate(several, axis=1)
    whole = float(square.sum())
    if not whole > 0:
        return ""
    there, here = float(theirs.sum()) / whole, float(ours.sum()) / whole
    error = max(float(np.sqrt(np.square(x - a * square).sum())) / whole for x, a in ((theirs, there), (ours, here)))
    if min(there, there - here) > max(HALF, SURE * error):
        return "found" if there - here < TWICE else "hidden"
    return "excluded" if max(there, there - here) + TELL * error < HALF else "hidden"
