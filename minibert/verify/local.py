"""Local checks: each module of a port, on the port's own input of it. A wrong one shows by itself, whatever came
before.

Our module gets what theirs got. What differs then is that module's own mistake; what was only the consequence of an
earlier difference is right here. The mistakes of that one formula are tried on it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.block_parts import ACTIVATIONS, Dense, module_path
from minibert.families.modules import LayerNorm
from minibert.models.encoder import Encoder

from .blocks import EncoderSubject
from .compare import OF_A_PORT, Difference, over_kinds, rms
from .input_layer_mistakes import eps_outside, one_pass, root_mean_square, unbiased, unbiased_eps_outside
from .plain_blocks import Choices, PlainBlocks
from .traces import Traces
from .vector_mistakes import to_bfloat16, to_float16, to_int8, to_int8_whole

LEFT = 0.05  # of the right module's difference: a mistake that leaves at most so much explains it
ROUNDED = 10.0  # and at most so many tolerances

Formula = Callable[[Array], Array]


class Local(NamedTuple):
    """A module that is wrong by itself: its key, how far from ours on the same input, and which mistakes fit it."""

    key: str
    place: str
    largest: float
    fits: list[str]


class Fed(PlainBlocks):
    """The blocks, in which every intermediate is replaced by the port's as soon as ours is computed."""

    def __init__(self, encoder: Encoder, mask: Array, theirs: Mapping[str, Array]) -> None:
        self.entered: dict[str, Array] = {}  # what enters each module, by its path
        self.theirs = theirs
        self._paths = {id(module): path for path, module in _modules(encoder).items()}
        choices = Choices(dense=self._noting, norm=self._noting)
        self.mask = mask
        super().__init__(encoder.stack, choices, mask, {})

    def record(self, name: str, x: Array) -> Array:
        """Keep ours, go on with theirs; a number of padding that is none must not spread."""
        if name in self.theirs and self.theirs[name].shape == x.shape:
            self.found[name] = x
            there = self.theirs[name].astype(x.dtype)
            return np.where(np.isfinite(there), there, x)
        return x

    def _noting(self, module: Any) -> Formula:
        def apply(x: Array) -> Array:
            self.entered[self._paths[id(module)]] = x
            return np.asarray(module(x))

        return apply


def local_mistakes(subject: EncoderSubject, inputs: Traces, theirs: Traces) -> list[Local]:
    """Find every module of the blocks that is wrong by itself, in the order of computing."""
    fed = {kind: _feed(subject.encoder, batch, theirs[kind]) for kind, batch in inputs.items()}
    with subject.exact() as exact:
        truth = {kind: _feed(exact.model, batch, theirs[kind]).found for kind, batch in inputs.items()}
    ours = {kind: each.found for kind, each in fed.items()}
    compared = over_kinds(subject.compare(inputs, ours, theirs, truth))
    wrong = [d for d in compared if d.key in subject.weighed and not d.accepted(OF_A_PORT)]
    return [Local(d.key, subject.place(d.key), d.largest, list(_names(subject, d, inputs, fed, theirs))) for d in wrong]


def _modules(encoder: Encoder) -> dict[str, Any]:
    """The modules by what a trace calls their output: one that several blocks use is there once for each of them."""
    stack, found = encoder.stack, dict(encoder.embeddings.modules)
    for block in stack.blocks:
        found |= {key: module for key, module in block.modules.items() if callable(module)}
    return found | stack.others


def _feed(encoder: Encoder, batch: Mapping[str, Array], theirs: Mapping[str, Array]) -> Fed:
    keywords: dict[str, Any] = dict(batch)
    x = encoder.embeddings(keywords.pop("input_ids", None), **keywords)
    mask = np.asarray(batch.get("attention_mask", np.ones(x.shape[:2], np.int64))).reshape(x.shape[:2])
    fed = Fed(encoder, mask, theirs)
    first = fed.record("hidden_states.0", x)
    fed.found["hidden_states.0"] = x
    fed.run(first)
    return fed


# -- the mistakes of one formula ---------------------------------------------------------------------------------


def _names(
    subject: EncoderSubject, d: Difference, inputs: Traces, fed: Mapping[str, Fed], theirs: Traces
) -> Iterator[str]:
    """Name the mistakes of this module that explain the difference in all batches."""
    kinds = [kind for kind in d.kinds if d.key in theirs[kind]]
    modules = _modules(subject.encoder)
    if d.key in modules and all(d.key in fed[kind].entered for kind in kinds):
        module = modules[d.key]
        tried = _of_dense(d.key, modules) if isinstance(module, Dense) else _of_norm(d.key, modules)
        entering = {kind: fed[kind].entered[d.key] for kind in kinds}
    elif up := _before_activation(subject, d.key):
        if not all(up in theirs[kind] for kind in kinds):
            return
        tried, entering = _of_activation(subject), {kind: theirs[kind][up] for kind in kinds}
    else:
        return
    for name, formula in tried:
        made = {kind: {d.key: np.asarray(formula(entering[kind]), np.float32)} for kind in kinds}
        if all(_explains(subject, d, inputs, kind, made[kind], fed[kind], theirs[kind]) for kind in kinds):
            yield name


