"""The activations that config.json and the folders of sentence models may name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from minibert.equations import activations as rare
from minibert.equations import blocks
from minibert.equations.blocks import Activation

from .config import Config

# the config's word -> the equation, and how the reference prints it
ACTIVATIONS: Mapping[str, tuple[Activation, str]] = {
    "gelu": (blocks.gelu, "GELUActivation()"),
    "gelu_python": (blocks.gelu, "GELUActivation()"),
    "gelu_new": (blocks.gelu_tanh, "NewGELUActivation()"),
    "gelu_fast": (blocks.gelu_tanh, "FastGELUActivation()"),
    "gelu_accurate": (blocks.gelu_tanh, "AccurateGELUActivation()"),
    "gelu_pytorch_tanh": (blocks.gelu_tanh, "GELUTanh()"),
    "gelu_python_tanh": (blocks.gelu_tanh, "GELUTanh()"),
    "relu": (blocks.relu, "ReLU()"),
    "silu": (blocks.silu, "SiLUActivation()"),
    "swish": (blocks.silu, "SiLU()"),
    "quick_gelu": (blocks.quick_gelu, "QuickGELUActivation()"),
    "mish": (rare.mish, "MishActivation()"),
    "tanh": (blocks.tanh, "Tanh()"),
    "gelu_10": (rare.clipped_gelu, "ClippedGELUActivation()"),
    "relu2": (rare.squared_relu, "ReLUSquaredActivation()"),
    "relu6": (rare.relu6, "ReLU6()"),
    "leaky_relu": (rare.leaky_relu, "LeakyReLU(negative_slope=0.01)"),
    "hardswish": (rare.hardswish, "Hardswish()"),
    "sigmoid": (blocks.sigmoid, "Sigmoid()"),
    "laplace": (rare.laplace, "LaplaceActivation()"),
    "linear": (rare.identity, "LinearActivation()"),
}
# a class of torch.nn -> the equation, as it makes it without arguments: a folder keeps the name of the class alone
TORCH: Mapping[str, Activation] = {
    "Identity": rare.identity,
    "Tanh": blocks.tanh,
    "ReLU": blocks.relu,
    "GELU": blocks.gelu,
    "SiLU": blocks.silu,
    "Sigmoid": blocks.sigmoid,
    "LeakyReLU": rare.leaky_relu,
    "ReLU6": rare.relu6,
    "ELU": rare.elu,
    "Hardswish": rare.hardswish,
    "Mish": rare.mish,
    "Softplus": rare.softplus,
    "Softmax": blocks.softmax,
}
LEARNED = "PReLU"  # a class of torch.nn whose slope is a tensor of the file
Key = str | Callable[[Config], str]  # of the config, or what gives the word from it


def torch_class(path: Any) -> str:
    """The class of torch.nn at a path that a folder names, "" for anything else; nothing that it names is imported."""
    return str(path).rpartition(".")[2] if str(path).startswith("torch.nn.") else ""


def activation_name(config: Config, key: Key) -> Any:
    """What the config names under a key, or what gives the name from it."""
    return config.get(key) if isinstance(key, str) else key(config)


def activation_of(config: Config, key: Key) -> tuple[Activation, str]:
    """Give the equation that the config names. Raises CheckpointError for one that is not known."""
    name = activation_name(config, key)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        named = repr(key) if isinstance(key, str) else "the activation"
        raise config.refused(f"{named} must be one of {', '.join(ACTIVATIONS)}, found {name!r}")
    return ACTIVATIONS[name]
