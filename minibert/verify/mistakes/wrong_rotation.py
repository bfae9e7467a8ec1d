"""Mistakes of rotary positions: a model's rotation with other frequencies, another factor, other pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.rotary import rotary_frequencies, rotate
from minibert.families.parts.attention_schemes import Rotary, Rotation
from minibert.families.parts.bound_blocks import rotated
from minibert.families.parts.config import replace
from minibert.families.parts.plan import REAL, Step

from .mistake import At, Mistake, Wrong
from .wrong_formulas import Formula, to_bfloat16
from .wrong_rows import COUNTED


def by(formula: Callable[..., Array], *more: str) -> Wrong:
    """Another rotation: of the model's scheme, the layer type, x and `more` of what a batch has."""

    def wrong(at: At) -> Iterator[Step]:
        for step in at.of("rotation"):
            yield step._replace(of=(*step.of, *more), formula=partial(formula, at.stack.rotary, step.part.layer_type))

    return wrong


def turned(change: Callable[[Rotation], Rotation | None], at: At) -> Iterator[Step]:
    """The model's scheme with another rotation; none where there is no other."""
    for step in at.of("rotation"):
        rotary, name = at.stack.rotary, step.part.layer_type
        if rotary and (other := change(rotary.rotations[name])) is not None:
            yield step._replace(formula=partial(rotated, replace(rotary, rotations={name: other}), name))


def neighbours(rotary: Rotary, layer_type: str | None, x: Array) -> Array:
    """Rotate the other pairs."""
    other = {"halves": "neighbours", "neighbours": "halves"}[rotary.pairing]
    return rotated(replace(rotary, pairing=other), layer_type, x)


def repeated(rotary: Rotary, layer_type: str | None, x: Array) -> Array:
    """Each angle twice side by side, where it is the halves that are pairs."""
    cos, sin = rotary.rotary(np.arange(x.shape[-2]), layer_type)
    half = cos.shape[-1] // 2
    cos, sin = (np.repeat(y[..., :half], 2, -1) for y in (cos, sin))
    made, (a, b) = x.copy(), (x[..., :half], x[..., half : 2 * half])
    made[..., :half] = a * cos[..., :half] - b * sin[..., :half]
    made[..., half : 2 * half] = b * cos[..., half:] + a * sin[..., half:]
    return made


def by_mask(rotary: Rotary, layer_type: str | None, x: Array, real: Array) -> Array:
    """Each token turned by how many real ones stand before it."""
    cos, sin = rotary.rotary(np.maximum(np.cumsum(real, axis=-1) - 1, 0), layer_type)
    return rotate(x, cos[:, None], sin[:, None], rotary.pairing)


def other_layer_type(at: At) -> Iterator[Step]:
    """The rotation of the other type of blocks."""
    for step in at.of("rotation"):
        rotary = at.stack.rotary
        others = [name for name in rotary.rotations if name != step.part.layer_type] if rotary else []
        if others and step.part.layer_type:
            yield step._replace(formula=partial(rotated, rotary, others[0]))


def rows_for_neighbours(at: At) -> Iterator[Step]:
    """Rows of the maps of queries and keys as for pairs of neighbours, in a model whose pairs are halves."""
    own = at.block and at.block.attention
    rotary = at.stack.rotary if at.of("rotation") else None
    if own and rotary and len(own.maps) == 3 and rotary.pairing == "halves":
        for step in (at.plan[path] for path in own.maps[:2]):
            rows = np.arange(step.part.shape[0]).reshape(-1, 2, own.head_dim // 2).swapaxes(1, 2).ravel()
            yield step._replace(formula=lambda x, right=step.formula, rows=rows: right(x)[..., rows])


def rotated_unasked(at: At) -> Iterator[Step]:
    """Queries and keys rotated in a model that rotates none, by the angles of Llama's first theta."""
    for step in at.of("split") if not at.of("rotation") else ():
        if step.key[-1] in "qk" and step.part.head_dim % 2 == 0:
            rotary = Rotary(rotations={None: Rotation(rotary_frequencies(step.part.head_dim, 1e4))})
            yield step._replace(formula=lambda x, split=step.formula, own=rotary: rotated(own, None, split(x)))


def with_frequencies(change: Formula) -> Wrong:
    """Other frequencies, made of the model's own."""
    return partial(turned, lambda own: own._replace(frequencies=change(own.frequencies)))


def of_theta(theta: float, own: Rotation) -> Rotation | None:
    """The rotation by another theta, by the model's own rule, if it has one; none where it is this model's."""
    base = own.frequencies if own.unscaled is None else own.unscaled
    made = rotary_frequencies(2 * len(base), theta)
    if np.allclose(base, made, atol=0):
        return None
    return own.of_base(theta) if own.of_base else Rotation(made)


def half_of_head(own: Rotation) -> Rotation | None:
    """Half of the pairs rotated, by the angles of a head so small."""
    kept = own.frequencies[::2][: len(own.frequencies) // 2]
    return own._replace(frequencies=kept) if len(kept) else None


def not_rotated(rotary: Any, layer_type: str | None, x: Array) -> Array:
    """As they are."""
    return x


ROTATED = "In each block queries and keys, and nothing else, are rotated by their token's position."
PAIRS = "A rotation is of pairs (x[i], x[i + n]), not (x[2i], x[2i + 1])."

# fmt: off
OF_ROTATION: tuple[Mistake, ...] = (
    Mistake("neighbours rotated instead of halves", PAIRS, by(neighbours)),
    Mistake("cos and sin repeated by neighbours", PAIRS, by(repeated)),
    Mistake("queries and keys not rotated", ROTATED, by(not_rotated)),
    Mistake("rotated where nothing rotates", "Positions act elsewhere in this model: no query or key is rotated.",
            rotated_unasked),
    Mistake("rotated the other way", ROTATED, with_frequencies(np.negative)),
    Mistake("half of each head rotated", "All numbers of a head are rotated, where config.json does not say less.",
            partial(turned, half_of_head)),
    Mistake("rotation of the other layer type", "Blocks with a window have another rope_theta.",
            other_layer_type),
    Mistake("queries and keys in the order of rows for neighbours", "Files for programs that rotate neighbours have "
            "other rows of these maps: take the model's own file.", rows_for_neighbours),
    Mistake("rotary frequencies not scaled", "config.json names a rule, as linear, ntk, llama3, yarn, that slows "
            "them down for longer texts.",
            partial(turned, lambda own: None if own.unscaled is None else Rotation(own.unscaled))),
    Mistake("cos and sin without their factor", "yarn multiplies cos and sin by a number.",
            partial(turned, lambda own: None if own.attention_factor == 1 else own._replace(attention_factor=1.0))),
    Mistake("rotary frequencies in bfloat16", "Angles are computed in float32, whatever the weights are stored in.",
            with_frequencies(to_bfloat16), rounding="bfloat16"),
    *(Mistake(f"theta {theta:g}", "config.json names rope_theta.", partial(turned, partial(of_theta, theta)),
              keys=("rope_theta", "rope_parameters")) for theta in (1e4, 1e6)),
    Mistake("positions counted by the mask", COUNTED, by(by_mask, REAL)),
)
# fmt: on
