"""The counterparts of a comparison: a port's file, the reference run live, or the reference's values that ship."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import nearest_name
from minibert.verify.judge.compare import ERROR_SHARE, OF_A_PORT, PORT_SHARE, Shares, misfits, over_kinds
from minibert.verify.judge.input_layer import Subject
from minibert.verify.report import Report, compare_ids

from . import shipped
from .modules import Source
from .reference import Reference
from .traces import Traces, keys_of

# what no other batch shows
ALONE_SHOWS = {
    "types": "whether token_type_ids are read",
    "explicit_positions": "whether position_ids are read",
    "inputs_embeds": "rows in place of ids",
    "mask_unlike_ids": "a mask that is read, not made of the ids",
    "one_token": "a text of one token",
    "long": "windows, and positions that end too soon",
    "left_pad": "padding before the text",
    "cached": "tokens in the cache",
}


class Given(NamedTuple):
    """The inputs, the counterpart's intermediates, ours where it has computed them, and what computes them in float64
    where that is not this model.
    """

    inputs: Traces
    theirs: Traces
    ours: Traces | None = None
    truth: Callable[[Traces], Traces] | None = None


class Counterpart(ABC):
    """The other program of a comparison."""

    whose: str  # at the head of a column
    exact: str  # what in float64 the errors are of
    about: tuple[str, ...]  # the first lines
    shares: Shares  # how much more one program may round than the other

    @abstractmethod
    def given(self, report: Report, subject: Subject, batches: Traces, texts: Sequence[str]) -> Given:
        """Give the inputs that both programs have, and the counterpart's intermediates."""

    def not_compared(self, here: Sequence[str], there: Sequence[str], noun: str) -> Iterator[str]:
        """Name the intermediates that only one program has."""
        if unknown := [key for key in there if key not in here]:
            yield f"not compared, since this {noun} has no such intermediate: {', '.join(unknown)}"

    def close(self, report: Report, subject: Subject) -> None:  # noqa: B027  most have nothing more to say
        """Add the lines that follow the table."""


class Live(Counterpart):
    """The reference itself, on the CPU in float32."""

    whose = "reference"
    shares = Shares(ours=ERROR_SHARE)  # both are compared with the reference's own float64

    def __init__(self, subject: Subject, model: str, revision: str | None, local_files_only: bool) -> None:
        self.reference = Reference(subject, model, revision, local_files_only)
        self.exact = "the reference" if subject.has_places else "the same layer"
        eager = ", eager attention" if subject.has_places else ""
        self.about = (f"compared live with {self.reference.name}{eager}, on the CPU in float32",)

    def given(self, report: Report, subject: Subject, batches: Traces, texts: Sequence[str]) -> Given:
        reference = self.reference
        asked = {kind: batch for kind, batch in batches.items() if reference.takes(batch)}
        if left := [kind for kind in batches if kind not in asked]:
            report.say(f"left out, since the reference's module has no such argument: {', '.join(left)}")
        theirs = {kind: reference.trace(batch) for kind, batch in asked.items()}
        for i, text in enumerate(texts, 1):
            ids = reference.tokenize(text)
            if isinstance(ids, str):
                report.say(f"ids of text {i} not compared: {ids}")
            else:
                theirs[f"text {i}"]["input_ids"] = ids
        if not subject.has_places:
            return Given(asked, theirs)

        def exact(far: Traces) -> Traces:
            reference.double()
            return {kind: reference.trace(batch) for kind, batch in far.items()}

        return Given(asked, theirs, truth=exact)

    def not_compared(self, here: Sequence[str], there: Sequence[str], noun: str) -> Iterator[str]:
        yield from super().not_compared(here, there, noun)
        if hidden := [key for key in here if key not in there]:
            yield f"not compared, since the {self.whose} does not show it: {', '.join(hidden)}"


