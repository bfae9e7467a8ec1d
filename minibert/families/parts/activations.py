"""The activations that config.json and the folders of sentence models may name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from minibert.equations import activations
from minibert.equations.activations import Activation
from minibert.equations.blocks import softmax

from .config import Config

# the config's word -> the equation
ACTIVATIONS: Mapping[str, Activation] = {
    "gelu": activations.gelu,
    "gelu_python": activations.gelu,
    "gelu_new": activations.gelu_tanh,
    "gelu_fast": activations.gelu_tanh,
    "gelu_accurate": activations.gelu_tanh,
    "gelu_pytorch_tanh": activations.gelu_tanh,
    "gelu_python_tanh": activations.gelu_tanh,
    "relu": activations.relu,
    "silu": activations.silu,
    "swish": activations.silu,
    "quick_gelu": activations.quick_gelu,
    "tanh": activations.tanh,
    "relu6": activations.relu6,
    "leaky_relu": activations.leaky_relu,
    "sigmoid": activations.sigmoid,
    "linear": activations.identity,
}
# a class of torch.nn -> the equation, as it makes it without arguments: a folder keeps the name of the class alone
TORCH: Mapping[str, Activation] = {
    "Identity": activations.identity,
    "Tanh": activations.tanh,
    "ReLU": activations.relu,
    "GELU": activations.gelu,
    "SiLU": activations.silu,
    "Sigmoid": activations.sigmoid,
    "LeakyReLU": activations.leaky_relu,
    "ReLU6": activations.relu6,
    "Softmax": softmax,
}
Key = str | Callable[[Config], str]  # of the config, or what gives the word from it


def torch_class(path: Any) -> str:
    """The class of torch.nn at a path that a folder names, "" for anything else; nothing that it names is imported."""
    return str(path).rpartition(".")[2] if str(path).startswith("torch.nn.") else ""


def activation_name(config: Config, key: Key) -> Any:
    """The config's key that names an activation, or a function that reads the name."""
    return config.get(key) if isinstance(key, str) else key(config)


def activation_of(config: Config, key: Key) -> Activation:
    """Give the equation that the config names. Raises CheckpointError for one that is not known."""
    name = activation_name(config, key)
    if not isinstance(name, str) or name not in ACTIVATIONS:
        named = repr(key) if isinstance(key, str) else "the activation"
        raise config.refused(f"{named} must be one of {', '.join(ACTIVATIONS)}, found {name!r}")
    return ACTIVATIONS[name]
