"""The mistakes that are made between token rows and vector: pooling, the modules after it, the width."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.sentences import normalized
from minibert.families.parts.activations import TORCH
from minibert.verify.mistakes.wrong_formulas import Formula

from .vector_mistake import Found, VectorMistake
from .vector_recipes import POOLED, Maker


def poolings(maker: Maker) -> Found:
    """Another pooling, or one of other rows."""
    right = maker.right.poolings
    shown = " and ".join(right)
    for name in POOLED:
        if right != (name,):
            yield VectorMistake(f"pooling {name}", f"The pooling is {shown}.", {"poolings": (name,)})
    for name, which in (
        ("special tokens left out of pooling", (True, True)),
        ("special token at the beginning left out of pooling", (True, False)),
        ("special token at the end left out of pooling", (False, True)),
    ):
        if all(there or not asked for there, asked in zip((maker.before, maker.after), which, strict=True)):
            yield VectorMistake(name, "Pool all tokens of the text.", {"unpooled": which})
    if right == ("mean",) and maker.own.after != (normalized,):  # which would take the factor away
        remedy = "Divide the sum of the text's rows by the number of its own tokens."
        yield VectorMistake("mean divided by the padded length", remedy, {"spread": True})
    if (pooler := maker.encoder.pooler) is not None:
        remedy = f"The pooling is {shown}, of the last hidden state; pooler_output has a map and tanh behind it."
        yield VectorMistake("pooler_output in place of pooling", remedy, {"poolings": ("cls",), "between": pooler})
    yield VectorMistake("padding pooled", "Pool only tokens whose attention mask is 1.", {"pads": True})


NAMES = {"dense": "Dense", "steady": "projection", "layer_norm": "LayerNorm", "normalized": "Normalize"}


def name_of(step: Formula) -> str:
    """What a module after pooling is called; "" for another."""
    return NAMES.get(getattr(getattr(step, "func", step), "__name__", ""), "")


def modules(maker: Maker) -> Found:
    """A module after pooling left out, or computed otherwise."""
    after = maker.own.after
    named = [(i, name) for i, step in enumerate(after) if (name := name_of(step))]
    for i, name in named:
        many = sum(name == other for _, other in named) > 1
        which = f"{name}, module {i + 2} of modules.json," if many else name
        say = "vectors not normalized" if name == "Normalize" and not many else f"{which} left out"
        yield VectorMistake(say, f"Apply {which.rstrip(',')} after pooling.", {"without": i})
        if name == "Dense":
            yield from _denses(maker, i, which)
    if not maker.own.ends_normalized:
        yield VectorMistake("vectors normalized", "Do not divide the vectors by their length.", {"norm": normalized})
    else:
        remedy = "Divide each vector by its length: the root of the sum of squares."
        for name, measure in (("sum", partial(np.sum, axis=1)), ("largest", partial(np.max, axis=1))):
            changes = {"without": len(after) - 1, "norm": partial(_divided_by, measure)}
            yield VectorMistake(f"divided by the {name} of absolute values", remedy, changes)


def _divided_by(measure: Callable[..., Array], x: Array) -> Array:
    return np.asarray(x / measure(np.abs(x), keepdims=True))


def _denses(maker: Maker, i: int, which: str) -> Found:
    """What is done wrong in one Dense."""
    named = which.rstrip(",")
    own: dict[str, Any] = getattr(maker.own.after[i], "keywords", {})
    activation, weight = own.get("activation"), own.get("weight")
    if activation is not None:
        bare = activation is TORCH["Identity"]
        remedy = "This Dense has no activation." if bare else "config.json of the Dense names activation_function."
        for word in ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid"):
            if activation is not TORCH[word]:
                name = f"activation of {named} left out" if word == "Identity" else f"{word.lower()} after {named}"
                yield VectorMistake(name, remedy, {"given": (i, {"activation": TORCH[word]})})
    if own.get("bias") is not None:
        yield VectorMistake(f"bias of {named} missing", "Add it after the product.", {"given": (i, {"bias": None})})
    if weight is not None and weight.shape[0] == weight.shape[1]:
        remedy = "The weight is stored (out, in): x @ weight.T."
        yield VectorMistake(f"weight of {named} transposed", remedy, {"given": (i, {"weight": weight.T})})
    if i == 0:
        yield VectorMistake(f"{named} before pooling", "Pool the tokens first.", {"before": True})
        remedy = f"Give {named} what pooling gives; only what comes out is normalized."
        yield VectorMistake(f"vectors normalized before {named}", remedy, {"between": normalized})


def endings(maker: Maker, width: int) -> Found:
    """Mistakes that are seen at the vectors' own width: truncated to it."""
    if width < maker.own.dim and width != maker.right.width:
        remedy = f"Give all {maker.right.width} numbers, or name the width in both places."
        yield VectorMistake(f"truncated to the first {width} numbers", remedy, {"width": width})
        both = {"width": width, "norm": normalized}
        yield VectorMistake(f"truncated to the first {width} numbers and normalized again", remedy, both)
    if maker.right.width != maker.own.dim == width:
        yield VectorMistake("vectors not truncated", f"Give the first {maker.right.width} numbers.", {"width": width})
