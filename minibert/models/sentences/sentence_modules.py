"""Computes what the modules of a folder of sentence-transformers say: Dense, LayerNorm, Normalize."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array, layer_norm
from minibert.equations.sentences import normalized
from minibert.families.parts.bound_blocks import TORCH, steady, torch_class

from .folder import FolderFiles, Module

# the keys of each module's config.json. Any other would be of a setting that is not computed here
IN_AND_OUT = ("module_input_name", "module_output_name")
KEYS: Mapping[str, tuple[str, ...]] = {
    "Dense": ("in_features", "out_features", "bias", "activation_function", "use_residual", *IN_AND_OUT),
    "LayerNorm": ("dimension",),
    "Dropout": ("dropout",),
    "Normalize": IN_AND_OUT,
}
SENTENCES, TOKENS = "sentence_embedding", "token_embeddings"  # what a module works on
LAYER_NORM_EPS = 1e-5  # torch.nn.LayerNorm's own, which no folder changes


After = Callable[[Array], Array]


def read_steps(
    modules: Sequence[Module],
    whole: FolderFiles,
    dim: int,
    dtype: np.dtype[Any] | None,
    works_on: str = SENTENCES,
) -> tuple[tuple[After, ...], int]:
    """Give the step of each module behind the pooling, one after another, and the width after the last.

    whole: the model's files. works_on: TOKENS where there is no pooling. A Dense then need not say so.
    """
    steps = []
    for module in modules:
        files, settings = whole.inside(module.path), dict(module.settings)
        files.check_keys(settings, KEYS[module.kind])
        reads = settings.get(IN_AND_OUT[0], SENTENCES if module.kind == "Normalize" else works_on)
        writes = settings.get(IN_AND_OUT[1])
        for name, found in zip(IN_AND_OUT, (reads, reads if writes is None else writes), strict=True):
            if found != works_on:
                raise files.refuse(f"{module.kind} has {name!r} {found!r}, but here it works on {works_on!r} alone")
        step, dim = STEPS[module.kind](settings, files, dim, dtype)
        steps.append(step)
    return tuple(steps), dim


def _layer_norm(
    settings: dict[str, Any], files: FolderFiles, dim: int, dtype: np.dtype[Any] | None
) -> tuple[After, int]:
    if settings.get("dimension") != dim:
        raise files.refuse(
            f"LayerNorm is for {settings.get('dimension')!r} numbers, but {dim} come out of the module before"
        )
    weight, bias = files.tensors({"norm.weight": (dim,), "norm.bias": (dim,)}, dtype)
    return partial(layer_norm, weight=weight, bias=bias, eps=LAYER_NORM_EPS), dim


def _dense(settings: dict[str, Any], files: FolderFiles, dim: int, dtype: np.dtype[Any] | None) -> tuple[After, int]:
    """`y = f(x @ weight^T + bias)`, plus x or x @ residual^T where the folder says so."""
    width, out = settings.get("in_features"), settings.get("out_features")
    if width != dim or type(out) is not int or out < 1:
        raise files.refuse(f"Dense maps {width!r} numbers to {out!r}, but {dim} come out of the module before")
    named = settings.get("activation_function", "torch.nn.modules.activation.Tanh")
    activation = TORCH.get(torch_class(named))
    if activation is None:
        raise files.refuse(f"activation_function {named!r} is not one of torch.nn's {', '.join(TORCH)}")
    keeps = files.flag(settings, "use_residual", False)
    shapes: dict[str, tuple[int, ...] | None] = {"linear.weight": (out, dim)}
    if files.flag(settings, "bias", True):
        shapes["linear.bias"] = (out,)
    if keeps and dim != out:
        shapes["residual.weight"] = (out, dim)
    found = dict(zip(shapes, files.tensors(shapes, dtype), strict=True))
    bias, residual = found.get("linear.bias"), found.get("residual.weight")
    made = partial(dense, weight=found["linear.weight"], bias=bias, residual=residual)
    return partial(made, activation=activation, keeps=keeps), out


def dense(x: Array, weight: Array, bias: Array | None, residual: Array | None, activation: After, keeps: bool) -> Array:
    """f(x @ weight^T + bias), and what it keeps of x."""
    y = activation(steady(x, weight, bias))
    if keeps:
        y = y + (x if residual is None else steady(x, residual))
    return y


STEPS: Mapping[str, Callable[[dict[str, Any], FolderFiles, int, np.dtype[Any] | None], tuple[After, int]]] = {
    "Dense": _dense,
    "LayerNorm": _layer_norm,
    "Dropout": lambda settings, files, dim, dtype: (TORCH["Identity"], dim),  # changes nothing outside training
    "Normalize": lambda settings, files, dim, dtype: (normalized, dim),
}
"""Module -> a function of its settings, its files, the width before it and the dtype: the step and the width after."""
