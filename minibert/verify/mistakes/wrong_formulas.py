"""Formulas as ports get them wrong, each the whole of a step: norms, heads, softmax, numbers in narrower formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from minibert.equations.blocks import softmax
from minibert.equations.input_layer import Array
from minibert.files.tables import convert, narrowed

Formula = Callable[[Array], Array]
NormFormula = Callable[[Array, float], Array]  # x and eps -> what weight and bias are then applied to


# -- norms -------------------------------------------------------------------------------------------------------


def mean(x: Array) -> Array:
    """Of each row: (..., dim) -> (..., 1)."""
    return np.asarray(x.mean(axis=-1, keepdims=True))


def right(x: Array, eps: float, less: int = 0) -> Array:
    """(x - mean) / sqrt(sum of squares / (dim - less) + eps)."""
    return np.asarray((x - mean(x)) / np.sqrt(x.var(axis=-1, keepdims=True, ddof=less) + eps))


def eps_outside(x: Array, eps: float, less: int = 0) -> Array:
    """(x - mean) / (sqrt(sum of squares / (dim - less)) + eps)."""
    return np.asarray((x - mean(x)) / (x.std(axis=-1, keepdims=True, ddof=less) + eps))


def one_pass(x: Array, eps: float) -> Array:
    """variance = E[x^2] - E[x]^2, in x's own dtype."""
    return np.asarray((x - mean(x)) / np.sqrt(np.maximum(mean(x * x) - mean(x) ** 2, 0) + eps))


def root_mean_square(x: Array, eps: float) -> Array:
    """x / sqrt(E[x^2] + eps): the mean is not subtracted."""
    return np.asarray(x / np.sqrt(mean(x * x) + eps))


def rms_eps_outside(x: Array, eps: float) -> Array:
    """x / (sqrt(E[x^2]) + eps)."""
    return np.asarray(x / (np.sqrt(mean(x * x)) + eps))


# -- heads and softmax -------------------------------------------------------------------------------------------


def softmax_over(axis: int, scores: Array) -> Array:
    """Softmax along another axis of (batch, heads, query, key)."""
    return np.swapaxes(softmax(np.swapaxes(scores, axis, -1)), axis, -1)


def join_without_transposing(x: Array) -> Array:
    """(batch, heads, seq, head_dim) read as (batch, seq, dim)."""
    batch, heads, seq, head_dim = x.shape
    return x.reshape(batch, seq, heads * head_dim)


# -- narrower numbers --------------------------------------------------------------------------------------------


def to_float16(x: Array) -> Array:
    """Round to float16; numbers that are too large become infinite."""
    with np.errstate(over="ignore"):
        return x.astype(np.float32).astype(np.float16).astype(np.float32)


def to_bfloat16(x: Array) -> Array:
    """Round to bfloat16."""
    return convert(narrowed(x.astype(np.float32), "BF16"), "BF16", np.dtype(np.float32))


def to_int8(x: Array) -> Array:
    """Round each row to 255 steps of its largest number."""
    step = np.abs(x).max(-1, keepdims=True) / 127
    return np.asarray(np.rint(x / np.where(step == 0, 1, step)) * step, np.float32)


ROUNDINGS: Mapping[str, Formula] = {"float16": to_float16, "bfloat16": to_bfloat16}

LAYER_NORMS: Mapping[str, tuple[NormFormula, str]] = {
    "variance divided by dim - 1": (
        partial(right, less=1), "LayerNorm divides by dim; only a sample's estimate divides by dim - 1."),
    "eps outside the root": (eps_outside, "eps is added to the variance, not to its root."),
    "variance divided by dim - 1, eps outside the root": (
        partial(eps_outside, less=1), "`std(-1) + eps` of torch gives this, as many tutorials print it."),
    "variance in one pass": (one_pass, "E[x^2] - E[x]^2 cancels where the mean is large."),
    "RMSNorm for LayerNorm": (root_mean_square, "T5 and Llama do not subtract the mean; this norm does."),
}  # fmt: skip
RMS_NORMS: Mapping[str, tuple[NormFormula, str]] = {
    "eps outside the root": (rms_eps_outside, "eps is added to the mean square, not to its root."),
    "mean subtracted in RMSNorm": (right, "RMSNorm divides by the root of the mean square; the mean stays."),
}
