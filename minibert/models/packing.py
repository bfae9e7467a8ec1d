"""Cuts a batch into tiles of packed tokens.

Packed: the tokens of all sequences of a tile follow one another, (tokens, dim), without padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.steps import Inputs

T = TypeVar("T")

# A matrix product of more rows is no faster, takes more memory, and others wait longer for their turn.
TILE_TOKENS = 512  # about: see SLACK
ONE_TILE = 128  # so many tokens are never cut
ENOUGH_TOKENS = 256  # up to twice as many make two tiles, up to four times four: of half as many each takes longer
SHARES = 8  # few tokens are cut into at most so many tiles, for the threads to share
SLACK = 1.25  # a tile may have so many times as many tokens as it should, where sequences end just there
TOGETHER = 8  # tiles that one thread takes through a block one after another, where its weights are widened for them
SCORES = 1 << 17  # how many scores are computed together: they stay in the L2 cache


class Group(NamedTuple):
    """Some sequences of one length, side by side among a tile's tokens."""

    first: int  # their first token
    texts: Array  # which sequences of the batch they are
    length: int
    places: Array | None  # of the tokens in the sequence, where padding stands between them; else None

    @property
    def tokens(self) -> slice:
        return slice(self.first, self.first + len(self.texts) * self.length)


class Tile(NamedTuple):
    """The tokens of some sequences: token t is number `places[t]` of sequence `rows[t]`."""

    rows: Array
    places: Array
    groups: list[Group]


def batch_tiles(keep: Array, heads: int, tokens: int, holes: bool = False) -> Iterator[Tile]:
    """Cut a batch into tiles of about `tokens` kept tokens, sequences of one length together.

    keep (batch, seq) says which tokens are no padding. `holes`: distances inside a sequence matter, so that one with
    padding between its tokens stands alone.
    """
    lengths = np.count_nonzero(keep, axis=1)
    order = np.argsort(lengths, kind="stable")
    parts = list(cuts(lengths[order], tokens))
    for part in parts or [slice(0)]:  # of a batch without sequences one tile, so that a trace has all its names
        texts = order[part]
        member, places = np.nonzero(keep[texts])
        yield Tile(texts[member], places, list(_groups(texts, lengths[texts], places, heads, holes)))


def tile_tokens(tokens: int) -> int:
    """Say how large the tiles of so many tokens are: for the bits' sake the same for every number of threads.

    One tile or an even number of them is the aim: two threads are done with three no sooner than with four.

    >>> [tile_tokens(tokens) for tokens in (100, 139, 410, 600, 4000, 100_000)]
    [100, 70, 205, 150, 500, 512]
    """
    tiles = 1 if tokens <= ONE_TILE else min(SHARES, 2 * -(-tokens // (2 * ENOUGH_TOKENS)))
    return min(TILE_TOKENS, max(1, -(-tokens // tiles)))


def cuts(lengths: Array, tokens: int) -> Iterator[slice]:
    """Cut sequences that follow one another into equal parts of about so many tokens, or of one sequence.

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


def grouped(tiles: Sequence[T], threads: int) -> list[Sequence[T]]:
    """Put tiles that follow one another together, at most `TOGETHER`, so that each thread has a group.

    >>> grouped([1, 2, 3, 4, 5], 2)
    [[1, 2, 3], [4, 5]]
    """
    size = min(TOGETHER, -(-len(tiles) // threads))
    return [tiles[start : start + size] for start in range(0, len(tiles), max(1, size))]


def tile_of(lengths: Array, heads: int) -> Tile:
    """Describe tokens that are packed already: `lengths` says where each sequence ends, the shortest first."""
    lengths = lengths[lengths > 0]
    texts, starts = np.arange(len(lengths)), np.cumsum(lengths) - lengths
    places = np.arange(lengths.sum()) - np.repeat(starts, lengths)
    return Tile(np.repeat(texts, lengths), places, list(_groups(texts, lengths, places, heads, holes=False)))


def _groups(texts: Array, lengths: Array, places: Array, heads: int, holes: bool) -> Iterator[Group]:
    token = i = 0
    while i < len(texts) and len(places):  # sequences of no tokens at all have nothing to attend to
        length = int(lengths[i])
        own = places[token : token + length]
        if holes and own[-1] - own[0] != length - 1:
            yield Group(token, texts[i : i + 1], length, own)
            token, i = token + length, i + 1
            continue
        same = int(np.searchsorted(lengths[i:], length, side="right"))
        count = min(same, max(1, SCORES // (heads * length * length)))
        if holes:
            count = 1  # the next one may have holes
        yield Group(token, texts[i : i + count], length, None)
        token, i = token + count * length, i + count


def gather(inputs: Inputs, tile: Tile) -> Inputs:
    """Take one tile's tokens out of checked inputs, as one long sequence: the input layer's rows know no neighbours."""

    def of(ids: Any) -> Any:
        if isinstance(ids, slice):
            return (tile.places + ids.start)[None]
        if isinstance(ids, int):
            return ids
        return np.broadcast_to(ids, (inputs.batch, inputs.seq))[tile.rows, tile.places][None]

    embeds = inputs.inputs_embeds
    return Inputs(
        1,
        len(tile.rows),
        {name: of(ids) for name, ids in inputs.ids.items()},
        None if embeds is None else embeds[tile.rows, tile.places][None],
    )
