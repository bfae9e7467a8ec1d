"""The activations that config.json may name."""

from __future__ import annotations

from collections.abc import Mapping

from minibert.equations.blocks import Activation, gelu, gelu_tanh, mish, quick_gelu, relu, silu, tanh

from .config import Config

# the config's word -> the equation, and how the reference prints it
ACTIVATIONS: Mapping[str, tuple[Activation, str]] = {
    "gelu": (gelu, "GELUActivation()"),
    "gelu_python": (gelu, "GELUActivation()"),
    "gelu_new": (gelu_tanh, "NewGELUActivation()"),
    "gelu_fast": (gelu_tanh, "FastGELUActivation()"),
    "gelu_accurate": (gelu_tanh, "AccurateGELUActivation()"),
    "gelu_pytorch_tanh": (gelu_tanh, "GELUTanh()"),
    "gelu_python_tanh": (gelu_tanh, "GELUTanh()"),
    "relu": (relu, "ReLU()"),
    "silu": (silu, "SiLUActivation()"),
    "swish": (silu, "SiLU()"),
    "quick_gelu": (quick_gelu, "QuickGELUActivation()"),
    "mish": (mish, "MishActivation()"),
    "tanh": (tanh, "Tanh()"),
}


def activation_of(config: Config, key: str) -> tuple[Activation, str]:
    """Give the equation that the config names. Raises CheckpointError for one that is not known."""
    name = config.get(key)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise config.refused(f"{key!r} must be one of {', '.join(ACTIVATIONS)}, found {name!r}")
    return ACTIVATIONS[name]
