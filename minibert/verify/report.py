"""The verdict of a comparison: lines for a person, attributes and JSON for a program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minibert.errors import TokenizerError

from .differences import Difference, Shares, over_kinds
from .subjects import Subject

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
        self.local: list[Any] = []  # `local.Local` of each module that is wrong by itself
        self.texts: list[dict[str, Any]] = []  # for vectors: one entry per text
        self.ruled_out: list[str] = []  # mistakes that some vector rules out

    @property
    def differences(self) -> dict[str, float]:
        wrong = {d.key: d.largest for d in over_kinds(self.compared) if not self.accepted.get(d.key, d.passes)}
        far = {each["text"]: each["distance"] for each in self.texts if not each["passed"]}
        return wrong | {text: np.inf if distance is None else distance for text, distance in far.items()}

    @property
    def mistakes(self) -> list[str]:
        return self.matches or list(dict.fromkeys(fit for each in self.local for fit in each.fits))

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
        made: dict[str, Any] = _as_json({
            "passed": self.passed, "model": "".join(self.lines[:1]), "intermediates": intermediates,
            "printed": self.checked, **{name: getattr(self, name) for name in same}, "lines": self.lines[1:],
        })  # fmt: skip
        return made


def _as_json(value: Any) -> Any:
    """Turn named tuples into objects, and infinity and NaN into null."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _as_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
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


def show(report: Comparison, subject: Subject, keys: Sequence[str], whose: str, against: str, shares: Shares) -> str:
    """Write the differences, and return the place of the first one that is too large; "" if there is none.

    keys: the order of computation. A subject with blocks has one line per place, and all intermediates of the place
    that has the first difference.
    """
    summed = sorted(over_kinds(report.compared), key=lambda d: keys.index(d.key))
    places: dict[str, list[Difference]] = {}
    for d in summed:
        places.setdefault(subject.place(d.key), []).append(d)
    report.accepted = {d.key: d.accepted(shares) for d in summed}
    wrong = [d for d in summed if not report.accepted[d.key]]
    whole = _places(places, whose, shares) if subject.has_places else _intermediates(summed, whose, shares)
    report.say(*whole, "", subject.words(whose, against), "")
    if not wrong:
        return ""
    place = subject.place(wrong[0].key)
    if subject.has_places:
        kinds = ", ".join(_kinds(report, wrong[0].key))
        report.fail(f"first difference: {place}, {wrong[0].key}, in {kinds}; all of {place}:", "")
        report.say(*_intermediates(places[place], whose, shares), "")
    else:
        report.fail(*(f"{d.key} differs in {', '.join(_kinds(report, d.key))}" for d in wrong))
    return place


def _kinds(report: Comparison, key: str) -> list[str]:
    """List the batches in which one intermediate is beyond its tolerance."""
    return [kind for d in report.compared if d.key == key and not d.passes for kind in d.kinds]


def _places(places: dict[str, list[Difference]], whose: str, shares: Shares) -> Iterator[str]:
    """Write one line per place: its worst intermediate, and the errors of its last one."""
    rows = [["where", "intermediates", "max difference", "of", "rms error here", f"rms error {whose}", "verdict"]]
    for place, differences in places.items():
        worst = max(differences, key=lambda d: (np.isnan(d.largest), d.largest))
        verdict = "within rounding" if all(d.accepted(shares) for d in differences) else "DIFFERENT"
        size = f"{worst.largest:.2g}", worst.key
        rows.append([place, str(len(differences)), *size, *_errors(differences[-1]), verdict])
    return table(rows)


def _intermediates(summed: Iterable[Difference], whose: str, shares: Shares) -> Iterator[str]:
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
