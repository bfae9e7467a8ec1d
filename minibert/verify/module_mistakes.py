"""The mistakes of one formula: short lists, each tried on one module of a port, on the port's own input of it.

A linear map, a norm and an activation are formulas of one array. What attention, a gate and the residuals can have
wrong are `Choices` of a block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from minibert.equations.attention_positions import rotary_angles, rotary_frequencies, rotate
from minibert.equations.blocks import additive_mask, softmax
from minibert.equations.input_layer import Array
from minibert.families.activations import ACTIVATIONS
from minibert.families.block_names import module_path
from minibert.families.bound_blocks import Attention, BoundBlock, Dense, RMSNorm
from minibert.families.modules import LayerNorm
from minibert.models.blocks import Stack

from .blocks_mistakes import MISTAKES, with_mean
from .compare import rms
from .input_layer_mistakes import eps_outside, mean, one_pass, root_mean_square, unbiased, unbiased_eps_outside
from .plain_blocks import Choices, Formula, angles
from .vector_mistakes import rounded_weight, to_bfloat16, to_float16, to_int8, to_int8_blocks, to_int8_whole

Variants = Iterator[tuple[str, Formula]]

ROUNDINGS: Mapping[str, Formula] = {
    "float16": to_float16,
    "bfloat16": to_bfloat16,
    "int8, a scale for each row": to_int8,
    "int8, a scale for each 32": to_int8_blocks,
    "int8, one scale": to_int8_whole,
}
THETAS = (1e4, 1.6e5, 5e5, 1e6)
EPS = (0.0, 1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-3)


# -- one array in, one out ---------------------------------------------------------------------------------------


def _same_place(path: str, modules: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Modules of the same kind and shape elsewhere in the model."""
    own = modules[path]
    for other, module in {module_path(key): module for key, module in modules.items()}.items():
        if other != module_path(path) and type(module) is type(own) and module.weight.shape == own.weight.shape:
            yield other, module


def of_dense(path: str, modules: Mapping[str, Any]) -> Variants:
    """A linear map: its bias, the weight turned or rounded, another module's."""
    own: Dense = modules[path]
    weight, bias, turned = own.weight, own.bias, own.transposed
    if bias is not None:
        yield "bias missing", Dense(weight, None, turned)
        yield "bias added twice", Dense(weight, bias * 2, turned)
        yield "bias subtracted", Dense(weight, -bias, turned)
    if weight.shape[0] == weight.shape[1]:
        yield "weight transposed", Dense(weight, bias, not turned)
        if bias is not None:
            yield "weight transposed, bias missing", Dense(weight, None, not turned)
    for name, rounding in ROUNDINGS.items():
        yield f"weight in {name}", rounded_weight(own, rounding)
    for other, module in _same_place(path, modules):
        if bias is None:
            yield f"weight of {other}", module
            continue
        yield f"weight and bias of {other}", module
        yield f"weight of {other}", Dense(module.weight, bias, turned)
        yield f"bias of {other}", Dense(weight, module.bias, turned)


def by_size(module: Any, entering: Array, error: float) -> list[str]:
    """Name the mistakes whose rms error is about this size, where another order of adding makes other errors."""
    if isinstance(module, RMSNorm):
        return []
    if isinstance(module, Dense):
        wrong = {f"a weight in {name}": rounded_weight(module, f)(entering) for name, f in ROUNDINGS.items()}
    else:
        rows = one_pass(entering, module.eps) * module.weight + (0 if module.bias is None else module.bias)
        wrong = {"a variance in one pass": rows}
    sizes = {name: rms(x - module(entering)) for name, x in wrong.items()}
    return [f"by its size alone, {name}" for name, size in sizes.items() if size / 3 < error < 3 * size]


