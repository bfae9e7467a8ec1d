"""Checks what a caller passed and adds the family's defaults; code after this file never sees a wrong id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.input_layer import Array, check_ids
from minibert.errors import Option, worded
from minibert.families.config import Config
from minibert.families.family import Family
from minibert.families.steps import Inputs, Lookup, Mask, Positions

from .pipeline import Packed
from .tiles import Bound

LONGEST_PAST = 2**31  # tokens; far more than any cache holds, and sums with it stay in 64 bits


class Preparation:
    """Checks and completes what is passed to one layer; whatever depends on the layer alone is worked out once."""

    def __init__(self, family: Family, config: Config, steps: Sequence[Bound], dtype: np.dtype[Any]) -> None:
        self._family, self._config, self._dtype = family, config, dtype
        self._rows, self._width = steps[0].module.table.shape
        self._embeds_shape = f"(batch, seq, {self._width})"
        self._lookups = [
            (step, module.table.shape[0])
            for step, module in steps
            if isinstance(step, Lookup) and step.ids != "input_ids"
        ]
        self._masks = [step for step, _ in steps if isinstance(step, Mask)]
        self._counted = any(isinstance(step, Positions) and step.rule == "mask" for step, _ in steps)

    def __call__(
        self,
        input_ids: ArrayLike | None,
        given: Mapping[str, Any],
        attention_mask: ArrayLike | None = None,
        past_length: int = 0,
        inputs_embeds: ArrayLike | None = None,
    ) -> tuple[Inputs, bool]:
        """Make the checked inputs of one call, and say whether a single sequence (seq,) was passed.

        Raises TypeError (floats, ragged lists, an argument this family has no use for), IndexError (an id past its
        table), ValueError (shapes that disagree, a sequence too long, both or neither of ids and inputs_embeds).
        """
        if (input_ids is None) == (inputs_embeds is None):
            found = "neither" if input_ids is None else "both"
            raise ValueError(f"pass input_ids (batch, seq) or inputs_embeds {self._embeds_shape}, found {found}")
        past_length = _count(past_length)
        if input_ids is not None:
            if not isinstance(input_ids, np.ndarray) and isinstance(input_ids, str | Mapping):
                found = "a text" if isinstance(input_ids, str) else "a mapping"
                raise TypeError(f"input_ids must be integers, found {found}; try layer(**layer.tokenize(text))")
            ids = check_ids(input_ids, self._rows, "input_ids")
            single, shape = _batch_of(ids.shape, "input_ids", "(batch, seq)")
            inputs = Inputs(*shape, {"input_ids": ids.reshape(shape)})
        else:
            embeds = _numbers(inputs_embeds, "inputs_embeds", self._dtype)
            if embeds.ndim == 0 or embeds.shape[-1] != self._width:
                raise ValueError(f"inputs_embeds must be {self._embeds_shape}, found shape {embeds.shape}")
            single, shape = _batch_of(embeds.shape[:-1], "inputs_embeds", self._embeds_shape)
            inputs = Inputs(*shape, {}, embeds.reshape(*shape, self._width))
        if attention_mask is not None:
            self._check_mask(inputs, attention_mask, past_length)
        elif self._masks:
            inputs.attention_mask = self._masks[0].default(inputs, self._config)
        self._take_ids(inputs, given, past_length)
        for name, value in given.items():
            if value is not None and name not in inputs.ids and not self._family.accepts(name):
                raise TypeError(f"{self._family.model_type} takes no {name} in its input layer; leave it out")
        if not self._masks:
            inputs.attention_mask = None  # positions have read it; no step will
        return inputs, single

    def packed(self, packed: Packed) -> Inputs:
        """Complete the ids of texts, as a call does for sequences without padding: all tokens as one long sequence."""
        ids = _checked_in(packed, packed.ids, self._rows, "input_ids")
        inputs = Inputs(1, len(ids), {"input_ids": ids[None]})
        batches = [inputs]
        if len(packed.texts) > 1:
            batches = [Inputs(len(each.texts), each.length, {"input_ids": each.of(ids)}) for each in packed.batches()]
        if self._masks:
            for batch in batches:
                batch.attention_mask = self._masks[0].default(batch, self._config)
            inputs.attention_mask = _joined([batch.attention_mask for batch in batches], packed.lengths)
        for step, rows in self._lookups:
            if step.ids == "token_type_ids" and packed.types is not None:
                types = _checked_in(packed, packed.types, rows - step.extra, step.ids, step.lowest())
                inputs.ids[step.ids] = types[None]
                continue
            default = _joined([step.default(batch, self._config, 0) for batch in batches], packed.lengths)
            if default is not None:
                inputs.ids[step.ids] = default
        return inputs

    def _check_mask(self, inputs: Inputs, given: ArrayLike, past_length: int) -> None:
        """Check the attention mask; keep it only where a step uses it."""
        used = bool(self._masks) or self._counted
        mask = _numbers(given, "attention_mask", self._dtype if used else None)
        mask = mask[None] if mask.ndim == 1 else mask
        # a mask that multiplies rows is as long as they are; one that is not used may leave the cached tokens out
        longest = inputs.seq if self._masks else inputs.seq + past_length
        if mask.ndim != 2 or mask.shape[0] != inputs.batch or mask.shape[1] not in (inputs.seq, longest):
            raise ValueError(
                f"attention_mask must be ({inputs.batch}, {longest}), as long as past and ids together, "
                f"found shape {mask.shape}"
            )
        if used and not np.isin(mask, (0, 1)).all():
            raise ValueError(
                "attention_mask must hold 1 for a token and 0 for padding; an additive mask is another thing"
            )
        if self._counted and mask.shape[1] != inputs.seq + past_length:
            raise ValueError(
                f"attention_mask must cover the cached tokens too: expected ({inputs.batch}, "
                f"{inputs.seq + past_length}), found {mask.shape}"
            )
        if used:
            inputs.attention_mask = mask

    def _take_ids(self, inputs: Inputs, given: Mapping[str, Any], past_length: int) -> None:
        """Check every kind of ids the steps look up, or fill in the family's default."""
        shape = (inputs.batch, inputs.seq)
        for step, rows in self._lookups:
            value = given.get(step.ids)
            if value is None:
                default = step.default(inputs, self._config, past_length)
                if default is not None:
                    inputs.ids[step.ids] = default
                if isinstance(step, Positions):
                    _check_length(step, rows, inputs, default, past_length, self._config)
                continue
            ids = check_ids(value, rows - step.extra, step.ids, step.lowest())
            ids = ids[None] if ids.ndim == 1 else ids
            if ids.shape != shape and not (ids.ndim == 2 and ids.shape == (1, inputs.seq)):
                raise ValueError(f"{step.ids} must be {shape} as the ids are, found shape {np.shape(value)}")
            inputs.ids[step.ids] = ids


