"""Mistakes of rotary positions: which queries and keys are rotated, by which angles, in which pairs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.rotary import rotary_frequencies, rotate
from minibert.families.parts.attention_schemes import Rotary, Rotation
from minibert.families.parts.bound_blocks import rotated
from minibert.families.parts.config import replace
from minibert.families.parts.plan import REAL, Step

from .mistake import At, Mistake, Wrong, curried
from .wrong_modules import Formula, to_bfloat16
from .wrong_rows import COUNTED


@curried
def rotation_by(at: At, formula: Callable[..., Array], *more: str) -> Iterator[Step]:
    """Rotate by another formula of the model's scheme, the layer type, x and `more` values of the batch."""
    for step in at.steps("rotation"):
        yield step._replace(of=(*step.of, *more), formula=partial(formula, at.stack.rotary, step.part.layer_type))


def neighbours(rotary: Rotary, layer_type: str | None, x: Array) -> Array:
    """Rotate halves as neighbours, neighbours as halves."""
    other = {"halves": "neighbours", "neighbours": "halves"}[rotary.pairing]
    return rotated(replace(rotary, pairing=other), layer_type, x)


def repeated(rotary: Rotary, layer_type: str | None, x: Array) -> Array:
    """Repeat each angle side by side, though the pairs are halves."""
    cos, sin = rotary.rotary(np.arange(x.shape[-2]), layer_type)
    half = cos.shape[-1] // 2
    cos, sin = (np.repeat(y[..., :half], 2, -1) for y in (cos, sin))
    y, (a, b) = x.copy(), (x[..., :half], x[..., half : 2 * half])
    y[..., :half] = a * cos[..., :half] - b * sin[..., :half]
    y[..., half : 2 * half] = b * cos[..., half:] + a * sin[..., half:]
    return y


def rotated_by_mask(rotary: Rotary, layer_type: str | None, x: Array, real: Array) -> Array:
    """Rotate each token by the number of real tokens before it."""
    cos, sin = rotary.rotary(np.maximum(np.cumsum(real, axis=-1) - 1, 0), layer_type)
    return rotate(x, cos[:, None], sin[:, None], rotary.pairing)


def rotation_of(letters: str, change: Callable[[Any, str | None, Array], Array]) -> Wrong:
    """Rotate queries ("q"), keys ("k") or both by another formula of the model's scheme, the layer type and x."""
    every = rotation_by(change)
    return lambda at: (step for step in every(at) if step.key.split(".")[-1][0] in letters)


def sign_wrong(of_first: bool, rotary: Rotary, layer_type: str | None, x: Array) -> Array:
    """Rotate with the sign of one sine wrong: of the first number of each pair, or of the second."""
    cos, sin = rotary.rotary(np.arange(x.shape[-2]), layer_type)
    i, pairs = np.arange(x.shape[-1]), cos.shape[-1] // 2
    first = i < pairs if rotary.pairing == "halves" else i % 2 == 0
    right, other = rotate(x, cos, sin, rotary.pairing), rotate(x, cos, -sin, rotary.pairing)
    return np.where(first == of_first, other, right)


def shifted(many: int, rotary: Rotary, layer_type: str | None, x: Array) -> Array:
    """Rotate each token by another position."""
    cos, sin = rotary.rotary(np.arange(x.shape[-2]) + many, layer_type)
    return rotate(x, cos, sin, rotary.pairing)


@curried
def rotations(at: At, change: Callable[[Mapping[str | None, Rotation], str | None], Rotation | None]) -> Iterator[Step]:
    """Rotate by another rotation, chosen from the model's rotations by layer type; None keeps the right one."""
    for step in at.steps("rotation"):
        rotary, name = at.stack.rotary, step.part.layer_type
        if rotary and (other := change(rotary.rotations, name)) is not None:
            yield step._replace(formula=partial(rotated, replace(rotary, rotations={name: other}), name))


def other_rotation(change: Callable[[Rotation], Rotation | None]) -> Wrong:
    """Rotate by a change of the model's rotation; None keeps the right one."""
    return rotations(lambda known, name: change(known[name]))


def other_frequencies(change: Formula) -> Wrong:
    """Rotate by other frequencies, computed from the model's."""
    return other_rotation(lambda rotation: rotation._replace(frequencies=change(rotation.frequencies)))


def of_theta(theta: float, rotation: Rotation) -> Rotation | None:
    """Return the rotation by another theta, by the model's rule if it has one; None for the model's theta."""
    base = rotation.frequencies if rotation.unscaled is None else rotation.unscaled
    frequencies = rotary_frequencies(2 * len(base), theta)
    if np.allclose(base, frequencies, atol=0):
        return None
    return rotation.of_base(theta) if rotation.of_base else Rotation(frequencies)


def other_type(known: Mapping[str | None, Rotation], name: str | None) -> Rotation | None:
    """Return the rotation of another layer type whose heads are as wide; None if there is none."""
    others = (known[other] for other in known if name and other != name)
    return next((other for other in others if other.frequencies.size == known[name].frequencies.size), None)