def of_norm(path: str, modules: Mapping[str, Any]) -> Variants:
    """A norm: eps, the variance, weight and bias."""
    own: LayerNorm = modules[path]
    bias, kind = own.bias, type(own)
    weight = own.weight + own.weight.dtype.type(own.plus) if isinstance(own, RMSNorm) else own.weight

    def affine(formula: Callable[[Array, float], Array], x: Array) -> Array:
        return np.asarray(formula(x, own.eps) * weight + (0 if bias is None else bias))

    for eps in EPS:
        if eps != own.eps:
            yield f"eps {eps:g}", kind(own.weight, bias, eps)
    formulas = _OF_RMS if isinstance(own, RMSNorm) else _OF_LAYER_NORM
    for name, formula in formulas.items():
        yield name, partial(affine, formula)
    one = np.ones_like(own.weight)
    if isinstance(own, RMSNorm):
        yield "mean subtracted in RMSNorm", with_mean(own)
        word = "weight without 1 +" if own.plus else "1 + weight for weight"
        yield word, RMSNorm(own.weight if own.plus else own.weight + 1, None, own.eps)
        yield "weight ignored", RMSNorm(one, None, own.eps)
    else:
        yield "weight and bias ignored" if bias is not None else "weight ignored", kind(one, None, own.eps)
    if bias is not None:
        yield "bias missing", kind(weight, None, own.eps)
        yield "bias added before the weight", kind(weight, weight * bias, own.eps)
    yield "not applied", lambda x: x
    for other, module in _same_place(path, modules):
        yield f"{'weight' if bias is None else 'weight and bias'} of {other}", kind(module.weight, module.bias, own.eps)


_OF_LAYER_NORM: Mapping[str, Callable[[Array, float], Array]] = {
    "eps outside the root": eps_outside,
    "variance divided by dim - 1": unbiased,
    "variance divided by dim - 1, eps outside the root": unbiased_eps_outside,
    "variance in one pass": one_pass,
    "RMSNorm for LayerNorm": root_mean_square,
    "mean square for variance": lambda x, eps: np.asarray((x - mean(x)) / np.sqrt(mean(x * x) + eps)),
    "not divided by the standard deviation": lambda x, eps: np.asarray(x - mean(x)),
}
_OF_RMS: Mapping[str, Callable[[Array, float], Array]] = {
    "eps outside the root": lambda x, eps: np.asarray(x / (np.sqrt(mean(x * x)) + eps)),
    "mean square divided by dim - 1": lambda x, eps: np.asarray(
        x / np.sqrt((x * x).sum(-1, keepdims=True) / (x.shape[-1] - 1) + eps)
    ),
}


# -- attention, gate and residual: what a block computes between its modules -------------------------------------


def of_block(stack: Stack, block: BoundBlock) -> dict[str, Choices]:
    """What a block can compute wrongly beside its modules; the mistakes that a whole model can make are among them."""
    others = activations(block.feed_forward.activate)
    found = {f"activation {word}": Choices(activation=partial(_instead, formula)) for word, formula in others.items()}
    for mistake in MISTAKES:
        choices = mistake.make(stack)
        if choices is not None and not changed(choices) & {"dense", "norm", "activation", "order"}:
            found[mistake.name] = choices
    return found | _of_scores(stack, block.attention) | _of_probabilities(stack, block.attention) | _of_context(block)


def _instead(wrong: Any, right: Any) -> Any:
    return wrong


def changed(choices: Choices) -> frozenset[str]:
    """Which parts of the computation are not the right ones."""
    right = Choices()
    return frozenset(name for name in Choices._fields if getattr(choices, name) is not getattr(right, name))


def pairs(found: Mapping[str, Choices]) -> Iterator[tuple[str, Choices]]:
    """Two mistakes of attention at once."""
    named = [(name, choices, changed(choices)) for name, choices in found.items()]
    single = [each for each in named if not each[2] & {"part", "residual", "last_norm", "gated", "activation"}]
    for i, (first, one, parts) in enumerate(single):
        for second, other, others in single[i + 1 :]:
            if not parts & others:
                yield f"{first} + {second}", one._replace(**{name: getattr(other, name) for name in others})


def activations(right: Formula) -> dict[str, Formula]:
    """The formulas that stand in the place of the right one, by their names."""
    known: dict[Any, str] = {}
    for word, (formula, _) in ACTIVATIONS.items():
        known.setdefault(formula, word)
    found = {word: formula for formula, word in known.items() if formula is not right}
    return found | {"left out": lambda x: x}


