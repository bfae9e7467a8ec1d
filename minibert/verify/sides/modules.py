"""A trace made of the outputs and inputs that another program writes by the paths of a model's modules.

Of each module what left it and what entered it, call by call. A number that no module shows is not compared: shapes
never decide what something is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from minibert.equations.input_layer import Array
from minibert.families.parts.block_names import by_module, module_path
from minibert.families.parts.steps import Norm, Positions
from minibert.verify.judge.input_layer import Subject

from .traces import Traces, tokens_of

Calls = Mapping[str, Sequence["Array | None"]]  # path of a module -> one array for each call; None: it is not kept


class Source(ABC):
    """A port's recorded arrays: `traces` gives its inputs and intermediates under our names."""

    whole = False  # whether it should have every intermediate
    lines: Sequence[str] = ()  # what there is to say of it, once it is read

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def traces(self, subject: Subject, batches: Traces) -> tuple[Traces, Traces]:
        """Give inputs and intermediates; `batches` are ours, for a source that can compute."""


class Seen(NamedTuple):
    """One batch as another program shows it; `known` has what bears our names already."""

    leaving: Calls
    entering: Calls
    known: Mapping[str, Array]


class Paths:
    """Maps each module to the keys of a trace that leave or enter it, where the other program has these modules.

    Raises ValueError where no module is this model's first.
    """

    def __init__(self, subject: Subject, modules: Iterable[str], name: str) -> None:
        there, self._transposed = dict.fromkeys(filter(None, modules)), {*subject.transposed_in_reference}
        self._positions = {step.path for step, _ in subject.layer.steps if isinstance(step, Positions)}
        steps = [step for step, _ in subject.layer.steps]
        own = [step.path for step, bound in subject.layer.steps if callable(bound)]
        self.prefix = prefix = _prefix(steps[0].path, [*there], ("", *subject.layer.family.prefixes), name)
        norms = {step.path: "sum" for step in steps if isinstance(step, Norm)}
        leaving = by_module({key: key for key in (*own, *subject.leaving)})
        for path, keys in leaving.items():  # types that are rows of the words' table are its second call
            keys += [key for key in (f"{path} (types)",) if key in subject.allowed]
        self.leaving = {prefix + path: keys for path, keys in leaving.items()}
        self.entering = {prefix + path: keys for path, keys in by_module({**norms, **subject.entering}).items()}
        if (head := subject.head) is not None:  # its pooler is in the base model
            paths = [*(path for path, _ in head.works), *([] if head.takes == "last" else [head.path])]
            for path, after in pairwise([*paths, ""]):
                found = {each: [path] for each in (path, prefix + path) if each in there}
                self.leaving |= found
                if not found:  # an activation that is no module enters the next one
                    self.entering |= {each: [path] for each in (after, prefix + after) if each in there}
        # the softmax stands in the module of the scores, whose key is that module's path and a name
        scores = {key.rpartition(".")[0]: (key, f"attentions.{i}") for i, key in enumerate(subject.scores)}
        self.softmax: dict[str, list[tuple[str, str]]] = {}
        for key, names in scores.items():
            self.softmax.setdefault(prefix + module_path(key), []).append(names)

    def trace(self, seen: Seen, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Give one batch's intermediates under our names."""
        found = dict(_paired(self.leaving, seen.leaving)) | dict(_paired(self.entering, seen.entering))
        shape = tokens_of(batch)[1].shape
        return {key: self._as_traced(key, x, shape) for key, x in found.items()} | dict(seen.known)

    def _as_traced(self, key: str, x: Array, shape: tuple[int, ...]) -> Array:
        """Put what a module of transformers gives in the order of a trace's axes; shape is (batch, seq)."""
        if x.ndim == 3 and x.shape[:2] == shape[::-1] and shape[0] != shape[1]:
            x = x.swapaxes(0, 1)  # XLNet computes with (seq, batch)
        if key in self._transposed:
            x = x.swapaxes(1, 2)
        return x[None] if x.ndim == 2 and key in self._positions else x  # Marian and Pegasus: one row for all texts


def _paired(keys: Mapping[str, Sequence[str]], calls: Calls) -> Iterator[tuple[str, Array]]:
    """Pair the keys of each module with its calls, in order; calls beyond them are of what a trace does not have."""
    for path, names in keys.items():
        for key, x in zip(names, calls.get(path, ()), strict=False):
            if x is not None:
                yield key, x


def _prefix(first: str, modules: Sequence[str], usual: Sequence[str], name: str) -> str:
    """Find the prefix that the other program puts before this model's paths."""
    found = dict.fromkeys(path[: -len(first)] for path in modules if f".{path}".endswith(f".{first}"))
    chosen = [prefix for prefix in usual if prefix in found] if len(found) > 1 else [*found]
    if len(chosen) != 1:
        shown = ", ".join(modules[:4]) or "none"
        raise ValueError(f"{name}: expected a module {first}, as this model has it; found {len(found)} among {shown}")
    return chosen[0]
