"""Formulas as ports get them wrong, each the whole of a step: norms, heads, softmax, numbers in narrower formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np

from minibert.equations.blocks import softmax, split_heads
from minibert.equations.input_layer import Array
from minibert.files.tables import convert, narrowed

Formula = Callable[[Array], Array]
NormFormula = Callable[[Array, float], Array]  # x and eps -> what weight and bias are then applied to

TINY = 1e-9  # below a sum, so that nothing is divided by 0


def one_after_another(first: Formula, second: Formula, x: Array) -> Array:
    """What the second makes of what the first gives."""
    return second(first(x))


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


def not_rooted(x: Array, eps: float) -> Array:
    """(x - mean) / (variance + eps)."""
    return np.asarray((x - mean(x)) / (x.var(axis=-1, keepdims=True) + eps))


def not_centred(x: Array, eps: float) -> Array:
    """x / sqrt(variance + eps), with the variance of x - mean."""
    return np.asarray(x / np.sqrt(x.var(axis=-1, keepdims=True) + eps))


def root_mean_square(x: Array, eps: float, less: int = 0) -> Array:
    """x / sqrt(sum of x^2 / (dim - less) + eps): the mean is not subtracted."""
    return np.asarray(x / np.sqrt((x * x).sum(axis=-1, keepdims=True) / (x.shape[-1] - less) + eps))


def mean_square(x: Array, eps: float) -> Array:
    """(x - mean) / sqrt(E[x^2] + eps)."""
    return np.asarray((x - mean(x)) / np.sqrt(mean(x * x) + eps))


def rms_eps_outside(x: Array, eps: float) -> Array:
    """x / (sqrt(E[x^2]) + eps)."""
    return np.asarray(x / (np.sqrt(mean(x * x)) + eps))


def sum_of_squares(x: Array, eps: float) -> Array:
    """x / sqrt(sum of x^2 + eps)."""
    return np.asarray(x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + eps))


def centred_sum_of_squares(x: Array, eps: float) -> Array:
    """(x - mean) / sqrt(sum of (x - mean)^2 + eps)."""
    return sum_of_squares(x - mean(x), eps)


def over_axes(axes: tuple[int, ...], rms: bool, x: Array, eps: float) -> Array:
    """The formula of LayerNorm or RMSNorm over other axes."""
    axes = axes if x.ndim < 4 else axes[:1]  # all numbers of all heads have another name
    centred = x if rms else x - x.mean(axis=axes, keepdims=True)
    return np.asarray(centred / np.sqrt((centred * centred).mean(axis=axes, keepdims=True) + eps))


# -- heads and softmax -------------------------------------------------------------------------------------------


def softmax_over(axis: int, scores: Array) -> Array:
    """Softmax along another axis of (batch, heads, query, key)."""
    return np.swapaxes(softmax(np.swapaxes(scores, axis, -1)), axis, -1)


def softmax_over_both(scores: Array) -> Array:
    """Over queries and keys together."""
    return softmax(scores.reshape(*scores.shape[:-2], -1)).reshape(scores.shape)


def sigmoid(scores: Array) -> Array:
    """Of each score by itself."""
    return np.asarray(1 / (1 + np.exp(-np.clip(scores, -80, 80))))


def softmax_off_by_one(after: bool, scores: Array) -> Array:
    """One more in the sum, as of one more score of 0: `after` the largest score is subtracted, or before."""
    top = scores.max(axis=-1, keepdims=True)
    y = np.exp(scores - top)
    return np.asarray(y / (y.sum(axis=-1, keepdims=True) + (1 if after else np.exp(-top))))


def relu(divided: bool, scores: Array) -> Array:
    """What is above 0 of each score; `divided` by the sum of these."""
    y = np.maximum(scores, 0)
    return np.asarray(y / np.maximum(y.sum(axis=-1, keepdims=True), TINY) if divided else y)


def capped(most: float, scores: Array) -> Array:
    """most * tanh(scores / most)."""
    return np.asarray(np.tanh(scores / scores.dtype.type(most)) * scores.dtype.type(most))


def join_interleaved(x: Array) -> Array:
    """(batch, heads, seq, head_dim) -> (batch, seq, dim), the heads' first numbers side by side, then their second."""
    batch, heads, seq, head_dim = x.shape
    return x.transpose(0, 2, 3, 1).reshape(batch, seq, heads * head_dim)


def without_head(which: int, x: Array) -> Array:
    """Zeros for one of (batch, heads, seq, head_dim)."""
    made = x.copy()
    made[:, which] = 0
    return made


def in_reverse(x: Array) -> Array:
    """The last one of (batch, heads, seq, head_dim) first."""
    return x[:, ::-1]


