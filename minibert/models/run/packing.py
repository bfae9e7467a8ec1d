"""Packed texts: the tokens of several sequences one after another, without padding; and where work is cut into tiles.

Texts and the sequences of a call come to the same description. What computes rows takes one `Packed`, a whole batch or
a tile of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.parts.steps import Inputs
from minibert.threads.kernels import Rows

T = TypeVar("T")

# Numbers in a block of an input layer: 1024 rows of BERT's, the fastest of the sizes from 32 to 4096 rows. Smaller ones
# fit into a faster cache, but need more calls, and threads then wait more often for the interpreter's lock.
TILE_NUMBERS = 1024 * 768
# A matrix product of more rows is no faster, takes more memory, and others wait longer for their turn.
TILE_TOKENS = 512  # about: see SLACK
TILE_ROWS = 1024  # of a model without blocks: nothing but the rows themselves has to fit into a cache
ONE_TILE = 128  # up to this many tokens are never cut
ENOUGH_TOKENS = 256  # up to twice as many make two tiles, up to four times four: of half as many each takes longer
SHARES = 8  # few tokens are cut into at most this many tiles, for the threads to share
SLACK = 1.25  # how many times its usual tokens a tile may have, where sequences end just there


class Group(NamedTuple):
    """Some sequences of one length, side by side in a tile."""

    first: int  # their first row
    texts: Array  # which sequences of the batch they are
    length: int
    positions: Array | None  # of the tokens in each sequence, where padding stands between them; else None
    rows: int  # of each sequence: its tokens, and what fills them up
    unseen: int = 0  # of each, how many last tokens no token sees

    def of(self, x: Array) -> Array:
        """Take their tokens: (rows, ...) -> (texts, length, ...), a view."""
        count = len(self.texts)
        found = x[self.first : self.first + count * self.rows].reshape(count, self.rows, *x.shape[1:])
        return found[:, : self.length]

    def part(self, start: int, stop: int) -> Group:
        """Take some of the sequences."""
        return self._replace(first=self.first + start * self.rows, texts=self.texts[start:stop])


class Packed(NamedTuple):
    """The tokens of some sequences without padding, the shortest sequence first. A tile of it is one too.

    inputs: of all tokens as one long sequence, checked and completed; texts and lengths (texts,): which sequence of the
    batch each one is, and how many tokens it has; positions (tokens,): of each token in its sequence, None where they
    are 0, 1, 2, ... in each; unseen (texts,): how many of its last tokens no token sees, None where there are none.
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
        """Say for each token which sequence of the batch it is of, and its position in it."""
        positions = self.positions
        if positions is None:
            positions = np.arange(self.inputs.seq) - np.repeat(self.starts, self.lengths)
        return np.repeat(self.texts, self.lengths), positions

    def groups(self, gaps: bool = False, multiple: int = 1) -> list[Group]:
        """Give the sequences of each length; `gaps`: split groups whose positions differ.

        multiple: of rows that each sequence takes.
        """
        kinds: list[Any] = self.lengths.tolist()
        unseen = [0] * len(kinds)
        positions: list[Array] = []
        if self.unseen is not None:
            unseen = self.unseen.tolist()
            kinds = list(zip(kinds, unseen, strict=True))
        if gaps and self.positions is not None:
            positions = [own if _has_gaps(own) else own[:0] for own in np.split(self.positions, self.starts[1:])]
            kinds = [(length, own.tobytes()) for length, own in zip(kinds, positions, strict=False)]
        found, first, start = [], 0, 0
        for _, same in groupby(kinds):
            stop, length = start + len(list(same)), int(self.lengths[start])
            own = positions[start] if positions and len(positions[start]) else None
            rows = -(-length // multiple) * multiple
            found.append(Group(first, self.texts[start:stop], length, own, rows, unseen[start]))
            first, start = first + (stop - start) * rows, stop
        return found

    def tiles(self, tokens: int | None = None) -> list[Packed]:
        """Cut into parts of about `tokens` tokens, each of whole sequences; None: as many as `tile_tokens` says."""
        if self.inputs.seq <= (ONE_TILE if tokens is None else tokens):
            return [self] * bool(len(self.texts))
        tokens = tile_tokens(self.inputs.seq) if tokens is None else tokens
        found, stop = [], 0
        for part in cuts(self.lengths, tokens):
            here = slice(stop, stop := stop + int(self.lengths[part].sum()))
            positions = None if self.positions is None else self.positions[here]
            unseen = None if self.unseen is None else self.unseen[part]
            inputs = self.inputs.tile(slice(0, 1), here)
            found.append(Packed(inputs, self.texts[part], self.lengths[part], positions, unseen))
        return found


class Layout(NamedTuple):
    """The rows of a tile's tokens in its matrix products, which other rows fill up."""

    rows: int
    tokens: slice | Array  # the row of each

    @classmethod
    def of(cls, lengths: Array, rows: Rows, fewest: int = 1) -> Layout:
        """Lay out sequences of these lengths, one after another. fewest: of the rows of a product."""
        tokens = int(lengths.sum())
        if rows.text == 1:
            return cls(rows.filled(tokens, fewest), slice(tokens))
        each = -(-lengths // rows.text) * rows.text
        before = np.cumsum(each) - each - (np.cumsum(lengths) - lengths)  # rows that fill up, before each sequence
        return cls(rows.filled(int(each.sum()), fewest), np.arange(tokens) + np.repeat(before, lengths))

    def filled(self, x: Array) -> Array:
        """Put what each token has in its row, (tokens, ...) -> (rows, ...); the first token's fills up the others."""
        if len(x) == self.rows:
            return x
        y = np.empty((self.rows, *x.shape[1:]), x.dtype)
        y[slice(len(x), None) if isinstance(self.tokens, slice) else ...] = x[0]
        y[self.tokens] = x
        return y


def _has_gaps(positions: Array) -> bool:
    return len(positions) > 0 and positions[-1] - positions[0] != len(positions) - 1


def unpadded(inputs: Inputs, keep: Array, texts: Array | None = None) -> Packed:
    """Take the tokens that are no padding out of a call's checked inputs: the input layer's rows know no neighbours.

    keep (batch, seq) says which they are. texts: some sequences of one length; None: all, the shortest first.
    """
    lengths = np.count_nonzero(keep, axis=1)
    texts = np.argsort(lengths, kind="stable") if texts is None else texts
    if inputs.batch == 1 and keep.all():  # it is one long sequence already
        return Packed(inputs, texts, lengths, np.arange(inputs.seq))
    members, positions = np.nonzero(keep[texts])
    rows = texts[members]

    def of(ids: Any) -> Any:
        if isinstance(ids, slice):
            return (positions + ids.start)[None]
        if ids is None or isinstance(ids, int):
            return ids
        return np.broadcast_to(ids, (inputs.batch, inputs.seq, *ids.shape[2:]))[rows, positions][None]

    ids = {name: of(each) for name, each in inputs.ids.items()}
    packed = Inputs(1, len(rows), ids, of(inputs.inputs_embeds), of(inputs.attention_mask))
    return Packed(packed, texts, lengths[texts], positions)


# -- where work is cut -------------------------------------------------------------------------------------------


def tile_tokens(tokens: int) -> int:
    """Give the tile size of a call. It does not depend on the number of threads, so results are bitwise equal.

    One tile or an even number of them is the aim: three tiles on two threads take as long as four.

    >>> [tile_tokens(tokens) for tokens in (100, 139, 410, 600, 4000, 100_000)]
    [100, 70, 205, 150, 500, 512]
    """
    tiles = 1 if tokens <= ONE_TILE else min(SHARES, 2 * -(-tokens // (2 * ENOUGH_TOKENS)))
    return min(TILE_TOKENS, max(1, -(-tokens // tiles)))


def cuts(lengths: Array, tokens: int) -> Iterator[slice]:
    """Cut sequences that follow one another into equal parts of about `tokens` tokens, or of one sequence.

    No part of several sequences has more than `SLACK` times as many.

    >>> [(part.start, part.stop) for part in cuts(np.array([2, 2, 3, 9]), 5)]
    [(0, 2), (2, 3), (3, 4)]
    """
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    left = -(-total // max(1, tokens))  # parts
    start = before = 0
    while start < len(ends):
        aim = before + (total - before) / max(1, left)
        stop = int(np.searchsorted(ends, aim, side="right"))  # the end before it or the one after, what is nearer
        if stop < len(ends) and ends[stop] - aim < aim - (ends[stop - 1] if stop else 0):
            stop += 1
        stop = max(start + 1, min(stop, int(np.searchsorted(ends, before + SLACK * tokens, side="right"))))
        yield slice(start, stop)
        start, before, left = stop, int(ends[stop - 1]), left - 1


def cut(batch: int, seq: int, rows: int) -> Iterator[tuple[slice, slice]]:
    """Cut (batch, seq) into blocks of about `rows` tokens: whole sequences, or parts of one where it is long.

    >>> [(batch.start, batch.stop, seq.start, seq.stop) for batch, seq in cut(1, 5, 2)]
    [(0, 1, 0, 2), (0, 1, 2, 4), (0, 1, 4, 5)]
    >>> [(batch.start, batch.stop, seq.start, seq.stop) for batch, seq in cut(3, 2, 4)]
    [(0, 2, 0, 2), (2, 3, 0, 2)]
    """
    tall = max(1, rows // seq) if seq else 1
    for top in range(0, batch, tall):
        for left in range(0, seq, rows):
            yield slice(top, min(top + tall, batch)), slice(left, min(left + rows, seq))


def grouped(tiles: Sequence[T], threads: int, most: int) -> list[Sequence[T]]:
    """Put up to `most` tiles that follow one another together, so that each thread has a group.

    >>> grouped([1, 2, 3, 4, 5], 2, 8)
    [[1, 2, 3], [4, 5]]
    """
    size = min(most, -(-len(tiles) // threads))
    return [tiles[start : start + size] for start in range(0, len(tiles), max(1, size))]
