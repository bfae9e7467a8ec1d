"""Rotary frequencies for texts longer than a model was first trained on: the four rules of the models here.

A model that has never seen position 9000 turns its slow pairs to angles that it has never seen either. Each rule slows
pairs down, so that the angles of a long text stay within those of a short text. The rules differ in the choice of
pairs.

    linear         Gemma 3 (full layers)    every pair is slowed by the factor
    yarn           Qwen, DeepSeek, gpt-oss  slow pairs by the factor, fast not, a ramp between; larger cos and sin
    llama3         Llama 3.1 and later      slow pairs by the factor, fast not, a ramp by wavelength between
    ntk            GTE                      a base times the factor, whatever the length, and all pairs a little slower

One rule, yarn, also multiplies cos and sin by a factor: pass it to `rotary_angles`. Two more rules change frequencies
with a text's length (dynamic, longrope). They have no formula here: a text's vectors would change with the texts around
it.

Three mistakes are made again and again, and the tests reject each: cos and sin without their factor; frequencies
multiplied by the factor instead of divided; the length that the model reaches today (max_position_embeddings) used
instead of the length that it was first trained on (original_max_position_embeddings).

Every operation is float32 in the reference's order, powers are float64, rounded once. From equal unscaled frequencies,
linear and llama3 compute torch's frequencies to the bit. With yarn (dims 8..256, bases 1e4..1e6, factors 1.5..40) 1.3 %
of the frequencies differ in the last bits of the powers, by at most 2.2e-7 of themselves. A position multiplies the
error of a frequency. At equal frequencies cos and sin differ by at most 1.2e-7 up to position 131071. At a frequency
near 1 that differs in its last bit they differ by up to 7.8e-3 there, which is 131071 * 2^-24 (1.4e-3 in the published
settings tried).

Sources
    Chen et al. 2023, "Extending Context Window of LLMs via Positional Interpolation" (arXiv:2306.15595): linear
    Peng et al. 2023, "YaRN" (arXiv:2309.00071): yarn
    Grattafiori et al. 2024, "The Llama 3 Herd of Models" (arXiv:2407.21783), and its published code: llama3
    Su 2023 (kexue.fm/archives/9706), and NTKScalingRotaryEmbedding of vLLM: ntk
    transformers 5.23, modeling_rope_utils: all but ntk, and the order of operations
"""

from __future__ import annotations

import math

import numpy as np

from .input_layer import Array
from .rotary import rotary_frequencies, rotary_powers


def _check(**lengths_and_factors: float) -> None:
    """Raise ValueError for a number that is not positive and finite: formulas divide by it or use its logarithm."""
    for name, value in lengths_and_factors.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} must be a number above 0, found {value!r}")


def linear_frequencies(frequencies: Array, factor: float) -> Array:
    """Slow every pair down by the factor: `f' = f / factor`, so that position p is rotated as p / factor was.

    frequencies (n,) -> (n,), float32.

    Raises ValueError for a factor that is not above 0. Source: Chen et al. 2023.

    >>> linear_frequencies(np.array([1.0, 0.1], np.float32), factor=4.0)
    array([0.25 , 0.025], dtype=float32)
    """
    _check(factor=factor)
    return frequencies.astype(np.float32) / np.float32(factor)


def ntk_frequencies(dim: int, base: float, factor: float) -> Array:
    """Multiply the base by the factor: slow pairs are slowed much, fast pairs a little.

        f[i] = rotary_frequencies(dim, base * factor)[i] / factor^(2 / dim)

    -> (ceil(dim / 2),), float32. The base does not change with a text's length. The last pair is slowed by the whole
    factor: the base alone slows it by factor^(1 - 2 / dim), and the division slows it by the rest. The trap: base *
    factor without the division, under 7 % away for a head of 64 and a factor of 8, which looks right.

    Raises ValueError for a factor that is not above 0. Source: Su 2023; vLLM's code.

    >>> ntk_frequencies(4, base=100.0, factor=4.0)  # 1 / 2 and 1 / 20 / 2; unscaled 1 and 0.1
    array([0.5  , 0.025], dtype=float32)
    """
    _check(factor=factor)
    return linear_frequencies(rotary_frequencies(dim, base * factor), factor ** (2 / dim))


