"""The math: every formula as a function of arrays.

Arrays come in, an array goes out. Nothing here knows a file, a config or a model's name.
May import: NumPy and the standard library. `from minibert.equations import attention` imports any formula of the files
named in `FILES`. The files are listed in the order of reading, which README.md of this folder explains.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

FILES = (
    "input_layer", "activations", "blocks", "nine_terms", "heads", "whole_models", "rotary", "gated_blocks",
    "rotary_scaling", "attention_positions", "sentences", "token_pairs", "similarity", "static", "quantization",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    """Return a formula, and import its file now: the input layer by itself needs a single file."""
    for file in FILES if not name.startswith("_") and name not in (*FILES, "fast") else ():
        if name in (formulas := _formulas(file)):
            return formulas[name]
    raise AttributeError(f"module {__name__!r} has no formula {name!r}")


def __dir__() -> list[str]:
    return sorted(name for file in FILES for name in _formulas(file))


def _formulas(file: str) -> dict[str, Any]:
    module = import_module(f".{file}", __name__)
    return {
        name: value
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
    }
