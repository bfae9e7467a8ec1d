"""Mistakes of rotary positions: other pairs, angles and places in the rotation of queries and keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from minibert.equations.blocks import join_heads, split_heads
from minibert.equations.input_layer import Array
from minibert.equations.rotary import rotary_angles, rotary_frequencies, rotate
from minibert.families.parts.bound_blocks import rotated
from minibert.families.parts.plan import REAL, Step
from minibert.families.parts.rotations import Rotation

from .mistake import At, Mistake, given_place
from .wrong_formulas import Formula, to_bfloat16
from .wrong_rows import COUNTED

Angles = tuple[Array, Array]  # cosines and sines


@given_place
def rotation(at: At, change: Callable[[Any, Array, Array, Array], Array], only: str = "qk") -> Iterator[Step]:
    """Another rotation: from the scheme, x, cos and sin. `only`: of queries or of keys."""
    for step in at.of("rotation"):

        def rotate_wrong(x: Array, step: Step = step) -> Array:
            rotary: Any = at.stack.rotary
            cos, sin = rotary.rotary(np.arange(x.shape[-2]), step.part.layer_type)
            return change(rotary, x, cos, sin)

        if step.of[0][-1] in only:
            yield step._replace(formula=rotate_wrong)


@given_place
def turned(at: At, angles: Callable[[At, Rotation, int], Angles | None], only: str = "qk") -> Iterator[Step]:
    """The rotation by other angles, made for a text of some length; none where there are no others."""
    for step in at.of("rotation"):
        rotary: Any = at.stack.rotary
        made = partial(angles, at, rotary.rotations[step.part.layer_type])
        if step.of[0][-1] in only and made(1) is not None:
            yield step._replace(formula=partial(_by_angles, made, rotary.pairing))


def _by_angles(angles: Callable[[int], Angles | None], pairing: str, x: Array) -> Array:
    found = angles(x.shape[-2])
    return x if found is None else rotate(x, *found, pairing)


def neighbours(rotary: Any, x: Array, cos: Array, sin: Array) -> Array:
    """Rotate the other pairs."""
    return rotate(x, cos, sin, {"halves": "neighbours", "neighbours": "halves"}[rotary.pairing])


def repeated(rotary: Any, x: Array, cos: Array, sin: Array) -> Array:
    """Each angle twice side by side, where it is the halves that are pairs."""
    half = cos.shape[-1] // 2
    cos, sin = (np.repeat(y[..., :half], 2, -1) for y in (cos, sin))
    made, (a, b) = x.copy(), (x[..., :half], x[..., half : 2 * half])
    made[..., :half] = a * cos[..., :half] - b * sin[..., :half]
    made[..., half : 2 * half] = b * cos[..., half:] + a * sin[..., half:]
    return made


def by_mask(at: At) -> Iterator[Step]:
    """Each token turned by how many real ones stand before it."""
    for step in at.of("rotation"):
        rotary: Any = at.stack.rotary
        counted = partial(_counted, rotary.rotations[step.part.layer_type], rotary.pairing)
        yield step._replace(of=(*step.of, REAL), formula=counted)


def _counted(own: Rotation, pairing: str, x: Array, real: Array) -> Array:
    places = np.maximum(np.cumsum(real, axis=-1) - 1, 0)
    cos, sin = rotary_angles(places, own.at(x.shape[-2]), own.attention_factor)
    return rotate(x, cos[:, None], sin[:, None], pairing)


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
            yield step._replace(formula=partial(_in_order, rows, step.formula))


def _in_order(order: Array, right: Formula, x: Array) -> Array:
    return right(x)[..., order]


def normed_afterwards(at: At) -> Iterator[Step]:
    """Queries and keys are rotated, then normed in each head."""
    for step in at.of("rotation"):
        view = at.plan[at.plan[step.of[0]].of[0]]
        if view.kind == "view":
            rows = at.plan[at.plan[view.of[0]].of[0]]
            yield step._replace(formula=np.asarray)
            yield rows._replace(formula=partial(_rotated_rows, rows.formula, step.formula))


def _rotated_rows(in_heads: Formula, turn: Formula, x: Array) -> Array:
    rows = in_heads(x)
    return in_heads(join_heads(turn(split_heads(x, rows.shape[-2]))))


def rotated_unasked(at: At) -> Iterator[Step]:
    """Queries and keys rotated in a model that rotates none, by the angles of Llama's first theta."""
    for step in at.of("split") if not at.of("rotation") else ():
        if step.key[-1] in "qk" and step.part.head_dim % 2 == 0:
            yield step._replace(formula=partial(_rotated_heads, step.formula))


