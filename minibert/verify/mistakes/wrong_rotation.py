"""What rotary positions can have wrong: other pairs, angles and places in the rotation of queries and keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from minibert.equations.blocks import join_heads, split_heads
from minibert.equations.input_layer import Array
from minibert.equations.rotary import rotary_angles, rotary_frequencies, rotate
from minibert.families.parts.attention_schemes import Rotary
from minibert.families.parts.bound_blocks import keep, rotated
from minibert.families.parts.plan import REAL, Step
from minibert.families.parts.rotations import Rotation

from .mistake import At, Mistake, Wrong, given_place
from .wrong_formulas import ROUNDINGS, Formula, one_after_another
from .wrong_rows import COUNTED
from .wrong_steps import rounded_frequencies

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


def exchanged(rotary: Any, x: Array, cos: Array, sin: Array) -> Array:
    """Sines for cosines, which turns by a right angle less the right one: scores are those of the other way."""
    return rotate(x, sin, cos, rotary.pairing)


def repeated(rotary: Any, x: Array, cos: Array, sin: Array) -> Array:
    """Each angle twice side by side, where it is the halves that are pairs."""
    half = cos.shape[-1] // 2
    cos, sin = (np.repeat(y[..., :half], 2, -1) for y in (cos, sin))
    made, (a, b) = x.copy(), (x[..., :half], x[..., half : 2 * half])
    made[..., :half] = a * cos[..., :half] - b * sin[..., :half]
    made[..., half : 2 * half] = b * cos[..., half:] + a * sin[..., half:]
    return made


def part_of_head(share: int, every: bool) -> Wrong:
    """One of `share` parts of the pairs rotated: by the angles of a head so small, or by the first ones."""

    def angles(at: At, own: Rotation, length: int) -> Angles | None:
        pairs = len(own.frequencies)
        kept = own.at(length)[:: share if every else 1][: pairs // share]
        return rotary_angles(np.arange(length), kept, own.attention_factor) if pairs >= share else None

    return turned(angles)


def without_minus(rotary: Any, x: Array, cos: Array, sin: Array) -> Array:
    """a cos + b sin in the place of a cos - b sin."""
    places = np.arange(x.shape[-1])
    first = places < cos.shape[-1] // 2 if rotary.pairing == "halves" else places % 2 == 0
    return np.where(first, rotate(x, cos, -sin, rotary.pairing), rotate(x, cos, sin, rotary.pairing))


def of_theta(theta: float, scaled: bool) -> Callable[[At, Rotation, int], Angles | None]:
    """The angles by another theta, none where it is this model's. `scaled`: by its own rule, if it has one; else not,
    where it has one.
    """

    def angles(at: At, own: Rotation, length: int) -> Angles | None:
        base = own.frequencies if own.unscaled is None else own.unscaled
        made = rotary_frequencies(2 * len(base), theta)
        if np.allclose(base, made, atol=0) or not (scaled or own.of_base):
            return None
        other = own.of_base(theta) if scaled and own.of_base else Rotation(made)
        return rotary_angles(np.arange(length), other.at(length), other.attention_factor)

    return angles


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


def power(exponent: Callable[[At, int], float]) -> Wrong:
    """Frequencies with another exponent, from how many numbers rotate, scaled as this model's are."""

    def angles(at: At, own: Rotation, length: int) -> Angles | None:
        base, found = own.frequencies if own.unscaled is None else own.unscaled, own.at(length)
        other = exponent(at, 2 * len(base))
        made = (base ** np.float32(other) * (found / base)).astype(np.float32)
        return None if other == 1 else rotary_angles(np.arange(length), made, own.attention_factor)

    return turned(angles)


def over_the_row(at: At) -> Iterator[Step]:
    """All heads rotated as one, by the angles of a head so wide."""
    for step in at.of("rotation"):
        rotary: Any = at.stack.rotary
        own = rotary.rotations[step.part.layer_type]
        base = own.frequencies if own.unscaled is None else own.unscaled
        if len(base) > 1 and step.part.key_heads > 1:
            yield step._replace(formula=partial(_as_one_head, base.astype(float), rotary.pairing))


