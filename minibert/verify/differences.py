"""The comparison of two traces, intermediate by intermediate, and the rule by which each passes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from minibert.equations.input_layer import Array

from .traces import Traces

# The rms error against float64, divided by the other program's. Ours by torch's, on all-MiniLM-L6-v2: at most
# 1.10 with BLAS's Haswell kernel, 1.43 with its AVX-512 kernel, 1.48 with Sandybridge (single products; a block's
# output 1.26). A port's by ours: 5.0 if it adds each product's terms one after the other, as plain loops do
ERROR_SHARE, PORT_SHARE = 2.0, 10.0
# a port may round a sum once, for example in float64: its error is 0.71 times the error of a sum rounded twice
NEARER, ONE_SUM = 0.85, 1e-6
EXACT = ("input_ids", "position_ids")


class Shares(NamedTuple):
    """The largest allowed rms error against float64, as a multiple of the other program's: ours, and theirs."""

    ours: float = np.inf
    theirs: float = np.inf


OF_A_PORT = Shares(theirs=PORT_SHARE)  # a port may round less than we do
# An error is plainly too large if it is PLAINLY times the share, divided by the number of batches so far, and at least
# LEAST times: no later batch can bring the mean back
PLAINLY, LEAST = 10.0, 1.2


class Difference(NamedTuple):
    """The comparison of one intermediate in one or several kinds of batches.

    largest is |ours - theirs| / max(1, |theirs|); equal is the share of entries with the same value; the two errors are
    root mean squares against float64, NaN without float64.
    """

    key: str
    kinds: tuple[str, ...]
    largest: float
    equal: float
    error_ours: float
    error_theirs: float
    tolerance: float
    weighed: bool = False  # whether the two errors decide beyond the tolerance
    share: float = 0.0  # replaces `Shares.theirs` for a port in a narrower format

    def loosened(self, tolerance: float) -> Difference:
        """Return this difference with the tolerance raised to at least this one; ids stay exact."""
        return self if self.key in EXACT else self._replace(tolerance=max(self.tolerance, tolerance))

    @property
    def passes(self) -> bool:
        return self.largest <= self.tolerance  # False for NaN

    def accepted(self, shares: Shares) -> bool:
        """Whether the difference passes, by its size or by the rms errors."""
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
        """Whether the other program is so far off that no further batch can make it right."""
        if not self.weighed:
            return self.largest > ONE_SUM and bool(np.isfinite(shares.theirs))
        return self.error_theirs > max(PLAINLY / len(self.kinds), LEAST) * shares.theirs * self.error_ours


def compare(
    ours: Traces, theirs: Traces, truth: Traces, allowed: Mapping[str, float], weighed: Collection[str] = (),
    seen: Callable[[str, str, Array], Array] = lambda kind, key, x: x,
) -> list[Difference]:  # fmt: skip
    """Compare every intermediate that both have, kind by kind; `truth` is a trace in float64.

    allowed: the tolerance of each; weighed: keys whose larger difference passes if the rms errors agree; seen: from
    kind, key and array, selects the numbers to compare.
    """
    found = []
    for kind, mine in ours.items():
        for key in (key for key in mine if key in theirs.get(kind, {})):
            here, there, true = mine[key], theirs[kind][key], truth.get(kind, {}).get(key)
            if fits(here, there):  # arrays of different shapes differ as a whole
                here, there = np.broadcast_arrays(here, there)
                here, there = seen(kind, key, here), seen(kind, key, there)
                true = None if true is None else seen(kind, key, true)
            found.append(Difference(key, (kind,), *_compare(here, there, true), allowed[key], key in weighed))
    return found


def in_float64(
    found: Sequence[Difference], ours: Traces, compared: Callable[[str, dict[str, Array]], list[Difference]],
    shares: Shares, follows: Callable[[str, str, set[str]], bool], undecided: Callable[[Difference], bool],
) -> list[Difference]:  # fmt: skip
    """Compare with float64 batch by batch, the shortest first; a key is left out once it is plainly wrong.

    follows: from kind, key, and the plainly wrong keys, whether those alone make the key wrong; undecided: whether
    float64 decides a difference.
    """
    decided, plain, far = dict[tuple[str, str], Difference](), set[str](), Traces()  # plain: by all batches so far
    for d in filter(undecided, found):
        far.setdefault(d.kinds[0], {})[d.key] = ours[d.kinds[0]][d.key]
    for kind, named in sorted(far.items(), key=lambda each: sum(x.size for x in each[1].values())):
        if left := {key: x for key, x in named.items() if key not in plain and not follows(kind, key, plain)}:
            decided |= {(kind, d.key): d for d in compared(kind, left)}
            plain = {d.key for d in over_kinds(decided.values()) if d.plain(shares)}
    return [decided.get((d.kinds[0], d.key), d) for d in found]


def _compare(ours: Array, theirs: Array, truth: Array | None) -> tuple[float, float, float, float]:
    """Return the largest difference, the share of equal entries, and both rms errors."""
    if not fits(ours, theirs):
        return np.inf, 0.0, np.nan, np.nan
    a, b = np.broadcast_arrays(ours, theirs)
    if not a.dtype == b.dtype == np.float32:
        a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):  # infinity less infinity is NaN, which never passes
        off, size = np.subtract(a, b), np.abs(b)
        equal = 1 - np.count_nonzero(off) / off.size if off.size else 1.0
        np.abs(off, out=off)
        off /= np.maximum(size, 1, out=size)
    largest = float(off.max(initial=0.0))
    if truth is None or truth.dtype.kind != "f":
        return largest, equal, np.nan, np.nan
    return largest, equal, rms(a - truth), rms(b - truth)


def fits(ours: Array, theirs: Array) -> bool:
    """Whether two arrays can be compared: they have the same shape, or one is a batch of one that stands for all.

    References differ here: positions are (seq,), (1, seq) or (batch, seq). An array without a batch axis stands for all
    only if all of ours are the same; otherwise an axis was lost.

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
    """Return the root mean square, or 0 for an empty array."""
    return float(np.sqrt(np.mean(np.square(x)))) if x.size else 0.0


def over_kinds(differences: Iterable[Difference]) -> list[Difference]:
    """Combine all kinds: per intermediate the largest difference, the mean share, the root mean square errors.

    For a port in a narrower format the batch that is furthest beyond its rounding is decisive.
    """
    grouped: dict[str, list[Difference]] = {}
    for difference in differences:
        grouped.setdefault(difference.key, []).append(difference)
    combined = []
    for group in grouped.values():
        kinds = tuple(kind for d in group for kind in d.kinds)
        if group[0].share:
            worst = max(group, key=lambda d: (not d.passes, d.error_theirs / max(d.error_ours, 1e-30)))
            combined.append(worst._replace(kinds=kinds))
            continue
        errors = np.array([(d.error_ours, d.error_theirs) for d in group])
        ours, theirs = (rms(x[~np.isnan(x)]) if not np.isnan(x).all() else np.nan for x in errors.T)
        largest = max((d.largest for d in group), key=lambda x: (np.isnan(x), x))
        equal = float(np.mean([d.equal for d in group]))
        combined.append(group[0]._replace(kinds=kinds, largest=largest, equal=equal, error_ours=ours,
                                          error_theirs=theirs))  # fmt: skip
    return combined
