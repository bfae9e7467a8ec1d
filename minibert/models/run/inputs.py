"""Checks what a caller passed and adds the family's defaults; code after this file never sees a wrong id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from minibert.equations.input_layer import Array, check_ids
from minibert.errors import Option, error_of
from minibert.families.family import Family
from minibert.families.parts.config import Config
from minibert.families.parts.steps import Bound, Inputs, Positions

from .packing import TextPacker

NONE_CACHED = 0
ONES = "attention_mask must hold 1 for a token and 0 for padding; an additive mask is not supported"
LONGEST_PAST = 2**31  # tokens; far more than any cache holds, and sums with it stay in 64 bits


class Preparation(TextPacker):
    """Checks and completes the arguments of one layer; whatever depends on the layer alone is worked out once."""

    def __init__(self, family: Family, config: Config, steps: Sequence[Bound], dtype: np.dtype[Any]) -> None:
        super().__init__(config, steps)
        self._family, self._dtype = family, dtype
        self._embeds_shape = f"(batch, seq, {self._width})"
        self._counted = any(isinstance(step, Positions) and step.rule == "mask" for step, _, _ in self._steps)

    def __call__(
        self,
        input_ids: ArrayLike | None,
        given: Mapping[str, Any],
        attention_mask: ArrayLike | None = None,
        past_length: int = NONE_CACHED,
        inputs_embeds: ArrayLike | None = None,
    ) -> tuple[Inputs, bool]:
        """Make the checked inputs of one call, and say whether a single sequence (seq,) was passed.

        Raises TypeError (floats, ragged lists, an argument this family has no use for), IndexError (an id past its
        table), ValueError (shapes that disagree, a sequence too long, both or neither of ids and inputs_embeds).
        """
        if (input_ids is None) == (inputs_embeds is None):
            found = "neither" if input_ids is None else "both"
            raise ValueError(f"pass input_ids (batch, seq) or inputs_embeds {self._embeds_shape}, found {found}")
        past_length = past_length if past_length is NONE_CACHED else _count(past_length)
        if input_ids is not None:
            if not isinstance(input_ids, np.ndarray) and isinstance(input_ids, str | Mapping):
                found = "a text" if isinstance(input_ids, str) else "a mapping"
                raise TypeError(f"input_ids must be integers, found {found}; try layer(**layer.tokenize(text))")
            ids = check_ids(input_ids, self._vocab, "input_ids")
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
            raise ValueError(ONES)
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
        for step, rows, lowest in self._steps:
            value = given.get(step.ids)
            if value is None:
                default: Any = step.default(inputs, self._config, past_length)
                if default is not None:
                    inputs.ids[step.ids] = default
                if isinstance(step, Positions) and inputs.seq:
                    end = default.stop if isinstance(default, slice) else int(default.max(initial=-1)) + 1
                    if end + step.extra > rows:
                        raise _too_long(inputs.seq, past_length, rows - step.extra - step.first(self._config))
                continue
            ids = check_ids(value, rows - step.extra, step.ids, lowest)
            ids = ids[None] if ids.ndim == 1 else ids
            if ids.shape != shape and not (ids.ndim == 2 and ids.shape == (1, inputs.seq)):
                raise ValueError(f"{step.ids} must be {shape} as the ids are, found shape {np.shape(value)}")
            inputs.ids[step.ids] = ids


def _count(past_length: Any) -> int:
    """Take any integer, NumPy's too, but no bool and no float."""
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


def _too_long(tokens: int, past_length: int, limit: int) -> ValueError:
    """The error for a sequence that counts past the end of the position table."""
    past = f" after {past_length} cached ones" if past_length else ""
    return error_of(
        ValueError,
        f"a sequence of {tokens} tokens{past} is too long: the position table ends at {limit} tokens; "
        "shorten it, or tokenize with ",
        Option("truncation", True),
    )
