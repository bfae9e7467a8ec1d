"""Record or change the intermediates of a run: knock out heads or blocks, or use one text's values in another's run.

`change` of `Encoder.__call__`, `logits` and `trace` is a mapping: a name in `trace` -> an array of the same shape, or a
function from the values to new values. Everything that follows is computed from the new values.

    scores = trace["attentions.3"]                                           # (batch, heads, query, key)
    encoder(**ids, change={"attentions.3": lambda weights: 0 * weights})     # block 3 attends to nothing
    encoder.trace(**ids, change={"hidden_states.2": other["hidden_states.2"]})  # patching: another text's values

Sequences of equal length are computed together. So a function is called once for each length, with (texts, length, ...)
or (texts, heads, length, length), without padding. An array has the shape of the whole batch, or (1, seq, ...) for all
sequences.

Not everything can be changed: pass `position_ids` instead; a head's modules come after the run; rotated queries and
keys (as in Llama) have no name in a trace, so change the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.input_layer import Array
from minibert.errors import nearest_name
from minibert.families.parts.steps import Inputs

from .blocks import Stack, run_blocks
from .layer import InputLayer
from .packing import Group, Packed, unpadded

# the array that replaces the values, or a function that computes it from them
Change = Callable[[Array], ArrayLike] | ArrayLike


def run_changed(
    layer: InputLayer,
    stack: Stack,
    inputs: Inputs,
    keep: Array,
    change: Mapping[str, Change],
    trace: dict[str, Array] | None = None,
) -> Array:
    """Return the last hidden state of a run with changes: (batch, seq, dim). `trace` receives every intermediate.

    keep (batch, seq): False for padding. Raises TypeError and ValueError for a change that is not finite numbers of the
    right shape, and ValueError for a name that this run does not compute.
    """
    shape, seen = (inputs.batch, inputs.seq), set[str]()
    _check_names(layer, stack, change)
    y = np.zeros((*shape, stack.width(layer.dim)), layer.dtype)
    for tile in _by_length(inputs, keep, stack):
        recorder = Recorder(tile, shape, trace, change)
        y[recorder.where] = run_blocks(stack, _embedded(layer, tile, recorder), tile, hook=recorder)
        seen |= recorder.seen
    if unseen := sorted(change.keys() - seen):
        raise ValueError(f"change names {unseen[0]!r}, which this call does not compute; leave it out")
    return y


def _check_names(layer: InputLayer, stack: Stack, change: Any) -> None:
    if not isinstance(change, Mapping):
        expected = "a dict, name of an intermediate -> array or function of the values"
        raise TypeError(f"change must be {expected}; found {type(change).__name__}")
    known = [*(key for step, _ in layer.steps for key in (step.key, "sum")), "hidden_states.0"]
    known += [key for i, block in enumerate(stack.blocks) for key in block.keys(i, stack)]
    if "position_ids" in change:
        raise ValueError("change cannot name 'position_ids', which the input layer is given; pass position_ids=")
    for name in change:
        if not name or name not in known:
            near = nearest_name(str(name), known)
            hint = f"; did you mean {near!r}?" if near else "; its names are those of encoder.trace"
            raise ValueError(f"change names {name!r}, which this encoder does not have{hint}")


def _by_length(inputs: Inputs, keep: Array, stack: Stack) -> Iterator[Packed]:
    """Cut a batch into tiles of sequences of equal length: attention computes each in one piece."""
    packed = unpadded(inputs, keep)
    kinds: dict[tuple[int, bytes], list[Array]] = {}
    for group in packed.groups(stack.by_distance):
        gaps = b"" if group.positions is None else group.positions.tobytes()
        kinds.setdefault((group.length, gaps), []).append(group.texts)
    for texts in kinds.values() or [[packed.texts]]:
        yield unpadded(inputs, keep, np.concatenate(texts))


def _embedded(layer: InputLayer, tile: Packed, recorder: Recorder) -> Array:
    """Return the input layer's rows of one tile, changed: (tokens, dim)."""
    names: list[str] = []

    def record(name: str, rows: Array) -> None:
        names.append(name)
        recorder.rows(name, rows[0])

    x = layer.rows(tile, record)
    if "sum" not in names:  # a layer without a norm
        recorder.rows("sum", x)
    recorder.rows("hidden_states.0", x)
    return x