def _rotated_heads(split: Formula, x: Array) -> Array:
    heads = split(x)
    return rotate(heads, *rotary_angles(np.arange(heads.shape[-2]), rotary_frequencies(heads.shape[-1], 1e4)))


def of_theta(theta: float) -> Callable[[At, Rotation, int], Angles | None]:
    """The angles by another theta, by the model's own rule, if it has one; none where it is this model's."""

    def angles(at: At, own: Rotation, length: int) -> Angles | None:
        base = own.frequencies if own.unscaled is None else own.unscaled
        made = rotary_frequencies(2 * len(base), theta)
        if np.allclose(base, made, atol=0):
            return None
        other = own.of_base(theta) if own.of_base else Rotation(made)
        return rotary_angles(np.arange(length), other.at(length), other.attention_factor)

    return angles


def unscaled(at: At, own: Rotation, length: int) -> Angles | None:
    """The angles before frequencies are scaled."""
    return None if own.unscaled is None else rotary_angles(np.arange(length), own.unscaled)


def without_factor(at: At, own: Rotation, length: int) -> Angles | None:
    """Cos and sin are not multiplied by the rule's number."""
    return None if own.attention_factor == 1 else rotary_angles(np.arange(length), own.at(length))


def narrow_frequencies(at: At, own: Rotation, length: int) -> Angles:
    """Frequencies rounded to bfloat16."""
    return rotary_angles(np.arange(length), to_bfloat16(own.at(length)), own.attention_factor)


def half_of_head(at: At, own: Rotation, length: int) -> Angles | None:
    """Half of the pairs rotated, by the angles of a head so small."""
    kept = own.at(length)[::2][: len(own.frequencies) // 2]
    return rotary_angles(np.arange(length), kept, own.attention_factor) if len(kept) else None


ROTATED = "In each block queries and keys, and nothing else, are rotated by their token's position."
THETA = "config.json names rope_theta."
PAIRS = "A rotation is of pairs (x[i], x[i + n]), not (x[2i], x[2i + 1])."

# fmt: off
OF_ROTATION: tuple[Mistake, ...] = (
    Mistake("neighbours rotated instead of halves", PAIRS, rotation(neighbours)),
    Mistake("cos and sin repeated by neighbours", PAIRS, rotation(repeated)),
    Mistake("queries and keys not rotated", ROTATED, rotation(lambda rotary, x, cos, sin: x)),
    Mistake("rotated where nothing rotates", "Positions act elsewhere in this model: no query or key is rotated.",
            rotated_unasked),
    Mistake("rotated the other way", ROTATED,
            rotation(lambda rotary, x, cos, sin: rotate(x, cos, -sin, rotary.pairing))),
    Mistake("half of each head rotated", "All numbers of a head are rotated, where config.json does not say less.",
            turned(half_of_head)),
    Mistake("rotation of the other layer type", "Blocks with a window have a rope_theta of their own.",
            other_layer_type),
    Mistake("queries and keys in the order of rows for neighbours", "Files for programs that rotate neighbours have "
            "other rows of these maps: take the model's own file.", rows_for_neighbours),
    Mistake("rotary frequencies not scaled", "config.json names a rule, as linear, ntk, llama3, yarn, that slows "
            "them down for longer texts.", turned(unscaled)),
    Mistake("cos and sin without their factor", "yarn and longrope multiply cos and sin by a number.",
            turned(without_factor)),
    Mistake("rotary frequencies in bfloat16", "Angles are computed in float32, whatever the weights are stored in.",
            turned(narrow_frequencies), rounding="bfloat16"),
    *(Mistake(f"theta {theta:g}", THETA, turned(of_theta(theta)), keys=("rope_theta", "rope_parameters"))
      for theta in (1e4, 5e5, 1e6)),
    Mistake("positions counted by the mask", COUNTED, by_mask),
    Mistake("queries and keys normed after the rotation", "They are normed in each head, then rotated.",
            normed_afterwards),
)
# fmt: on
