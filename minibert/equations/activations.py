"""Activations: functions applied to each number between two maps, which would else be one map.

Any shape -> the same, number by number, in the dtype of x. Most models have one of the first eight. Read `gelu` (BERT),
`gelu_tanh` (GPT-2) and `silu` (Llama). The names that configs use, and torch's classes, are in
`families.parts.bound_blocks`.

Source: Hendrycks, Gimpel 2016, "Gaussian Error Linear Units" (arXiv:1606.08415): gelu, exact, by tanh and by the
logistic function. Another source is named with its formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .input_layer import Array

Activation = Callable[[Array], Array]


def erf(x: Array) -> Array:
    """Compute the error function, which NumPy does not have: `erf(x) = 2 / sqrt(pi) * integral_0^x exp(-t^2) dt`.

    Any shape -> the same: one call of math.erf for each number, exact and slow.

    >>> erf(np.array([0.0, 1.0, -6.0])).round(5)
    array([ 0.    ,  0.8427, -1.    ])
    """
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), x.dtype)


def gelu(x: Array) -> Array:
    """Multiply x by the probability that a normal variable is below x: `y = x * (1 + erf(x / sqrt(2))) / 2`.

    Any shape -> the same. Configs call it "gelu"; the tanh form is another function, up to 5e-4 away.

    >>> gelu(np.array([-1.0, 0.0, 1.0])).round(4)
    array([-0.1587,  0.    ,  0.8413])
    """
    half = x.dtype.type(0.5)
    return np.asarray(half * x * (1 + erf(x * np.sqrt(half))))


def gelu_tanh(x: Array) -> Array:
    """Approximate gelu by tanh: `y = x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2`.

    Any shape -> the same. "gelu_new" of GPT-2, "gelu_pytorch_tanh" and "gelu_fast".

    >>> gelu_tanh(np.array([-1.0, 0.0, 1.0])).round(4)
    array([-0.1588,  0.    ,  0.8412])
    """
    half, factor, cubic = map(x.dtype.type, (0.5, math.sqrt(2 / math.pi), 0.044715))
    return np.asarray(half * x * (1 + np.tanh(factor * (x + cubic * x * x * x))))


def relu(x: Array) -> Array:
    """Replace negative numbers by 0: `y = max(x, 0)`.

    >>> relu(np.array([-1.0, 2.0]))
    array([0., 2.])
    """
    return np.asarray(np.maximum(x, 0))


def silu(x: Array) -> Array:
    """Multiply x by the logistic function: `y = x / (1 + exp(-x))`; also called swish.

    The exponent is limited to 88, because exp of more overflows in float32; y is then zero, or nearly.

    >>> silu(np.array([0.0, 1.0])).round(4)
    array([0.    , 0.7311])
    """
    return np.asarray(x / (1 + np.exp(np.minimum(-x, x.dtype.type(88)))))


def quick_gelu(x: Array) -> Array:
    """Approximate gelu by the logistic function: `y = x / (1 + exp(-1.702 x))`.

    Any shape -> the same. Up to 2.1e-2 from gelu; CLIP's activation. The exponent is limited as in `silu`.

    >>> quick_gelu(np.array([-1.0, 0.0, 1.0])).round(4)
    array([-0.1542,  0.    ,  0.8458])
    """
    return np.asarray(x / (1 + np.exp(np.minimum(x.dtype.type(-1.702) * x, x.dtype.type(88)))))


def sigmoid(x: Array) -> Array:
    """Compute the logistic function, between 0 and 1: `y = 1 / (1 + exp(-x))`.

    >>> sigmoid(np.array([-1.0, 0.0, 1.0])).round(4)
    array([0.2689, 0.5   , 0.7311])
    """
    return np.asarray(1 / (1 + np.exp(np.minimum(-x, x.dtype.type(88)))))  # beyond 88 exp overflows in float32


def tanh(x: Array) -> Array:
    """Compute the hyperbolic tangent, between -1 and 1: `y = (exp(x) - exp(-x)) / (exp(x) + exp(-x))`.

    >>> tanh(np.array([0.0, 1.0])).round(4)
    array([0.    , 0.7616])
    """
    return np.asarray(np.tanh(x))


def leaky_relu(x: Array, slope: float = 0.01) -> Array:
    """Multiply negative numbers by a small slope: `y = x where x > 0, else slope x`.

    With a learned slope it is PReLU. Source: He et al. 2015 (arXiv:1502.01852).

    >>> leaky_relu(np.array([-2.0, 3.0])), leaky_relu(np.array([-2.0, 3.0]), slope=0.25)
    (array([-0.02,  3.  ]), array([-0.5,  3. ]))
    """
    return np.asarray(np.where(x > 0, x, x.dtype.type(slope) * x))


def relu6(x: Array) -> Array:
    """Limit x to 0 .. 6: `y = min(max(x, 0), 6)`.

    >>> relu6(np.array([-1.0, 2.0, 7.0]))
    array([0., 2., 6.])
    """
    return np.asarray(np.clip(x, 0, 6))


def identity(x: Array) -> Array:
    """Leave x unchanged: `y = x`, the same array.

    >>> identity(np.array([-1.0, 2.0]))
    array([-1.,  2.])
    """
    return x
