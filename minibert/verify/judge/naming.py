"""Names the mistake that explains a difference, of a whole model and of each module. Loaded where something differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError
from minibert.verify.mistakes.mistake import Mistake, with_mistake
from minibert.verify.mistakes.mistakes import mistakes
from minibert.verify.mistakes.plain import all_places, plain_parts
from minibert.verify.mistakes.wrong_formulas import FORMATS
from minibert.verify.report import Report
from minibert.verify.sides.traces import Traces

from .compare import over_kinds
from .formats import FORMS
from .input_layer import Subject
from .local import Judged, local_mistakes, right_in, taken_together


def look(
    report: Report, subject: Subject, inputs: Traces, theirs: Traces, tolerance: float, local: bool,
    form: str = "float32",
) -> None:  # fmt: skip
    """Look for the mistake; `local`: whether each module of an encoder is named too; form: what a port computes in."""
    judged = local_mistakes(subject, inputs, theirs, tolerance, FORMS.get(form))
    local = local and subject.has_places
    wrong, there = {wrong.key for wrong in judged.found}, report.accepted.keys() & {*subject.leaving}
    if local and form not in FORMS and 2 * len(wrong & there) > len(there):  # a format shows in most modules
        for name in right_in(subject, inputs, theirs)[:1]:
            report.rounding = name
            own = "on the port's own input of it"
            report.say(f"every module is right in {name}, {own}; if that is meant, compare in that format")
    _say_matches(report, subject, judged.whole, local and any(wrong.fits for wrong in judged.found))
    if local:
        _say_local(report, judged)


def look_in_traces(report: Report, subject: Subject, fits: Callable[[Callable[..., dict[str, Array]]], bool]) -> None:
    """Look for the mistake of an input layer in whole traces: `fits` takes what traces a batch."""

    def traced(mistake: Mistake, batch: dict[str, Array]) -> dict[str, Array]:
        return next(plain_parts(subject.layer, batch, mistake))

    def explains(mistake: Mistake) -> bool:
        with suppress(CheckpointError, ValueError, TypeError, IndexError):  # it cannot be made with these ids
            return fits(partial(traced, mistake))
        return False

    _say_matches(report, subject, filter(explains, _possible(subject)))


def _possible(subject: Subject) -> list[Mistake]:
    at = list(all_places(subject.model, subject.head))
    known = (mistake for mistake in mistakes(subject.model) if mistake.where != "local")
    return [mistake for mistake in known if any(with_mistake(mistake, each) for each in at)]


def _say_matches(report: Report, subject: Subject, found: Iterable[Mistake], by_module: bool = False) -> None:
    for mistake in found:
        if mistake.name not in report.matches:
            report.matches.append(mistake.name)
            report.say(f"matches: {mistake.name}. {mistake.why}")
    if by_module and not report.matches:
        report.say("no single mistake explains the whole model; module by module:")
    elif not report.matches:
        tried = {mistake.name for mistake in _possible(subject)}
        report.say(f"none of the {len(tried)} classic mistakes that this model allows fits")


def _say_local(report: Report, judged: Judged) -> None:
    """Name every module that is wrong by itself."""
    report.local = judged.found
    if not report.local:
        left = [
            d.key for d in over_kinds(report.differences) if d.key not in judged.keys and not report.accepted[d.key]
        ]
        report.say(
            f"not fed with the port's own inputs: {', '.join(left)}" if left else
            "on the port's own inputs every module that is in the file is right"
        )  # fmt: skip
        return
    size = "beyond what float32 rounds to" if report.passed else "wrong"
    report.say(f"{size} by itself, on the port's own input of it; all else follows from these or is right:")
    rounded = [wrong for wrong in report.local if wrong.fits and all(fit in FORMATS for fit in wrong.fits)]
    modules = judged.keys | {wrong.key for wrong in rounded}  # those of the input layer are not in judged.keys
    for name in dict.fromkeys(fit for wrong in rounded for fit in wrong.fits):
        report.say(f"  {sum(name in wrong.fits for wrong in rounded)} of {len(modules)} modules: {name}")
    for wrong in (wrong for wrong in report.local if wrong not in rounded):
        fits = f"; fits: {' or '.join(wrong.fits)}" if wrong.fits else ""
        report.say(f"  {wrong.place}: {wrong.key} by {wrong.largest:.2g}{fits}")
    report.say(*taken_together(report.local))
    unexplained: dict[tuple[str, ...], list[str]] = {}
    for wrong in report.local:
        if wrong.excluded:
            unexplained.setdefault(tuple(wrong.excluded), []).append(wrong.key)
    for excluded, keys in unexplained.items():
        report.say(f"  nothing explains {', '.join(keys)}; excluded: {', '.join(excluded)}")