class Shipped(Counterpart):
    """The reference's values of a checkpoint with the same numbers, which ship with the package."""

    whose = "reference"
    shares = Shares(ERROR_SHARE, PORT_SHARE)  # with our float64, which a wrong formula would make wrong too

    def __init__(self, found: shipped.Values, subject: Subject) -> None:
        self.found = found
        self.exact = f"this {subject.noun}"
        self.about = (
            f"compared with what {found.reference} computes from {shipped.MODEL}",
            "it is that checkpoint: its tables have the same numbers to the bit, by their sha256; the values ship with "
            "minibert, the reference was not run",
        )

    def given(self, report: Report, subject: Subject, batches: Traces, texts: Sequence[str]) -> Given:
        """Take the stored texts: of an encoder some have each block's output."""
        if texts:
            report.say("the texts passed were not compared: that takes the reference itself")
        return Given(self.found.inputs, self.found.traces)

    def not_compared(self, here: Sequence[str], there: Sequence[str], noun: str) -> Iterator[str]:
        return iter(())

    def close(self, report: Report, subject: Subject) -> None:
        compare_ids(report, subject.model, self.found.texts, "the reference's")
        if report.passed:
            largest = (f"{d.key.removeprefix('embeddings.')} {d.largest:.2g}" for d in over_kinds(report.differences))
            report.say(f"passed; largest differences: {', '.join(largest)}")