def split_without_transposing(x: Array, heads: int) -> Array:
    """(batch, seq, dim) read as (batch, heads, seq, head_dim)."""
    return x.reshape(x.shape[0], heads, x.shape[1], x.shape[2] // heads)


def split_in_reverse(x: Array, heads: int) -> Array:
    """The last numbers to the first head."""
    return in_reverse(split_heads(x, heads))


def split_interleaved(x: Array, heads: int) -> Array:
    """Every heads-th number to one head."""
    return np.moveaxis(x.reshape(*x.shape[:-1], x.shape[-1] // heads, heads), -1, -3)


def join_without_transposing(x: Array) -> Array:
    """(batch, heads, seq, head_dim) read as (batch, seq, dim)."""
    batch, heads, seq, head_dim = x.shape
    return x.reshape(batch, seq, heads * head_dim)


# -- narrower numbers --------------------------------------------------------------------------------------------


def to_float16(x: Array) -> Array:
    """Round to float16; what is too large becomes infinite."""
    with np.errstate(over="ignore"):
        return x.astype(np.float32).astype(np.float16).astype(np.float32)


def to_bfloat16(x: Array) -> Array:
    """Round to bfloat16."""
    return convert(narrowed(x.astype(np.float32), "BF16"), "BF16", np.dtype(np.float32))


def to_int8(x: Array) -> Array:
    """Round each row to 255 steps of its largest number."""
    step = np.abs(x).max(-1, keepdims=True) / 127
    return np.asarray(np.rint(x / np.where(step == 0, 1, step)) * step, np.float32)


def to_int8_blocks(x: Array, block: int = 32) -> Array:
    """The same for each 32 numbers of a row."""
    if x.shape[-1] % block:
        return to_int8(x)
    return to_int8(x.reshape(*x.shape[:-1], -1, block)).reshape(x.shape)


def to_int8_whole(x: Array) -> Array:
    """The same for a whole matrix."""
    return to_int8(x.reshape(1, -1)).reshape(x.shape)


ROUNDINGS: Mapping[str, Formula] = {
    "float16": to_float16,
    "bfloat16": to_bfloat16,
    "int8, a scale for each row": to_int8,
    "int8, a scale for each 32": to_int8_blocks,
    "int8, one scale": to_int8_whole,
}

EACH_ROW = "A norm is of each row by itself, over the last axis."
OTHER_AXES = {"norm over the axis before the last": (-2,), "norm over the last two axes": (-2, -1)}
LAYER_NORMS: Mapping[str, tuple[NormFormula, str]] = {
    "variance divided by dim - 1": (
        partial(right, less=1), "LayerNorm divides by dim; only a sample's estimate divides by dim - 1."),
    "eps outside the root": (eps_outside, "eps is added to the variance, not to its root."),
    "variance divided by dim - 1, eps outside the root": (
        partial(eps_outside, less=1), "What `std(-1) + eps` gives in torch, and many tutorials print."),
    "variance in one pass": (one_pass, "E[x^2] - E[x]^2 cancels where the mean is large."),
    "RMSNorm for LayerNorm": (root_mean_square, "T5 and Llama do not subtract the mean; this norm does."),
    "mean square for variance": (mean_square, "The variance is that of x - mean."),
    "variance without the root": (not_rooted, "Each row is divided by the root of its variance."),
    "mean not subtracted": (not_centred, "LayerNorm subtracts the mean of each row, not only in the variance."),
    "sum of squares for their mean": (centred_sum_of_squares, "The variance is a mean."),
    **{name: (partial(over_axes, axes, False), EACH_ROW) for name, axes in OTHER_AXES.items()},
    "not divided by the standard deviation": (lambda x, eps: x - mean(x), "Each row is divided by its deviation."),
}  # fmt: skip
RMS_NORMS: Mapping[str, tuple[NormFormula, str]] = {
    "eps outside the root": (rms_eps_outside, "eps is added to the mean square, not to its root."),
    "mean square without the root": (
        lambda x, eps: x / (mean(x * x) + eps),
        "RMSNorm divides by the root of the mean square.",
    ),
    "sum of squares for their mean": (sum_of_squares, "RMSNorm divides by the root of the mean square."),
    **{name: (partial(over_axes, axes, True), EACH_ROW) for name, axes in OTHER_AXES.items()},
    "mean square divided by dim - 1": (partial(root_mean_square, less=1), "RMSNorm divides by dim."),
    "mean subtracted in RMSNorm": (right, "RMSNorm divides by the root of the mean square; the mean stays."),
}


FORMATS = {"numbers in float16": (to_float16, 2**-9), "numbers in bfloat16": (to_bfloat16, 2**-6)}
IN_COLUMN = 0.9  # share of each column that is as near as the format rounds; one wrong value of a bias is a column


def format_of(pairs: Iterable[tuple[Array, Array]]) -> str:
    """The narrower format that all of theirs are in, and right in, beside ours; "" for none."""
    several = list(pairs)
    found = (name for name, (rounding, share) in FORMATS.items() if all(_is_in(rounding, share, *x) for x in several))
    return next(found, "")


def share_of_format(several: Iterable[Array]) -> float:
    """How far right numbers of theirs may be off as a share, by the narrower format that all are in; 0 for none."""
    theirs = list(several)
    return max((share for rounding, share in FORMATS.values() if all(_holds(rounding, x) for x in theirs)), default=0.0)


def _holds(rounding: Formula, theirs: Array) -> bool:
    x = np.where(np.isfinite(theirs), theirs, 0).astype(np.float32)
    return theirs.dtype.kind == "f" and bool(np.isfinite(theirs).any()) and np.array_equal(rounding(x), x)


def _is_in(rounding: Formula, share: float, theirs: Array, ours: Array) -> bool:
    if theirs.shape != ours.shape or not _holds(rounding, theirs):
        return False
    near = np.abs(theirs - ours) <= share * np.maximum(np.abs(ours), np.sqrt(np.mean(ours**2)))
    return bool((near | ~np.isfinite(theirs)).reshape(-1, theirs.shape[-1]).mean(0).min(initial=1) >= IN_COLUMN)
