"""Is a whole encoder what the reference computes, block by block? What `minibert verify --encoder` does.

Three things to compare with: a file of someone's own intermediates, where one is passed; the reference itself, with
eager attention, where torch and transformers are installed; the reference's values that ship with the package. Only
tokens that are not padding are compared. The first difference is reported: the first wrong block, and in it the first
wrong intermediate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from minibert.files.writing import refuse_model_file
from minibert.models.encoder import Encoder, load_encoder

from . import stored as shipped
from .blockwise import (
    ATTENTION_TOLERANCE,
    ERROR_SHARE,
    INPUT_LAYER,
    PORT_SHARE,
    SHARES,
    TOLERANCE,
    Comparison,
    in_order,
)
from .compare import Difference, Traces, batches, over_kinds, read_traces, trace, write_traces
from .encoder_mistakes import MISTAKES, Recipe, plain_trace
from .reference import ReferenceEncoder, installed
from .verify import Report, against_file, ask, check_files, keys_of
from .words import difference_table, not_compared, table

Load = Callable[..., Encoder]

FAR = 1e-2  # no rounding: the largest measured between right programs, on a real model, is 6.7e-5
LONG = 128  # tokens of the longest batch: scores grow with the square


def verify_encoder(
    model: str,
    texts: Sequence[str] = (),
    *,
    revision: str | None = None,
    local_files_only: bool = False,
    against: Path | None = None,
    save: Path | None = None,
    only: Sequence[str] | None = None,
) -> Report:
    """Compare a checkpoint's input layer and blocks, intermediate by intermediate, with the reference or a file.

    Arguments, report and errors as of `verify`. An intermediate passes if it is within `TOLERANCE`
    (`ATTENTION_TOLERANCE` for probabilities). In real models two right programs are further apart than that. There it
    also passes if its error against float64 is about the other side's: ours at most `ERROR_SHARE` times the
    reference's, a file's at most `PORT_SHARE` times ours. float64 is the reference's own where it runs.
    """
    check_files(against, save, only)
    theirs = None if against is None else read_traces(against)  # before anything is written
    opened = partial(load_encoder, model, revision=revision, local_files_only=local_files_only)
    report = Report()
    with opened() as encoder:
        inputs = encoder_batches(encoder) | {f"text {i}": dict(encoder.tokenize(t)) for i, t in enumerate(texts, 1)}
        depth = len(encoder.stack.blocks)
        report.lines.append(f"{model} ({encoder.embeddings.family.model_type}, {depth} block{'s' * (depth != 1)})")
        if save is not None:
            refuse_model_file(save)
            write_traces(save, inputs, {kind: trace(encoder, batch) for kind, batch in inputs.items()})
            report.lines.append(f"wrote inputs and every intermediate of {len(inputs)} batches to {save}")
        if against is not None and theirs is not None:
            compared = partial(_compare_traces, report, encoder, opened, whose="file")
            against_file(report, encoder, inputs, against, *theirs, only, compared)
        elif installed():
            _against_live(
                report, encoder, opened, inputs, ReferenceEncoder(encoder, model, revision, local_files_only), texts
            )
        elif (found := shipped.find(encoder)) is not None:
            _against_stored(report, encoder, opened, found)
        elif save is None:
            raise ValueError(
                f"nothing to compare {model} with: torch and transformers are not installed, and it has not the "
                f"numbers of {', '.join(shipped.names())}, of which the reference's values ship; install both (the "
                "extra `reference`), or pass --against FILE"
            )
        else:
            report.lines.append("compared with nothing: torch and transformers are not installed")
    return report


def encoder_batches(encoder: Encoder) -> Traces:
    """Make a batch of every kind the encoder takes: those of the input layer, one token, and up to `LONG` tokens."""
    kinds = {kind: batch for kind, batch in batches(encoder.embeddings).items() if "past_length" not in batch}
    if "full_length" in kinds:
        kinds["long"] = {name: ids[:, :LONG] for name, ids in kinds.pop("full_length").items()}
    kinds["one_token"] = {"input_ids": kinds["plain"]["input_ids"][:1, :1]}
    return kinds


# -- the two comparisons ----------------------------------------------------------------------------------------


def _against_live(
    report: Report, encoder: Encoder, opened: Load, inputs: Traces, reference: ReferenceEncoder, texts: Sequence[str]
) -> None:
    report.lines.append(f"compared live with {reference.name}, eager attention, on the CPU in float32")
    asked, theirs = ask(report, reference, inputs, texts)
    reference.widen()
    truth = {kind: reference.trace(batch) for kind, batch in asked.items()}
    _compare_traces(report, encoder, opened, asked, theirs, "reference", truth)


def _against_stored(report: Report, encoder: Encoder, opened: Load, found: shipped.Stored) -> None:
    """Compare with the values that ship: the input layer for a few texts, and for some each block's output."""
    report.lines.append(
        f"compared with what {found.reference} computes from {found.model}, which has the same numbers to the bit; the "
        "values ship with minibert, the reference was not run"
    )
    theirs = {kind: {**named, **found.blocks.get(kind, {})} for kind, named in found.layer.items()}
    _compare_traces(report, encoder, opened, found.inputs, theirs, "stored")