class File(Counterpart):
    """The file of a port: all intermediates of all batches, or of those that `only` names; what is missing fails, but
    of a source that is not `whole`. `unasked`: batches of ours that the caller leaves out.

    A batch under a name of ours must state our inputs, all of them, and is compared with what they give. A batch under
    another name is the file's own, and is compared with what its own inputs give.
    """

    whose, shares = "file", OF_A_PORT

    def __init__(
        self, source: Source, inputs: Traces, theirs: Traces, only: Sequence[str] | None, unasked: Sequence[str] = ()
    ) -> None:
        self.path, self.inputs, self.theirs, self.only = source.name, inputs, theirs, only
        self._left = [*unasked]  # batches of ours that are not compared, and not wanted
        self.whole = source.whole
        what = "the file " if Path(source.name).is_file() else ""
        self.about = (f"compared with {what}{source.name}; the reference was not run", *source.lines)
        self._faults: list[str] = []  # why it has not passed, for the end

    def given(self, report: Report, subject: Subject, batches: Traces, texts: Sequence[str]) -> Given:
        self.exact = f"this {subject.noun}"
        in_file = self.theirs.keys() | self.inputs.keys()
        found = [kind for kind in {**batches, **self.theirs, **self.inputs} if kind in in_file]
        good = [kind for kind in found if self._comparable(report, kind, batches)]
        inputs = {kind: batches.get(kind) or self.inputs[kind] for kind in good}
        self._count_batches(report, batches, found, inputs)
        if not inputs:
            report.fail("not passed: nothing was compared; is this a trace of another model?")
            return Given(inputs, {})
        ours = {kind: self._trace(subject, kind, batch) for kind, batch in inputs.items()}
        theirs = {kind: self.theirs.get(kind, {}) for kind in inputs}  # a file of inputs lacks all intermediates
        only = keys_of(ours)
        if self.only is not None:
            _refuse_unknown(self.only, only)
            only = [*self.only]
            theirs = {kind: {key: x for key, x in named.items() if key in only} for kind, named in theirs.items()}
            if not any(theirs.values()):
                raise ValueError(f'{self.path} has no {" and no ".join(only)}; store it as "plain|{only[0]}" and so on')
        odd = misfits(inputs, ours, theirs, subject.weighed)
        if odd and self.whole:
            shapes = (f"{kind}|{key} has shape {theirs[kind][key].shape}, expected {ours[kind][key].shape}"
                      for kind, key in odd[:3])  # fmt: skip
            raise ValueError(f"{self.path}: {'; '.join(shapes)}; a trace of another model, or axes in another order?")
        if odd:  # what a graph has beside a module may be split already, or not joined yet
            report.say(f"of another shape, and not compared: {', '.join(dict.fromkeys(key for _, key in odd))}")
            for kind, key in odd:
                theirs[kind] = {k: x for k, x in theirs[kind].items() if k != key}
        self._count_intermediates(report, [(kind, key) for key in only for kind in ours if key in ours[kind]], theirs)
        return Given(inputs, theirs, ours)

    def close(self, report: Report, subject: Subject) -> None:
        """Say again why it has not passed, or how far it goes."""
        if wrong := report.wrong_inputs:
            are = "is missing or differs" if len(wrong) == 1 else "are missing or differ"
            self._faults.append(
                f"{len(wrong)} of the inputs {are}; copy them from a file that `verify` saved, or give batches "
                "of your own other names"
            )
        if self._faults:
            report.fail(*(f"not passed: {fault}" for fault in self._faults))
        elif report.passed and self._left:
            shows = (f"{kind} ({ALONE_SHOWS[kind]})" if kind in ALONE_SHOWS else kind for kind in self._left)
            report.say(f"passed as far as it goes; not compared: {', '.join(shows)}")

    def _comparable(self, report: Report, kind: str, batches: Traces) -> bool:
        """Whether numbers of one batch can be compared; faults of its inputs go into the report."""
        stated, wanted, name = self.inputs.get(kind, {}), batches.get(kind), f"{kind}|inputs|"
        absent: list[str] = []
        if wanted is None:
            if not {"input_ids", "inputs_embeds"} & set(stated):
                raise ValueError(f'{self.path}: no inputs for {kind!r}; store them as "{name}input_ids" and so on')
            wrong = [f"{name}{key} is empty, of shape {x.shape}" for key, x in stated.items() if not x.size]
        else:
            absent = [f"{name}{key} is missing" for key in wanted if key not in stated]
            absent += [f"{name}{key} is no input of this batch" for key in stated if key not in wanted]
            both = [key for key in wanted if key in stated]
            wrong = [line for key in both if (line := _unlike(name + key, stated[key], wanted[key]))]
        report.wrong_inputs += absent + wrong
        report.say(*absent, *(f"{line}; {kind} was not compared" for line in wrong))
        return not wrong

    def _count_batches(self, report: Report, batches: Traces, found: Sequence[str], inputs: Traces) -> None:
        """Say how many batches are compared; a text that was passed must be among them."""
        own = [kind for kind in found if kind not in batches]
        absent = [kind for kind in batches if kind not in found]
        count = sum(kind in inputs for kind in batches)
        line = f"{count} of {len(batches)} batches compared, and " if self.whole or count else "compared "
        line += f"{len(inputs) - count} of the file's own ({', '.join(own)})" if own else ""
        lacking = f"; the file lacks {', '.join(absent)}" if absent and (self.whole or count) else ""
        report.say(line.removesuffix(", and ") + lacking)
        if self.whole and absent and (count or absent[-1].startswith("text ")):
            have = " ".join(kind for kind in found if kind in batches)
            missing = f"{len(absent)} of our batches are not in the file: {', '.join(absent)}"
            self._faults.append(f"{missing}; to compare a part, name it as `batches`: {have}")
        elif self.whole or count:
            self._left += absent

    def _trace(self, subject: Subject, kind: str, batch: dict[str, Array]) -> dict[str, Array]:
        try:
            return subject.traces({kind: batch}, self.theirs)[kind]
        except (ValueError, TypeError, IndexError) as error:
            raise ValueError(f"{self.path}: the inputs of {kind!r} do not fit this model: {error}") from None

    def _count_intermediates(self, report: Report, asked: Sequence[tuple[str, str]], theirs: Traces) -> None:
        """Say how many intermediates are compared, and which are missing."""
        missing: dict[str, list[str]] = {}
        for kind, key in asked:
            if key not in theirs[kind]:
                missing.setdefault(key, []).append(kind)
        count = sum(map(len, missing.values()))
        report.say(f"{len(asked) - count} of {len(asked)} intermediates compared")
        if not self.whole:
            report.say(*([f"not shown, and not compared: {', '.join(missing)}"] if missing else []))
            return
        report.missing += [f"{kind}|{key}" for key, kinds in missing.items() for kind in kinds]
        wanted = Counter(key for _, key in asked)
        for key, kinds in missing.items():
            every = len(kinds) == wanted[key] > 1
            report.say(f"missing: {key} in {f'all {len(kinds)} batches' if every else ', '.join(kinds)}")
        if count:
            there = " ".join(key for key in wanted if key not in missing) or "KEY..."
            self._faults.append(f"{count} of {len(asked)} are missing; to compare a part, name it as `only`: {there}")


def _unlike(name: str, theirs: Array, ours: Array) -> str:
    """Say where an input first differs from ours; "" where it does not."""
    if theirs.size == ours.size == 1:
        theirs = theirs.reshape(ours.shape)  # not every library writes an array without axes
    if theirs.shape != ours.shape:
        return f"{name} has shape {theirs.shape}, expected {ours.shape}"
    place = next(map(tuple, np.argwhere(theirs != ours).tolist()), None)
    return "" if place is None else f"{name}{list(place)} is {theirs[place]}, expected {ours[place]}"


def _refuse_unknown(only: Sequence[str], known: Sequence[str]) -> None:
    """Refuse a name that no trace has; say which there are, and which is nearest."""
    for key in (key for key in only if key not in known):
        near = nearest_name(key, known)
        hint = f" (did you mean {near}?)" if near else ""
        raise ValueError(f"no intermediate is called {key!r}{hint}; there are {', '.join(known)}")