def _of_scores(stack: Stack, own: Attention) -> dict[str, Choices]:
    """Scale, the pairs that are compared, the learned bias, the rotation."""
    found = {
        "division by head_dim": Choices(scale=lambda own: 1 / own.head_dim),
        "division by the fourth root of head_dim": Choices(scale=lambda own: own.head_dim**-0.25),
    }
    if own.key_heads < own.heads:
        by_keys = 1 / math.sqrt(own.head_dim * own.key_heads)
        found["division by sqrt(dim of the keys)"] = Choices(scale=lambda own: by_keys)
    else:
        for i, j in ((1, 0), (0, 0), (1, 1), (0, 2), (2, 1), (2, 0), (1, 2)):
            found[f"scores of {'qkv'[i]} and {'qkv'[j]}"] = Choices(use=(i, j, 2))
    if own.terms:
        found |= {
            "relative bias missing": Choices(bias=lambda bias, own: None),
            "relative bias turned, keys for queries": Choices(bias=lambda bias, own: np.swapaxes(_there(bias), -1, -2)),
            "relative bias added before the division": Choices(bias=lambda bias, own: _there(bias) * own.scale),
            "relative bias of the heads in reverse": Choices(bias=lambda bias, own: _there(bias)[::-1]),
        }
    if own.rotated and stack.rotary is not None:
        found |= {
            "queries not turned": Choices(turned=(False, True)),
            "keys not turned": Choices(turned=(True, False)),
            "turned the other way": Choices(turn=lambda x, cos, sin, pairing: rotate(x, cos, -sin, pairing)),
            **{f"theta {theta:g}": Choices(angles=partial(_by_theta, theta)) for theta in THETAS},
        }
    return found


def _there(bias: Array | None) -> Array:
    assert bias is not None  # asked of models that have one
    return bias


def _by_theta(theta: float, stack: Stack, own: Attention, places: Array) -> tuple[Array, Array]:
    """The angles of a plain rotation as wide as this model's."""
    cos, _ = angles(stack, own, places)
    return rotary_angles(places, rotary_frequencies(cos.shape[-1], theta))


def _of_probabilities(stack: Stack, own: Attention) -> dict[str, Choices]:
    """Mask, window, softmax."""
    found = {
        "mask inverted": Choices(mask=lambda keep, dtype: additive_mask(~keep, dtype)),
        "mask inverted, by -1e4": Choices(mask=lambda keep, dtype: np.asarray(keep * dtype.type(-1e4))),
        "mask after softmax": Choices(
            mask=lambda keep, dtype: np.zeros((), dtype), after=lambda weights, keep: np.asarray(weights * keep)
        ),
        "mask added as 1 and 0": Choices(mask=lambda keep, dtype: (~keep).astype(dtype)),
        "mask along the queries": Choices(mask=lambda keep, dtype: additive_mask(keep.swapaxes(-1, -2), dtype)),
        "the first text's mask for all": Choices(mask=lambda keep, dtype: additive_mask(keep[:1], dtype)),
        "scores scaled after they are kept": Choices(softmax=lambda x: softmax(x * x.dtype.type(own.scale))),
        "scale taken back after the scores are kept": Choices(softmax=lambda x: softmax(x / x.dtype.type(own.scale))),
        "softmax over queries and keys": Choices(softmax=_over_both),
        "sigmoid for softmax": Choices(softmax=lambda x: np.asarray(1 / (1 + np.exp(-np.clip(x, -80, 80))))),
    }
    reaches = sorted({block.attention.reach for block in stack.blocks} - {None, own.reach}, key=lambda x: x or 0)
    found |= {f"window of {reach} tokens": Choices(reach=partial(_instead, reach)) for reach in reaches}
    if own.reach:
        found["window twice as wide"] = Choices(reach=lambda x: None if x is None else 2 * x)
        found["window half as wide"] = Choices(reach=lambda x: None if x is None else x // 2)
    return found


def _over_both(scores: Array) -> Array:
    return softmax(scores.reshape(*scores.shape[:-2], -1)).reshape(scores.shape)


def _of_context(block: BoundBlock) -> dict[str, Choices]:
    """What is gathered by which probabilities."""
    own = block.attention
    found = {"probabilities transposed": Choices(gather=lambda weights, v: np.matmul(weights.swapaxes(-1, -2), v))}
    if own.key_heads == own.heads:
        found |= {f"{'qkv'[i]} gathered in place of v": Choices(use=(0, 1, i)) for i in (0, 1)}
    return found
