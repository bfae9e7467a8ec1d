"""Which mistake explains a difference, of the whole model and of each module. Loaded only where something differs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import combinations

from minibert.errors import CheckpointError
from minibert.verify.mistakes.mistakes import mistakes
from minibert.verify.mistakes.plain import all_places
from minibert.verify.mistakes.wrong_formulas import FORMATS
from minibert.verify.mistakes.wrong_steps import Mistake, with_mistake
from minibert.verify.report import Report
from minibert.verify.sides.traces import INPUT_LAYER, Traces

from .blocks import EncoderSubject
from .compare import FAR, OF_A_PORT, over_kinds
from .input_layer import Subject
from .local import Judged, local_mistakes, taken_together


def look(
    report: Report, subject: Subject, inputs: Traces, theirs: Traces, place: str, tolerance: float, local: bool
) -> None:
    """Look for the mistake; `place` is where numbers first differ, `local` whether each module is judged by itself."""
    judged = local_mistakes(subject, inputs, theirs, tolerance) if isinstance(subject, EncoderSubject) else None
    fits = partial(_fits, inputs=inputs, theirs=theirs, tolerance=tolerance)
    name_mistakes(report, subject, fits, judged and judged.whole, place == INPUT_LAYER)
    if judged is not None and local:
        _say_local(report, judged)


def name_mistakes(
    report: Report, subject: Subject, fits: Callable[[Subject], bool], among: Collection[str] | None = None,
    from_the_first: bool = True,
) -> None:  # fmt: skip
    """Try every mistake on the same inputs.

    among: those that local checks leave; from_the_first: whether the input layer differs.
    """
    tried = set[str]()
    for mistake, parts in _attempts(subject, from_the_first):
        tried.add(mistake.name)
        if mistake.name in report.matches or (among is not None and mistake.name not in among):
            continue
        try:
            if fits(subject.wrong(mistake, parts)):
                report.matches.append(mistake.name)
                report.say(f"matches: {mistake.name}. {mistake.why}")
        except (CheckpointError, ValueError, TypeError, IndexError, KeyError):
            continue  # this mistake cannot be made with these inputs
    if not report.matches:
        report.say(f"none of the {len(tried)} classic mistakes that this model allows fits")


def _attempts(subject: Subject, from_the_first: bool) -> Iterator[tuple[Mistake, Collection[str]]]:
    """Each mistake, made everywhere, or in some parts of the model: the input layer, the blocks, the head."""
    at = list(all_places(subject.model, subject.head))
    for mistake in mistakes(subject.model):
        changed = {each.part: None for each in at if mistake.where != "local" and with_mistake(mistake, each)}
        for count in range(len(changed), 0, -1):
            for parts in combinations(changed, count):
                if (INPUT_LAYER in parts) == from_the_first:
                    yield mistake, parts


def _fits(wrong: Subject, inputs: Traces, theirs: Traces, tolerance: float) -> bool:
    """Whether a model with a mistake gives what they have, within the rounding that it has itself."""
    ours: Traces = {}
    for kind, batch in inputs.items():
        ours[kind] = {}
        for part in wrong.parts(batch):  # most mistakes are out of the question after one
            ours[kind] |= part
            found = [d.loosened(tolerance) for d in wrong.compare(inputs, {kind: part}, theirs, {})]
            if any(d.largest > (max(FAR, tolerance) if d.weighed else d.tolerance) for d in found):
                return False
    if all(d.loosened(tolerance).passes for d in wrong.compare(inputs, ours, theirs, {})):
        return True
    with wrong.exact() as exact:
        found = wrong.compare(inputs, ours, theirs, exact.traces(inputs, theirs))
    return all(d.accepted(OF_A_PORT) for d in over_kinds(found))


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
    report.say("", f"{size} by itself, on the port's own input of it; all else follows from these or is right:")
    rounded = [wrong for wrong in report.local if wrong.fits and all(fit in FORMATS for fit in wrong.fits)]
    for name in dict.fromkeys(fit for wrong in rounded for fit in wrong.fits):
        report.say(f"  {sum(name in wrong.fits for wrong in rounded)} of {len(judged.keys)} in the blocks: {name}")
    for wrong in (wrong for wrong in report.local if wrong not in rounded):
        fits = f"; fits: {' or '.join(wrong.fits)}" if wrong.fits else ""
        report.say(f"  {wrong.place}: {wrong.key} by {wrong.largest:.2g}{fits}")
    report.say(*taken_together(report.local))
