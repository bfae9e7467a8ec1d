"""Compares two traces, intermediate by intermediate, and says what passes; the same for every counterpart."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.verify.sides.traces import Traces

# The rms error against float64, divided by the other program's. Ours by torch's on all-MiniLM-L6-v2: at most
# 1.10 with BLAS's Haswell kernel, 1.43 with that for AVX-512, 1.48 with Sandybridge (single products; the output of
# a block 1.26). A port's by ours: 5.0 if it adds each product's terms one after the other, as plain loops do.
ERROR_SHARE, PORT_SHARE = 2.0, 10.0
# of a sum that is rounded once, as of a port in float64: measured 0.71 of the error of one that is rounded twice
NEARER, ONE_SUM = 0.85, 1e-6
EXACT = ("input_ids", "position_ids")


class Shares(NamedTuple):
    """The largest allowed rms error against float64, as a multiple of the other program's: ours, and theirs."""

    ours: float = np.inf
    theirs: float = np.inf


OF_A_PORT = Shares(theirs=PORT_SHARE)  # it may round less than we do
PLAINLY, LEAST = 10.0, 1.2  # times the share, by the number of batches that show it: no other one makes that right


class Difference(NamedTuple):
    """The comparison of one intermediate in one or several kinds of batches.

    largest is |ours - theirs| / max(1, |theirs|); equal the share of entries with the same value; the two errors are
    root mean squares against float64, NaN where there is no float64 to compare with.
    """

    key: str
    kinds: tuple[str, ...]
    largest: float
    equal: float
    error_ours: float
    error_theirs: float
    tolerance: float
    weighed: bool = False  # whether beyond the tolerance the two errors decide
    share: float = 0.0  # in place of `Shares.theirs`, of a format whose rounding is known

    def loosened(self, tolerance: float) -> Difference:
        """The same with at least this tolerance; ids stay exact."""
        return self if self.key in EXACT else self._replace(tolerance=max(self.tolerance, tolerance))

    @property
    def passes(self) -> bool:
        return self.largest <= self.tolerance  # False for NaN

    def accepted(self, shares: Shares) -> bool:
        """Whether it passes, by its size or by the rms errors."""
        if self.passes:
            return True
        if not self.weighed:  # a port that rounds a sum less often than we do is right
            nearer = self.error_theirs <= NEARER * self.error_ours and self.largest <= ONE_SUM
            return nearer and bool(np.isfinite(shares.theirs))
        errors, shares = (self.error_ours, self.error_theirs), shares._replace(theirs=self.share or shares.theirs)
        return all(
            not np.isfinite(share) or error <= share * other  # infinity times an error of 0 would be NaN
            for share, error, other in zip(shares, errors, errors[::-1], strict=True)
        )

    def plain(self, shares: Shares) -> bool:
        """Whether the other program is so far off that no other batch can make it right."""
        if not self.weighed:
            return self.largest > ONE_SUM and bool(np.isfinite(shares.theirs))
        return self.error_theirs > max(PLAINLY / len(self.kinds), LEAST) * shares.theirs * self.error_ours


def compare(
    ours: Traces, theirs: Traces, truth: Traces, allowed: Mapping[str, float], weighed: Collection[str] = (),
    seen: Callable[[str, str, Array], Array] = lambda kind, key, x: x,
) -> list[Difference]:  # fmt: skip
    """Compare every intermediate that both have, kind by kind; `truth` is what a model in float64 gives.

    allowed: the tolerance of each; weighed: where a larger difference passes if the rms errors agree; seen: selects the
    part of an array to compare, from kind, key and array.
    """
    found = []
    for kind, mine in ours.items():
        for key in (key for key in mine if key in theirs.get(kind, {})):
            here, there, true = mine[key], theirs[kind][key], truth.get(kind, {}).get(key)
            if fits(here, there):  # arrays of other shapes differ as a whole
                here, there = np.broadcast_arrays(here, there)
                here, there = seen(kind, key, here), seen(kind, key, there)
                true = None if true is None else seen(kind, key, true)
            found.append(Difference(key, (kind,), *_compare(here, there, true), allowed[key], key in weighed))
    return found