def _checked_in(packed: Packed, ids: Array, rows: int, name: str, first: int = 0) -> Array:
    """Check the ids of packed tokens. An error names the text and the place in it."""
    try:
        return check_ids(ids, rows, name, first)
    except IndexError:
        token = int(np.flatnonzero((ids < first) | (ids >= rows))[0])
        starts = np.cumsum(packed.lengths) - packed.lengths
        i = int(np.searchsorted(starts, token, side="right")) - 1
        check_ids(ids[token], rows, f"{name}[{packed.texts[i]}, {token - starts[i]}]", first)
        raise


def _joined(defaults: Sequence[Any], lengths: Array) -> Any:
    """Join what stands for each batch of texts: a number, arrays, or a slice, of as many numbers as a text has tokens.

    A slice is the same for every length, but for its end.
    """
    if len(lengths) == 1 or not defaults or defaults[0] is None or isinstance(defaults[0], int):
        return defaults[0] if defaults else None
    if isinstance(defaults[0], slice):
        starts = np.cumsum(lengths) - lengths
        return (np.arange(lengths.sum()) - np.repeat(starts - defaults[0].start, lengths))[None]
    return np.concatenate([each.reshape(-1) for each in defaults])[None]


def _count(past_length: Any) -> int:
    """Take any integer, NumPy's too, but no bool and no float."""
    if type(past_length) is int and past_length == 0:  # nearly every call; what follows takes longer than a lookup
        return 0
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


def _check_length(step: Positions, rows: int, inputs: Inputs, ids: Any, past_length: int, config: Config) -> None:
    """Refuse a sequence that counts past the end of the position table."""
    if not inputs.seq or (not isinstance(ids, slice) and not ids.size):
        return
    last = ids.stop - 1 if isinstance(ids, slice) else int(ids.max())
    if last + step.extra >= rows:
        limit = rows - step.extra - step.first(config)
        past = f" after {past_length} cached ones" if past_length else ""
        raise worded(
            ValueError,
            f"a sequence of {inputs.seq} tokens{past} is too long: the position table ends at {limit} tokens; "
            "shorten it, or tokenize with ",
            Option("truncation", True),
        )
