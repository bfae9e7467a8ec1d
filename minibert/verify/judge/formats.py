"""Whether a port is right in the narrower format that it is meant to compute in.

Each module is computed again in that format, from the port's own input of it. A linear map has to give the port's
numbers, as nearly as two programs of one format do; all else may be as far from float64 as the format rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.parts.bound_blocks import Dense
from minibert.families.parts.plan import Plan, Step
from minibert.verify.mistakes.mistake import At
from minibert.verify.mistakes.wrong_formulas import Formula, to_bfloat16, to_float16, to_int8_whole
from minibert.verify.mistakes.wrong_steps import rounded, rounded_weight

from .compare import EXACT, OF_A_PORT, PORT_SHARE, Difference, over_kinds

# The rms distance of two programs, of a linear map, as a share of what the format changes there. Measured at most 0.10
# in one format (torch's kernels on six models), at least 0.53 in two (tf32 and float16).
NEAR = 0.3
ROUNDS = 3.0  # the rms error of anything else, by that of its formula rounded once; measured 1.8
PRODUCTS = ("scores", "gather")  # beside linear maps
TEXT = (1, 2)  # the axes of one text: programs quantize the numbers of a batch, of a text or of a token together
MASKS = ("mask", "masked", "keep", "state")  # steps that no format rounds


class Form(NamedTuple):
    """A format: the steps in it, the ways in which programs compute a linear map in it, and what rounds all numbers."""

    steps: Callable[[At], Plan]
    maps: Callable[[Dense], Sequence[Formula]]
    rounding: Formula | None = None


def compared(place: Any, form: Form) -> list[Difference]:
    """Compare what a place gives in this format, from the port's own numbers, with the port's own.

    place: a `local.Place`. Of a linear map the nearest way counts, and the port's error is its distance from that. So
    it is of what comes of maps that the port does not show, but for numbers that are in the format themselves.
    """
    at, kinds = place.at, list(place.inputs)
    exact = {kind: place.wide[kind].values(None) for kind in kinds}
    theirs = {kind: {key: np.asarray(x, float) for key, x in place.theirs[kind].items()} for kind in kinds}

    def differences(plan: Plan, truth: Mapping[str, Any]) -> dict[str, list[Difference]]:
        ours = {kind: place.fed[kind].values(plan) for kind in kinds}
        found: dict[str, list[Difference]] = {}
        for d in place.subject.compare(place.inputs, ours, theirs, truth):
            found.setdefault(d.key, []).append(d)
        return found

    steps = form.steps(at)
    made = {
        key: [_weighed(d, PORT_SHARE if steps[key] is at.plan[key] else ROUNDS) for d in several]
        for key, several in differences(steps, exact).items()
    }
    maps = [step.key for step in at.of("dense")]
    behind = [
        key
        for key in _behind(at.plan, [key for key in maps if key not in made], made)
        if form.rounding is None or not all(_stored(x[key], form.rounding) for x in theirs.values() if key in x)
    ]
    # a map of what the format rounds at places that a batch does not show may be as far off as all else
    rough, loose = dict(made), {kind: _behind_weights(at.plan, theirs[kind]) & {*maps} for kind in kinds}
    unseen = at.block is not None and any(at.block.attention.context not in x for x in theirs.values())
    ways = {key: form.maps(at.plan[key].part) for key in maps if key in made or behind}
    products = {key: steps[key] if step.kind in PRODUCTS else step for key, step in at.plan.items()}
    nearest: dict[str, float] = {}
    for i, others in product(range(max(map(len, ways.values()), default=0)), (at.plan, steps, products)):
        if others is not at.plan and not (behind or unseen):
            continue
        plan = {**others, **{key: at.plan[key]._replace(formula=several[i]) for key, several in ways.items()}}
        sizes, apart = differences(plan, exact), differences(plan, theirs)
        for key in (key for key in made if key in ways or key in behind):
            each = [_weighed(d._replace(error_theirs=near.error_ours), NEAR)
                    for d, near in zip(sizes[key], apart[key], strict=True)]  # fmt: skip
            if form.rounding is not None:
                each = _where_shown(each, rough[key], {kind for kind in kinds if key in loose[kind]})
            (whole,) = over_kinds(each)
            if (share := whole.error_theirs / max(whole.error_ours, 1e-30)) < nearest.get(key, np.inf):
                nearest[key], made[key] = share, each
    return [d for several in made.values() for d in several]


def _behind(plan: Plan, hidden: Collection[str], shown: Collection[str]) -> list[str]:
    """What is shown and computed from maps that are not, with nothing between them that is."""
    reached = [*hidden]
    for key, step in plan.items():
        reached += [key] * any(name in reached and name not in shown for name in step.of)
    return [key for key in reached if key in shown]


def _behind_weights(plan: Plan, shown: Collection[str]) -> set[str]:
    """What a batch shows of attention weights that it does not show."""
    return set(_behind(plan, [key for key, step in plan.items() if step.kind == "softmax" and key not in shown], shown))


def _where_shown(each: list[Difference], rough: list[Difference], hidden: set[str]) -> list[Difference]:
    """Of batches that do not show what enters, those alone that are farther off than all else may be."""
    strict = [d for d in each if d.kinds[0] not in hidden]
    return strict + [d for d in rough if d.kinds[0] in hidden and not (strict and d.accepted(OF_A_PORT))]


def _stored(x: Array, rounding: Formula) -> bool:
    return np.array_equal(rounding(x), x, equal_nan=True)


def _weighed(d: Difference, share: float) -> Difference:
    return d if d.key in EXACT else d._replace(weighed=True, share=share)


# -- the formats -------------------------------------------------------------------------------------------------


def _on_floats(change: Formula, x: Any) -> Any:
    return change(x) if isinstance(x, np.ndarray) and x.dtype.kind == "f" else x


def _narrow_steps(rounding: Formula, at: At) -> Plan:
    """Every parameter, every input and every output rounded."""

    def narrowed(step: Step) -> Step:
        if step.kind in MASKS:
            return step
        return step._replace(
            formula=lambda *x: _on_floats(rounding, step.formula(*(_on_floats(rounding, y) for y in x)))
        )

    own = {**at.plan, **{step.key: step for step in rounded(rounding)(at)}}
    return {key: narrowed(step) for key, step in own.items()}


def _narrow_maps(rounding: Formula, own: Dense) -> list[Formula]:
    """The bias added before the product is rounded, or after it."""
    bias = None if own.bias is None else rounding(own.bias)
    weight = rounding(own.weight)
    whole, product = Dense(weight, bias, own.transposed), Dense(weight, None, own.transposed)
    return [
        lambda x: rounding(whole(rounding(x))),
        lambda x: rounding(rounding(product(rounding(x))) + (0 if bias is None else bias)),
    ]


def to_tf32(x: Array) -> Array:
    """Round to ten bits after the first, as products of tensor cores do with what enters them.

    >>> to_tf32(np.array([1 + 2**-10 + 2**-12], np.float32)) == 1 + 2**-10
    array([ True])
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    even = (bits >> np.uint32(13)) & np.uint32(1)
    return ((bits + np.uint32(0xFFF) + even) & np.uint32(0xFFFFE000)).view(np.float32)


