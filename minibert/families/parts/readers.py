"""Rows read these settings of config.json: switches, widths, the types of layers, position schemes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from minibert.families.family import Scheme

from .block_parts import stays_causal
from .config import Config
from .steps import Binder

if TYPE_CHECKING:
    from .attention_schemes import AttentionPosition


def projected(config: Config) -> bool:
    """The tables are narrower (or wider) than the model."""
    return config.integer("embedding_size") != config.integer("hidden_size")


def typed(config: Config) -> bool:
    """There are token types: not in DeBERTa v3, nor in gte-base-en-v1.5."""
    return config.integer("type_vocab_size") > 0


def sqrt_width(config: Config) -> float:
    """The factor of Vaswani et al. 2017."""
    return math.sqrt(config.integer("hidden_size"))


def switch(key: str) -> Callable[[Config], bool]:
    """The condition "this key of the config is true"."""
    return partial(_is_on, key)  # keywords of a partial could be changed


def _is_on(key: str, config: Config) -> bool:
    return config.flag(key)


def scheme(name: str, **families_own: Any) -> Scheme:
    """The position scheme inside attention that `attention_schemes` has under this name."""
    return partial(_bind_scheme, name, tuple(families_own.items()))


def _bind_scheme(
    name: str, families_own: tuple[tuple[str, Any], ...], config: Config, binder: Binder, side: str
) -> AttentionPosition | None:
    from . import attention_schemes  # here, since the input layer itself never needs it

    found: AttentionPosition | None = getattr(attention_schemes, name)(config, binder, side, **dict(families_own))
    return found


FULL, SLIDING = "full_attention", "sliding_attention"


def layer_type(config: Config, i: int, sliding: bool) -> str:
    """The type of block i: config.json lists them, or a rule says whether it has a window."""
    types = of_each_block(config, "layer_types", f"{FULL!r} or {SLIDING!r}", lambda each: each in (FULL, SLIDING))
    return str(types[i]) if types else SLIDING if sliding else FULL


def of_each_block(config: Config, key: str, what: str, right: Callable[[Any], bool]) -> tuple[Any, ...]:
    """Read a list with an entry for each block; nothing where the config has no such key. Raises CheckpointError."""
    found = config.get(key)
    if found is None:
        return ()
    if not isinstance(found, tuple) or not all(map(right, found)):
        raise config.refused(f"{key!r} must list {what} for each block, found {found!r:.200}")
    if len(found) != config.integer("num_hidden_layers"):
        raise config.refused(f"{key!r} lists {len(found)} blocks, 'num_hidden_layers' has another number")
    return found


def window(config: Config) -> int:
    """Count the tokens seen on each side: in a causal model the config's number counts the token itself."""
    return max(0, config.integer("sliding_window") - 1) if stays_causal(config) else config.integer("sliding_window")