def _explains(
    subject: EncoderSubject, d: Difference, inputs: Traces, kind: str, made: dict[str, Array], fed: Fed,
    theirs: Mapping[str, Array],
) -> bool:  # fmt: skip
    if made[d.key].shape != theirs[d.key].shape:
        return False
    keep = fed.mask.reshape(*fed.mask.shape, *[1] * (theirs[d.key].ndim - 2)) != 0  # a head's norm has an axis more
    before, after = (rms(np.where(keep, x - theirs[d.key], 0)) for x in (fed.found[d.key], made[d.key]))
    first = {"hidden_states.0": fed.found["hidden_states.0"]}
    (found,) = subject.compare({kind: inputs[kind]}, {kind: {**first, **made}}, {kind: {d.key: theirs[d.key]}}, {})
    return found.largest <= ROUNDED * d.tolerance and after <= LEFT * before


def _same_place(path: str, modules: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Modules of the same kind and shape elsewhere in the blocks."""
    own = modules[path]
    for other, module in {module_path(key): module for key, module in modules.items()}.items():
        if other != module_path(path) and type(module) is type(own) and module.weight.shape == own.weight.shape:
            yield other, module


def _of_dense(path: str, modules: Mapping[str, Any]) -> Iterator[tuple[str, Formula]]:
    own: Dense = modules[path]
    weight, bias, turned = own.weight, own.bias, own.transposed
    if bias is not None:
        yield "bias missing", Dense(weight, None, turned)
    if weight.shape[0] == weight.shape[1]:
        yield "weight transposed", Dense(weight, bias, not turned)
        yield "weight transposed, bias missing", Dense(weight, None, not turned)
    for rounding, name in ((to_float16, "float16"), (to_bfloat16, "bfloat16"), (to_int8, "int8, a scale for each row"),
                           (to_int8_whole, "int8, one scale")):  # fmt: skip
        narrow = rounding(weight.T).T if turned else rounding(weight)
        yield f"weight in {name}", Dense(np.ascontiguousarray(narrow), bias, turned)
    for other, module in _same_place(path, modules):
        yield f"weight and bias of {other}", module
        if bias is not None:
            yield f"weight of {other}", Dense(module.weight, bias, turned)
            yield f"bias of {other}", Dense(weight, module.bias, turned)


def _of_norm(path: str, modules: Mapping[str, Any]) -> Iterator[tuple[str, Formula]]:
    own: LayerNorm = modules[path]

    def affine(formula: Callable[[Array, float], Array], x: Array) -> Array:
        return np.asarray(formula(x, own.eps) * own.weight + (0 if own.bias is None else own.bias))

    for eps in (1e-12, 1e-6, 1e-5):
        if eps != own.eps:
            yield f"eps {eps:g}", type(own)(own.weight, own.bias, eps)
    for name, formula in (
        ("eps outside the root", eps_outside), ("variance divided by dim - 1", unbiased),
        ("variance divided by dim - 1, eps outside the root", unbiased_eps_outside),
        ("variance in one pass", one_pass), ("RMSNorm for LayerNorm", root_mean_square),
    ):  # fmt: skip
        yield name, partial(affine, formula)
    ones = np.ones_like(own.weight)
    yield "weight and bias ignored", type(own)(ones, None if own.bias is None else ones * 0, own.eps)
    if own.bias is not None:
        yield "bias missing", type(own)(own.weight, ones * 0, own.eps)
    yield "not applied", lambda x: x
    for other, module in _same_place(path, modules):
        yield f"weight and bias of {other}", type(own)(module.weight, module.bias, own.eps)


def _before_activation(subject: EncoderSubject, key: str) -> str:
    """The module before this activation; "" where it is none, or where a gate goes with it."""
    for block in subject.encoder.stack.blocks:
        feed = block.feed_forward
        if key == feed.activation and not feed.gate:
            return feed.up
    return ""


def _of_activation(subject: EncoderSubject) -> Iterator[tuple[str, Formula]]:
    right = subject.encoder.stack.blocks[0].feed_forward.activate
    known: dict[Any, str] = {}
    for word, (formula, _) in ACTIVATIONS.items():
        known.setdefault(formula, word)
    yield from ((f"activation {word}", formula) for formula, word in known.items() if formula is not right)
    yield "activation left out", lambda x: x
