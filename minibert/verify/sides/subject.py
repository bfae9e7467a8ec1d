"""What verify compares: a subject, which is the input layer or the whole encoder of one checkpoint."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from minibert.equations.input_layer import Array
from minibert.families.parts.heads import BoundHead
from minibert.models.input_layer import EmbeddingLayer
from minibert.verify.judge.compare import Difference, compare

from .traces import Traces, trace

INPUT_LAYER = "input layer"


class Mistake(Protocol):
    """A name, and why it is one."""

    @property
    def name(self) -> str: ...
    @property
    def why(self) -> str: ...


class Subject(ABC):
    """A model to compare: its batches, its traces, what each intermediate may differ by, and its classic mistakes."""

    noun: str  # what the report calls it
    about: str  # its model_type and what else the first line says
    allowed: Mapping[str, float]  # the tolerance of each intermediate
    has_places = False  # whether there are several places in which a difference can arise
    weighed: frozenset[str] = frozenset()  # those that beyond it are judged by their rms error

    # where the reference shows what it has between its modules: the modules of blocks, what enters which, the scores
    leaving: Sequence[str] = ()
    entering: Mapping[str, str] = {}
    scores: Sequence[str] = ()
    head: BoundHead | None = None  # whose logits are compared too
    without_head: str = ""  # why those of a head that is there are not
    heads_first: Sequence[str] = ()  # whose output the reference gives as (batch, heads, seq, head_dim)

    def __init__(self, model: Any, layer: EmbeddingLayer, again: Callable[..., Any]) -> None:
        self.model: Any = model  # an EmbeddingLayer or an Encoder
        self.layer, self._again = layer, again

    @contextmanager
    def opened(self, **changes: Any) -> Iterator[Subject]:
        """Open the model again with other keywords of `load`."""
        with self._again(**changes) as model:
            yield self.like(model)

    @abstractmethod
    def like(self, model: Any) -> Subject:
        """Make the same subject of another model."""

    def exact(self) -> AbstractContextManager[Subject]:
        """Open the same in float64."""
        return self.opened(dtype="float64")

    @abstractmethod
    def batches(self) -> Traces:
        """Make a batch of every kind that the model takes: kind -> keywords of a call."""

    def parts(self, batch: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
        """Trace one batch, part by part."""
        yield trace(self.model, batch)

    def trace(self, batch: Mapping[str, Array]) -> dict[str, Array]:
        """Trace one batch."""
        return {key: x for part in self.parts(batch) for key, x in part.items()}

    def beyond(self, inputs: Traces) -> str:
        """Say what longer texts than these would show; "" for nothing."""
        return ""

    def reaches_head(self, batch: Mapping[str, Array]) -> bool:
        """Whether a trace of this batch goes on to the logits."""
        return False

    def traces(self, inputs: Traces, theirs: Traces) -> Traces:
        """Trace all batches; the ids of a text come first where the other side has its own."""
        made = {kind: self.trace(batch) for kind, batch in inputs.items()}
        return {
            kind: {"input_ids": inputs[kind]["input_ids"], **named} if "input_ids" in theirs.get(kind, {}) else named
            for kind, named in made.items()
        }

    def compare(self, inputs: Traces, ours: Traces, theirs: Traces, truth: Traces) -> list[Difference]:
        return compare(ours, theirs, truth, self.allowed, self.weighed)

    def place(self, key: str) -> str:
        """Where an intermediate is computed: "block 3", or before or after the blocks."""
        return INPUT_LAYER

    @abstractmethod
    def words(self, whose: str, against: str) -> str:
        """Say what the numbers of a table mean and what is allowed; `against` is what in float64 errors are of."""

    @abstractmethod
    def mistakes(self) -> Iterator[Attempt]:
        """Give every classic mistake that this model can have, and how to open the model that makes it."""


Attempt = tuple[Mistake, AbstractContextManager[Subject]]
