"""Steps that compute the classic mistakes of an input layer; `mistakes` puts them into rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minibert.equations.input_layer import default_position_ids, mask_position_ids, scale
from minibert.families.config import Config
from minibert.families.frozen import replace
from minibert.families.modules import Embedding, LayerNorm
from minibert.families.steps import Ids, Inputs, Mask, Norm, Positions, Record, Scale, Tokens

Array = NDArray[Any]
Formula = Callable[[Array, Array, "Array | None", float], Array]


class OtherNorm(Norm):
    """A norm by another formula."""

    formula: Formula

    def apply(self, module: LayerNorm, inputs: Inputs, x: Array, record: Record = None) -> Array:
        if record:
            record("sum", x)
        x = self.formula(x, module.weight, module.bias, module.eps)
        if record:
            record(self.path, x)
        return x


def unbiased(x: Array, weight: Array, bias: Array | None, eps: float) -> Array:
    """(x - mean) / sqrt(sum of squares / (dim - 1) + eps)."""
    return _affine((x - _mean(x)) / np.sqrt(x.var(axis=-1, keepdims=True, ddof=1) + eps), weight, bias)


def eps_outside(x: Array, weight: Array, bias: Array | None, eps: float) -> Array:
    """(x - mean) / (sqrt(variance) + eps)."""
    return _affine((x - _mean(x)) / (x.std(axis=-1, keepdims=True) + eps), weight, bias)


def unbiased_eps_outside(x: Array, weight: Array, bias: Array | None, eps: float) -> Array:
    """(x - mean) / (sqrt(sum of squares / (dim - 1)) + eps)."""
    return _affine((x - _mean(x)) / (x.std(axis=-1, keepdims=True, ddof=1) + eps), weight, bias)


def one_pass(x: Array, weight: Array, bias: Array | None, eps: float) -> Array:
    """variance = E[x^2] - E[x]^2, in x's own dtype."""
    variance = np.maximum(_mean(x * x) - _mean(x) ** 2, 0)
    return _affine((x - _mean(x)) / np.sqrt(variance + eps), weight, bias)


def no_affine(x: Array, weight: Array, bias: Array | None, eps: float) -> Array:
    """weight 1 and bias 0."""
    return _affine((x - _mean(x)) / np.sqrt(x.var(axis=-1, keepdims=True) + eps), np.ones_like(weight), None)


def root_mean_square(x: Array, weight: Array, bias: Array | None, eps: float) -> Array:
    """x / sqrt(E[x^2] + eps): the mean is not taken away."""
    return _affine(x / np.sqrt(_mean(x * x) + eps), weight, bias)


def _mean(x: Array) -> Array:
    mean: Array = x.mean(axis=-1, keepdims=True)
    return mean


def _affine(y: Array, weight: Array, bias: Array | None) -> Array:
    y = y * weight
    return y if bias is None else y + bias


class RoundedLate(Tokens):
    """Word rows times a float64 factor."""

    def apply(self, module: Embedding, inputs: Inputs, x: Array, record: Record = None) -> Array:
        if inputs.inputs_embeds is not None or module.scale == 1.0:
            return super().apply(module, inputs, x, record)
        x[...] = module.table.rows(_array(inputs.ids["input_ids"])).astype(np.float64) * module.scale
        if record:
            record(self.path, x)
        return x


class ScaleRoundedLate(Scale):
    """x times a float64 factor."""

    def apply(self, module: float, inputs: Inputs, x: Array, record: Record = None) -> Array:
        if not self.embeds and inputs.inputs_embeds is not None:
            return x
        x[...] = x.astype(np.float64) * module
        if record:
            record(self.path, x)
        return x


class EmbedsScaledToo(Tokens):
    """The scale of the word module applied to the caller's inputs_embeds too."""

    def apply(self, module: Embedding, inputs: Inputs, x: Array, record: Record = None) -> Array:
        x = super().apply(module, inputs, x, record)
        return x if inputs.inputs_embeds is None else scale(x, module.scale, out=x)


class ZeroPadding(Tokens):
    """The row of padding read as zeros."""

    def apply(self, module: Embedding, inputs: Inputs, x: Array, record: Record = None) -> Array:
        x = super().apply(module, inputs, x)
        if inputs.inputs_embeds is None and module.padding_idx is not None:
            x[_array(inputs.ids["input_ids"]) == module.padding_idx] = 0
        if record and inputs.inputs_embeds is None:
            record(self.path, x)
        return x


class NoOffset(Positions):
    """Positions looked up without the rows that the table has in front."""

    def apply(self, module: Embedding, inputs: Inputs, x: Array, record: Record = None) -> Array:
        return Positions.apply(replace(self, extra=0), module, inputs, x, record)


class PaddingCounted(Positions):
    """RoBERTa's first position, but padding counted like any token."""

    def default(self, given: Inputs, config: Config, past_length: int) -> Ids | None:
        start = self.first(config) + (past_length if self.cached else 0)
        return slice(start, start + given.seq)


class CountedByIds(Positions):
    """OPT's rule with a mask made from the ids."""

    def default(self, given: Inputs, config: Config, past_length: int) -> Ids | None:
        if given.inputs_embeds is not None:
            return super().default(given, config, past_length)
        real = _array(given.ids["input_ids"]) != config.integer("pad_token_id")
        before = np.ones((given.batch, past_length), bool)
        return mask_position_ids(np.concatenate([before, real], axis=1), past_length)


class CountedAsGenerate(Positions):
    """Positions that `generate()` passes: cumsum(mask) - 1, and 0 where masked."""

    def default(self, given: Inputs, config: Config, past_length: int) -> Ids | None:
        positions = super().default(given, config, past_length)
        return np.maximum(positions, 0) if isinstance(positions, np.ndarray) else positions


class AddedSinusoids(Positions):
    """Sinusoids where the model adds none."""

    longest: int = 4096

    def shape(self, config: Config) -> tuple[int, int]:
        return self.longest, config.integer(self.width)


class UnappliedMask(Mask):
    """Rows of padding left as they are."""

    def apply(self, module: None, inputs: Inputs, x: Array, record: Record = None) -> Array:
        if record:
            record(self.path, x)
        return x


def sinusoids_in_float32(rows: int, dim: int) -> Array:
    """Marian's table with angles computed in float32."""
    exponent = np.float32(2) * (np.arange(dim) // 2).astype(np.float32) / np.float32(dim)
    angle = default_position_ids(rows)[0][:, None].astype(np.float32) / np.float32(10000) ** exponent
    return np.concatenate([np.sin(angle[:, 0::2]), np.cos(angle[:, 1::2])], axis=1)


def _array(ids: Ids) -> Array:
    assert isinstance(ids, np.ndarray)  # input_ids always are
    return ids
