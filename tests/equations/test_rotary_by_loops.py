"""The rules for long texts, each against the same formula written for one pair after the other in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from minibert.equations.attention_positions import rotary_frequencies
from minibert.equations.rotary_scaling import (
    dynamic_frequencies,
    linear_frequencies,
    llama3_frequencies,
    longrope_attention_factor,
    longrope_frequencies,
    proportional_frequencies,
    yarn_attention_factor,
    yarn_frequencies,
)

ROUNDING = 6e-7  # of each frequency: float32 against float64; measured 2.4e-7
PLAIN = [(8, 10000.0), (64, 500000.0), (6, 20.0)]  # dim, base


def pairs(dim: int, frequency: Callable[[int, float], float], base: float) -> list[float]:
    """Each pair's number and unscaled frequency -> its frequency."""
    return [frequency(i, base ** (-2 * i / dim)) for i in range(dim // 2)]


def close(found: object, want: list[float]) -> None:
    np.testing.assert_allclose(np.asarray(found), want, rtol=ROUNDING, atol=0)


@pytest.mark.parametrize(("dim", "base"), PLAIN)
@pytest.mark.parametrize("factor", [0.5, 1.0, 8.0])
def test_linear_and_proportional(dim: int, base: float, factor: float) -> None:
    close(linear_frequencies(rotary_frequencies(dim, base), factor), pairs(dim, lambda i, f: f / factor, base))
    for share in (0.0, 0.3, 0.5, 1.0):
        turned = math.floor(share * dim / 2)
        want = pairs(dim, lambda i, f: f / factor if i < turned else 0.0, base)  # noqa: B023
        close(proportional_frequencies(dim, base, share, factor), want)


@pytest.mark.parametrize(("dim", "base"), PLAIN)
@pytest.mark.parametrize("length", [1, 99, 100, 101, 250, 5000])
def test_dynamic(dim: int, base: float, length: int) -> None:
    s = 3.0 * max(length, 100) / 100 - 2.0
    close(
        dynamic_frequencies(dim, base, 3.0, 100, length),
        pairs(dim, lambda i, f: f, base * s ** (dim / (dim - 2))),
    )


@pytest.mark.parametrize(("dim", "base"), PLAIN)
@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(
    ("length", "fast", "slow"),
    # as published; one pair wide or none; from before the first pair; to past the last
    [(2048, 32.0, 1.0), (64, 4.0, 4.0), (64, 32.0, 4.0), (2048, 1e9, 1.0), (2**40, 32.0, 1e-9)],
)
def test_yarn(dim: int, base: float, truncate: bool, length: int, fast: float, slow: float) -> None:
    low, high = (dim * math.log(length / (2 * math.pi * turns)) / (2 * math.log(base)) for turns in (fast, slow))
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low if high != low else 0.001

    def frequency(i: int, f: float) -> float:
        ramp = min(max((i - low) / width, 0.0), 1.0)
        return f / 4 * ramp + f * (1 - ramp)

    close(yarn_frequencies(dim, base, 4.0, length, fast, slow, truncate), pairs(dim, frequency, base))


@pytest.mark.parametrize("factor", [0.5, 1.0, 40.0])
def test_factor_of_yarn(factor: float) -> None:
    def louder(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1 if factor > 1 else 1.0

    assert yarn_attention_factor(factor) == pytest.approx(louder(1))
    assert yarn_attention_factor(factor, 0.7, 0.3) == pytest.approx(louder(0.7) / louder(0.3))
    for one in ({"mscale": 0.7}, {"mscale_all_dim": 0.3}):  # one alone counts for nothing
        assert yarn_attention_factor(factor, **one) == pytest.approx(louder(1))


@pytest.mark.parametrize(("dim", "base"), PLAIN)
@pytest.mark.parametrize("length", [1, 100, 101])
def test_longrope(dim: int, base: float, length: int) -> None:
    short, long = ([start + i / 3 for i in range(dim // 2)] for start in (1, 5))
    chosen = short if length <= 100 else long
    close(longrope_frequencies(dim, base, short, long, 100, length), pairs(dim, lambda i, f: f / chosen[i], base))
    assert longrope_attention_factor(length / 100, 100) == pytest.approx(
        math.sqrt(1 + math.log(length / 100) / math.log(100)) if length > 100 else 1
    )


@pytest.mark.parametrize(("dim", "base"), PLAIN)
@pytest.mark.parametrize("length", [16, 256, 8192])
def test_llama3(dim: int, base: float, length: int) -> None:
    def frequency(i: int, f: float) -> float:
        turns = length * f / (2 * math.pi)
        smooth = min(max((turns - 1.5) / (4.5 - 1.5), 0.0), 1.0)
        return (1 - smooth) * f / 8 + smooth * f

    close(llama3_frequencies(rotary_frequencies(dim, base), 8.0, 1.5, 4.5, length), pairs(dim, frequency, base))
