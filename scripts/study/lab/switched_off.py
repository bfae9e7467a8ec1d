"""The library's formulas raise while an answer is tried, so that it cannot call the formula it has to write."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import CodeType, FunctionType

import minibert
import minibert.equations
from minibert.models.input_layer import EmbeddingLayer
from minibert.models.model import Model

OFF = "is switched off while this is checked: write the formula yourself, with NumPy"
BACKWARD = ["gradients", "block_gradients", "model_gradients"]  # beside the studies
ALL = ("all",)  # for an exercise that runs whole models
MODELS = (minibert.Encoder, Model, EmbeddingLayer)


@lru_cache
def formulas() -> list[FunctionType]:
    """List all public functions of `minibert.equations` and the formulas backward, and methods of whole models."""
    names = [each.name for each in pkgutil.iter_modules(minibert.equations.__path__, "minibert.equations.")] + BACKWARD
    found = [x for name in names for x in vars(importlib.import_module(name)).values() if isinstance(x, FunctionType)]
    found += [x for each in MODELS for name, x in vars(each).items() if isinstance(x, FunctionType) and _computes(name)]
    own = [x for x in found if x.__module__.startswith("minibert.") or x.__module__ in BACKWARD]
    found = [x for x in own if not x.__code__.co_freevars]
    return list({id(x): x for x in found if x.__name__ == "__call__" or not x.__name__.startswith("_")}.values())


def _computes(name: str) -> bool:
    return name in ("__call__", "trace", "logits", "encode", "tokenize", "fill", "next_words", "tokens", "predict")


def _raising(name: str) -> CodeType:
    """Make code that raises: a function with this code raises under each of its names."""
    made: dict[str, FunctionType] = {}
    said = f"{name} {OFF}"
    exec(f"def f(*args, **named):\n    raise RuntimeError({said!r})", made)
    return made["f"].__code__


@contextmanager
def switched_off(may: Collection[Callable[..., object] | str]) -> Iterator[None]:
    """Make each formula raise unless an answer may call it; afterwards all work again."""
    kept = [] if may == ALL else [(function, function.__code__) for function in formulas() if function not in may]
    try:
        for function, _ in kept:
            function.__code__ = _raising(function.__name__)
        yield
    finally:
        for function, code in kept:
            function.__code__ = code
