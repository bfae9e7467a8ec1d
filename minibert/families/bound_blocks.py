"""Blocks bound to a checkpoint: their modules by path, and the order of computing. `block_parts` makes them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from minibert.equations.blocks import Activation, rms_norm
from minibert.equations.fast import linear
from minibert.equations.input_layer import Array
from minibert.files.tables import Room, StoredTable, Weight

from .modules import LayerNorm

Modules = dict[str, Any]  # path -> Dense or a norm, or the printed activation; in the reference's order


class Dense:
    """`y = x @ weight^T + bias`: see `equations.blocks.linear`. `transposed`: the file holds (in, out).

    A weight that is a table stays as it is stored, and is widened for each use.
    """

    def __init__(self, weight: Weight, bias: Array | None, transposed: bool = False) -> None:
        self._weight, self.bias, self.transposed = weight, bias, transposed

    @property
    def weight(self) -> Array:
        """The weight as the file has it, (out, in) or transposed; a stored one is widened anew each time."""
        return self._weight.array() if isinstance(self._weight, StoredTable) else self._weight

    @property
    def stored(self) -> bool:
        """Whether the weight stays as it is stored, and is widened for each use."""
        return isinstance(self._weight, StoredTable)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What it computes in."""
        return self._weight.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        out, width = self._weight.shape[::-1] if self.transposed else self._weight.shape
        return out, width

    def matrix(self, room: Room) -> Array:
        """The weight as (out, in); a stored one is widened into `room`, and is there until the next one is."""
        weight = room.widened(self._weight) if isinstance(self._weight, StoredTable) else self._weight
        return weight.T if self.transposed else weight

    def part(self, numbers: slice) -> Dense:
        """The map that gives some of its numbers; nothing is copied."""
        where = (slice(None), numbers) if self.transposed else (numbers,)
        weight = self._weight.part(*where) if isinstance(self._weight, StoredTable) else self._weight[where]
        return Dense(weight, None if self.bias is None else self.bias[numbers], self.transposed)

    def __call__(self, x: Array, out: Array | None = None) -> Array:
        return linear(x, self.matrix(Room()), self.bias, out)

    def __repr__(self) -> str:
        out, width = self.shape
        if self.transposed:
            return f"Conv1D(nf={out}, nx={width})"
        return f"Linear(in_features={width}, out_features={out}, bias={self.bias is not None})"


class RMSNorm(LayerNorm):
    """`x / sqrt(mean(x^2) + eps) * (weight + plus)` over the last axis, without a bias: see `equations.rms_norm`."""

    plus = 0.0

    def formula(self, x: Array) -> Array:
        """Compute it for rows that fit."""
        weight = self.weight + self.weight.dtype.type(self.plus) if self.plus else self.weight
        return rms_norm(x, weight, self.eps)

    def in_place(self, x: Array) -> None:
        """Normalize the rows of x in place."""
        x[...] = self.formula(x)

    def __repr__(self) -> str:
        return f"RMSNorm(({len(self.weight)},), eps={self.eps})"


class GemmaRMSNorm(RMSNorm):
    """The same with 1 + weight: Gemma's files hold the weight less 1."""

    plus = 1.0


class Attention(NamedTuple):
    """Attention bound to a checkpoint: the paths of its modules and of what a trace names besides."""

    maps: tuple[str, ...]
    norms: tuple[str, ...]  # of queries and of keys; "" where there is none
    scores: str
    probabilities: str
    context: str
    output: str
    heads: int
    key_heads: int
    head_dim: int
    scale: float
    reach: int | None
    rotated: bool
    layer_type: str | None
    heads_first: bool  # how the reference gives the norms' output

    @property
    def keys(self) -> tuple[str, ...]:
        """What a trace has of it, in the order of computing."""
        return (*self.maps, *filter(None, self.norms), self.scores, self.probabilities, self.context, self.output)

    @property
    def edges(self) -> tuple[int, int]:
        """Where keys and values begin, if queries, keys and values stand side by side."""
        queries = self.heads * self.head_dim
        return queries, queries + self.key_heads * self.head_dim


class FeedForward(NamedTuple):
    """A feed-forward bound to a checkpoint: the paths of its modules. `output` is the map back."""

    up: str
    gate: str  # "" where there is none; the same as `up` where one map holds both
    activation: str
    output: str
    activate: Activation

    @property
    def keys(self) -> tuple[str, ...]:
        """What a trace has of it, in the order of computing."""
        if self.gate and self.gate != self.up:
            return self.gate, self.activation, self.up, self.output
        return self.up, self.activation, self.output


class BoundResidual(NamedTuple):
    """One `Residual` bound to a checkpoint: paths of the norms, "" where there is none, and of the sum."""

    before: str
    work: Attention | FeedForward
    within: str
    sum: str
    after: str

    @property
    def keys(self) -> tuple[str, ...]:
        """What a trace has of it, in the order of computing."""
        return tuple(filter(None, (self.before, *self.work.keys, self.within, self.sum, self.after)))


class BoundBlock(NamedTuple):
    """One block bound to a checkpoint: its modules by path, and its parts in the order of computing."""

    modules: Modules
    parts: tuple[BoundResidual, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """What a trace has of it, in the order of computing."""
        return tuple(key for part in self.parts for key in part.keys)

    @property
    def attention(self) -> Attention:
        """Its attention, of which every block has one."""
        return next(part.work for part in self.parts if isinstance(part.work, Attention))

    @property
    def feed_forward(self) -> FeedForward:
        """Its feed-forward, of which every block has one."""
        return next(part.work for part in self.parts if isinstance(part.work, FeedForward))
