"""The lines that name a mistake, for a whole model and for each module. Imported only if something differs."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from minibert.verify.mistakes.mistake import Mistake, reason, with_mistake
from minibert.verify.mistakes.mistakes import MISTAKES
from minibert.verify.mistakes.plain import all_places
from minibert.verify.mistakes.wrong_formulas import ROUNDINGS, Formula

from .differences import over_kinds
from .local import InFormat, Judged, Local, local_mistakes
from .report import Comparison
from .subjects import Subject
from .traces import Traces

FEW_MAPS = 4  # so many wrong linear maps say more of the file than of a map
SHOWN = 12  # names and modules that one line lists


def look(
    report: Comparison, subject: Subject, inputs: Traces, theirs: Traces, tolerance: float, local: bool, form: str = ""
) -> None:
    """Look for the mistake; local: whether each module of an encoder is named too; form: a port's narrower format."""
    judged = local_mistakes(subject, inputs, theirs, tolerance, form)
    local = local and subject.has_places
    wrong, there = {wrong.key for wrong in judged.found}, report.accepted.keys() & {*subject.leaving}
    if local and not form and 2 * len(wrong & there) > len(there):  # a format shows in most modules
        for name in (name for name, rounding in ROUNDINGS.items() if _are_in(rounding, theirs, wrong)):
            again = local_mistakes(subject, inputs, theirs, tolerance, name)
            if 2 * len(again.found) <= len(judged.found):
                judged, report.rounding = again, "" if again.found else name
                right = "all" if not again.found else "most"
                report.headline(f"{right} modules that are shown are right in {name}; if that is meant, compare in "
                                "that format")  # fmt: skip
                break
        if report.rounding:
            return
    _say_matches(report, subject, judged.whole, local and any(wrong.fits for wrong in judged.found))
    if local:
        _say_local(report, judged)


def _are_in(rounding: Formula, theirs: Traces, keys: set[str]) -> bool:
    """Whether more than a fourth of a port's wrong intermediates hold only numbers of a narrower format."""
    each = [np.asarray(x, np.float32) for named in theirs.values() for key, x in named.items() if key in keys]
    return 4 * sum(np.array_equal(rounding(x), x, equal_nan=True) for x in each) > len(each)


def say_format(report: Comparison, subject: Subject, form: str, told: InFormat) -> None:
    """Say that a port is right in a format, or which mistake it has, and what the format's rounding can hide."""
    for mistake in {each.name: each for each in told.found}.values():
        report.matches.append(mistake.name)
        report.fail(f"matches: {mistake.name}. {reason(mistake, subject.model)}")
    if told.found:
        report.headline(f"not right in {form}: {' or '.join(report.matches)}")
        return
    report.rounding = form
    if told.float32:
        report.say(f"right in float32, not computed in {form}")
        return
    report.hidden = list(dict.fromkeys(each.name for each in told.hidden))
    shown = _shown(report.hidden)
    hides = f"; such rounding can hide: {shown}" if shown else "; no mistake of the list can hide below such rounding"
    report.say(f"every module that is shown is right in {form}{hides}")


def _shown(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _say_matches(report: Comparison, subject: Subject, found: Iterable[Mistake], by_module: bool = False) -> None:
    for mistake in found:
        if mistake.name not in report.matches:
            report.matches.append(mistake.name)
            report.say(f"matches: {mistake.name}. {reason(mistake, subject.model)}")
    if report.matches:
        report.headline(f"all of it is explained by: {' or '.join(report.matches)}")
    elif by_module:
        report.say("no single mistake explains the whole model; module by module:")
    else:
        at = list(all_places(subject.model, subject.head))
        known = (mistake for mistake in MISTAKES if mistake.where != "local")
        tried = {mistake.name for mistake in known if any(with_mistake(mistake, each) for each in at)}
        report.say(f"none of the {len(tried)} classic mistakes that this model allows fits")


def _say_local(report: Comparison, judged: Judged) -> None:
    """Name every module that is wrong by itself."""
    report.local = judged.found
    if not report.local:
        left = [d.key for d in over_kinds(report.compared) if d.key not in judged.keys and not report.accepted[d.key]]
        report.say(
            f"not fed with the port's own inputs: {', '.join(left)}" if left else
            "on the port's own inputs every module that is in the file is right"
        )  # fmt: skip
        return
    size = "beyond what float32 rounds to" if report.passed else "wrong"
    if not report.matches:
        report.headline(f"{size} by itself: {_shown([each.key for each in report.local])}")
    report.say(f"{size} by itself, on the port's own input of it; all else follows from these or is right:")
    others = _other_weights(report, judged)
    for wrong in (each for each in report.local if each not in others):
        fits = f"; fits: {' or '.join(wrong.fits)}" if wrong.fits else ""
        fits = fits or f"; none of {len(wrong.excluded)} mistakes fits" * bool(wrong.excluded)
        report.say(f"  {wrong.place}: {wrong.key} by {wrong.largest:.2g}{fits}")


def _other_weights(report: Comparison, judged: Judged) -> list[Local]:
    """Say in one line that the weights are another file's, if most linear maps are wrong and no mistake fits them."""
    maps = [each for each in judged.found if each.kind == "dense" and not each.fits]
    if len(maps) < FEW_MAPS or 2 * len(maps) <= judged.maps:
        return []
    shares = sorted(each.share for each in maps)
    report.say(
        f"  the weights are not this model's: {len(maps)} of {judged.maps} linear maps differ by {shares[0]:.2g} to "
        f"{shares[-1]:.2g} of what they give; compare with the file that the port reads, or allow a tolerance"
    )
    return maps
