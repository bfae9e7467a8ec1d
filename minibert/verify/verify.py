"""Does a model compute what the reference computes? What `minibert verify` does and prints.

A subject is the input layer, or the whole encoder. It is compared with one counterpart: a file of a port's
intermediates, if one is passed; else the reference itself, if torch and transformers are installed; else the
reference's values that ship with the package, for a checkpoint with the same numbers. Two well-known checkpoints are
also compared with numbers that others have printed. Where something differs, every known mistake is tried.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import Option, error_of
from minibert.families.static import STATIC
from minibert.files.writing import same_file
from minibert.models.open.load import is_folder, load
from minibert.models.open.load_encoder import load_encoder
from minibert.threads.computing import on_one_thread
from minibert.verify.judge.blocks import EncoderSubject
from minibert.verify.judge.compare import Difference, Shares, in_float64, over_kinds
from minibert.verify.judge.input_layer import Subject
from minibert.verify.sides import printed, shipped
from minibert.verify.sides.counterparts import Counterpart, File, Live, Shipped
from minibert.verify.sides.reference import installed
from minibert.verify.sides.traces import Traces, keys_of, write_traces
from minibert.verify.sides.written import Against, read_against

from .report import Report, show

FORMATS = ("float32", "float16", "bfloat16")  # in which a port may compute


@on_one_thread  # BLAS's threads do little in products so small but wait for each other
def verify(
    model: str,
    texts: Sequence[str] = (),
    *,
    encoder: bool = False,
    side: str | None = None,
    revision: str | None = None,
    local_files_only: bool = False,
    against: Against | None = None,
    save: Path | None = None,
    only: Sequence[str] | None = None,
    tolerance: float = 0.0,
    kinds: Sequence[str] | None = None,
    form: str = "float32",
) -> Report:
    """Compare a checkpoint's input layer or whole encoder, intermediate by intermediate, with the best reference.

    against: a file as `save` writes it, with a port's numbers. Every intermediate of its batches is compared, or those
    that `only` names; a missing intermediate fails, and so does a missing or different input. Without a file: live with
    transformers where installed, else with the reference's values that ship, if they are of a checkpoint with these
    numbers; the input layer also with the printed values of a model of this name. save: write inputs and intermediates.
    tolerance: allowed for every intermediate but ids, for a port that computes in float16 on purpose. kinds: compare
    only these batches; of a file that has some of our batches all of them are wanted. form: the format in which a port
    computes, one of `FORMATS`: in a narrower one than float32 each module is computed again in it, from the port's own
    input of it.

    Tolerances: 0 before the first norm, `input_layer.AFTER_NORM` after it, `blocks.IN_BLOCKS` in the blocks
    (`blocks.ATTENTION` for probabilities). In real models even correct implementations differ by more. There an
    intermediate also passes if its error against float64 is about the other program's: ours at most `ERROR_SHARE`
    times the reference's, a file's at most `PORT_SHARE` times ours.

    Raises ValueError where there is nothing to compare with and nothing to save, where `save` is the file to compare
    with or one of the model's own, and for an `only` that the model does not know.
    """
    _check_files(against, save, only)
    if encoder and side:
        whole = " compares a whole model, which has no sides; leave out "
        raise error_of(ValueError, Option("encoder"), whole, Option("side"))
    if kinds is not None and not kinds:
        raise ValueError(f"batches must be named, or not be passed, found {kinds!r}")
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be from 0 to below 1, found {tolerance}")
    if form not in FORMATS or (form != FORMATS[0] and (against is None or not encoder)):
        raise ValueError(f"the format must be one of {', '.join(FORMATS)}; another than the first is for a whole port "
                         f"(encoder) that is passed as `against`; found {form!r}")  # fmt: skip
    source = None if against is None else read_against(against)  # before anything is written
    options: dict[str, Any] = dict(revision=revision, local_files_only=local_files_only)
    kind: type[Subject] = EncoderSubject if encoder else Subject
    again: Callable[..., Any] = load_encoder if encoder else partial(load, side=side, lazy=True)
    again = partial(again, model, **options)
    # a port's numbers may be of any size
    with again() as opened, np.errstate(all="ignore"), closing(kind(opened, again)) as subject:
        report = Report(f"{model} ({subject.about})")
        if subject.without_head:
            report.say(f"logits not compared: {subject.without_head}")
        side = ""
        if encoder and len(subject.layer.family.sides) > 1:
            report.say("only the encoder is compared: a decoder and its logits never are")
            side = " of the encoder"
        named = {f"text {i}": dict(opened.tokenize(text)) for i, text in enumerate(texts, 1)}
        ours = subject.batches()
        inputs = ours | named
        own, theirs = ({}, {}) if source is None else source.traces(subject, inputs)
        if kinds is not None:
            inputs, own, theirs = _these(kinds, inputs, own, theirs)
        left = [kind for kind in ours if kind not in inputs]
        if save is not None:
            write_traces(save, inputs, subject.traces(inputs, {}))
            report.say(f"wrote inputs and every intermediate{side} of {len(inputs)} batches to {save}")
        other = _counterpart(subject, model, options) if source is None else File(source, own, theirs, only, left)
        if other is not None:
            compare_with(report, subject, other, inputs, texts, tolerance, form)
        if not encoder and not isinstance(other, File | Shipped):
            # a folder may have any name: if the reference can be run, only the reference decides
            values = None if other is not None and is_folder(model) else printed.find(model, opened)
            if values is not None:
                alone = "torch and transformers are not installed, so the reference was not run; "
                printed.compare(report, subject, values, "also " if other is not None else alone)
                return report
        if other is None:
            if save is None:
                raise _nothing(model, encoder, subject)
            report.say("compared with nothing: torch and transformers are not installed, or do not know this model")
    return report


def _check_files(against: Against | None, save: Path | None, only: Sequence[str] | None) -> None:
    """Refuse to save over the file to compare with, and `only` without such a file. Raises ValueError."""
    if save is not None and isinstance(against, str | os.PathLike) and same_file(save, against):
        raise ValueError(f"{save} and {against} are one file: saving would overwrite the numbers to compare with")
    if only is not None and (against is None or isinstance(only, str) or not only):
        raise ValueError(f"only must list intermediates of a file that is passed as `against`, found {only!r}")


def _these(kinds: Sequence[str], *several: Traces) -> Iterator[Traces]:
    """Keep only some batches. Raises ValueError for one that neither we nor the file have."""
    known = dict.fromkeys(kind for each in several for kind in each)
    if unknown := [kind for kind in kinds if kind not in known]:
        raise ValueError(f"there is no batch {unknown[0]!r}; there are {', '.join(known)}")
    return ({kind: x for kind, x in each.items() if kind in kinds} for each in several)


def _counterpart(subject: Subject, model: str, options: dict[str, Any]) -> Counterpart | None:
    """The reference where it can be run, else its values where they ship."""
    if subject.layer.family is STATIC:
        return None
    if installed():
        return Live(subject, model, **options)
    found = shipped.find(subject.model)
    return None if found is None else Shipped(found, subject)


def _nothing(model: str, encoder: bool, subject: Subject) -> ValueError:
    if subject.layer.family is STATIC:
        return error_of(
            ValueError,
            f"nothing to compare {model} with: transformers has no static models; name a file with another program's "
            "vectors with ",
            Option("vectors"),
            ", or one with its intermediates with ",
            Option("against"),
        )
    others = "" if encoder else f", the package has no printed values of it (only of {', '.join(printed.names())})"
    return error_of(
        ValueError,
        f"nothing to compare {model} with: torch and transformers are not installed{others}, and it does not have "
        f"the weights of {shipped.MODEL}, whose reference values ship with minibert; install both (the extra "
        "`reference`), or name a file with ",
        Option("against"),
    )


# -- comparing and naming: once, for every subject and every counterpart -----------------------------------------------


def compare_with(
    report: Report, subject: Subject, other: Counterpart, batches: Traces, texts: Sequence[str],
    tolerance: float = 0.0, form: str = "float32",
) -> None:  # fmt: skip
    """Compare with another program, write what differs, and look for the mistake.

    Differences within `tolerance` pass; the search for mistakes does not depend on it.
    """
    report.say(*other.about)
    inputs, theirs, ours, truth = other.given(report, subject, batches, texts)
    if not inputs:
        return
    ours = ours or subject.traces(inputs, theirs)
    told = None
    if form != FORMATS[0]:
        from .judge.local import in_format

        report.say(f"computed again in {form}, each module from the port's own input of it; the differences are to "
                   f"these numbers")  # fmt: skip
        told = in_format(subject, inputs, theirs, form)
        differences = told.differences
    else:
        differences = _differences(subject, inputs, ours, theirs, truth, other.shares)
    report.differences = [d.loosened(tolerance) for d in differences]
    known = keys_of(ours)
    if not report.differences:
        raise ValueError(
            f"{other.about[0]}: no intermediate has a name that this {subject.noun} knows; found "
            f"{', '.join(keys_of(theirs)[:4])}; expected names such as {', '.join(f'plain|{key}' for key in known[:6])}"
        )
    report.say(f"{len(inputs)} batches: {', '.join(inputs)}", "")
    place = show(report, subject, known, other.whose, other.exact, other.shares)
    report.say(*other.not_compared(known, keys_of(theirs), subject.noun))
    report.say(*filter(None, [subject.beyond(inputs)]))
    wrong = [d.key for d in over_kinds(differences) if not d.accepted(other.shares)]
    if not place and told is not None:
        from .judge.naming import say_format

        say_format(report, subject, form, told)
    elif not place:
        report.say(f"no difference beyond {tolerance:g}" if wrong else "no difference beyond what rounding allows")
    if wrong:
        from .judge.naming import look

        loose = tolerance if place else 0.0  # where numbers pass by it, many mistakes would fit too
        look(report, subject, inputs, theirs, loose, isinstance(other, File), form if told else "")
    other.close(report, subject)


def _differences(
    subject: Subject, inputs: Traces, ours: Traces, theirs: Traces, truth: Callable[[Traces], Traces] | None,
    shares: Shares,
) -> list[Difference]:  # fmt: skip
    """Compare two traces; a batch is computed in float64 where some intermediate is beyond its tolerance."""

    def exactly(kind: str, named: dict[str, Array]) -> list[Difference]:
        batch = {kind: inputs[kind]}
        true = subject.exact.traces(batch, theirs) if truth is None else truth(batch)
        return subject.compare(batch, {kind: named}, theirs, true)

    order = [*dict.fromkeys(subject.place(key) for key in keys_of(ours))]

    def follows(_kind: str, key: str, plain: set[str]) -> bool:  # a block's numbers follow from one before it
        return any(order.index(subject.place(key)) > order.index(subject.place(each)) for each in plain)

    found = subject.compare(inputs, ours, theirs, {})
    return in_float64(found, ours, exactly, shares, follows, lambda d: not d.passes)
