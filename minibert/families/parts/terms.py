"""Terms of the scores: what attention adds to `scale * q @ k^T`, each a value that both computing paths and pages ask.

A row names functions that make them: `Attention(terms=(relative_term,))`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from minibert.equations.input_layer import Array

if TYPE_CHECKING:
    from .attention_schemes import RelativeBias

Positions = slice | Array  # of tokens: neighbours, or with gaps between them


class RelativeTerm(NamedTuple):
    """A learned number for each head and distance (T5, MPNet). Another kind of term has the same names.

    scheme  what it takes by distance: `shared` is computed once for all terms of one scheme
    name    in the field's words; `says` is its place in the formula
    alone   it is of positions alone, the same for all texts and all blocks with its scheme
    """

    scheme: RelativeBias
    name: str = "relative bias"
    says: str = "the learned bias of the distance"
    alone: bool = True

    def shared(self, length: int) -> Array:
        """What all blocks take for texts up to a length: (heads, query, key)."""
        return self.scheme.relative_bias(length, length)

    def piece(self, shared: Array, q: Array, k: Array, heads: slice, queries: Positions, keys: Positions) -> Array:
        """The fast path's: for some heads, queries and keys, q and k (texts, heads, query or key, head_dim)."""
        some = shared[heads]
        return some[:, queries, keys] if isinstance(queries, slice) else some[:, queries[:, None], keys]

    def plain(self, q: Array, k: Array) -> Array:
        """The same for all of them: (batch, heads, seq, head_dim) -> what is added to (batch, heads, query, key)."""
        return self.shared(q.shape[2])

    def wrong(self) -> Iterator[tuple[str, str, Any]]:
        """What is got wrong in this kind of term alone: a name, the reason, the term that does so."""
        return iter(())


def relative_term(site: Any) -> RelativeTerm:
    """Make it of the input row's scheme, which the block's `Site` has."""
    return RelativeTerm(site.scheme)
