"""`InputLayer`: ids -> rows. It checks and completes the ids of a call or of texts, and runs the bound steps on them.

All ids are checked here; later code never sees a wrong id.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.fast import check_ids
from minibert.equations.input_layer import Array
from minibert.errors import Option, error_of
from minibert.families.family import Family
from minibert.families.parts.config import Config
from minibert.families.parts.modules import Linear
from minibert.families.parts.steps import (
    Add,
    Bound,
    Inputs,
    Lookup,
    Mask,
    Norm,
    Positions,
    Project,
    Record,
    run_steps,
)  # fmt: skip
from minibert.threads.computing import usable_threads
from minibert.threads.pool import parallel_for

from . import packing
from .attributes import OfModules, hinted
from .packing import ONES, Packed

if TYPE_CHECKING:
    from minibert.files.tokenizer import Encoded

NORM_TO_SUM_WORK = 4  # a norm takes four times as long per number as a sum
LONGEST_PAST = 2**31  # tokens; more than any cache holds, and sums stay below 64 bits


class InputLayer(OfModules):
    """The input layer of one checkpoint without the methods for texts."""

    _words = "layer", "submodules"
    family: Family
    config: Config
    dtype: np.dtype[Any]
    """The number format of all computing: float32, or float64 by `load(dtype=...)`."""
    dim: int
    """The width of a token's output vector."""
    adds_types: bool

    def __init__(self, family: Family, config: Config, steps: Sequence[Bound], dtype: np.dtype[Any]) -> None:
        self._steps: tuple[Bound, ...] | None = tuple(steps)  # every method reads `steps` last; `close` clears it first
        self._vocab, self._width = steps[0].module.table.shape
        self._embeds_shape = f"(batch, seq, {self._width})"
        # all lookups except the word lookup: a step, the rows of its table, and the smallest id that may be passed
        self._lookups = [(step, module.table.shape[0], step.lowest()) for step, module in steps
                         if isinstance(step, Lookup) and step.ids != "input_ids"]  # fmt: skip
        # whether positions are counted by the mask
        self._counted = any(isinstance(step, Positions) and step.rule == "mask" for step, _, _ in self._lookups)
        self._masks = [step for step, _ in steps if isinstance(step, Mask)]
        self._reads_mask = bool(self._masks) or self._counted
        types = (step for step, _ in steps if isinstance(step, Add) and step.ids == "token_type_ids")
        widths = [self._width, *(module.weight.shape[0] for _, module in steps if isinstance(module, Linear))]
        vars(self).update(family=family, config=config, dtype=dtype, dim=widths[-1])
        vars(self).update(adds_types=any(step.missing is not None for step in types))

    @property
    def steps(self) -> tuple[Bound, ...]:
        """The bound steps in the order of computation."""
        steps = self._steps  # read once: another thread may close the layer between two reads
        if steps is None:
            raise ValueError("this layer is closed; load it again")
        return steps

    @property
    def max_length(self) -> int | None:
        """The largest number of tokens in a sequence: the rows of the position table, or None without a limit."""
        for step, module in self.steps:
            if isinstance(step, Positions):
                return int(module.table.shape[0]) - step.extra - step.first(self.config)
        return None

    @hinted
    def __call__(
        self,
        input_ids: ArrayLike | None = None,
        *,
        token_type_ids: ArrayLike | None = None,
        position_ids: ArrayLike | None = None,
        attention_mask: ArrayLike | None = None,
        past_length: int = 0,
        inputs_embeds: ArrayLike | None = None,
        langs: ArrayLike | None = None,
        task_type_ids: ArrayLike | None = None,
        threads: int | None = None,
    ) -> Array:
        """Return the input of the first block: (batch, seq) ids -> (batch, seq, dim), float32 (or the layer's dtype).

        One sequence of ids (seq,) becomes (seq, dim). `past_length`: how many tokens a cache already holds; positions
        start there. `inputs_embeds` (batch, seq, width) replaces the word rows. `threads`: the largest number of
        threads, 1 for only the caller's thread, None for as many as there are cores. Only large batches use more than
        one. The bits never depend on the number.

        Raises TypeError, IndexError or ValueError that names the expected and the found value, and the place.
        """
        other_ids = dict(
            token_type_ids=token_type_ids, position_ids=position_ids, langs=langs, task_type_ids=task_type_ids
        )
        steps = self.steps
        inputs, single = self.prepare(input_ids, other_ids, attention_mask, past_length, inputs_embeds)
        y = np.empty((inputs.batch, inputs.seq, self.dim), self.dtype)
        if input_ids is not None:
            steps[0].module.table.expect((inputs.ids["input_ids"],))
        run(steps, inputs, y, self._width, threads)
        return y[0] if single else y

    def trace(self, input_ids: ArrayLike | None = None, **arguments: Any) -> dict[str, Array]:
        """Return every named intermediate in the order of computation; the last one is the layer's output.

        Arguments as in a call. Most keys are module paths of the reference's base model, with the module's
        output as value. Further keys: `position_ids`, which comes first; `sum`, the input of the norm (without a norm,
        the output); `scaled` and `masked`, the rows times a factor or the attention mask. A call has the same
        bits.
        """
        keywords = ("attention_mask", "past_length", "inputs_embeds")
        passed = {key: arguments.pop(key) for key in keywords if key in arguments}
        self.steps  # noqa: B018  raises if the layer is closed
        inputs, _ = self.prepare(input_ids, arguments, **passed)
        return self.traced(inputs)

    def traced(self, inputs: Inputs) -> dict[str, Array]:
        """Trace checked inputs: see `trace`."""
        steps, trace = self.steps, self.traced_positions(inputs)

        def record(name: str, x: Array) -> None:
            trace[name] = x.copy()

        y = np.empty((inputs.batch, inputs.seq, self.dim), self.dtype)
        run_steps(steps, inputs, y, self._width, record)
        trace.setdefault("sum", y)
        return trace

    def traced_positions(self, inputs: Inputs) -> dict[str, Array]:
        """Return the beginning of a trace of checked inputs: the positions, if the layer looks any up."""
        positions = inputs.ids.get("position_ids")
        if isinstance(positions, slice):
            return {"position_ids": np.arange(positions.start, positions.stop)[None]}
        return {"position_ids": positions.copy()} if isinstance(positions, np.ndarray) else {}

    def prepare(
        self,
        input_ids: ArrayLike | None,
        other_ids: Mapping[str, Any],
        attention_mask: ArrayLike | None = None,
        past_length: int = 0,
        inputs_embeds: ArrayLike | None = None,
    ) -> tuple[Inputs, bool]:
        """Return the checked inputs of one call, and whether a single sequence (seq,) was passed.

        Raises TypeError (floats, ragged lists, an argument this family has no use for), IndexError (an id past its
        table), ValueError (shapes that disagree, a sequence too long, both or neither of ids and inputs_embeds).
        """
        if (input_ids is None) == (inputs_embeds is None):
            which = "neither" if input_ids is None else "both"
            raise ValueError(f"pass input_ids (batch, seq) or inputs_embeds {self._embeds_shape}, found {which}")
        past_length = _count(past_length)
        if input_ids is not None:
            first = input_ids[0] if isinstance(input_ids, list) and input_ids else input_ids
            if isinstance(first, str | Mapping):
                kind = "a text" if isinstance(first, str) else "a mapping"
                advice = "as in layer(**layer.tokenize(text)) or encoder.trace(**encoder.tokenize(text))"
                raise TypeError(f"input_ids must be integers, found {kind}; tokenize a text first, {advice}")
            ids = check_ids(input_ids, self._vocab, "input_ids")
            single, shape = _batch_of(ids.shape, "input_ids", "(batch, seq)")
            inputs = Inputs(*shape, {"input_ids": ids.reshape(shape)})
        else:
            embeds = _numbers(inputs_embeds, "inputs_embeds", self.dtype)
            if embeds.ndim == 0 or embeds.shape[-1] != self._width:
                raise ValueError(f"inputs_embeds must be {self._embeds_shape}, found shape {embeds.shape}")
            single, shape = _batch_of(embeds.shape[:-1], "inputs_embeds", self._embeds_shape)
            inputs = Inputs(*shape, {}, embeds.reshape(*shape, self._width))
        mask = None
        if attention_mask is not None:
            mask = self._checked_mask(inputs, attention_mask, past_length)
        elif self._masks:
            mask = self._masks[0].default(inputs, self.config)
        inputs = inputs._replace(attention_mask=mask)
        self._take_ids(inputs, other_ids, past_length)
        for name, value in other_ids.items():
            if value is not None and name not in inputs.ids and not self.family.accepts(name):
                raise TypeError(f"{self.family.model_type} takes no {name} in its input layer; leave it out")
        if not self._masks:
            inputs = inputs._replace(attention_mask=None)  # already read for the positions; no step reads it
        return inputs, single

    def _checked_mask(self, inputs: Inputs, attention_mask: ArrayLike, past_length: int) -> Array | None:
        """Check the attention mask; return it only if a step uses it."""
        mask = _numbers(attention_mask, "attention_mask", self.dtype if self._reads_mask else None)
        mask = mask[None] if mask.ndim == 1 else mask
        # a mask that multiplies rows has their length; an unused mask may omit the cached tokens
        longest = inputs.seq if self._masks else inputs.seq + past_length
        if mask.ndim != 2 or mask.shape[0] != inputs.batch or mask.shape[1] not in (inputs.seq, longest):
            expected = f"({inputs.batch}, {longest}), as long as past and ids together"
            raise ValueError(f"attention_mask must be {expected}, found shape {mask.shape}")
        if self._reads_mask and not np.isin(mask, (0, 1)).all():
            raise ValueError(ONES)
        if self._counted and mask.shape[1] != inputs.seq + past_length:
            shapes = f"expected ({inputs.batch}, {inputs.seq + past_length}), found {mask.shape}"
            raise ValueError(f"attention_mask must cover the cached tokens too: {shapes}")
        return mask if self._reads_mask else None

    def _take_ids(self, inputs: Inputs, other_ids: Mapping[str, Any], past_length: int) -> None:
        """Check all ids that the steps look up, or fill in the family's defaults."""
        shape = (inputs.batch, inputs.seq)
        for step, rows, lowest in self._lookups:
            value = other_ids.get(step.ids)
            if value is None:
                default: Any = step.default(inputs, self.config, past_length)
                if default is not None:
                    inputs.ids[step.ids] = default
                if isinstance(step, Positions) and inputs.seq:
                    end = default.stop if isinstance(default, slice) else int(default.max(initial=-1)) + 1
                    if end + step.extra > rows:
                        limit = rows - step.extra - step.first(self.config)
                        past = f" after {past_length} cached ones" if past_length else ""
                        says = f"a sequence of {inputs.seq} tokens{past} is too long: the position table ends at "
                        advice = f"{limit} tokens; shorten it, or tokenize with "
                        raise error_of(ValueError, says, advice, Option("truncation", True))
                continue
            ids = check_ids(value, rows - step.extra, step.ids, lowest)
            ids = ids[None] if ids.ndim == 1 else ids
            if ids.shape != shape and not (ids.ndim == 2 and ids.shape == (1, inputs.seq)):
                raise ValueError(f"{step.ids} must be {shape} as the ids are, found shape {np.shape(value)}")
            inputs.ids[step.ids] = ids

    def pack(self, encoded: Sequence[Encoded]) -> Packed:
        """Join the ids of texts, and complete them as a call completes sequences without padding.

        Types are left out if the layer does not use them. A remote table then fetches the rows of all ids at once.
        Raises IndexError that names the text and the position.
        """
        unseen, words = None, self.steps[0].module.table
        if any(sequence.unseen for sequence in encoded):
            if self._reads_mask:
                why = "since its input layer reads the mask"
                raise ValueError(f"tokens that no token sees are not computed in this family, {why}")
            unseen = np.array([sequence.unseen for sequence in encoded])
        if len(encoded) == 1:  # nothing to sort or join: a tenth of the time of one short text
            ids, ordered = np.array(encoded[0].input_ids, np.int64), encoded
            texts, lengths = np.zeros(1, np.int64), np.array([len(ids)])
        else:
            lengths = np.fromiter((len(sequence.input_ids) for sequence in encoded), np.int64, len(encoded))
            texts = np.argsort(lengths, kind="stable")
            if unseen is not None:  # sort equal numbers next to each other
                texts = np.lexsort((unseen, lengths))
                unseen = unseen[texts]
            lengths, ordered = lengths[texts], [encoded[i] for i in texts.tolist()]
            ids = _joined_ids([sequence.input_ids for sequence in ordered])
        inputs = Inputs(1, len(ids), {"input_ids": ids[None]})
        packed = Packed(inputs, texts, lengths, unseen=unseen)
        _check(packed, ids, self._vocab, "input_ids")
        words.expect((ids,))
        alike = [inputs]  # the same inputs, one batch for each length
        if len(texts) > 1:
            groups = packed.groups()
            alike = [Inputs(len(group.texts), group.length, {"input_ids": group.select(ids)}) for group in groups]
        if self._masks:
            masks = [self._masks[0].default(batch, self.config) for batch in alike]
            alike = [batch._replace(attention_mask=mask) for batch, mask in zip(alike, masks, strict=True)]
            joined = masks[0] if len(texts) == 1 else _joined(masks, packed)
            packed = packed._replace(inputs=inputs._replace(attention_mask=joined))
        types = self.adds_types and any(sequence.token_type_ids is not None for sequence in ordered)
        for step, rows, lowest in self._lookups:
            if types and step.ids == "token_type_ids":
                type_ids = [sequence.token_type_ids or [0] * len(sequence.input_ids) for sequence in ordered]
                joined_ids = _joined_ids(type_ids)
                _check(packed, joined_ids, rows - step.extra, step.ids, lowest)
                inputs.ids[step.ids] = joined_ids[None]
                continue
            defaults = [step.default(batch, self.config, 0) for batch in alike]
            default = defaults[0] if len(texts) == 1 else _joined(defaults, packed)
            if default is not None:
                inputs.ids[step.ids] = default
        return packed

    def rows(self, packed: Packed, record: Record = None) -> Array:
        """Return the rows of packed tokens, (tokens, dim), with the bits of a call."""
        x: Array = np.empty((1, packed.inputs.seq, self.dim), self.dtype)
        run_steps(self.steps, packed.inputs, x, self._width, record)
        rows: Array = x[0]
        return rows

    @property
    def modules(self) -> dict[str, Any]:
        """Submodules by their path in the reference's base model."""
        return modules_of(self.steps)


