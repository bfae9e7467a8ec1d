"""The findings of verify: lines for a person, a verdict for a program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minibert.errors import TokenizerError
from minibert.verify.judge.compare import Difference, Shares, over_kinds
from minibert.verify.judge.input_layer import Subject

Text = tuple[Sequence[str], Mapping[str, list[int]]]  # a text or two, and what the tokenizer should give


class Checked(NamedTuple):
    """The count of printed numbers of one intermediate that were compared, and the largest difference."""

    key: str
    numbers: int
    largest: float
    allowed: float  # at that number
    passes: bool


class Report:
    """The comparison and its verdict: `lines` for a person, `passed` for a program."""

    def __init__(self, *lines: str) -> None:
        self.passed = True
        self.ran = True  # False where a model could not be had; then it has not passed either
        self.lines = list(lines)
        self.differences: list[Difference] = []
        self.checked: list[Checked] = []
        self.missing: list[str] = []  # "<kind>|<key>" of what the file should have had
        self.wrong_inputs: list[str] = []  # sentences about inputs in the file that are not those of the batch
        self.matches: list[str] = []  # names of the mistakes that fit
        self.rounding = ""  # the narrower format in which all is right
        self.hidden: list[str] = []  # mistakes that such rounding can hide
        self.accepted: dict[str, bool] = {}  # intermediate -> whether it passes over all batches
        self.local: list[Any] = []  # `local.Local` of each module that is wrong by itself
        self.texts: list[dict[str, Any]] = []  # of vectors: one entry for each text
        self.ruled_out: list[str] = []  # mistakes that some vector rules out

    def say(self, *lines: str) -> None:
        self.lines += lines

    def head(self, line: str) -> None:
        """Put the line that is read first after the model's name."""
        self.lines.insert(1, line)

    def fail(self, *lines: str) -> None:
        """Add lines that say why it has not passed."""
        self.passed = False
        self.lines += lines

    def as_object(self) -> dict[str, Any]:
        """Give all of it as JSON has it; verify's README says what each key means."""
        intermediates = [
            {
                "key": d.key, "batches": d.kinds, "largest": d.largest, "equal": d.equal, "error_here": d.error_ours,
                "error_there": d.error_theirs, "tolerance": d.tolerance, "passed": self.accepted.get(d.key, d.passes),
            }
            for d in over_kinds(self.differences)
        ]  # fmt: skip
        same = "missing", "wrong_inputs", "local", "texts", "matches", "rounding", "hidden", "ruled_out"
        found = {
            "intermediates": intermediates,
            "printed": self.checked,
            **{name: getattr(self, name) for name in same},
        }
        model, lines = "".join(self.lines[:1]), self.lines[1:]
        made: dict[str, Any] = _as_json({"passed": self.passed, "model": model, **found, "lines": lines})
        return made


def _as_json(value: Any) -> Any:
    """Tuples with names become objects, and infinity and NaN null."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {name: _as_json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    return value


def compare_ids(report: Report, model: Any, texts: Sequence[Text], whose: str) -> None:
    """Tokenize texts, and fail with a sentence for each whose ids or types are others."""
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


def show(report: Report, subject: Subject, keys: Sequence[str], whose: str, against: str, shares: Shares) -> str:
    """Write what the differences are, and give the place of the first one that is too large; "" where none is.

    keys: the order of computation. Of a subject with blocks there is one line for each place, and all of the place
    where the first difference arises.
    """
    summed = sorted(over_kinds(report.differences), key=lambda d: keys.index(d.key))
    places: dict[str, list[Difference]] = {}
    for d in summed:
        places.setdefault(subject.place(d.key), []).append(d)
    wrong = [d for d in summed if not d.accepted(shares)]
    report.accepted = {d.key: d.accepted(shares) for d in summed}
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


def _kinds(report: Report, key: str) -> list[str]:
    """The batches in which one intermediate is beyond its tolerance."""
    return [kind for d in report.differences if d.key == key and not d.passes for kind in d.kinds]


def _places(places: dict[str, list[Difference]], whose: str, shares: Shares) -> Iterator[str]:
    """One line for each place: its worst intermediate, and the errors of its last one."""
    rows = [["where", "intermediates", "max difference", "of", "rms error here", f"rms error {whose}", "verdict"]]
    for place, differences in places.items():
        worst = max(differences, key=lambda d: (np.isnan(d.largest), d.largest))
        verdict = "within rounding" if all(d.accepted(shares) for d in differences) else "DIFFERENT"
        size = f"{worst.largest:.2g}", worst.key
        rows.append([place, str(len(differences)), *size, *_errors(differences[-1]), verdict])
    return table(rows)


def _intermediates(summed: Iterable[Difference], whose: str, shares: Shares) -> Iterator[str]:
    """One line for each intermediate, over all batches."""
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