def half_of_head(rotation: Rotation) -> Rotation | None:
    """Rotate half of the pairs, by the angles of a head of half the width."""
    frequencies = rotation.frequencies[::2][: len(rotation.frequencies) // 2]
    return rotation._replace(frequencies=frequencies) if len(frequencies) else None


def rows_for_neighbours(at: At) -> Iterator[Step]:
    """Order the rows of the query's and the key's map for pairs of neighbours, though the pairs are halves."""
    bound = at.block and at.block.attention
    rotary = at.stack.rotary if at.steps("rotation") else None
    if bound and rotary and len(bound.maps) == 3 and rotary.pairing == "halves":
        for step in (at.plan[path] for path in bound.maps[:2]):
            rows = np.arange(step.part.shape[0]).reshape(-1, 2, bound.head_dim // 2).swapaxes(1, 2).ravel()
            yield step._replace(formula=lambda x, right=step.formula, rows=rows: right(x)[..., rows])


def rotated_before_norm(at: At) -> Iterator[Step]:
    """Rotate queries and keys before their norms."""
    for turn, path in zip(at.steps("rotation"), at.block.attention.norms if at.block else (), strict=False):
        if path:
            before = partial(lambda rotate, x: rotate(x.swapaxes(1, 2)).swapaxes(1, 2), turn.formula)
            yield at.plan[path]._replace(formula=lambda x, norm=at.plan[path].formula, before=before: norm(before(x)))
            yield turn._replace(formula=np.asarray)


def rotated_unasked(at: At) -> Iterator[Step]:
    """Rotate queries and keys in a model that rotates none, by the angles of Llama's first theta."""
    for step in at.steps("split") if not at.steps("rotation") else ():
        if step.key[-1] in "qk" and step.part.head_dim % 2 == 0:
            rotary = Rotary(rotations={None: Rotation(rotary_frequencies(step.part.head_dim, 1e4))})
            yield step._replace(formula=lambda x, split=step.formula, rotary=rotary: rotated(rotary, None, split(x)))


# -- the list ----------------------------------------------------------------------------------------------------

ROTATED = "In each block queries and keys, and nothing else, are rotated by their token's position."
PAIRS = "A rotation is of pairs (x[i], x[i + n]), not (x[2i], x[2i + 1])."

# fmt: off
ROTATIONS: tuple[Mistake, ...] = (
    Mistake("neighbours rotated instead of halves", PAIRS, rotation_by(neighbours)),
    Mistake("cos and sin repeated by neighbours", PAIRS, rotation_by(repeated)),
    Mistake("queries and keys not rotated", ROTATED, rotation_by(lambda rotary, layer_type, x: x)),
    *(Mistake(f"{name} alone rotated", ROTATED, rotation_of(other, lambda rotary, layer_type, x: x))
      for name, other in (("queries", "k"), ("keys", "q"))),
    *(Mistake("one sign of the rotation wrong", "(a, b) becomes (a cos - b sin, b cos + a sin).",
              rotation_of("qk", partial(sign_wrong, first))) for first in (True, False)),
    *(Mistake(f"queries rotated by position {many:+d}", "A query and a key of one token have one position.",
              rotation_of("q", partial(shifted, many))) for many in (1, -1)),
    *(Mistake(f"rotary positions divided by {many}", "config.json names a rule that slows rotation down, or none.",
              other_frequencies(lambda x, many=many: x / np.float32(many))) for many in (2, 4, 8)),  # type: ignore[misc]
    Mistake("rotated where nothing rotates", "Positions act elsewhere in this model: no query or key is rotated.",
            rotated_unasked),
    Mistake("rotated the other way", ROTATED, other_frequencies(np.negative)),
    Mistake("queries and keys normed after the rotation", "Hunyuan does so; here they are normed, then rotated.",
            rotated_before_norm, on_vectors=True),
    Mistake("exponent of the frequencies j / d", "Pair j turns by theta^(-2j / d) from token to token.",
            other_frequencies(np.sqrt)),
    Mistake("half of each head rotated", "All numbers of a head are rotated, if config.json does not say less.",
            other_rotation(half_of_head)),
    Mistake("rotation of the other layer type", "Blocks with a window have another rope_theta.",
            rotations(other_type)),
    Mistake("queries and keys in the order of rows for neighbours", "Files for programs that rotate neighbours have "
            "other rows of these maps: take the model's own file.", rows_for_neighbours),
    Mistake("rotary frequencies not scaled", "config.json names a rule, such as linear, ntk, llama3 or yarn, that "
            "slows them down for longer texts.",
            other_rotation(lambda rotation: None if rotation.unscaled is None else Rotation(rotation.unscaled))),
    Mistake("cos and sin without their factor", "yarn multiplies cos and sin by a number.",
            other_rotation(lambda rotation: None if rotation.attention_factor == 1
                           else rotation._replace(attention_factor=1.0))),
    Mistake("rotary frequencies in bfloat16", "Angles are computed in float32, whatever the weights are stored in.",
            other_frequencies(to_bfloat16), rounding="bfloat16"),
    *(Mistake(f"theta {theta:g}", "config.json names rope_theta.", other_rotation(partial(of_theta, theta)),
              keys=("rope_theta", "rope_parameters")) for theta in (1e4, 1e6)),
    Mistake("positions counted by the mask", COUNTED, rotation_by(rotated_by_mask, REAL)),
)
# fmt: on
