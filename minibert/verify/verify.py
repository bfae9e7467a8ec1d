"""Does this layer compute what the reference computes? What `minibert verify` does and prints.

Four things to compare with: a file of a port's own intermediates, where one is passed; the reference itself, where
torch and transformers are installed; the reference's values that ship with the package, for a checkpoint with the same
numbers; numbers that others have printed of two well-known checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError, TokenizerError
from minibert.files.writing import refuse_model_file, same_file
from minibert.models.layer import EmbeddingLayer
from minibert.models.load import is_folder, load

from . import printed
from . import stored as shipped
from .compare import (
    TOLERANCE,
    Difference,
    Traces,
    batches,
    compare,
    misfits,
    over_kinds,
    read_traces,
    tolerances,
    trace,
    write_traces,
)
from .mistakes import MISTAKES
from .reference import Reference, installed
from .words import difference_table, not_compared, table

if TYPE_CHECKING:
    from minibert.models.encoder import Encoder

    from .reference import ReferenceEncoder

Load = Callable[..., EmbeddingLayer]

ALLOWED = (
    "difference: |here - there| / max(1, |there|); 0 is allowed before a norm or a projection, "
    f"{TOLERANCE:g} after; rms error: against the same layer in float64"
)


class Report:
    """What was compared and how it came out: `lines` for a person, `passed` for a program."""

    def __init__(self) -> None:
        self.passed = True
        self.ran = True  # False where a model could not be had; then it has not passed either
        self.lines: list[str] = []
        self.differences: list[Difference] = []
        self.checked: list[printed.Checked] = []
        self.missing: list[str] = []  # "<kind>|<key>" of what the file should have had
        self.wrong_inputs: list[str] = []  # sentences about inputs in the file that are not those of the batch
        self.matches: list[str] = []  # names of the mistakes that fit


def verify(
    model: str,
    texts: Sequence[str] = (),
    *,
    side: str | None = None,
    revision: str | None = None,
    local_files_only: bool = False,
    against: Path | None = None,
    save: Path | None = None,
    only: Sequence[str] | None = None,
) -> Report:
    """Compare a checkpoint's input layer, intermediate by intermediate, with the best reference there is.

    against: a file as `save` writes it, with a port's own numbers. Of each batch in it every intermediate is compared,
    or those that `only` names; a missing one fails as one that differs does. Without a file: live with transformers
    where installed, else with the reference's values that ship, if they are of a checkpoint with these numbers; and
    with the printed values of a model of this name, if there are any. save: write inputs and intermediates.

    Raises ValueError where there is nothing to compare with and nothing to save, where `save` is the file to compare
    with or the model's own, and for an `only` that the layer does not know.
    """
    check_files(against, save, only)
    theirs = None if against is None else read_traces(against)  # before anything is written
    opened = partial(load, model, side=side, revision=revision, local_files_only=local_files_only, lazy=True)
    report = Report()
    with opened() as layer:
        inputs = batches(layer) | {
            f"text {i}": dict(layer.tokenize(text)) for i, text in enumerate(texts, 1)
        }  # tokenizers give plain arrays
        report.lines.append(f"{model} ({layer.family.model_type}{_side(layer)})")
        if save is not None:
            refuse_model_file(save)
            write_traces(save, inputs, {kind: trace(layer, batch) for kind, batch in inputs.items()})
            report.lines.append(f"wrote inputs and every intermediate of {len(inputs)} batches to {save}")
        # a folder's name promises nothing: where the reference can be run, it alone decides
        stored = None if installed() and is_folder(model) else printed.find(model, layer)
        if against is not None and theirs is not None:
            compared = partial(_compare_traces, report, layer, opened, whose="file")
            against_file(report, layer, inputs, against, *theirs, only, compared)
        elif installed():
            _against_live(report, layer, opened, inputs, Reference(layer, model, revision, local_files_only), texts)
        elif (found := shipped.find(layer)) is not None:
            _against_stored(report, layer, opened, found, texts)
            return report
        if stored is not None and against is None:
            alone = "torch and transformers are not installed, so the reference was not run; "
            against_printed(report, layer, opened, stored, "also " if installed() else alone)
        elif against is None and not installed():
            if save is None:
                raise ValueError(
                    f"nothing to compare {model} with: torch and transformers are not installed, and the package has "
                    f"no printed values of it (only of {', '.join(p.stem for p in sorted(printed.DATA.glob('*.json')))}"
                    f"), nor has this model the numbers of {', '.join(shipped.names())}, of which the reference's "
                    "values ship; install both (the extra `reference`), or pass --against FILE"
                )
            report.lines.append("compared with nothing: torch and transformers are not installed")
    return report


def check_files(against: Path | None, save: Path | None, only: Sequence[str] | None) -> None:
    """Refuse to save over the file to compare with, and `only` without such a file. Raises ValueError."""
    if save is not None and against is not None and same_file(save, against):
        raise ValueError(f"{save} and {against} are one file: saving would put our numbers over those to compare with")
    if only is not None and (against is None or isinstance(only, str) or not only):
        raise ValueError(f"only must list intermediates of a file that is passed as `against`, found {only!r}")


def _side(layer: EmbeddingLayer) -> str:
    return f", {layer.side} side" if len(layer.family.sides) > 1 else ""


# -- the three comparisons ---------------------------------------------------------------------------------------


def _against_live(
    report: Report, layer: EmbeddingLayer, opened: Load, inputs: Traces, reference: Reference, texts: Sequence[str]
) -> None:
    report.lines.append(f"compared live with {reference.name}, on the CPU in float32")
    asked, theirs = ask(report, reference, inputs, texts)
    _compare_traces(report, layer, opened, asked, theirs, "reference")


def ask(
    report: Report, reference: Reference | ReferenceEncoder, inputs: Traces, texts: Sequence[str]
) -> tuple[Traces, Traces]:
    """Give the batches that the reference takes, and its traces of them, with its own ids of the texts."""
    asked = {kind: batch for kind, batch in inputs.items() if reference.takes(batch)}
    if left := [kind for kind in inputs if kind not in asked]:
        report.lines.append(f"left out, since the reference's module has no such argument: {', '.join(left)}")
    theirs = {kind: reference.trace(batch) for kind, batch in asked.items()}
    for i, text in enumerate(texts, 1):
        ids = reference.tokenize(text)
        if isinstance(ids, str):
            report.lines.append(f"ids of text {i} not compared: {ids}")
        else:
            theirs[f"text {i}"]["input_ids"] = ids
    return asked, theirs


def against_file(
    report: Report,
    traced: EmbeddingLayer | Encoder,
    own: Traces,
    path: Path,
    given: Traces,
    theirs: Traces,
    only: Sequence[str] | None,
    compared: Callable[[Traces, Traces], None],
) -> None:
    """Compare with a file: all intermediates of its batches, or those that `only` names; what is missing fails.

    A batch under a name of ours must state our inputs, all of them, and is compared with what they give. A batch under
    another name is the file's own, and is compared with what its own inputs give.
    """
    report.lines.append(f"compared with the file {path}; the reference was not run")
    found = [kind for kind in {**own, **theirs, **given} if kind in theirs or kind in given]
    inputs = {
        kind: own.get(kind) or given.get(kind, {}) for kind in found if _comparable(report, path, kind, own, given)
    }
    _count_batches(report, own, found, inputs)
    ours = {kind: _trace_of(traced, path, kind, batch, theirs.get(kind, {})) for kind, batch in inputs.items()}
    asked = {kind: list(named) for kind, named in ours.items()}
    theirs = {kind: theirs.get(kind, {}) for kind in inputs}
    if only is not None:
        _refuse_unknown(only, asked)
        asked = {kind: [key for key in keys if key in only] for kind, keys in asked.items()}
        theirs = {kind: {key: array for key, array in named.items() if key in only} for kind, named in theirs.items()}
        if inputs and not any(theirs.values()):
            raise ValueError(f'{path} has no {" and no ".join(only)}; store it as "plain|{only[0]}" and so on')
    if odd := misfits(ours, theirs):
        raise ValueError(f"{path}: {'; '.join(odd[:3])}; a trace of another model, or axes in another order?")
    missing = {
        key: [kind for kind in asked if key in asked[kind] and key not in theirs[kind]] for key in keys_of(asked)
    }
    report.missing = [f"{kind}|{key}" for key, kinds in missing.items() for kind in kinds]
    total = sum(map(len, asked.values()))
    report.lines.append(f"{total - len(report.missing)} of {total} intermediates compared")
    report.lines += [f"missing: {key} in {', '.join(kinds)}" for key, kinds in missing.items() if kinds]
    if not inputs:
        report.passed = False
        report.lines.append("not passed: nothing was compared; is this a trace of another model?")
        return
    compared(inputs, theirs)
    if report.missing:
        report.passed = False
        there = " ".join(key for key, kinds in missing.items() if not kinds) or "KEY..."
        report.lines.append(
            f"not passed: {len(report.missing)} of {total} are missing; to compare a part: --only {there}"
        )
    if wrong := report.wrong_inputs:
        report.passed = False
        report.lines.append(
            f"not passed: {len(wrong)} of the inputs {'is' if len(wrong) == 1 else 'are'} missing or "
            f"differ{'s' * (len(wrong) == 1)}; copy them from a file that `save` wrote, or give batches of your own "
            "other names"
        )
    if report.passed and (left := len([kind for kind in own if kind not in inputs])):
        report.lines.append(f"passed as far as it goes: {left} of {len(own)} batches were not compared")


def _comparable(report: Report, path: Path, kind: str, own: Traces, given: Traces) -> bool:
    """Whether numbers of one batch can be compared; what is wrong with its inputs goes into the report."""
    stated = given.get(kind, {})
    if kind not in own:
        if not {"input_ids", "inputs_embeds"} & set(stated):
            raise ValueError(f'{path}: no inputs for {kind!r}; store them as "{kind}|inputs|input_ids" and so on')
        wrong = [f"{kind}|inputs|{name} is empty, of shape {x.shape}" for name, x in stated.items() if not x.size]
    else:
        absent = [f"{kind}|inputs|{name} is missing" for name in own[kind] if name not in stated]
        absent += [f"{kind}|inputs|{name} is no input of this batch" for name in stated if name not in own[kind]]
        wrong = [
            line
            for name, x in own[kind].items()
            if name in stated and (line := _unlike(f"{kind}|inputs|{name}", stated[name], x))
        ]
        report.wrong_inputs += absent
        report.lines += absent
    report.wrong_inputs += wrong
    report.lines += [f"{line}; {kind} was not compared" for line in wrong]
    return not wrong


def _unlike(name: str, theirs: Array, ours: Array) -> str:
    """Say where an input first differs from ours; "" where it does not."""
    if theirs.size == ours.size == 1:
        theirs = theirs.reshape(ours.shape)  # not every library writes an array without axes
    if theirs.shape != ours.shape:
        shown = f" {theirs.tolist()}, expected {ours.tolist()}" if len(ours) == 1 and ours.size < 64 else ""
        return f"{name} has shape {theirs.shape}, expected {ours.shape}{shown and ':'}{shown}"
    places = np.argwhere(theirs != ours)
    if not len(places):
        return ""
    place = tuple(places[0].tolist())
    return f"{name}{list(place)} is {theirs[place]}, expected {ours[place]}"


def _count_batches(report: Report, own: Traces, found: Sequence[str], inputs: Traces) -> None:
    """Say how many batches are compared; a text that was passed must be among them."""
    mine = [kind for kind in found if kind not in own]
    line = f"{sum(kind in own for kind in inputs)} of {len(own)} batches compared"
    if mine:
        line += f", and {sum(kind in inputs for kind in mine)} of the file's own ({', '.join(mine)})"
    if absent := [kind for kind in own if kind not in found]:
        line += f"; the file lacks {', '.join(absent)}"
    report.lines.append(line)
    if texts := [kind for kind in absent if kind.startswith("text ")]:
        report.wrong_inputs += [f"{kind} is not in the file" for kind in texts]
        report.lines += [f"{kind} was passed, and is not in the file" for kind in texts]


def _trace_of(
    traced: EmbeddingLayer | Encoder, path: Path, kind: str, batch: Mapping[str, Array], theirs: Mapping[str, Array]
) -> dict[str, Array]:
    try:
        ours = trace(traced, batch)
    except (ValueError, TypeError, IndexError) as error:
        raise ValueError(f"{path}: the inputs of {kind!r} are none of this model's: {error}") from None
    return {"input_ids": batch["input_ids"], **ours} if "input_ids" in theirs and "input_ids" in batch else ours


def keys_of(traces: Mapping[str, Iterable[str]]) -> list[str]:
    """List the names in all kinds of batch, each once."""
    return list(dict.fromkeys(key for named in traces.values() for key in named))


def _refuse_unknown(only: Sequence[str], asked: Mapping[str, Iterable[str]]) -> None:
    """Refuse a name that no trace has; say which there are, and which is nearest."""
    known = keys_of(asked)
    for key in only:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise ValueError(f"no intermediate is called {key!r}{hint}; there are {_some(known)}")


def _some(names: Sequence[str], most: int = 16) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _against_stored(
    report: Report, layer: EmbeddingLayer, opened: Load, found: shipped.Stored, texts: Sequence[str]
) -> None:
    report.lines += [
        f"compared with what {found.reference} computes from {found.model}",
        "it is that checkpoint: its tables have the same numbers to the bit, by their sha256; the values ship with "
        "minibert, the reference was not run",
    ]
    if texts:
        report.lines.append("the texts passed were not compared: that takes the reference itself")
    _compare_traces(report, layer, opened, found.inputs, found.layer, "reference")
    try:
        wrong = shipped.check_texts(layer, found)
        report.lines += wrong or [f"ids of {len(found.texts)} texts: the reference's"]
        report.passed = report.passed and not wrong
    except TokenizerError as error:
        report.lines.append(f"ids of {len(found.texts)} texts not compared: {error}")
    if report.passed:
        largest = (f"{d.key.rpartition('.')[2]} {d.largest:.2g}" for d in over_kinds(report.differences))
        report.lines.append(f"passed; largest differences: {', '.join(largest)}")


def against_printed(report: Report, layer: EmbeddingLayer, opened: Load, stored: dict[str, Any], before: str) -> None:
    """Compare with printed numbers and ids; `before` begins the sentence that says so."""
    report.lines.append(
        f"{before}compared with numbers of {stored['model']}, as this model's name and sizes say it is, that ship with "
        f"minibert: {stored['source']}"
    )
    checked = report.checked = printed.check(layer, stored)
    rows = [["intermediate", "numbers", "max difference", "allowed there", "verdict"]]
    for c in checked:
        verdict = "as printed" if c.passes else "DIFFERENT"
        rows.append([c.key, str(c.numbers), f"{c.largest:.2g}", f"{c.allowed:.2g}", verdict])
    report.lines += ["", *table(rows), ""]
    wrong: list[str] = []
    try:
        wrong = printed.check_texts(layer, stored)
        report.lines += wrong or [f"ids of {len(stored['texts'])} texts: as printed"]
    except TokenizerError as error:
        report.lines.append(f"ids of {len(stored['texts'])} texts not compared: {error}")
    if all(c.passes for c in checked) and not wrong:
        report.lines.append("every number is the one that was printed")
        return
    report.passed = False
    if not all(c.passes for c in checked):
        _name_mistake(report, layer, opened, lambda other: all(c.passes for c in printed.check(other, stored)))


def _compare_traces(
    report: Report, layer: EmbeddingLayer, opened: Load, inputs: Traces, theirs: Traces, whose: str
) -> None:
    """Compare two traces, write the table, and look for the mistake where they differ."""
    allowed = {**tolerances(layer), "input_ids": 0.0}
    with opened(dtype="float64") as exact:
        truth = {kind: trace(exact, batch) for kind, batch in inputs.items()}

    def traces(other: EmbeddingLayer) -> Traces:
        ours = {kind: trace(other, batch) for kind, batch in inputs.items()}
        for kind, batch in inputs.items():
            if "input_ids" in theirs[kind]:
                ours[kind] = {"input_ids": batch["input_ids"], **ours[kind]}
        return ours

    ours = traces(layer)
    report.differences = compare(ours, theirs, truth, allowed)
    if not report.differences:
        known = ", ".join(f"plain|{key}" for key in tolerances(layer))
        raise ValueError(f"no intermediate has a name that this layer knows; expected names such as {known}")
    report.lines += [f"{len(inputs)} batches: {', '.join(inputs)}", ""]
    report.lines += [*difference_table(report.differences, whose), "", ALLOWED, ""]
    report.lines += not_compared(keys_of(ours), keys_of(theirs), whose, "layer")
    failed = [d for d in report.differences if not d.passes]
    if not failed:
        report.lines.append("no difference beyond what rounding allows")
        return
    report.passed = False
    for key in dict.fromkeys(d.key for d in failed):
        kinds = [kind for d in failed if d.key == key for kind in d.kinds]
        report.lines.append(f"{key} differs in {', '.join(kinds)}")
    _name_mistake(
        report, layer, opened, lambda other: all(d.passes for d in compare(traces(other), theirs, truth, allowed))
    )


def _name_mistake(report: Report, layer: EmbeddingLayer, opened: Load, fits: Callable[[EmbeddingLayer], bool]) -> None:
    """Try every classic mistake on the same inputs."""
    tried = 0
    for mistake in MISTAKES:
        row = mistake.make(layer.family)
        if row is None:
            continue
        tried += 1
        try:
            with opened(family=row) as other:
                if fits(other):
                    report.matches.append(mistake.name)
                    report.lines.append(f"matches: {mistake.name}. {mistake.why}")
        except (CheckpointError, ValueError, TypeError, IndexError, KeyError):
            continue  # this mistake cannot be made with these inputs
    if not report.matches:
        report.lines.append(f"none of the {tried} classic mistakes that this family allows fits")
