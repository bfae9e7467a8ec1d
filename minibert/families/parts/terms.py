"""Terms of the scores: what attention adds to `scale * q @ k^T`, each a value that both computing paths and pages ask.

A row names functions that make them: `Attention(terms=(relative_term,))`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from minibert.equations import attention_positions, fast
from minibert.equations.blocks import split_heads
from minibert.equations.input_layer import Array

from .config import Config
from .plan import Step, mapped, normed

if TYPE_CHECKING:
    from .attention_schemes import LogBuckets, RelativeBias

Positions = slice | Array  # of tokens: neighbours, or with gaps between them
Term = Union["RelativeTerm", "PositionTerm"]


class RelativeTerm(NamedTuple):
    """A learned number for each head and distance (T5, MPNet). Another kind of term has the same names.

    scheme  the numbers by distance: `shared` is computed once for all terms of one scheme
    first   where each block has a scheme of its own, that of block 0
    block   the number of its block
    name    in the field's words; `says` is its place in the formula
    alone   it is of positions alone, the same for all texts and all blocks with its scheme
    """

    scheme: RelativeBias
    first: RelativeBias | None = None
    block: int = 0
    name: str = "relative bias"
    says: str = "the learned bias of the distance"
    alone: bool = True

    def shared(self, length: int) -> Array:
        """Make the bias of all blocks up to a length: (heads, query, key), all rows views of one for each head."""
        last = max(length, 1) - 1  # the token that sees each distance once
        by_distance = self.scheme.relative_bias(1, 2 * last + 1, last)[:, 0]
        return sliding_window_view(by_distance, last + 1, axis=1)[:, ::-1]

    def piece(self, shared: Array, q: Array, k: Array, heads: slice, queries: Positions, keys: Positions) -> Array:
        """The fast path's: for some heads, queries and keys, q and k (texts, heads, query or key, head_dim)."""
        some = shared[heads]
        return some[:, queries, keys] if isinstance(queries, slice) else some[:, queries[:, None], keys]

    def plain(self, q: Array, k: Array) -> Array:
        """The same for all of them: (batch, heads, seq, head_dim) -> what is added to (batch, heads, query, key)."""
        return self.shared(q.shape[2])

    def plan(self, at: str, q: str, k: str) -> Iterator[Step]:
        """Its steps, from the names of queries and keys; the last one is the term, `at` and its name."""
        yield Step(at + self.name, "term", self.plain, (q, k), self, self.says)


def relative_term(site: Any) -> RelativeTerm:
    """Make it of the input row's scheme, which the block's `Site` has."""
    return RelativeTerm(site.scheme, block=site.i)


class PositionTerm(NamedTuple):
    """Score queries, or keys, with the rows of distances (DeBERTa).

    map       the map that the rows pass: the keys' where queries look at them, or the other way round
    mapped    gives them as they leave it, times `scale`: (heads, rows, head_dim); computed once
    of_keys   it is the keys that look at them
    backward  with distances in the wrong direction
    """

    scheme: LogBuckets
    map: Any
    mapped: Callable[[], Array]
    heads: int
    scale: float
    of_keys: bool
    name: str
    says: str
    backward: bool = False
    alone: bool = False

    def shared(self, length: int) -> Array:
        """The row of each distance key - query, from 1 - length to length - 1."""
        return np.concatenate(
            [self.scheme.relative_positions(length, 1)[:0:-1, 0], self.scheme.relative_positions(1, length)[0]]
        )

    def piece(self, shared: Array, q: Array, k: Array, heads: slice, queries: Positions, keys: Positions) -> Array:
        """As of the other kind. Each row of q, or k, is multiplied by all distances, and looked up without a copy."""
        rows, middle = self.mapped()[heads], len(shared) // 2  # where the distance is 0
        if not isinstance(queries, slice) or not isinstance(keys, slice):
            distances = np.asarray(keys) - np.asarray(queries)[:, None]
            return self._scores(q, k, rows, shared[distances + middle], 1.0)
        places = shared[keys.start - queries.stop + 1 + middle : keys.stop - queries.start + middle]
        if self.of_keys:
            return fast.by_distance(k @ rows[:, places[::-1]].swapaxes(1, 2), q.shape[2]).swapaxes(2, 3)
        return fast.by_distance(q @ rows[:, places].swapaxes(1, 2), k.shape[2])

    def plain(self, q: Array, k: Array, rows: Array) -> Array:
        """The same for all of them, of the rows (rows, dim) as they leave the map."""
        places = self.scheme.relative_positions(q.shape[2], k.shape[2])
        return self._scores(q, k, split_heads(rows, self.heads), places.T if self.backward else places, self.scale)

    def _scores(self, q: Array, k: Array, rows: Array, places: Array, scale: float) -> Array:
        if self.of_keys:
            return attention_positions.position_to_content(k, rows, places, scale)
        return attention_positions.content_to_position(q, rows, places, scale)

    def plan(self, at: str, q: str, k: str) -> Iterator[Step]:
        """Its steps: the rows of distances, their norm and their map, then the term."""
        table = f"{at}distances"
        yield Step(table, "table", partial(np.asarray, self.scheme.table), (), self, "the rows of distances")
        if self.scheme.norm is not None:
            yield normed(f"{at}normed distances", self.scheme.norm, table)
            table = f"{at}normed distances"
        yield mapped(f"{at}{self.name} rows", self.map, table)
        yield Step(at + self.name, "term", self.plain, (q, k, f"{at}{self.name} rows"), self, self.says)


def position_kinds(config: Config) -> tuple[str, ...]:
    """Read the terms that DeBERTa's config names in a list or a string: "c2p", content to position, and "p2c"."""
    given = config.get("pos_att_type") or ()
    kinds = [kind.strip() for kind in given.lower().split("|")] if isinstance(given, str) else given
    if not isinstance(kinds, list | tuple) or not all(isinstance(kind, str) for kind in kinds):
        raise config.refused(f"'pos_att_type' must list 'c2p', 'p2c' or both, found {given!r}")
    return tuple(kind for kind in ("c2p", "p2c") if kind in kinds)


def position_scale(config: Config, head_dim: int, i: int) -> float:
    """The factor of DeBERTa's scores: 1 / sqrt(s * head_dim), s = 1 and each term that the config asks for."""
    return 1 / math.sqrt((1 + len(position_kinds(config))) * head_dim)


def position_term(kind: str, shared: str, own: str) -> Callable[[Any], PositionTerm | None]:
    """Make one of DeBERTa's terms, where there is one. shared, own: the maps of its rows, as `share_att_key` says."""

    def make(site: Any) -> PositionTerm | None:
        config, scheme = site.config, site.scheme
        if scheme is None or kind not in position_kinds(config):
            return None
        dim, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
        path = site.prefix + shared if config.flag("share_att_key") else site.dense(own, dim, dim, True)
        scale, module = position_scale(config, dim // heads, site.i), site.modules[path]

        @cache
        def mapped_rows() -> Array:
            rows = split_heads(module(scheme.relative_embeddings), heads)
            return np.ascontiguousarray(rows * rows.dtype.type(scale))

        words = ("k", "queries") if kind == "p2c" else ("q", "keys")
        name = "position to content" if kind == "p2c" else "content to position"
        says = f"{scale:.6g} * {words[0]} . the row of each distance, mapped as {words[1]} are"
        return PositionTerm(scheme, module, mapped_rows, heads, scale, kind == "p2c", name, says)

    return make