def yarn_frequencies(
    dim: int,
    base: float,
    factor: float,
    original_length: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    truncate: bool = True,
) -> Array:
    """Slow down the pairs that turn less than once in a training text, and keep the pairs that turn often.

        pair(turns) = dim * ln(original_length / (2 pi turns)) / (2 ln base)    the pair that makes this many turns
        low, high   = floor(pair(beta_fast)), ceil(pair(beta_slow))             within 0 .. dim - 1
        ramp[i]     = clip((i - low) / (high - low), 0, 1)
        f'[i]       = f[i] / factor * ramp[i] + f[i] * (1 - ramp[i])

    -> (dim / 2,), float32. `truncate=False` (gpt-oss) leaves low and high unrounded. The factor on cos and sin is
    `yarn_attention_factor`.

    The trap: original_length is the length of the first training, not the length that the model reaches now, which
    would move the ramp by ln(factor) / ln(base) * dim / 2 pairs.

    Raises ValueError for an odd dim, for a base of 1. Source: Peng et al. 2023, section 3.2; the reference's code.

    >>> yarn_frequencies(8, base=10000.0, factor=4.0, original_length=64)  # ramp 0, 0.5, 1, 1
    array([1.00e+00, 6.25e-02, 2.50e-03, 2.50e-04], dtype=float32)
    """
    _check(base=base, factor=factor, original_length=original_length, beta_fast=beta_fast, beta_slow=beta_slow)
    if dim < 2 or dim % 2 or base == 1:
        raise ValueError(f"yarn needs an even dim and a base other than 1, found dim={dim}, base={base}")

    def pair(turns: float) -> float:
        return dim * math.log(original_length / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(beta_fast), pair(beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # as the reference does; a ramp needs some width
    ramp = np.clip((np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1)
    keep = np.float32(1) - ramp
    powers = rotary_powers(dim, base)
    slowed = np.float32(1) / (np.float32(factor) * powers)
    kept = np.float32(1) / powers
    return np.asarray(slowed * (np.float32(1) - keep) + kept * keep)


def yarn_attention_factor(factor: float, mscale: float | None = None, mscale_all_dim: float | None = None) -> float:
    """Compute the number by which yarn multiplies cos and sin: scores grow by its square.

        0.1 ln(factor) + 1                                                    1 for factors up to 1
        (0.1 mscale ln(factor) + 1) / (0.1 mscale_all_dim ln(factor) + 1)     if both are passed (DeepSeek)

    -> a Python float. Raises ValueError for a factor that is not above 0. Source: Peng et al. 2023, section 3.4.

    >>> round(yarn_attention_factor(math.e**10), 9), yarn_attention_factor(40.0, mscale=1.0, mscale_all_dim=1.0)
    (2.0, 1.0)
    """
    _check(factor=factor)

    def louder(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    return louder(mscale) / louder(mscale_all_dim) if mscale and mscale_all_dim else louder(1.0)


def llama3_frequencies(
    frequencies: Array, factor: float, low_freq_factor: float, high_freq_factor: float, original_length: int
) -> Array:
    """Slow down pairs of long wavelength, keep pairs of short wavelength, and blend both in between.

        turns[i] = original_length / (2 pi / f[i])                                  in a text of the first training
        smooth[i] = (turns[i] - low_freq_factor) / (high_freq_factor - low_freq_factor)
        f'[i] = f[i] / factor                                                       turns < low_freq_factor
        f'[i] = f[i]                                                                turns > high_freq_factor
        f'[i] = (1 - smooth[i]) * f[i] / factor + smooth[i] * f[i]                  between

    frequencies (n,) -> (n,), float32. There is no factor on cos and sin.

    The trap: original_length is 8192 for Llama 3.1, whose max_position_embeddings is 131072. With the wrong
    length every pair counts as fast, and nothing is scaled.

    Raises ValueError if high_freq_factor is not above low_freq_factor. Source: Llama 3.1's published code.

    >>> frequencies = np.array([np.pi, np.pi / 4, np.pi / 16], np.float32)  # 8, 2 and 1/2 turns in 16 tokens
    >>> scaled = llama3_frequencies(frequencies, 4.0, low_freq_factor=1.0, high_freq_factor=3.0, original_length=16)
    >>> scaled / frequencies  # kept; half of 1/4 and half of 1; slowed
    array([1.   , 0.625, 0.25 ], dtype=float32)
    """
    _check(factor=factor, low_freq_factor=low_freq_factor, original_length=original_length)
    if not low_freq_factor < high_freq_factor < math.inf:
        factors = f"low_freq_factor={low_freq_factor}, high_freq_factor={high_freq_factor}"
        raise ValueError(f"high_freq_factor must be above low_freq_factor; found {factors}")
    frequencies = frequencies.astype(np.float32)
    wavelength = np.float32(1) / frequencies * np.float32(2 * math.pi)  # as torch: multiply by the reciprocal
    long = wavelength > np.float32(original_length / low_freq_factor)
    short = wavelength < np.float32(original_length / high_freq_factor)
    width = np.float32(high_freq_factor - low_freq_factor)
    turns = np.float32(1) / wavelength * np.float32(original_length)
    smooth = (turns - np.float32(low_freq_factor)) / width
    slowed = frequencies / np.float32(factor)
    between = (np.float32(1) - smooth) * frequencies / np.float32(factor) + smooth * frequencies
    return np.where(long, slowed, np.where(short, frequencies, between))
