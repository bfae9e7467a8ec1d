"""The config's words for activations: each is the function that the reference computes under that word."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from minibert.equations.input_layer import Array
from minibert.families.parts.bound_blocks import ACTIVATIONS

DIGITS = 5e-9  # the values below have nine digits of numbers up to 6
FLOAT64 = 2e-12  # measured 9.2e-13, of the rounded constant in gelu_fast
FLOAT32 = 1e-6  # times max(1, |x|), against torch in float32; measured 3.6e-7
X = np.array([-6, -3, -1, -0.25, 0.25, 1, 3, 6])
GELU = [-5.91952587e-09, -0.00404969409, -0.158655254, -0.100323419, 0.149676581, 0.841344746, 2.99595031, 5.99999999]
BY_TANH = [-8.43964898e-11, -0.00363739208, -0.158808009, -0.100324649, 0.149675351, 0.841191991, 2.99636261, 6]
SILU = [-0.0148357389, -0.14227762, -0.268941421, -0.109455875, 0.140544125, 0.731058579, 2.85772238, 5.98516426]
QUICK = [-0.00022035355, -0.0180713097, -0.154204234, -0.0988003501, 0.15119965, 0.845795766, 2.98192869, 5.99977965]
TANH = [-0.999987712, -0.995054754, -0.761594156, -0.244918662, 0.244918662, 0.761594156, 0.995054754, 0.999987712]
# what transformers 5.23 on torch 2.13 gives for X in float64, by its word
THEIRS = {
    "gelu": GELU, "gelu_python": GELU, "gelu_new": BY_TANH, "gelu_fast": BY_TANH, "gelu_accurate": BY_TANH,
    "gelu_pytorch_tanh": BY_TANH, "gelu_python_tanh": BY_TANH, "relu": [0, 0, 0, 0, 0.25, 1, 3, 6], "silu": SILU,
    "swish": SILU, "quick_gelu": QUICK, "tanh": TANH, "relu6": [0, 0, 0, 0, 0.25, 1, 3, 6],
    "leaky_relu": [-0.06, -0.03, -0.01, -0.0025, 0.25, 1, 3, 6],
    "sigmoid": [0.00247262316, 0.0474258732, 0.268941421, 0.437823499, 0.562176501, 0.731058579, 0.952574127,
                0.997527377],
    "linear": X,
}  # fmt: skip


def test_every_word_has_values() -> None:
    assert set(THEIRS) == set(ACTIVATIONS)


@pytest.mark.parametrize("word", ACTIVATIONS)
def test_values(word: str) -> None:
    function = ACTIVATIONS[word]
    assert np.abs(function(X) - THEIRS[word]).max() <= DIGITS
    assert function(X.astype(np.float32)).dtype == np.float32


@pytest.mark.reference
@pytest.mark.parametrize("word", ACTIVATIONS)
def test_the_reference_s_own(word: str) -> None:
    torch, activations = importlib.import_module("torch"), importlib.import_module("transformers.activations")
    function, theirs = ACTIVATIONS[word], activations.ACT2FN[word]
    for dtype, tolerance in (("float32", FLOAT32), ("float64", FLOAT64)):
        x: Array = np.linspace(-12, 12, 100_001).astype(dtype)
        off = np.abs(function(x) - theirs(torch.from_numpy(x)).numpy()) / np.maximum(1, np.abs(x))
        assert off.max() <= tolerance
