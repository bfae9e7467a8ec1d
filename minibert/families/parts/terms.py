"""Terms of the scores: what attention adds to `scale * q @ k^T`, each a value that both computing paths and pages ask.

A row names functions that make them: `Attention(terms=(relative_term,))`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.lib.stride_tricks import sliding_window_view

from minibert.equations.input_layer import Array

from .frozen import replace

if TYPE_CHECKING:
    from .attention_schemes import RelativeBias

Positions = slice | Array  # of tokens: neighbours, or with gaps between them


class RelativeTerm(NamedTuple):
    """A learned number for each head and distance (T5, MPNet). Another kind of term has the same names.

    scheme  what it takes by distance: `shared` is computed once for all terms of one scheme
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
        """What all blocks take for texts up to a length: (heads, query, key), all rows views of one for each head."""
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

    def wrong(self) -> Iterator[tuple[str, str, Any]]:
        """What is got wrong in this kind of term alone: a name, the reason, the term that does so."""
        own = self.scheme
        ways = self._replace(scheme=replace(own, bidirectional=not own.bidirectional))
        yield (
            "relative bias of the other direction",
            "Keys after the query have buckets of their own, if they are seen.",
            ways,
        )
        if self.block and self.first is None:
            none = self._replace(scheme=replace(own, table=own.table * 0))
            yield "relative bias in the first block alone", "One table serves all blocks of this model.", none
        if self.block and self.first is not None:
            first = self._replace(scheme=self.first)
            yield "relative bias of the first block", "Each block of this model has a table of its own.", first


def relative_term(site: Any) -> RelativeTerm:
    """Make it of the input row's scheme, which the block's `Site` has."""
    return RelativeTerm(site.scheme, block=site.i)
