"""Token ids -> packed texts: the tokens of several sequences without padding, cut into tiles and pieces of attention.

The arguments of a call and the ids of texts become the same `Packed`: a whole batch, or a tile of it. All ids are
checked and completed before, by `InputLayer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.parts.steps import Inputs
from minibert.threads.kernels import Rows

# Numbers in a block of an input layer. Threads with smaller blocks wait more often for the interpreter's lock.
TILE_NUMBERS = 1024 * 768
# A matrix product of more rows is no faster, takes more memory, and keeps other callers waiting longer.
TILE_TOKENS = 512  # approximate: SLACK allows a few more
TILE_ROWS = 1024  # for a model without blocks: only the rows have to fit into a cache
ONE_TILE = 128  # up to this many tokens are never cut
ENOUGH_TOKENS = 256  # tokens in a tile if threads have too few tiles to share; smaller tiles are slower
SHARES = 8  # few tokens are cut into at most this many tiles
SLACK = 1.25  # a tile may be this much larger, to end with a whole sequence
# Attention of a longer sequence is cut by queries: memory then grows with the length, not with the square. Each query
# has all its keys at once, so softmax needs no running sum, which would be faster by a tenth to a quarter only.
LONG = 1024  # tokens
QUERIES = 128  # queries of one piece; 64 and fewer are slower
SCORES = 1 << 17  # scores of one piece: they stay in the L2 cache
ONES = "attention_mask must hold 1 for a token and 0 for padding; an additive mask is not supported"
# (first and last query, first and last key, a block's window) -> some of the keys, and the mask for their scores
Masks = Callable[[int, int, int, int, "int | None"], "list[tuple[slice, Array]]"]


class Group(NamedTuple):
    """Some sequences of one length, side by side in a tile."""

    first: int  # the first row
    texts: Array  # the indices of the sequences in the batch
    length: int
    positions: Array | None  # positions of the tokens in each sequence, if padding is between them; else None
    rows: int  # rows of each sequence: tokens and padding rows
    unseen: int = 0  # the number of last tokens in each sequence that no token sees

    def select(self, x: Array) -> Array:
        """Return the tokens of the group: (rows, ...) -> (texts, length, ...), a view."""
        count = len(self.texts)
        with_padding = x[self.first : self.first + count * self.rows].reshape(count, self.rows, *x.shape[1:])
        return with_padding[:, : self.length]

    def part(self, start: int, stop: int) -> Group:
        """Return some of the sequences as a group."""
        return self._replace(first=self.first + start * self.rows, texts=self.texts[start:stop])


class Piece(NamedTuple):
    """One piece of attention, computed at once: some sequences of one length, some heads, some queries."""

    group: Group
    keys: Group  # the same sequences, with the earlier tokens of a cache
    heads: slice
    queries: slice
    visible: Mapping[int | None, slice]  # a block's window -> the keys that these queries see
    masks: Masks | None  # None: every query sees every key


class Packed(NamedTuple):
    """The tokens of some sequences without padding, the shortest sequence first; or a tile of them.

    inputs: all tokens as one long sequence, checked and completed. texts and lengths (texts,): the index of each
    sequence in the batch, and its number of tokens. positions (tokens,): each token's position in its sequence, None if
    all are 0, 1, 2, ... unseen (texts,): the number of last tokens that no token sees, None if there are none.
    """

    inputs: Inputs
    texts: Array
    lengths: Array
    positions: Array | None = None
    unseen: Array | None = None

    @property
    def ids(self) -> Array:
        """The id of each token."""
        ids: Any = self.inputs.ids["input_ids"]
        return np.asarray(ids[0])

    @property
    def starts(self) -> Array:
        """The first token of each sequence."""
        starts: Array = np.cumsum(self.lengths) - self.lengths
        return starts

    def where(self) -> tuple[Array, Array]:
        """Return each token's sequence in the batch and its position there."""
        positions = self.positions
        if positions is None:
            positions = np.arange(self.inputs.seq) - np.repeat(self.starts, self.lengths)
        return np.repeat(self.texts, self.lengths), positions

    def groups(self, gaps: bool = False, multiple: int = 1) -> list[Group]:
        """Return the sequences of each length as groups; gaps: also split by positions.

        multiple: the rows of each sequence are a multiple of this number.
        """
        kinds: list[Any] = self.lengths.tolist()
        unseen = [0] * len(kinds)
        positions: list[Array] = []
        if self.unseen is not None:
            unseen = self.unseen.tolist()
            kinds = list(zip(kinds, unseen, strict=True))
        if gaps and self.positions is not None:
            parts = np.split(self.positions, self.starts[1:])
            positions = [part if len(part) and part[-1] - part[0] != len(part) - 1 else part[:0] for part in parts]
            kinds = [(length, part.tobytes()) for length, part in zip(kinds, positions, strict=False)]
        groups, first, start = [], 0, 0
        for _, same in groupby(kinds):
            stop, length = start + len(list(same)), int(self.lengths[start])
            group_positions = positions[start] if positions and len(positions[start]) else None
            rows = -(-length // multiple) * multiple
            groups.append(Group(first, self.texts[start:stop], length, group_positions, rows, unseen[start]))
            first, start = first + (stop - start) * rows, stop
        return groups

    def tiles(self, tokens: int | None = None) -> list[Packed]:
        """Cut into tiles of whole sequences, of about `tokens` tokens (None: the size by `tile_tokens`)."""
        if self.inputs.seq <= (ONE_TILE if tokens is None else tokens):
            return [self] * bool(len(self.texts))
        tokens = tile_tokens(self.inputs.seq) if tokens is None else tokens
        tiles, stop = [], 0
        for part in cuts(self.lengths, tokens):
            here = slice(stop, stop := stop + int(self.lengths[part].sum()))
            positions = None if self.positions is None else self.positions[here]
            unseen = None if self.unseen is None else self.unseen[part]
            inputs = self.inputs.tile(slice(0, 1), here)
            tiles.append(Packed(inputs, self.texts[part], self.lengths[part], positions, unseen))
        return tiles


def padded(count: int, rows: Rows, fewest: int = 1) -> int:
    """Return the number of rows after padding, `fewest` or more: see `Rows.fewest`.

    >>> [padded(count, Rows(total=4, wide=16)) for count in (0, 1, 5, 8, 9, 17, 27)]
    [0, 4, 8, 8, 16, 20, 32]
    """
    if not count:
        return 0
    count = max(count, fewest)
    count += -count % rows.total
    return count + (-count % rows.wide if count % rows.wide > rows.wide // 2 else 0)


class Layout(NamedTuple):
    """The rows of a tile in its matrix products: tokens and padding rows."""

    rows: int
    tokens: slice | Array  # the row of each token

    @classmethod
    def of(cls, lengths: Array, rows: Rows, fewest: int = 1) -> Layout:
        """Lay out sequences of these lengths one after another, on at least `fewest` rows."""
        tokens = int(lengths.sum())
        if rows.text == 1:
            return cls(padded(tokens, rows, fewest), slice(tokens))
        sizes = -(-lengths // rows.text) * rows.text
        before = np.cumsum(sizes) - sizes - (np.cumsum(lengths) - lengths)  # padding rows before each sequence
        return cls(padded(int(sizes.sum()), rows, fewest), np.arange(tokens) + np.repeat(before, lengths))

    def filled(self, x: Array) -> Array:
        """Scatter token values into padded rows: (tokens, ...) -> (rows, ...). Padding repeats the first token."""
        if len(x) == self.rows:
            return x
        y = np.empty((self.rows, *x.shape[1:]), x.dtype)
        y[slice(len(x), None) if isinstance(self.tokens, slice) else ...] = x[0]
        y[self.tokens] = x
        return y


def unpadded(inputs: Inputs, keep: Array, texts: Array | None = None) -> Packed:
    """Pack the tokens of a call's checked inputs without padding: rows of the input layer do not depend on each other.

    keep (batch, seq): False for padding. texts: some sequences of one length; None: all, the shortest first.
    """
    lengths = np.count_nonzero(keep, axis=1)
    texts = np.argsort(lengths, kind="stable") if texts is None else texts
    if inputs.batch == 1 and keep.all():  # already one long sequence
        return Packed(inputs, texts, lengths, np.arange(inputs.seq))
    members, positions = np.nonzero(keep[texts])
    sequences = texts[members]

    def pack(ids: Any) -> Any:
        if isinstance(ids, slice):
            return (positions + ids.start)[None]
        if ids is None or isinstance(ids, int):
            return ids
        return np.broadcast_to(ids, (inputs.batch, inputs.seq, *ids.shape[2:]))[sequences, positions][None]

    ids = {name: pack(values) for name, values in inputs.ids.items()}
    packed = Inputs(1, len(sequences), ids, pack(inputs.inputs_embeds), pack(inputs.attention_mask))
    return Packed(packed, texts, lengths[texts], positions)


# -- cutting into tiles and pieces -------------------------------------------------------------------------------


def tile_tokens(tokens: int) -> int:
    """Return the tile size for a call. The size does not depend on the number of threads, so results are bitwise equal.

    The target is one tile or an even number of tiles: on two threads three tiles take as long as four.

    >>> [tile_tokens(tokens) for tokens in (100, 139, 410, 600, 4000, 100_000)]
    [100, 70, 205, 150, 500, 512]
    """
    tiles = 1 if tokens <= ONE_TILE else min(SHARES, 2 * -(-tokens // (2 * ENOUGH_TOKENS)))
    return min(TILE_TOKENS, max(1, -(-tokens // tiles)))


def cuts(lengths: Array, tokens: int) -> Iterator[slice]:
    """Cut consecutive sequences into equal parts of about `tokens` tokens, or of one longer sequence.

    A part of several sequences has at most `SLACK` times as many tokens.

    >>> [(part.start, part.stop) for part in cuts(np.array([2, 2, 3, 9]), 5)]
    [(0, 2), (2, 3), (3, 4)]
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    left = -(-total // max(1, tokens))  # the parts that are left
    start = before = 0
    while start < len(ends):
        aim = before + (total - before) / max(1, left)
        stop = int(np.searchsorted(ends, aim, side="right"))  # the end nearer to the target, before or after it
        if stop < len(ends) and ends[stop] - aim < aim - (ends[stop - 1] if stop else 0):
            stop += 1
        stop = max(start + 1, min(stop, int(np.searchsorted(ends, before + SLACK * tokens, side="right"))))
        yield slice(start, stop)
        start, before, left = stop, int(ends[stop - 1]), left - 1


def keys_of(queries: slice, past: int, length: int, causal: bool, window: int | None) -> slice:
    """Return the range of keys that these queries can see; padding between tokens hides more of them."""
    first, last = past + queries.start, past + queries.stop
    stop = min(length, last) if causal else length if window is None else min(length, last + window)
    return slice(0 if window is None else max(0, min(first - window, stop)), stop)


def masks_of(positions: Array, past: int, causal: bool, dtype: np.dtype[Any], kept: int) -> Masks:
    """Return a function that computes masks of some queries; `kept` masks are cached for later heads and blocks.

    Keys that all of these queries see need no mask. In a long text these are nearly all keys, and adding a mask to
    their scores would take as long as the exponentials.
    """
    from minibert.equations.blocks import additive_mask, visible  # here: an input layer does not need them

    @lru_cache(maxsize=max(1, kept))
    def mask(first: int, last: int, start: int, stop: int, window: int | None) -> list[tuple[slice, Array]]:
        queries, keys = positions[past + first : past + last], positions[start:stop]
        left, right = 0, len(keys)  # nothing is hidden between the two
        if window is not None:
            left = int(np.searchsorted(keys, queries[-1] - window))
        if causal or window is not None:
            right = int(np.searchsorted(keys, queries[0] + (0 if causal else window), "right"))
        parts = [slice(0, left), slice(right, len(keys))] if left < right else [slice(0, len(keys))]
        return [
            (some, additive_mask(visible(queries, keys[some], causal, window), dtype))
            for some in parts
            if some.start < some.stop
        ]

    return mask


def pieces_of(
    groups: Sequence[Group],
    heads: int,
    causal: bool,
    windows: set[int | None],
    dtype: np.dtype[Any],
    past: int = 0,
    whole: bool = False,
) -> list[Piece]:
    """Cut attention into pieces of few scores: by texts and heads, and a long sequence by queries too.

    past: how many earlier tokens a cache has. whole: compute all scores of a group together.
    """
    pieces, masked = [], causal or windows != {None}
    for group in groups:
        length = past + group.length - group.unseen  # the number of keys
        positions = np.arange(past + group.length) if group.positions is None else group.positions
        step = QUERIES if length > LONG and not whole else max(1, group.length)
        masks = masks_of(positions, past, causal, dtype, len(windows)) if masked else None
        texts = max(1, len(group.texts))
        together = texts if whole else max(1, SCORES // (heads * group.length**2))
        for some in range(0, texts, together):
            subgroup = group if together >= texts else group.part(some, some + together)
            keys = subgroup._replace(length=length, rows=subgroup.rows + past)
            numbers = len(subgroup.texts) * heads * min(step, group.length) * length
            heads_step = heads if whole else -(-heads // -(-numbers // SCORES))
            for start in range(0, max(1, group.length), step):
                queries = slice(start, min(start + step, group.length))
                visible: dict[int | None, slice] = {None: slice(0, length)}
                if masked:
                    visible = {window: keys_of(queries, past, length, causal, window) for window in windows}
                for first in range(0, heads, heads_step):
                    some_heads = slice(first, first + heads_step)
                    pieces.append(Piece(subgroup, keys, some_heads, queries, visible, masks))
    return pieces
