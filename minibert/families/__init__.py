"""The recipes: each family is a row of data, with its steps in order and the names of its tensors.

May import: `files`, `equations`, `errors`. Rows and steps of your own are made of the names below:
`from minibert.families import Family, Norm, Positions, Tokens`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .family import Family
    from .parts.config import Config, replace
    from .parts.modules import Embedding, LayerNorm, Linear
    from .parts.steps import Add, Binder, Inputs, Mask, Norm, Positions, Project, Scale, Step, Tokens, always
    from .rows import FAMILIES

__all__ = [
    "FAMILIES", "Add", "Binder", "Config", "Embedding", "Family", "Inputs", "LayerNorm", "Linear", "Mask", "Norm",
    "Positions", "Project", "Scale", "Step", "Tokens", "always", "replace",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a name from its file when it is first used, so that `import minibert` stays short."""
    from importlib import import_module

    if name in __all__:
        for file in ("parts.config", "parts.modules", "parts.steps", "family", "rows"):  # in the order of imports
            if hasattr(module := import_module(f"{__name__}.{file}"), name):
                return getattr(module, name)
    raise AttributeError(f"minibert.families has no {name!r}; it has {', '.join(__all__)}")
