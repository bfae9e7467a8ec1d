"""Does a model compute what the reference computes? What `minibert verify` does and prints.

A subject is the input layer, or the whole encoder. It is compared with one side: a file of a port's own intermediates,
where one is passed; the reference itself, where torch and transformers are installed; the reference's values that ship
with the package, for a checkpoint with the same numbers. Of two well-known checkpoints numbers that others have printed
are compared too. Where something differs, every classic mistake is tried on the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from minibert.errors import CheckpointError, Option, worded
from minibert.files.writing import same_file
from minibert.models.open.load import is_folder, load
from minibert.models.open.load_encoder import load_encoder
from minibert.verify.judge.blocks import EncoderSubject
from minibert.verify.judge.compare import FAR, OF_A_PORT, over_kinds
from minibert.verify.judge.input_layer import LayerSubject
from minibert.verify.judge.local import Judged, local_mistakes, taken_together
from minibert.verify.mistakes.wrong_formulas import FORMATS
from minibert.verify.sides import identity, printed, shipped
from minibert.verify.sides.reference import installed
from minibert.verify.sides.sides import File, Live, Shipped, Side
from minibert.verify.sides.subject import INPUT_LAYER, Subject
from minibert.verify.sides.traces import Traces, keys_of, read_file, write_traces

from .report import Report, show

SMALL = {"small_plain": "plain", "small_left_pad": "left_pad"}


def verify(
    model: str,
    texts: Sequence[str] = (),
    *,
    encoder: bool = False,
    side: str | None = None,
    revision: str | None = None,
    local_files_only: bool = False,
    against: Path | None = None,
    save: Path | None = None,
    only: Sequence[str] | None = None,
    tolerance: float = 0.0,
    kinds: Sequence[str] | None = None,
    all_batches: bool = False,
    few: bool = False,
) -> Report:
    """Compare a checkpoint's input layer or whole encoder, intermediate by intermediate, with the best reference.

    against: a file as `save` writes it, with a port's own numbers. Of each batch in it every intermediate is compared,
    or those that `only` names; a missing one fails as one that differs does, and so does a missing or other input.
    Without a file: live with transformers where installed, else with the reference's values that ship, if they are of a
    checkpoint with these numbers; of the input layer also with the printed values of a model of this name. save: write
    inputs and intermediates. tolerance: allowed of every intermediate but ids, for a port that computes in float16 on
    purpose. kinds: these batches alone, also of a file. few: our batches are those of `small`, and a file of them is.
    all_batches: a batch of ours that the file does not have fails.

    Before the first norm nothing may differ, after it `input_layer.AFTER_NORM`. In the blocks an intermediate passes
    within `blocks.IN_BLOCKS` (`blocks.ATTENTION` for probabilities). In real models two right programs are further
    apart than that. There it also passes if its error against float64 is about the other side's: ours at most
    `ERROR_SHARE` times the reference's, a file's at most `PORT_SHARE` times ours.

    Raises ValueError where there is nothing to compare with and nothing to save, for a file of another model (see
    `identity`), where `save` is the file to compare with or one of the model's own, and for an `only` that the model
    does not know.
    """
    _check_files(against, save, only)
    if all_batches and against is None:
        raise ValueError("all batches can be asked of a file alone, which is passed as `against`")
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be from 0 to below 1, found {tolerance}")
    none: tuple[Traces, Traces, None] = {}, {}, None
    own, theirs, about = none if against is None else read_file(against)  # before anything is written
    options: dict[str, Any] = dict(revision=revision, local_files_only=local_files_only)
    if encoder:
        again: Callable[..., Any] = partial(load_encoder, model, **options)
    else:
        again = partial(load, model, side=side, **options, lazy=True)
    with again() as opened:
        subject: Subject = EncoderSubject(opened, again) if encoder else LayerSubject(opened, again)
        identity.check(about, subject, model, str(against))
        report = Report(f"{model} ({subject.about})")
        if subject.without_head:
            report.say(f"logits not compared: {subject.without_head}")
        named = {f"text {i}": dict(opened.tokenize(text)) for i, text in enumerate(texts, 1)}
        few = few or (not all_batches and set() < own.keys() | theirs.keys() <= {*SMALL, *named})
        inputs = (small(subject.batches()) if few else subject.batches()) | named
        if kinds is not None:
            inputs, own, theirs = _these(kinds, inputs, own, theirs)
        if save is not None:
            write_traces(save, inputs, subject.traces(inputs, {}), identity.about(subject, model))
            report.say(f"wrote inputs and every intermediate of {len(inputs)} batches to {save}")
        other = _side(subject, model, options) if against is None else File(against, own, theirs, only, all_batches)
        if other is not None:
            compare_with(report, subject, other, inputs, texts, tolerance)
        if not encoder and not isinstance(other, File | Shipped):
            # a folder's name promises nothing: where the reference can be run, it alone decides
            values = None if other is not None and is_folder(model) else printed.find(model, opened)
            if values is not None:
                alone = "torch and transformers are not installed, so the reference was not run; "
                against_printed(report, subject, values, "also " if other is not None else alone)
                return report
        if other is None:
            if save is None:
                raise _nothing(model, encoder)
            report.say("compared with nothing: torch and transformers are not installed")
    return report


def _check_files(against: Path | None, save: Path | None, only: Sequence[str] | None) -> None:
    """Refuse to save over the file to compare with, and `only` without such a file. Raises ValueError."""
    if save is not None and against is not None and same_file(save, against):
        raise ValueError(f"{save} and {against} are one file: saving would put our numbers over those to compare with")
    if only is not None and (against is None or isinstance(only, str) or not only):
        raise ValueError(f"only must list intermediates of a file that is passed as `against`, found {only!r}")


def small(batches: Traces) -> Traces:
    """Make two batches of one sequence each, one of them padded: 2.6 MB for all-MiniLM-L6-v2 instead of 77."""
    kept = {kind: batches[known] for kind, known in SMALL.items() if known in batches}
    made = {}
    for kind, batch in kept.items():
        mask = batch.get("attention_mask", np.ones((1, 1)))
        row = int(np.argmin(mask.sum(1)))  # the one with most padding
        made[kind] = {name: x[row : row + 1] for name, x in batch.items()}
    return made


def _these(kinds: Sequence[str], *several: Traces) -> Iterator[Traces]:
    """Keep only some batches. Raises ValueError for one that neither we nor the file have."""
    known = dict.fromkeys(kind for each in several for kind in each)
    if unknown := [kind for kind in kinds if kind not in known]:
        raise ValueError(f"there is no batch {unknown[0]!r}; there are {', '.join(known)}")
    return ({kind: x for kind, x in each.items() if kind in kinds} for each in several)


def _side(subject: Subject, model: str, options: dict[str, Any]) -> Side | None:
    """The reference where it can be run, else its values where they ship."""
    if installed():
        return Live(subject, model, **options)
    found = shipped.find(subject.model)
    return None if found is None else Shipped(found, subject)


def _nothing(model: str, encoder: bool) -> ValueError:
    others = "" if encoder else f", the package has no printed values of it (only of {', '.join(printed.names())})"
    return worded(
        ValueError,
        f"nothing to compare {model} with: torch and transformers are not installed{others}, and it has not the "
        f"numbers of {', '.join(shipped.names())}, of which the reference's values ship; install both (the extra "
        "`reference`), or name a file with ",
        Option("against"),
    )


# -- comparing and naming: once, for every subject and every side -----------------------------------------------------


def compare_with(
    report: Report, subject: Subject, side: Side, batches: Traces, texts: Sequence[str], tolerance: float = 0.0
) -> None:
    """Compare with one side, write what differs, and look for the mistake.

    What is within `tolerance` passes; mistakes are looked for as without it.
    """
    report.say(*side.about)
    inputs, theirs, ours, truth = side.given(report, subject, batches, texts)
    if not inputs:
        return
    ours = ours or subject.traces(inputs, theirs)
    if truth is None:
        with subject.exact() as exact:
            truth = exact.traces(inputs, theirs)
    differences = subject.compare(inputs, ours, theirs, truth)
    report.differences = [d.loosened(tolerance) for d in differences]
    known = keys_of(ours)
    if not report.differences:
        raise ValueError(
            f"no intermediate has a name that this {subject.noun} knows; expected names such as "
            f"{', '.join(f'plain|{key}' for key in known[:6])}"
        )
    report.say(f"{len(inputs)} batches: {', '.join(inputs)}", "")
    place = show(report, subject, known, side.whose, side.exact, side.shares)
    report.say(*side.not_compared(known, keys_of(theirs), subject.noun))
    report.say(*filter(None, [subject.beyond(inputs)]))
    wrong = [d.key for d in over_kinds(differences) if not d.accepted(side.shares)]
    if not place:
        report.say(f"no difference beyond {tolerance:g}" if wrong else "no difference beyond what rounding allows")
    if wrong:
        loose = tolerance if place else 0.0  # of numbers that pass by it, many a mistake leaves no more
        _look(
            report, subject, inputs, theirs, subject.place(min(wrong, key=known.index)), loose, isinstance(side, File)
        )
    side.close(report, subject)


def _look(
    report: Report, subject: Subject, inputs: Traces, theirs: Traces, place: str, tolerance: float, local: bool
) -> None:
    """Look for the mistake; `place` is where numbers first differ, `local` whether each module is judged by itself."""
    judged = local_mistakes(subject, inputs, theirs, tolerance) if isinstance(subject, EncoderSubject) else None
    if subject.has_places and place == INPUT_LAYER:
        report.say("what the input layer can have wrong is named where it is compared alone")
    else:
        fits = partial(_fits, inputs=inputs, theirs=theirs, tolerance=tolerance)
        name_mistakes(report, subject, fits, judged and judged.whole)
    if judged is not None and local:
        _say_local(report, judged)


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


def name_mistakes(
    report: Report, subject: Subject, fits: Callable[[Subject], bool], among: Collection[str] | None = None
) -> None:
    """Try every classic mistake on the same inputs; those that are not `among` some names fit nowhere."""
    tried = set[str]()
    for mistake, opened in subject.mistakes():
        tried.add(mistake.name)
        if mistake.name in report.matches or (among is not None and mistake.name not in among):
            continue
        try:
            with opened as wrong:
                if fits(wrong):
                    report.matches.append(mistake.name)
                    report.say(f"matches: {mistake.name}. {mistake.why}")
        except (CheckpointError, ValueError, TypeError, IndexError, KeyError):
            continue  # this mistake cannot be made with these inputs
    if not report.matches:
        report.say(f"none of the {len(tried)} classic mistakes that this model allows fits")


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


def against_printed(report: Report, subject: Subject, values: dict[str, Any], before: str) -> None:
    """Compare with printed numbers and ids; `before` begins the sentence that says so."""
    if not printed.compare(report, subject.model, values, before):
        name_mistakes(report, subject, lambda wrong: all(c.passes for c in printed.check(wrong.model, values)))