def _tf32_steps(at: At) -> Plan:
    """What enters the products of attention is rounded."""

    def narrowed(step: Step) -> Step:
        return step._replace(formula=lambda *x: step.formula(*(_on_floats(to_tf32, y) for y in x)))

    return {key: narrowed(step) if step.kind in PRODUCTS else step for key, step in at.plan.items()}


def _tf32_maps(own: Dense) -> list[Formula]:
    weight = Dense(to_tf32(own.weight), own.bias, own.transposed)
    return [lambda x: weight(to_tf32(x))]


def _int8_steps(at: At) -> Plan:
    """Rows may be stored so; nothing but linear maps computes in it."""
    return {**at.plan, **{step.key: step for step in rounded(to_int8_whole)(at) if step.kind == "rows"}}


def _int8_maps(own: Dense) -> list[Formula]:
    """How programs quantize the weight, and what enters: how many steps, over what."""
    ways: Sequence[tuple[Formula, Sequence[tuple[int, int | tuple[int, ...] | None]]]] = (
        (partial(_weight, 127.5), [(127, None), (127, TEXT)]),  # torch: what enters has seven bits
        (partial(_weight, 127.0), [(255, None), (255, TEXT)]),  # onnxruntime
        (partial(_weight, 127.0, over=-1), [(255, None), (255, TEXT), (254, -1)]),  # per channel, also token by token
        (partial(_weight, 64.0), [(255, None)]),  # with reduce_range
        (partial(_weight, 64.0, over=-1), [(255, None)]),
        (partial(_entering, steps=255, over=None), [(255, None)]),  # with weight_type QUInt8
        (partial(_entering, steps=127, over=None), [(255, None)]),  # and reduce_range
    )
    maps = [(rounded_weight(own, quantize), entering) for quantize, entering in ways]
    return [partial(_quantized, weight, steps, over) for weight, entering in maps for steps, over in entering]


def _quantized(own: Dense, steps: int, over: int | tuple[int, ...] | None, x: Array) -> Array:
    return own(_entering(x, steps, over))


def _weight(largest: float, x: Array, over: int | None = None) -> Array:
    """So many steps up to the largest number: of all, or, where `over` is -1, of each row."""
    size = np.abs(x).max(over, keepdims=True) / np.float32(largest)
    size = np.where(size == 0, np.float32(1), size)
    return np.asarray(np.clip(np.rint(x / size), -128, 127) * size, np.float32)


def _entering(x: Array, steps: int, over: int | tuple[int, ...] | None) -> Array:
    """So many steps from the smallest to the largest number, 0 among them; token by token as far below as above it."""
    over = None if x.ndim == 2 and isinstance(over, tuple) else over
    low, high = (np.minimum(x.min(over, keepdims=True), 0), np.maximum(x.max(over, keepdims=True), 0))
    if over == -1:
        high = np.maximum(high, -low)
        low = -high
    size = (high - low) / np.float32(steps)
    size = np.where(size == 0, np.float32(1), size)
    zero = np.clip(np.rint(-low / size), 0, steps)
    return np.asarray((np.clip(np.rint(x / size) + zero, 0, steps) - zero) * size, np.float32)


FORMS: Mapping[str, Form] = {
    "float16": Form(partial(_narrow_steps, to_float16), partial(_narrow_maps, to_float16), to_float16),
    "bfloat16": Form(partial(_narrow_steps, to_bfloat16), partial(_narrow_maps, to_bfloat16), to_bfloat16),
    "tf32": Form(_tf32_steps, _tf32_maps),
    "int8": Form(_int8_steps, _int8_maps),
}
