"""The comparison of two traces, the rule by which each intermediate passes, and the verdict of a whole comparison.

The verdict has lines for a person, attributes and JSON for a program.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import TokenizerError

from .traces import Traces

# The rms error against float64, divided by the other program's: ours by torch's at most 1.48 on all-MiniLM-L6-v2, a
# port's by ours 5.0 if it adds each product's terms one after the other, as plain loops do
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
    select: Callable[[str, str, Array], Array] = lambda kind, key, x: x,
) -> list[Difference]:  # fmt: skip
    """Compare every intermediate that both have, kind by kind; `truth` is a trace in float64.

    allowed: the tolerance of each; weighed: keys whose larger difference passes if the rms errors agree; select: from
    kind, key and array, selects the numbers to compare.
    """
    differences = []
    for kind, mine in ours.items():
        for key in (key for key in mine if key in theirs.get(kind, {})):
            here, there, true = mine[key], theirs[kind][key], truth.get(kind, {}).get(key)
            numbers = np.inf, 0.0, np.nan, np.nan  # arrays of different shapes differ as a whole
            if fits(here, there):
                here, there = (select(kind, key, x) for x in np.broadcast_arrays(here, there))
                numbers = _compare(here, there, None if true is None else select(kind, key, true))
            differences.append(Difference(key, (kind,), *numbers, allowed[key], key in weighed))
    return differences


def in_float64(
    differences: Sequence[Difference], ours: Traces, compared: Callable[[str, dict[str, Array]], list[Difference]],
    shares: Shares, follows: Callable[[str, str, set[str]], bool], undecided: Callable[[Difference], bool],
) -> list[Difference]:  # fmt: skip
    """Compare with float64 batch by batch, the shortest first; a key is left out once it is plainly wrong.

    follows: from kind, key, and the plainly wrong keys, whether those alone make the key wrong; undecided: whether
    float64 decides a difference.
    """
    decided, plain, far = dict[tuple[str, str], Difference](), set[str](), Traces()  # plain: by all batches so far
    for d in filter(undecided, differences):
        far.setdefault(d.kinds[0], {})[d.key] = ours[d.kinds[0]][d.key]
    for kind, named in sorted(far.items(), key=lambda batch: sum(x.size for x in batch[1].values())):
        if left := {key: x for key, x in named.items() if key not in plain and not follows(kind, key, plain)}:
            decided |= {(kind, d.key): d for d in compared(kind, left)}
            plain = {d.key for d in over_kinds(decided.values()) if d.plain(shares)}
    return [decided.get((d.kinds[0], d.key), d) for d in differences]


def _compare(a: Array, b: Array, truth: Array | None) -> tuple[float, float, float, float]:
    """Return the largest difference of ours, `a`, and theirs, the share of equal entries, and both rms errors."""
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
    error = rms(b - truth)
    return largest, equal, rms(a - truth), np.inf if np.isnan(error) else error  # NaN would mean: without float64


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
        if any(d.share for d in group):
            ratio = {d: np.nan_to_num(d.error_theirs / max(d.error_ours, 1e-30), nan=np.inf) for d in group}
            worst = max(group, key=lambda d: (not d.passes, ratio[d]))
            combined.append(worst._replace(kinds=kinds))
            continue
        errors = np.array([(d.error_ours, d.error_theirs) for d in group])
        ours, theirs = (rms(x[~np.isnan(x)]) if not np.isnan(x).all() else np.nan for x in errors.T)
        largest = max((d.largest for d in group), key=lambda x: (np.isnan(x), x))
        equal = float(np.mean([d.equal for d in group]))
        combined.append(group[0]._replace(kinds=kinds, largest=largest, equal=equal, error_ours=ours,
                                          error_theirs=theirs))  # fmt: skip
    return combined


# -- tables ------------------------------------------------------------------------------------------------------


def by_place(places: dict[str, list[Difference]], whose: str, shares: Shares) -> Iterator[str]:
    """Write one line per place: its worst intermediate, and the errors of its last one."""
    rows = [["where", "intermediates", "max difference", "of", "rms error here", f"rms error {whose}", "verdict"]]
    for place, differences in places.items():
        worst = max(differences, key=lambda d: (np.isnan(d.largest), d.largest))
        verdict = "within rounding" if all(d.accepted(shares) for d in differences) else "DIFFERENT"
        size = f"{worst.largest:.2g}", worst.key
        rows.append([place, str(len(differences)), *size, *_errors(differences[-1]), verdict])
    return table(rows)


def by_intermediate(summed: Iterable[Difference], whose: str, shares: Shares) -> Iterator[str]:
    """Write one line per intermediate, over all batches."""
    rows = [["intermediate", "batches", "max difference", "equal", "rms error here", f"rms error {whose}", "verdict"]]
    for d in summed:
        verdict = "DIFFERENT" if not d.accepted(shares) else "equal" if d.largest == 0 else "within rounding"
        equal = f"{int(d.equal * 1000) / 10:g} %"  # never rounded up to 100
        rows.append([d.key, str(len(d.kinds)), f"{d.largest:.2g}", equal, *_errors(d), verdict])
    return table(rows)


def _errors(d: Difference) -> list[str]:
    return [f"{error:.2g}" if np.isfinite(error) else "-" for error in (d.error_ours, d.error_theirs)]


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Write cells in columns: the first and the last aligned left, numbers aligned right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *numbers, last = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join([first, *(cell.rstrip().rjust(len(cell)) for cell in numbers), last]).rstrip()


# -- the verdict ---------------------------------------------------------------------------------------------------

SHOWN = 12  # names that one line lists
Text = tuple[Sequence[str], Mapping[str, list[int]]]  # a text or two, and what the tokenizer should return


class Checked(NamedTuple):
    """The comparison with one intermediate's printed numbers: their count, and the largest difference."""

    key: str
    numbers: int
    largest: float
    allowed: float  # for that number
    passes: bool