class Recorder:
    """The hook of a run: it receives each named intermediate of a tile, overwrites it if changed, and records it.

    Values in `trace` are (batch, seq, ...), with zeros for padding. With a `change` all sequences of the tile have the
    same length, so the values are (texts, length, ...) and (texts, heads, length, length), without padding. `seen`
    collects the names that the run computes.
    """

    def __init__(
        self,
        tile: Packed,
        shape: tuple[int, int],
        trace: dict[str, Array] | None = None,
        change: Mapping[str, Change] = {},
    ) -> None:
        self.shape, self.trace, self.change, self.seen = shape, trace, change, set[str]()
        self.texts, self.where = len(tile.texts), tile.where()

    def rows(self, name: str, x: Array) -> None:
        """Receive an intermediate with one row for each token."""
        self.seen.add(name)
        x = x[: len(self.where[0])]  # without padding rows
        whole = (*self.shape, *x.shape[1:])
        if name in self.change and len(x):
            y = x.reshape(self.texts, len(x) // self.texts, *x.shape[1:])  # a view in every memory order
            y[...] = self._changed(name, y, whole, lambda all_: all_[self.where].reshape(y.shape))
        if self.trace is not None:
            self._kept(name, whole, x)[self.where] = x

    def pairs(self, name: str, x: Array, group: Group) -> None:
        """Receive an intermediate with one number for each head, query and key of some sequences."""
        self.seen.add(name)
        batch, seq = self.shape
        whole = (batch, x.shape[1], seq, seq)
        locations = [*zip(group.texts, group.select(self.where[1]), strict=True)]
        if name in self.change and x.size:

            def part(all_: Array) -> Array:
                return np.stack([all_[text][:, tokens[:, None], tokens] for text, tokens in locations])

            x[...] = self._changed(name, x, whole, part)
        if self.trace is not None:
            y = self._kept(name, whole, x)
            for (text, tokens), pairs in zip(locations, x, strict=True):
                # without padding between tokens slices are enough
                if len(tokens) and tokens[-1] - tokens[0] + 1 == len(tokens):
                    y[text][:, tokens[0] : tokens[-1] + 1, tokens[0] : tokens[-1] + 1] = pairs
                else:
                    y[text][:, tokens[:, None], tokens] = pairs

    def _kept(self, name: str, shape: tuple[int, ...], x: Array) -> Array:
        assert self.trace is not None
        if name not in self.trace:
            self.trace[name] = np.zeros(shape, x.dtype)
        return self.trace[name]

    def _changed(self, name: str, x: Array, whole: tuple[int, ...], part: Callable[[Array], Array]) -> Array:
        """Return the new values, checked. whole: the batch's shape; part: selects the tile's values of a batch."""
        new = self.change[name]
        if callable(new):  # a copy: the function may keep it or write into it
            values = _numbers(name, new(x.copy()), x.dtype)
            if values.shape != x.shape:
                problem = f"was given values of shape {x.shape} and must return that shape"
                raise ValueError(f"change[{name!r}] {problem}, found {values.shape}")
            return values
        values = _numbers(name, new, x.dtype)
        if values.shape not in (whole, (1, *whole[1:])):
            raise ValueError(f"change[{name!r}] must have shape {whole}, as trace has it, found {values.shape}")
        return part(np.broadcast_to(values, whole))


def _numbers(name: str, values: ArrayLike | None, dtype: np.dtype[Any]) -> Array:
    """Return new values in the run's dtype. Raises TypeError and ValueError unless they are finite floats."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"change[{name!r}] has rows of different lengths; it must be one array") from None
    if array.dtype.kind != "f":
        kind = "None" if values is None else f"{type(values).__name__} of {array.dtype}"
        expected = "an array of floating-point numbers, or a function that returns one"
        raise TypeError(f"change[{name!r}] must be {expected}; found {kind}")
    with np.errstate(over="ignore"):  # a number too large becomes infinity, refused below
        array = array.astype(dtype, copy=False)
    if not np.isfinite(array).all():
        why = f"NaN, infinity or a number beyond {dtype}; every number after it would be NaN"
        advice = "To hide a token from attention change the weights to 0, or the scores to -1e9"
        raise ValueError(f"change[{name!r}] has {why}. {advice}")
    return array