def _as_one_head(base: Array, pairing: str, x: Array) -> Array:
    heads, size = x.shape[1], 2 * len(base)
    if x.shape[-1] != size:
        raise ValueError("only a part of each head rotates")
    made = base[1] ** (np.arange(heads * size // 2) / heads)
    angles = rotary_angles(np.arange(x.shape[-2]), made.astype(np.float32))
    return split_heads(rotate(join_heads(x), *angles, pairing), heads)


def share_of_dim(at: At, size: int) -> float:
    """What makes the hidden size of a head's."""
    own = at.block and at.block.attention
    return size / at.plan[own.maps[0]].part.shape[1] if own else 1


def scaled(times: int, factors: int) -> Wrong:
    """Frequencies scaled so many times, cos and sin multiplied so many times by their factor."""

    def angles(at: At, own: Rotation, length: int) -> Angles | None:
        if own.unscaled is None or (own.attention_factor == 1 and times == 1):
            return None
        ratio = np.divide(own.at(length), own.unscaled, out=np.ones_like(own.unscaled), where=own.unscaled != 0)
        return rotary_angles(np.arange(length), own.unscaled * ratio**times, own.attention_factor**factors)

    return turned(angles)


def places(further: int) -> Callable[[At, Rotation, int], Angles]:
    """Each token's angles those of another place."""
    return lambda at, own, length: rotary_angles(np.arange(length) + further, own.at(length), own.attention_factor)


def rounded_angles(rounding: Formula, all_of_it: bool) -> Callable[[At, Rotation, int], Angles]:
    """Angles rounded; `all_of_it`: positions and frequencies before they are multiplied, too."""

    def angles(at: At, own: Rotation, length: int) -> Angles:
        first: Formula = rounding if all_of_it else np.asarray
        angle = rounding(first(np.arange(length, dtype=np.float32))[:, None] * first(own.at(length)))
        both = np.concatenate([angle, angle], -1)
        return np.asarray(np.cos(both) * own.attention_factor), np.asarray(np.sin(both) * own.attention_factor)

    return angles


def rounded_turns(rounding: Formula, rotary: Any, x: Array, cos: Array, sin: Array) -> Array:
    """Cosines and sines rounded."""
    return rotate(x, rounding(cos), rounding(sin), rotary.pairing)


def values_too(at: At) -> Iterator[Step]:
    """Values are rotated as keys are."""
    for step in at.of("split"):
        if step.key.endswith(".v") and at.of("rotation"):
            turn = partial(rotated, at.stack.rotary, step.part.layer_type)
            yield step._replace(formula=partial(one_after_another, step.formula, turn))


def other_layer_type(at: At) -> Iterator[Step]:
    """The rotation of the other type of blocks."""
    for step in at.of("rotation"):
        rotary = at.stack.rotary
        others = [name for name in rotary.rotations if name != step.part.layer_type] if rotary else []
        if others and step.part.layer_type:
            yield step._replace(formula=partial(rotated, rotary, others[0]))


def attention_of_other_type(at: At) -> Iterator[Step]:
    """The window and the rotation of the other type of blocks."""
    own = at.block and at.block.attention
    windows = {block.attention.window for block in at.stack.blocks} - {own.window} if own else set()
    for window in list(windows)[:1]:
        yield from (step._replace(formula=partial(keep, at.stack.causal, window)) for step in at.of("keep"))
        yield from other_layer_type(at)


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


def unscaled(at: At) -> Iterator[Step]:
    """The rotation before its frequencies are scaled."""
    for step in at.of("rotation"):
        rotary: Any = at.stack.rotary
        own = rotary.rotations[step.part.layer_type]
        if own.unscaled is not None:
            plain = Rotary(rotations={None: Rotation(own.unscaled)}, pairing=rotary.pairing)
            yield step._replace(formula=partial(rotated, plain, None))


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


ROTATED = "In each block queries and keys, and nothing else, are rotated by their token's position."
THETA = "config.json names rope_theta."
THETAS = (1e4, 1.6e5, 5e5, 1e6)
FLOATS = ("float16", "bfloat16")
PAIRS = "A rotation is of pairs (x[i], x[i + n]), not (x[2i], x[2i + 1])."
WHOLE_HEAD = "All numbers of a head are rotated, where config.json does not say less."
FREQUENCY = "Pair j of a head of d numbers turns by theta ** (-2 j / d) at each token."
SAME_PLACE = "A token's query and key are rotated by one position."
SCALING = "config.json names a rule that slows them down for longer texts."
WIDE_ANGLES = "Angles are computed in float32, whatever the weights are stored in."


def _twice(rotary: Any, x: Array, cos: Array, sin: Array) -> Array:
    return rotate(rotate(x, cos, sin, rotary.pairing), cos, sin, rotary.pairing)


def _plain(rotary: Any, x: Array, cos: Array, sin: Array) -> Array:
    return x


def _backwards(rotary: Any, x: Array, cos: Array, sin: Array) -> Array:
    return rotate(x, cos, -sin, rotary.pairing)


# fmt: off
OF_ROTATION: tuple[Mistake, ...] = (
    Mistake("neighbours rotated instead of halves", PAIRS, rotation(neighbours)),
    Mistake("cos and sin repeated by neighbours", PAIRS, rotation(repeated)),
    Mistake("queries and keys not rotated", ROTATED, rotation(_plain)),
    Mistake("queries not rotated", ROTATED, rotation(_plain, "q")),
    Mistake("keys not rotated", ROTATED, rotation(_plain, "k")),
    Mistake("values rotated too", ROTATED, values_too),
    Mistake("rotated the other way", ROTATED, rotation(_backwards)),
    Mistake("cos and sin exchanged", "Of a pair one is a cos - b sin, the other b cos + a sin.", rotation(exchanged)),
    Mistake("rotated without a minus", "Of a pair one is a cos - b sin, the other b cos + a sin.",
            rotation(without_minus)),
    *(Mistake("half of each head rotated", WHOLE_HEAD, part_of_head(2, every)) for every in (True, False)),
    *(Mistake("a quarter of each head rotated", WHOLE_HEAD, part_of_head(4, every)) for every in (True, False)),
    Mistake("queries one place further than their keys", SAME_PLACE, turned(places(1), "q")),
    Mistake("keys one place further than their queries", SAME_PLACE, turned(places(1), "k")),
    Mistake("exponent of the frequencies j / d", FREQUENCY, power(lambda at, size: 0.5)),
    Mistake("exponent of the frequencies 4 j / d", FREQUENCY, power(lambda at, size: 2.0)),
    Mistake("rotated twice", ROTATED, rotation(_twice)),
    Mistake("rotation over all heads as one", "Each head is rotated by itself, by the same angles.", over_the_row),
    Mistake("frequencies by the hidden size", FREQUENCY, power(share_of_dim)),
    Mistake("rotation of the other layer type", "Blocks with a window have a rope_theta of their own.",
            other_layer_type),
    Mistake("attention of the other layer type", "config.json names the type of each block, or which blocks have a "
            "window.", attention_of_other_type),
    Mistake("queries and keys in the order of rows for neighbours", "Files for programs that rotate neighbours have "
            "other rows of these maps: take the model's own file.", rows_for_neighbours),
    Mistake("rotary frequencies not scaled", SCALING, unscaled),
    Mistake("rotary frequencies not scaled", SCALING, scaled(0, 1)),
    Mistake("rotary frequencies scaled twice", SCALING, scaled(2, 1)),
    Mistake("cos and sin without their factor", "yarn and longrope multiply cos and sin by a number.", scaled(1, 0)),
    Mistake("cos and sin times their factor twice", "yarn and longrope multiply cos and sin by a number.",
            scaled(1, 2)),
    *(Mistake(f"rotary frequencies in {name}", WIDE_ANGLES, rounded_frequencies(ROUNDINGS[name])) for name in FLOATS),
    *(Mistake(f"angles of the rotation in {name}", WIDE_ANGLES, turned(rounded_angles(ROUNDINGS[name], all_of_it)))
      for name in FLOATS for all_of_it in (False, True)),
    *(Mistake(f"cos and sin in {name}", WIDE_ANGLES, rotation(partial(rounded_turns, ROUNDINGS[name])))
      for name in FLOATS),
    *(Mistake(f"theta {theta:g}", THETA, turned(of_theta(theta, True))) for theta in THETAS),
    *(Mistake(f"theta {theta:g}, rotary frequencies not scaled", THETA, turned(of_theta(theta, False)))
      for theta in THETAS),
    Mistake("positions counted by the mask", COUNTED, by_mask),
    Mistake("queries and keys normed after the rotation", "They are normed in each head, then rotated.",
            normed_afterwards),
)
# fmt: on
