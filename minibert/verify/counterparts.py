"""The other program of a comparison, and what all ports share, regardless of the format of their numbers."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import nearest_name, some_of

from .report import OF_A_PORT, SHOWN, Comparison, Shares, fits
from .subjects import Subject, keys_of
from .traces import Traces

# batches that alone test something -> the tested part
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

Sides = tuple[Traces, Traces, Traces]  # the inputs that both programs have, our intermediates, and theirs


class Counterpart(ABC):
    """The other program of a comparison."""

    whose: str  # its name at the head of a column
    exact = ""  # the program whose float64 the errors refer to; "" for our own
    about: Sequence[str]  # the first lines
    shares: Shares  # how much more one program may round than the other

    @abstractmethod
    def traces(self, report: Comparison, subject: Subject, batches: Traces, texts: Sequence[str]) -> Sides:
        """Return inputs and intermediates of both programs; left out batches are named in the report."""

    def in_float64(self, subject: Subject, batch: Traces, theirs: Traces) -> Traces:
        """Compute a batch in float64."""
        return subject.exact.traces(batch, theirs)

    def not_compared(self, here: Sequence[str], there: Sequence[str], noun: str) -> Iterator[str]:
        """Name the intermediates that only one program has."""
        # block 2 before block 10
        if unknown := sorted({*there} - {*here}, key=lambda key: [f"{x:0>9}" for x in re.split(r"(\d+)", key)]):
            yield f"not compared, since this {noun} has no such intermediate: {', '.join(unknown)}"

    def close(self, report: Comparison, subject: Subject) -> None:  # noqa: B027  most add nothing
        """Add the lines that follow the table."""


class Port(Counterpart):
    """Arrays that another program has recorded under our names; a subclass reads another form.

    A batch under one of our names must state our inputs, all of them, and is compared with what we compute from them.
    A batch under another name is the port's own, and is compared with what we compute from its own inputs.
    """

    whose, shares = "file", OF_A_PORT
    whole = True  # whether a missing intermediate fails
    lines: Sequence[str] = ()  # further lines of `about`, once it is read

    def __init__(self, name: str, recorded: tuple[Traces, Traces] = ({}, {})) -> None:
        self.name, self._recorded = name, recorded
        self._faults: list[str] = []  # reasons for a failure, repeated at the end
        self._keys_left: list[str] = []  # intermediates that the caller left out
        self._part = ""  # how much is there, if some intermediates are missing

    def read(self, subject: Subject, batches: Traces) -> tuple[Traces, Traces]:
        """Return inputs and intermediates under our names; `batches` are ours, for a port that can compute."""
        return self._recorded

    def choose(self, inputs: Traces, theirs: Traces, only: Sequence[str] | None, left: Sequence[str] = ()) -> None:
        """Choose the arrays to compare; only: intermediates, None for all; left: batches of ours that are left out."""
        self.inputs, self.theirs, self.only, self._left = inputs, theirs, only, [*left]
        file = "the file " if Path(self.name).is_file() else ""
        self.about = (f"compared with {file}{self.name}; the reference was not run", *self.lines)

    def traces(self, report: Comparison, subject: Subject, batches: Traces, texts: Sequence[str]) -> Sides:
        in_file = self.theirs.keys() | self.inputs.keys()
        recorded = [kind for kind in {**batches, **self.theirs, **self.inputs} if kind in in_file]
        comparable = [kind for kind in recorded if self._comparable(report, kind, batches)]
        inputs = {kind: batches.get(kind) or self.inputs[kind] for kind in comparable}
        self._count_batches(report, batches, recorded, inputs)
        if not inputs:
            report.fail("not passed: nothing was compared; is this a trace of another model?")
            return {}, {}, {}
        ours: Traces = {}
        for kind, batch in inputs.items():
            try:
                ours |= subject.traces({kind: batch}, self.theirs)
            except (ValueError, TypeError, IndexError) as error:
                raise ValueError(f"{self.name}: the inputs of {kind!r} do not fit this model: {error}") from None
        theirs = {kind: self.theirs.get(kind, {}) for kind in inputs}  # a file of inputs lacks all intermediates
        only = keys_of(ours)
        if self.only is not None:
            for key in (key for key in self.only if key not in only):
                hint = f" (did you mean {near}?)" if (near := nearest_name(key, only)) else ""
                raise ValueError(f"no intermediate is called {key!r}{hint}; there are {', '.join(only)}")
            self._keys_left = [key for key in only if key not in self.only]
            only = [*self.only]
            theirs = {kind: {key: x for key, x in named.items() if key in only} for kind, named in theirs.items()}
            if not any(theirs.values()):
                raise ValueError(f'{self.name} has no {" and no ".join(only)}; store it as "plain|{only[0]}" and so on')
        odd = [
            (kind, key)
            for kind, mine in ours.items()
            for key, here in mine.items()
            if (there := theirs[kind].get(key)) is not None
            and here.shape != there.shape
            and (key in subject.weighed or not fits(here, there)
                 or (there.ndim == here.ndim
                     and len(there) not in (1, max(x.shape[:1] for x in inputs[kind].values())[0])))
        ]  # fmt: skip
        if odd and self.whole:
            shapes = (f"{kind}|{key} has shape {theirs[kind][key].shape}, expected {ours[kind][key].shape}"
                      for kind, key in odd[:3])  # fmt: skip
            raise ValueError(f"{self.name}: {'; '.join(shapes)}; a trace of another model, or axes in another order?")
        if odd:  # a graph's value beside a module may be split already, or not joined yet
            report.say(f"of another shape, and not compared: {', '.join(dict.fromkeys(key for _, key in odd))}")
            for kind, key in odd:
                theirs[kind] = {k: x for k, x in theirs[kind].items() if k != key}
        self._count_intermediates(report, [(kind, key) for key in only for kind in ours if key in ours[kind]], theirs)
        return inputs, ours, theirs

    def close(self, report: Comparison, subject: Subject) -> None:
        """Repeat why the comparison failed, or name what was left out."""
        if wrong := report.wrong_inputs:
            are = "is missing or differs" if len(wrong) == 1 else "are missing or differ"
            self._faults.append(
                f"{len(wrong)} of the inputs {are}; copy them from a file that `verify` saved, or give batches "
                "of your own other names"
            )
        elif self._part and report.passed:
            report.headline(f"{self._part}; `only=` takes a part")
        if self._faults:
            report.fail(*(f"not passed: {fault}" for fault in self._faults))
        elif report.passed and (self._left or self._keys_left):
            shows = [f"{kind} ({ALONE_SHOWS[kind]})" if kind in ALONE_SHOWS else kind for kind in self._left]
            if count := len(self._keys_left):
                shows.append(f"{count} intermediate{'s' * (count > 1)}: {some_of(self._keys_left, SHOWN)}")
            report.say(f"passed as far as it goes; not compared: {', '.join(shows)}")

    def _comparable(self, report: Comparison, kind: str, batches: Traces) -> bool:
        """Whether the numbers of one batch can be compared; faults of its inputs go into the report."""
        stated, wanted, name = self.inputs.get(kind, {}), batches.get(kind), f"{kind}|inputs|"
        absent: list[str] = []
        if wanted is None:
            if not {"input_ids", "inputs_embeds"} & set(stated):
                raise ValueError(f'{self.name}: no inputs for {kind!r}; store them as "{name}input_ids" and so on')
            wrong = [f"{name}{key} is empty, of shape {x.shape}" for key, x in stated.items() if not x.size]
        else:
            absent = [f"{name}{key} is missing" for key in wanted if key not in stated]
            absent += [f"{name}{key} is no input of this batch" for key in stated if key not in wanted]
            both = [key for key in wanted if key in stated]
            wrong = [line for key in both if (line := _unlike(name + key, stated[key], wanted[key]))]
        report.wrong_inputs += absent + wrong
        report.say(*absent, *(f"{line}; {kind} was not compared" for line in wrong))
        return not wrong

    def _count_batches(self, report: Comparison, batches: Traces, recorded: Sequence[str], inputs: Traces) -> None:
        """Report how many batches are compared; a text that the caller passed must be among them."""
        further = [kind for kind in recorded if kind not in batches]
        absent = [kind for kind in batches if kind not in recorded]
        count = sum(kind in inputs for kind in batches)
        line = f"{count} of {len(batches)} batches compared, and " if self.whole or count else "compared "
        line += f"{len(inputs) - count} of the file's own ({', '.join(further)})" if further else ""
        lacking = f"; the file lacks {', '.join(absent)}" if absent and (self.whole or count) else ""
        report.say(line.removesuffix(", and ") + lacking)
        if self.whole and absent and (count or absent[-1].startswith("text ")):
            have = " ".join(kind for kind in recorded if kind in batches)
            missing = f"{len(absent)} of our batches are not in the file: {', '.join(absent)}"
            self._faults.append(f"{missing}; to compare a part, name it by `batches=`: {have}")
        elif self.whole or count:
            self._left += absent

    def _count_intermediates(self, report: Comparison, wanted: Sequence[tuple[str, str]], theirs: Traces) -> None:
        """Report how many intermediates are compared, and which are missing."""
        missing: dict[str, list[str]] = {}
        for kind, key in wanted:
            if key not in theirs[kind]:
                missing.setdefault(key, []).append(kind)
        count = sum(map(len, missing.values()))
        report.say(f"{len(wanted) - count} of {len(wanted)} intermediates compared")
        if not self.whole:
            report.say(*([f"not shown, and not compared: {', '.join(missing)}"] if missing else []))
            return
        report.missing += [f"{kind}|{key}" for key, kinds in missing.items() for kind in kinds]
        batches = Counter(key for _, key in wanted)
        if count:
            (key, kinds), *others = missing.items()
            where = f"all {len(kinds)} batches" if len(kinds) == batches[key] > 1 else ", ".join(kinds)
            report.say(f"missing: {key} in {where}" + (f", and {len(others)} more intermediates" if others else ""))
            there = [key for key in batches if key not in missing]
            named = " ".join(there) if 0 < len(there) <= SHOWN else "KEY..."
            self._part = f"{len(wanted) - count} of {len(wanted)} compared, all right; {count} missing"
            self._faults.append(f"{count} of {len(wanted)} are missing; to compare a part, name it by `only=`: {named}")


def _unlike(name: str, theirs: Array, ours: Array) -> str:
    """Describe the first difference of an input from ours; "" for none."""
    if theirs.size == ours.size == 1:
        theirs = theirs.reshape(ours.shape)  # not every library writes an array without axes
    if theirs.shape != ours.shape:
        return f"{name} has shape {theirs.shape}, expected {ours.shape}"
    place = next(map(tuple, np.argwhere(theirs != ours).tolist()), None)
    return "" if place is None else f"{name}{list(place)} is {theirs[place]}, expected {ours[place]}"
