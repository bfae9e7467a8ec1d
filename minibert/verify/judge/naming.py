"""Names the mistake that explains a difference, of a whole model and of each module. Loaded where something differs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from minibert.verify.mistakes import MISTAKES
from minibert.verify.mistakes.mistake import Mistake, all_places, reason, with_mistake
from minibert.verify.mistakes.wrong_modules import Formula
from minibert.verify.report import Report
from minibert.verify.sides.traces import Traces

from .compare import over_kinds
from .formats import FORMS
from .input_layer import Subject
from .local import InFormat, Judged, Local, local_mistakes

FEW_MAPS = 4  # wrong ones that say more of a file than of a map
SHOWN = 12  # names and modules that one line lists


def look(
    report: Report, subject: Subject, inputs: Traces, theirs: Traces, tolerance: float, local: bool, form: str = ""
) -> None:
    """Look for the mistake; `local`: whether each module of an encoder is named too; form: what a port computes in."""
    judged = local_mistakes(subject, inputs, theirs, tolerance, form)
    local = local and subject.has_places
    wrong, there = {wrong.key for wrong in judged.found}, report.accepted.keys() & {*subject.leaving}
    if local and not form and 2 * len(wrong & there) > len(there):  # a format shows in most modules
        for name in (name for name, own in FORMS.items() if _are_in(own, theirs, wrong)):
            again = local_mistakes(subject, inputs, theirs, tolerance, name)
            if 2 * len(again.found) <= len(judged.found):
                judged, report.rounding = again, "" if again.found else name
                right = "all" if not again.found else "most"
                report.head(f"{right} modules that are shown are right in {name}; if that is meant, compare in that "
                            "format")  # fmt: skip
                break
        if report.rounding:
            return
    _say_matches(report, subject, judged.whole, local and any(wrong.fits for wrong in judged.found))
    if local:
        _say_local(report, judged)


def _are_in(rounding: Formula, theirs: Traces, keys: set[str]) -> bool:
    """Whether a fourth of a port's intermediates that are wrong hold numbers of a narrower format alone."""
    each = [np.asarray(x, np.float32) for named in theirs.values() for key, x in named.items() if key in keys]
    return 4 * sum(np.array_equal(rounding(x), x, equal_nan=True) for x in each) > len(each)


def say_format(report: Report, subject: Subject, form: str, told: InFormat) -> None:
    """Say that a port is right in a format, or which mistake is in it, and what such rounding can hide."""
    for mistake in dict.fromkeys(each.name for each in told.found):
        report.matches.append(mistake)
    for each in {each.name: each for each in told.found}.values():
        report.fail(f"matches: {each.name}. {reason(each, subject.model)}")
    if told.found:
        report.head(f"not right in {form}: {' or '.join(report.matches)}")
        return
    report.rounding = form
    if told.float32:
        report.say(f"right in float32, not computed in {form}")
        return
    report.hidden = list(dict.fromkeys(each.name for each in told.hidden))
    shown = ", ".join(report.hidden[:SHOWN]) + (f" and {len(report.hidden) - SHOWN} more" if len(report.hidden) > SHOWN
                                                else "")  # fmt: skip
    hides = f"; such rounding can hide: {shown}" if shown else "; no mistake of the list can hide below such rounding"
    report.say(f"every module that is shown is right in {form}{hides}")


def _say_matches(report: Report, subject: Subject, found: Iterable[Mistake], by_module: bool = False) -> None:
    for mistake in found:
        if mistake.name not in report.matches:
            report.matches.append(mistake.name)
            report.say(f"matches: {mistake.name}. {reason(mistake, subject.model)}")
    if report.matches:
        report.head(f"all of it is explained by: {' or '.join(report.matches)}")
    elif by_module:
        report.say("no single mistake explains the whole model; module by module:")
    else:
        at = list(all_places(subject.model, subject.head))
        known = (mistake for mistake in MISTAKES if mistake.where != "local")
        tried = {mistake.name for mistake in known if any(with_mistake(mistake, each) for each in at)}
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
    keys = [each.key for each in report.local]
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    if not report.matches:
        report.head(f"{size} by itself: {', '.join(keys[:SHOWN])}{more}")
    report.say(f"{size} by itself, on the port's own input of it; all else follows from these or is right:")
    others = _other_weights(report, judged)
    for wrong in (each for each in report.local if each not in others):
        fits = f"; fits: {' or '.join(wrong.fits)}" if wrong.fits else ""
        fits = fits or f"; none of {len(wrong.excluded)} mistakes fits" * bool(wrong.excluded)
        report.say(f"  {wrong.place}: {wrong.key} by {wrong.largest:.2g}{fits}")


def _other_weights(report: Report, judged: Judged) -> list[Local]:
    """Say in one line where most linear maps are wrong and nothing names them: their weights are of another file."""
    maps = [each for each in judged.found if each.kind == "dense" and not each.fits]
    if len(maps) < FEW_MAPS or 2 * len(maps) <= judged.maps:
        return []
    shares = sorted(each.share for each in maps)
    report.say(
        f"  the weights are not this model's: {len(maps)} of {judged.maps} linear maps differ by {shares[0]:.2g} to "
        f"{shares[-1]:.2g} of what they give; compare with the file that the port reads, or allow a tolerance"
    )
    return maps