class Comparison:
    """The verdict of a comparison; as a text it reads as `minibert verify` prints it.

    passed       whether every number is present and equal within the tolerance
    differences  intermediate, or text of a vector -> its distance, if it is too far from the model's
    mistakes     names (as in MISTAKES.md) of the mistakes that explain the whole difference, else of the mistakes
                 that explain a module
    lines        the report for people
    """

    def __init__(self, *lines: str) -> None:
        self.passed = True
        self.ran = True  # False if a model could not be fetched; `passed` is then False too
        self.lines = list(lines)
        self.compared: list[Difference] = []
        self.checked: list[Checked] = []
        self.missing: list[str] = []  # "<kind>|<key>" that the file should have
        self.wrong_inputs: list[str] = []  # one sentence per input in the file that differs from the batch's
        self.matches: list[str] = []  # names of the mistakes that explain the whole difference
        self.rounding = ""  # the narrower format in which everything is right
        self.hidden: list[str] = []  # mistakes that this rounding can hide
        self.accepted: dict[str, bool] = {}  # intermediate -> whether it passes over all batches
        self.local: list[Any] = []  # `local.Finding` of each module that is wrong by itself
        self.texts: list[dict[str, Any]] = []  # for vectors: one entry per text
        self.ruled_out: list[str] = []  # mistakes that some vector rules out

    @property
    def differences(self) -> dict[str, float]:
        wrong = {d.key: d.largest for d in over_kinds(self.compared) if not self.accepted.get(d.key, d.passes)}
        far = {text["text"]: text["distance"] for text in self.texts if not text["passed"]}
        return wrong | {text: np.inf if distance is None else distance for text, distance in far.items()}

    @property
    def mistakes(self) -> list[str]:
        return self.matches or list(dict.fromkeys(fit for module in self.local for fit in module.fits))

    def __bool__(self) -> bool:  # else `assert compare(...)` would hold for a wrong port
        return self.passed

    def __str__(self) -> str:
        return "\n".join(self.lines)

    def __repr__(self) -> str:
        return f"Comparison(passed={self.passed}, differences={self.differences}, mistakes={self.mistakes})"

    def say(self, *lines: str) -> None:
        self.lines += lines

    def headline(self, line: str) -> None:
        """Insert the line that is read first after the model's name."""
        self.lines.insert(1, line)

    def fail(self, *lines: str) -> None:
        """Record a failure, with lines that explain it."""
        self.passed = False
        self.lines += lines

    def as_object(self) -> dict[str, Any]:
        """Return the whole report as a JSON object; verify's README explains each key."""
        intermediates = [
            {
                "key": d.key, "batches": d.kinds, "largest": d.largest, "equal": d.equal, "error_here": d.error_ours,
                "error_there": d.error_theirs, "tolerance": d.tolerance, "passed": self.accepted.get(d.key, d.passes),
            }
            for d in over_kinds(self.compared)
        ]  # fmt: skip
        same = "missing", "wrong_inputs", "local", "texts", "matches", "rounding", "hidden", "ruled_out"
        report: dict[str, Any] = _as_json({
            "passed": self.passed, "model": "".join(self.lines[:1]), "intermediates": intermediates,
            "printed": self.checked, **{name: getattr(self, name) for name in same}, "lines": self.lines[1:],
        })  # fmt: skip
        return report


def _as_json(value: Any) -> Any:
    """Turn named tuples into objects, and infinity and NaN into null."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _as_json(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(entry) for entry in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value


def compare_ids(report: Comparison, model: Any, texts: Sequence[Text], whose: str) -> None:
    """Tokenize texts, and fail with one line for each text that has wrong ids or token types."""
    wrong = []
    try:
        for text, inputs in texts:
            batch = model.tokenize(*text)
            for name, theirs in inputs.items():
                if (ours := batch[name][0].tolist()) != theirs:
                    wrong.append(f"{' | '.join(text)!r} gives {name} {ours}, expected {theirs}")
    except TokenizerError as error:
        report.say(f"ids of {len(texts)} texts not compared: {error}")
        return
    if wrong:
        report.fail(*wrong)
    else:
        report.say(f"ids of {len(texts)} texts: {whose}")
