"""Rotations as config.json describes them: frequencies, their scaling, the factor on cos and sin.

The formulas are in `equations.rotary` and `equations.rotary_scaling`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from minibert.equations.input_layer import Array
from minibert.equations.rotary import rotary_frequencies
from minibert.equations.rotary_scaling import (
    linear_frequencies,
    llama3_frequencies,
    yarn_attention_factor,
    yarn_frequencies,
)

from .config import Config

WIDEST_HEAD = 1 << 16  # dimensions; models have 32 to 512, and no tensor of an input layer bounds the number
LARGEST_ATTENTION_FACTOR = 1e6  # models have 1 to 2; it enters every score twice, and float32 ends at 3e38


class Rotation(NamedTuple):
    """The rotation of queries and keys in layers of one type.

    attention_factor   the factor on cos and sin
    original_length    the length of the first training, where the rule needs it
    unscaled           the frequencies before scaling, None where nothing is scaled
    of_base            rope_theta -> the rotation by the same rule, None where nothing is scaled
    """

    frequencies: Array
    attention_factor: float = 1.0
    original_length: int | None = None
    unscaled: Array | None = None
    of_base: Callable[[float], Rotation] | None = None


def number(config: Config, *keys: str, default: float | None = None) -> float:
    """The first of `keys` that the config sets, a number above 0."""
    return config.number(*keys, default=default, above=0)


def whole(config: Config, *keys: str) -> int:
    """The same without a fraction."""
    return config.integer(*keys, above=0)


def head_dim(config: Config) -> int:
    """The size of a head: stated (Llama, Mistral and Qwen2 may), or the hidden size split among the heads."""
    if config.get("head_dim"):
        size = whole(config, "head_dim")
    else:
        hidden_size, heads = whole(config, "hidden_size"), whole(config, "num_attention_heads")
        if hidden_size < heads:
            raise config.refused(f"hidden_size {hidden_size} is too small for {heads} heads")
        size = hidden_size // heads
    if size > WIDEST_HEAD:
        raise config.refused(f"a head has {size} dimensions, expected at most {WIDEST_HEAD}")
    return size


def read_rotation(config: Config, given: Config, partial_by_default: bool = False) -> Rotation:
    """Read one rotation from its settings, which hold "rope_theta"; lengths and sizes from the config.

    Only a part of a head may rotate: where a rule scales the frequencies, and where the family's own unscaled rule
    reads "partial_rotary_factor" too (`partial_by_default`).

    Raises CheckpointError for a rope_type that is not known, as one whose frequencies change with a text's length: a
    text's vectors would change with the texts around it; and for numbers that are absent or impossible.

    >>> config = Config({"head_dim": 4, "max_position_embeddings": 32})
    >>> yarn = {"rope_type": "yarn", "rope_theta": 100.0, "factor": None, "original_max_position_embeddings": 8}
    >>> given = Config(yarn)
    >>> rotation = read_rotation(config, given)  # null: 32 / 8 = 4
    >>> round(rotation.attention_factor, 4), rotation.original_length  # 0.1 ln 4 + 1
    (1.1386, 8)
    """
    rope_type = given.get("rope_type", given.get("type", "default"))
    rope_type = "longrope" if "short_factor" in given else rope_type  # Phi-3's files call it "su" and "yarn" too
    if not isinstance(rope_type, str) or rope_type not in RULES:
        raise config.refused(
            f"it asks for {rope_type!r} scaling of the rotary frequencies ('rope_type' or 'type'), which minibert does "
            f"not compute; it knows {', '.join(RULES)}"
        )
    size = head_dim(config)
    share = number(given, "partial_rotary_factor", default=1.0) if partial_by_default or rope_type != "default" else 1.0
    dim, base = int(size * share), given["rope_theta"]
    if not 1 <= dim <= size:
        raise config.refused(f"it asks to rotate {dim} of the {size} dimensions of a head")
    of_base = partial(RULES[rope_type], config, given, dim)
    try:
        rotation = of_base(base)
        if rope_type != "default":
            rotation = rotation._replace(unscaled=rotary_frequencies(dim, base), of_base=of_base)
    except (TypeError, ValueError) as error:
        raise config.refused(f"{rope_type!r} scaling of the rotary frequencies: {error}") from None
    if abs(rotation.attention_factor) > LARGEST_ATTENTION_FACTOR:
        raise config.refused(
            f"{rope_type!r} scaling: cos and sin would be multiplied by {rotation.attention_factor:g} "
            f"('attention_factor', 'mscale'), expected at most {LARGEST_ATTENTION_FACTOR:g}"
        )
    return rotation


# -- one function a rule: (config, given, dim, base) -> frequencies, and what else the rule gives ------------------


def _stated(given: Config, key: str) -> float | None:
    """The number under `key`; None where there is none, or null."""
    return None if given.get(key) is None else number(given, key)


def _original_length(config: Config, given: Config) -> int:
    key, reached = "original_max_position_embeddings", "max_position_embeddings"
    return whole(given, key) if given.get(key) is not None else whole(config, reached)


def _stretch(config: Config, given: Config, original_length: int) -> float:
    """The factor; where it is null, the model's length divided by that of training."""
    return _stated(given, "factor") or number(config, "max_position_embeddings") / original_length


def _yarn(config: Config, given: Config, dim: int, base: float) -> Rotation:
    if "factor" not in given:
        number(given, "factor")  # null is allowed, a missing key is not
    length = _original_length(config, given)
    factor = _stretch(config, given, length)
    ramp = number(given, "beta_fast", default=32), number(given, "beta_slow", default=1), given.flag("truncate", True)
    attention_factor = _stated(given, "attention_factor")
    if attention_factor is None:
        mscales = (given.get(key) and number(given, key) for key in ("mscale", "mscale_all_dim"))
        attention_factor = yarn_attention_factor(factor, *mscales)
    return Rotation(yarn_frequencies(dim, base, factor, length, *ramp), attention_factor, length)


def _llama3(config: Config, given: Config, dim: int, base: float) -> Rotation:
    length = _original_length(config, given)
    factor, low, high = (number(given, key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    frequencies = llama3_frequencies(rotary_frequencies(dim, base), factor, low, high, length)
    return Rotation(frequencies, original_length=length)


def _default(config: Config, given: Config, dim: int, base: float) -> Rotation:
    return Rotation(rotary_frequencies(dim, base))


def _linear(config: Config, given: Config, dim: int, base: float) -> Rotation:
    return Rotation(linear_frequencies(rotary_frequencies(dim, base), number(given, "factor")))


# by name, so that a rotation that keeps its rule can be pickled
RULES: dict[str, Callable[[Config, Config, int, float], Rotation]] = {
    "default": _default,
    "linear": _linear,
    "yarn": _yarn,
    "llama3": _llama3,
}
