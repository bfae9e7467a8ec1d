"""What is done to finished vectors, many at once: centred over a batch, zeros at their end, zeros for an empty text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.sentences import dot, normalized

from .vector_endings import NAMES, name_of
from .vector_recipes import Maker, distances

BATCHES = (8, 16, 32, 64, 128)  # texts of one request; all at once as well
NEAR = 1e-4  # of a vector's length: what is left of it after its mean is taken off is smaller, and its rounding is not
EIGHT_BITS, HALF = (127, 128, 255, 256), 0.501  # factors that make whole numbers of eight bits, and how far these are
NEGATED, TIMES = "vectors negated", "vectors X times as large"
AS_WHOLE = "vectors X times as large, rounded to whole numbers"
OVER_BATCH = "Compute each text's vector from this text alone."
ZEROS = "zeros appended"
REMEDIES = {
    NEGATED: "Give the model's own numbers: a product with another vector has the other sign.",
    TIMES: "Give the model's own numbers, without a factor.",
    AS_WHOLE: "Divide them by the factor where they are read, or give floats.",
    ZEROS: "Give the model's own numbers alone.",
    "the empty text as zeros": "An empty text has its special tokens, and these have a vector.",
    "the empty text as NaN": "An empty text has its special tokens, and these have a vector.",
    "random": "The same text has two vectors, and no padding explains it: compute them without noise, and with dropout "
    "off (in torch by `model.eval()`); or a vector depends on the texts beside it.",
}


def _divided(x: Array, by: Array) -> Array:
    """A dimension that is the same in all texts stays zero."""
    return np.asarray(x / np.where(by == 0, 1, by))


def _standard(x: Array, less: int = 0, under: float = 0.0, beside: float = 0.0) -> Array:
    """(x - mean) / (sqrt(variance + under) + beside), each dimension by itself."""
    return _divided(x - x.mean(0), np.sqrt(x.var(0, ddof=min(less, len(x) - 1)) + under) + beside)


STANDARD = "normalized over the batch"
OVER: Sequence[tuple[str, Callable[[Array], Array]]] = (
    ("centred over the batch", lambda x: np.asarray(x - x.mean(0))),
    *((STANDARD, partial(_standard, less=less, under=under, beside=beside))
      for less in (0, 1) for under, beside in ((0.0, 0.0), (1e-5, 0.0), (0.0, 1e-5))),
    ("each dimension divided by its length over the batch", lambda x: _divided(x, np.sqrt((x * x).sum(0)))),
    ("divided by the length of all vectors together", lambda x: _divided(x, np.sqrt((x * x).sum()))),
)  # fmt: skip


def over_batches(right: Array, vectors: Array, maker: Maker, texts: Sequence[str]) -> list[str]:
    """Name what explains all vectors if it is done to all of them together, or to those of each request."""
    if len(right) < 3 or right.shape != vectors.shape or _equal(right, vectors):
        return []
    spread = np.ptp(right, axis=0)
    same = spread > NEAR * np.median(spread)  # others are divided by what is nothing but rounding, or by zero
    if not same.any():
        return []  # vectors that are all the same show nothing of a batch
    before = {"": right}
    for i, step in enumerate(maker.own.after):
        if name_of(step) == NAMES["normalized"]:
            recipe = maker.right._replace(without=i)
            before[" + vectors not normalized"] = np.concatenate([maker.vectors(text, recipe) for text in texts])
    found = list[str]()
    for name, change in OVER:
        for more, x in before.items():
            for made in _in_batches(change, x.astype(np.float64)):
                said = name if "divided" in name else name + more  # that is done in the place of Normalize
                found += [said] * _equal(vectors[:, same], made[:, same])
                if _equal(vectors, ending := normalized(made)) and not _equal(normalized(right), ending):
                    found.append(name)
    return list(dict.fromkeys(found))


def one_factor(right: Array, vectors: Array) -> tuple[str, str]:
    """Name the one factor that makes the vectors of the right ones, rounded to whole numbers or not, and the remedy;
    "" for none.
    """
    if right.shape != vectors.shape or not np.isfinite(vectors).all() or not right.any():
        return "", ""
    factor = float(np.vdot(right, vectors) / np.vdot(right, right))
    if abs(factor - 1) <= NEAR or not vectors.any():
        return "", ""
    if _equal(vectors, np.float32(factor) * right):
        name = NEGATED if abs(factor + 1) <= NEAR else TIMES
        return name.replace("X", f"{factor:.4g}"), REMEDIES[name]
    if np.array_equal(vectors, np.rint(vectors)):
        for times in EIGHT_BITS:
            if np.abs(times * right - vectors).max() <= HALF:
                return AS_WHOLE.replace("X", f"{times:g}"), REMEDIES[AS_WHOLE]
    return "", ""


def _in_batches(change: Callable[[Array], Array], x: Array) -> Iterator[Array]:
    for size in (len(x), *(size for size in BATCHES if size < len(x))):
        with np.errstate(all="ignore"):  # a batch of one has no variance
            yield np.concatenate([change(x[i : i + size]) for i in range(0, len(x), size)])


def _equal(vectors: Array, made: Array) -> bool:
    pairs = zip(vectors, made, strict=True)
    return all(distances(vector, x[None])[0] <= NEAR for vector, x in pairs)


def without_zeros(vectors: Array, width: int) -> Array:
    """Leave out the last numbers where they are zero in every vector, but none of the model's `width` numbers."""
    kept = int(np.flatnonzero(np.any(vectors != 0, axis=0)).max(initial=-1)) + 1
    cut = width if kept <= width < vectors.shape[1] else kept
    return vectors[:, :cut] if kept else vectors


def empty_texts(right: Array, vectors: Array, maker: Maker, texts: Sequence[str]) -> dict[str, str]:
    """Texts without a token of their own whose vector is zeros or NaN, and what is said of them."""
    least = maker.before + maker.after
    empty = [i for i, text in enumerate(texts) if len(maker.encoded(text, maker.right).input_ids) <= least]
    found = dict[str, str]()
    for i in empty:
        if np.isnan(vectors[i]).all():
            found[texts[i]] = "the empty text as NaN"
        elif right[i].any() and not vectors[i].any():
            found[texts[i]] = "the empty text as zeros"
    return found


def twins(right: Array, vectors: Array, texts: Sequence[str], limit: float) -> str:
    """Say which text stands twice and has two vectors, both nearer to its own than to any other text's; else ""."""
    first: dict[str, int] = {}
    pairs = [(first[text], i) for i, text in enumerate(texts) if first.setdefault(text, i) != i]
    if right.shape != vectors.shape:
        return ""
    alike = dot(normalized(vectors.astype(np.float64)), normalized(right.astype(np.float64)))
    for i, j in pairs:
        apart = distances(vectors[i], vectors[j][None])[0]
        if apart > limit and all(texts[int(np.argmax(alike[k]))] == texts[k] for k in (i, j)):
            return f"texts {i + 1} and {j + 1} are one, their vectors {apart:.2g} of a vector's length apart"
    return ""