def in_float64(
    found: Sequence[Difference], ours: Traces, compared: Callable[[str, dict[str, Array]], list[Difference]],
    shares: Shares, follows: Callable[[str, str, set[str]], bool], asked: Callable[[Difference], bool],
) -> list[Difference]:  # fmt: skip
    """Compare with float64 batch by batch, the shortest first; what one shows to be plainly wrong is left out then.

    follows: from kind, key, and what is plainly wrong, whether that alone makes the key wrong; asked: which differences
    float64 decides.
    """
    made, plain, far = dict[tuple[str, str], Difference](), set[str](), Traces()  # plain: by all batches so far
    for d in filter(asked, found):
        far.setdefault(d.kinds[0], {})[d.key] = ours[d.kinds[0]][d.key]
    for kind, named in sorted(far.items(), key=lambda each: sum(x.size for x in each[1].values())):
        if left := {key: x for key, x in named.items() if key not in plain and not follows(kind, key, plain)}:
            made |= {(kind, d.key): d for d in compared(kind, left)}
            plain = {d.key for d in over_kinds(made.values()) if d.plain(shares)}
    return [made.get((d.kinds[0], d.key), d) for d in found]


def misfits(inputs: Traces, ours: Traces, theirs: Traces, whole: Collection[str]) -> list[tuple[str, str]]:
    """List kind and key of the intermediates whose shape is not that of ours: they cannot be the same thing.

    whole: intermediates that must have all texts of the batch.
    """
    return [
        (kind, key)
        for kind, mine in ours.items()
        for key, here in mine.items()
        if (there := theirs.get(kind, {}).get(key)) is not None
        and here.shape != there.shape
        and (key in whole or not fits(here, there)
             or (there.ndim == here.ndim and len(there) not in (1, max(x.shape[:1] for x in inputs[kind].values())[0])))
    ]  # fmt: skip


def _compare(ours: Array, theirs: Array, truth: Array | None) -> tuple[float, float, float, float]:
    """The largest difference, the share of equal entries, and both rms errors."""
    if not fits(ours, theirs):
        return np.inf, 0.0, np.nan, np.nan
    a, b = np.broadcast_arrays(ours, theirs)
    if not a.dtype == b.dtype == np.float32:
        a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):  # infinity less infinity is NaN, which passes nothing
        off, size = np.subtract(a, b), np.abs(b)
        equal = 1 - np.count_nonzero(off) / off.size if off.size else 1.0
        np.abs(off, out=off)
        off /= np.maximum(size, 1, out=size)
    largest = float(off.max(initial=0.0))
    if truth is None or truth.dtype.kind != "f":
        return largest, equal, np.nan, np.nan
    return largest, equal, rms(a - truth), rms(b - truth)


def fits(ours: Array, theirs: Array) -> bool:
    """Whether two arrays can be compared: of one shape, or one of them a batch of one that stands for all.

    References differ in that: positions are (seq,), (1, seq) or (batch, seq). Without a batch axis an array stands for
    all only where ours are all the same; else an axis was lost.

    >>> rows, same = np.arange(6).reshape(2, 3), np.ones((2, 3))
    >>> fits(rows, rows[:1]), fits(same, same[0]), fits(rows, rows[0]), fits(rows, rows[:0]), fits(rows, rows[None])
    (True, True, False, False, False)
    """
    if theirs.ndim > ours.ndim:
        return False
    a, b = ours, theirs.reshape((1,) * (ours.ndim - theirs.ndim) + theirs.shape)
    if a.shape == b.shape:
        return True
    if a.shape[1:] != b.shape[1:] or not a.size or not b.size:
        return False
    return len(a) == 1 or (len(b) == 1 and (theirs.ndim == ours.ndim or bool(np.all(a == a[:1]))))


def rms(x: Array) -> float:
    """Root mean square; 0 of nothing."""
    return float(np.sqrt(np.mean(np.square(x)))) if x.size else 0.0


def over_kinds(differences: Iterable[Difference]) -> list[Difference]:
    """Combine all kinds: for each intermediate the largest difference, the mean share, the root mean square errors."""
    grouped: dict[str, list[Difference]] = {}
    for difference in differences:
        grouped.setdefault(difference.key, []).append(difference)
    return [
        _worst(group)._replace(kinds=tuple(kind for d in group for kind in d.kinds))
        if group[0].share
        else group[0]._replace(
            kinds=tuple(kind for d in group for kind in d.kinds),
            largest=max((d.largest for d in group), key=lambda x: (np.isnan(x), x)),
            equal=float(np.mean([d.equal for d in group])),
            error_ours=_pooled([d.error_ours for d in group]),
            error_theirs=_pooled([d.error_theirs for d in group]),
        )
        for group in grouped.values()
    ]


def _pooled(errors: list[float]) -> float:
    """The root mean square of the batches' errors that are known; NaN where none is."""
    known = np.array([error for error in errors if not np.isnan(error)])
    return rms(known) if known.size else np.nan


def _worst(group: list[Difference]) -> Difference:
    """The batch in which a port in a narrower format is furthest beyond its rounding."""
    return max(group, key=lambda d: (not d.passes, d.error_theirs / max(d.error_ours, 1e-30)))