def _compare_traces(
    report: Report,
    encoder: Encoder,
    opened: Load,
    inputs: Traces,
    theirs: Traces,
    whose: str,
    truth: Traces | None = None,
) -> None:
    """Compare two traces, write one line for each block, and look for the place and the mistake."""
    ours = _with_ids({kind: trace(encoder, batch) for kind, batch in inputs.items()}, inputs, theirs)
    with opened(dtype="float64") as exact:
        if truth is None:
            truth = {kind: trace(exact, batch) for kind, batch in inputs.items()}
        comparison = Comparison(encoder, inputs, theirs, truth, SHARES[whose])
        report.differences = comparison.differences(ours)
        if not report.differences:
            raise ValueError(
                "no intermediate has a name that this encoder knows; expected names such as plain|hidden_states.1"
            )
        order = in_order(ours)
        summed = sorted(over_kinds(report.differences), key=lambda d: order.index(d.key))
        report.lines += [f"{len(inputs)} batches: {', '.join(inputs)}", "", *_blocks(comparison, summed, whose), ""]
        report.lines += [_allowed(whose), ""]
        if whose != "stored":
            report.lines += not_compared(keys_of(ours), keys_of(theirs), whose, "encoder")
        first = next((d for d in summed if not comparison.accepts(d)), None)
        if first is None:
            report.lines.append("no difference beyond what rounding allows")
            return
        report.passed = False
        place = comparison.place(first.key)
        kinds = [kind for d in report.differences if d.key == first.key and not d.passes for kind in d.kinds]
        report.lines += [f"first difference: {place}, {first.key}, in {', '.join(kinds)}; all of {place}:", ""]
        there = [d for d in summed if comparison.place(d.key) == place]
        report.lines += [*difference_table(there, whose, comparison.accepts), ""]
        if place == INPUT_LAYER:
            report.lines.append("what the input layer can have wrong, verify names without --encoder")
        else:
            _name_mistakes(report, encoder, exact, comparison)


def _with_ids(ours: Traces, inputs: Traces, theirs: Traces) -> Traces:
    """Put the ids of texts first, where the other side has its own."""
    return {
        kind: {"input_ids": inputs[kind]["input_ids"], **named} if "input_ids" in theirs.get(kind, {}) else named
        for kind, named in ours.items()
    }


def _name_mistakes(report: Report, encoder: Encoder, exact: Encoder, comparison: Comparison) -> None:
    """Try every classic mistake on the same inputs."""
    recipes = {mistake: recipe for mistake in MISTAKES if (recipe := mistake.make(encoder.stack)) is not None}
    comparison.shares = SHARES["file"]  # compared with our float64 that has the mistake
    for mistake, recipe in recipes.items():
        if _fits(encoder, exact, comparison, recipe):
            report.matches.append(mistake.name)
            report.lines.append(f"matches: {mistake.name}. {mistake.why}")
    if not report.matches:
        report.lines.append(f"none of the {len(recipes)} classic mistakes that this model allows fits")


def _fits(encoder: Encoder, exact: Encoder, comparison: Comparison, recipe: Recipe) -> bool:
    """Whether a wrong recipe gives what they have, within the rounding that it has itself."""

    def traces(side: Encoder) -> Traces:
        return {kind: plain_trace(side, batch, recipe) for kind, batch in comparison.inputs.items()}

    for kind, batch in comparison.inputs.items():  # most mistakes are out of the question after one batch
        if any(d.largest > FAR for d in comparison.differences({kind: plain_trace(encoder, batch, recipe)}, {})):
            return False
    wrong = over_kinds(comparison.differences(traces(encoder), traces(exact)))
    return all(comparison.accepts(difference) for difference in wrong)


# -- words -------------------------------------------------------------------------------------------------------


def _blocks(comparison: Comparison, summed: Sequence[Difference], whose: str) -> Iterator[str]:
    """One line for each block: its worst intermediate, and the errors of its last one."""
    rows = [["where", "intermediates", "max difference", "of", "rms error here", f"rms error {whose}", "verdict"]]
    places: dict[str, list[Difference]] = {}
    for d in summed:
        places.setdefault(comparison.place(d.key), []).append(d)
    for place, differences in places.items():
        worst = max(differences, key=lambda d: (np.isnan(d.largest), d.largest))
        last = differences[-1]
        errors = [f"{error:.2g}" if np.isfinite(error) else "-" for error in (last.error_ours, last.error_theirs)]
        verdict = "within rounding" if all(map(comparison.accepts, differences)) else "DIFFERENT"
        rows.append([place, str(len(differences)), f"{worst.largest:.2g}", worst.key, *errors, verdict])
    return table(rows)


def _allowed(whose: str) -> str:
    share = f"{PORT_SHARE:g} times ours" if whose == "file" else f"{ERROR_SHARE:g} times the reference's"
    return (
        f"difference: |here - there| / max(1, |there|) at tokens that are not padding; in the blocks {TOLERANCE:g} is "
        f"allowed, {ATTENTION_TOLERANCE:g} of attentions, or an rms error of at most {share}; rms error: of what "
        f"leaves the block, against {'the reference' if whose == 'reference' else 'this encoder'} in float64"
    )