def run(steps: tuple[Bound, ...], inputs: Inputs, out: Array, width: int, threads: int | None = None) -> Array:
    """Fill `out` (batch, seq, dim) block by block.

    Each row depends only on its ids, and no equation mixes rows. Therefore the bits are the same for every block size,
    thread count and batch. Blocks are faster: the rows stay in the cache during the nine passes of a BERT layer.
    """
    count = usable_threads(out.size, threads)
    if count > 1 and not any(isinstance(step, (Norm, Project)) for step, _ in steps):
        count = usable_threads(out.size // NORM_TO_SUM_WORK, threads)
    tokens = inputs.batch * inputs.seq
    rows = max(1, min(packing.TILE_NUMBERS // max(width, out.shape[-1]), -(-tokens // count)))
    if tokens <= rows:
        return run_steps(steps, inputs, out, width)

    def work(block: tuple[slice, slice]) -> None:
        run_steps(steps, inputs.tile(*block), out[block], width)

    parallel_for(work, cut(inputs.batch, inputs.seq, rows), count)
    return out


def cut(batch: int, seq: int, rows: int) -> Iterator[tuple[slice, slice]]:
    """Cut (batch, seq) into blocks of about `rows` tokens: whole sequences, or parts of a long one.

    >>> [(batch.start, batch.stop, seq.start, seq.stop) for batch, seq in cut(1, 5, 2)]
    [(0, 1, 0, 2), (0, 1, 2, 4), (0, 1, 4, 5)]
    >>> [(batch.start, batch.stop, seq.start, seq.stop) for batch, seq in cut(3, 2, 4)]
    [(0, 2, 0, 2), (2, 3, 0, 2)]
    """
    tall = max(1, rows // seq) if seq else 1
    for top in range(0, batch, tall):
        for left in range(0, seq, rows):
            yield slice(top, min(top + tall, batch)), slice(left, min(left + rows, seq))


def _joined_ids(rows: list[list[int]]) -> Array:
    return np.fromiter(chain.from_iterable(rows), np.int64)


def _check(packed: Packed, ids: Array, rows: int, name: str, first: int = 0) -> None:
    try:
        check_ids(ids, rows, name, first)
    except IndexError:
        token = int(np.flatnonzero((ids < first) | (ids >= rows))[0])
        i = int(np.searchsorted(packed.starts, token, side="right")) - 1
        check_ids(ids[token], rows, f"{name}[{packed.texts[i]}, {token - packed.starts[i]}]", first)
        raise


def _joined(defaults: Sequence[Any], packed: Packed) -> Any:
    """Join default ids, one value for each length: a number, arrays, or slices that differ only in their end."""
    if not defaults or defaults[0] is None or isinstance(defaults[0], int):
        return defaults[0] if defaults else None
    if isinstance(defaults[0], slice):
        return (packed.where()[1] + defaults[0].start)[None]
    return np.concatenate([ids.reshape(-1) for ids in defaults])[None]


def _count(past_length: Any) -> int:
    """Return any integer as an int. Raises TypeError for a bool or float, ValueError beyond the limits."""
    if isinstance(past_length, bool) or not isinstance(past_length, int | np.integer):
        raise TypeError(f"past_length must be an integer, found {type(past_length).__name__} {past_length!r}")
    if not 0 <= past_length < LONGEST_PAST:
        raise ValueError(f"past_length must be >= 0 and no more than a cache can hold, found {past_length}")
    return int(past_length)


def _batch_of(shape: tuple[int, ...], name: str, expected: str) -> tuple[bool, tuple[int, int]]:
    if len(shape) == 2:
        return False, (shape[0], shape[1])
    if len(shape) == 1:
        return True, (1, shape[0])
    raise ValueError(f"{name} must be {expected} or one sequence of it, found {len(shape)} axes of shape {shape}")


def _numbers(value: Any, name: str, dtype: np.dtype[Any] | None) -> Array:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise TypeError(f"{name}: every row must have the same length ({error})") from None
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must be numbers, found {array.dtype}")
    return array if dtype is None else array.astype(dtype, copy=False)


def modules_of(steps: Sequence[Bound]) -> dict[str, Any]:
    """Return the modules of the steps that have one, by their path."""
    return {step.path: module for step, module in steps if callable(module)}
