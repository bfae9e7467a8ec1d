"""What is tried on a module that no mistake of the list explains: a factor, an eps, an order, other weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.parts.modules import RMSNorm
from minibert.verify.mistakes.mistake import At
from minibert.verify.mistakes.wrong_formulas import Formula

CLOSE = 1e-4  # of a factor, and of the next one that has a name
WHOLE = 1e-3  # a part's factor that is as near to 1 is none
BENT, FLAT = (0.1, 3.0), 0.999  # where an activation is neither 0 nor x, and its numbers show which one it is
SPARE = 8  # rows more than a map has columns: weights that fit these too are no chance
SAME_ROW = 3  # digits by which rows differ that count as two


def in_words(factor: float, at: At) -> str:
    """Say what a factor equals: ", which is 1/sqrt(dim)"; "" for nothing."""
    dim, sizes = at.layer.steps[0].module.table.shape[1], dict[str, float]()
    sizes |= {"dim": dim}
    if blocks := at.stack.blocks if at.part else ():
        own = blocks[0].attention
        sizes |= {"layers": len(blocks), "head_dim": own.head_dim, "heads": own.heads}
    known = dict[str, float]()
    for name, size in sizes.items():
        known |= {f"sqrt({name})": size**0.5, name: size}
    if "layers" in sizes:
        known |= {"sqrt(2 * layers)": (2 * sizes["layers"]) ** 0.5, "(2 * layers)^(1/4)": (2 * sizes["layers"]) ** 0.25}
    known |= {f"1/{name}": 1 / size for name, size in known.items()}
    equal = [name for name, size in known.items() if size != 1 and abs(abs(factor) / size - 1) <= CLOSE]
    sign = "-" if factor < 0 else ""
    return f", which is {' and '.join(sign + name for name in equal)}" if equal else ""


def times_as_large(factor: float, at: At) -> str:
    """The name of a factor."""
    return f"{factor:.4g} times as large{in_words(factor, at)}"


def fitted(parts: Sequence[Array], there: Array) -> list[float]:
    """How many times each part is in a sum, by least squares."""
    columns = np.stack([np.broadcast_to(x, there.shape).ravel() for x in parts], axis=1).astype(np.float64)
    good = np.isfinite(there.ravel()) & np.isfinite(columns).all(1)
    found, *_ = np.linalg.lstsq(columns[good], there.ravel()[good].astype(np.float64), rcond=None)
    return [float(x) for x in found]


def other_map(entering: Array, leaving: Array) -> Array | None:
    """The weight and bias that make the one of the other, (in + 1, out); None where too few rows would show others."""
    entering, leaving = entering.astype(np.float64), leaving.astype(np.float64)
    good = np.isfinite(entering).all(1) & np.isfinite(leaving).all(1)
    _, once = np.unique(np.round(entering[good], SAME_ROW), axis=0, return_index=True)
    entering, leaving = entering[good][once], leaving[good][once]
    if len(entering) < entering.shape[1] + 1 + SPARE:
        return None
    with_one = np.concatenate([entering, np.ones((len(entering), 1))], axis=1)
    found, *_ = np.linalg.lstsq(with_one, leaving, rcond=None)
    return np.asarray(found)


def other_eps(norm: Any, entering: Array, leaving: Array) -> float:
    """The eps with which a norm makes the one of the other; the rows of the smallest variance count most."""
    x, bias = entering.astype(np.float64), 0 if norm.bias is None else norm.bias
    variance = np.mean(x**2, -1) if isinstance(norm, RMSNorm) else np.var(x, -1)
    ours, theirs = norm(entering) - bias, leaving - bias
    eps = (variance + norm.eps) * ((ours * ours).sum(-1) / (ours * theirs).sum(-1)) ** 2 - variance
    good = np.isfinite(eps) & (variance > 0)
    return float(np.average(eps[good], weights=variance[good] ** -2.0)) if good.any() else 0.0


def other_gelu(entering: Array, leaving: Array) -> tuple[Formula, str] | None:
    """`x * (1 + tanh(a x + b x^3)) / 2` that makes the one of the other, and it in words; with b = 0 a silu."""
    x, y = (each.ravel().astype(np.float64) for each in (entering, leaving))
    with np.errstate(all="ignore"):
        steep = 2 * y / x - 1
        good = (np.abs(x) > BENT[0]) & (np.abs(x) < BENT[1]) & (np.abs(steep) < FLAT)
    if np.count_nonzero(good) < SPARE:
        return None
    columns = np.stack([x[good], x[good] ** 3], axis=1)
    (a, b), *_ = np.linalg.lstsq(columns, np.arctanh(steep[good]), rcond=None)
    if abs(b) <= CLOSE:
        a, b = float(f"{a:.4g}"), 0.0
    words = f"x * (1 + tanh({a:.4g} x + {b:.4g} x^3)) / 2" if b else f"x * sigmoid({2 * a:.4g} x)"
    return lambda x: np.asarray(x * (1 + np.tanh(a * x + b * x**3)) / 2), words


def other_order(ours: Array, theirs: Array) -> Array:
    """Which column of ours each of theirs is, if they are the same: by the order of one mixture of their rows."""
    mixture, order = np.cos(np.arange(len(ours))), np.empty(ours.shape[1], int)
    order[np.argsort(mixture @ theirs)] = np.argsort(mixture @ ours)
    return order
