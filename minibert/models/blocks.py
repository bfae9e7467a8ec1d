"""Runs bound blocks over packed tokens: what `Encoder` calls for each tile of sequences.

Packed: the tokens of all sequences of a tile follow one another, (tokens, dim), without padding. Matrix products,
norms and activations work on all tokens at once. Only attention works sequence by sequence, on several of one length
together. Therefore nothing is computed for padding, and no mask is needed except the causal one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from minibert.equations.encoder import (
    Activation,
    additive_mask,
    attention_scores,
    join_heads,
    softmax,
    split_heads,
)
from minibert.equations.input_layer import Array
from minibert.families.blocks import Block
from minibert.families.steps import Inputs

TILE_TOKENS = 1024  # a matrix product of more rows is no faster, and takes more memory
SCORES = 1 << 19  # how many scores are computed together: they stay in the L2 cache
PIECE = 1 << 15  # how many numbers an activation works on at once: its intermediates stay in the L2 cache


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


class Stack(NamedTuple):
    """What all blocks of a model share."""

    blocks: tuple[Block, ...]
    heads: int
    pre_norm: bool
    causal: bool
    last_norm: str
    bias: Callable[[int], Array] | None  # length -> (heads, length, length), added to all blocks' scores
    others: dict[str, Any]  # modules that belong to no single block, by path: the last norm, the table of the bias


class Recorder(Protocol):
    """Takes each named intermediate when a trace is wanted."""

    def rows(self, name: str, x: Array) -> None:
        """One row a token."""

    def pairs(self, name: str, x: Array, group: Group) -> None:
        """One number for each head, query and key of some sequences."""


# -- packing -----------------------------------------------------------------------------------------------------


def pack(keep: Array, heads: int, tokens: int = TILE_TOKENS, holes: bool = False) -> Iterator[Tile]:
    """Cut a batch into tiles of about `tokens` kept tokens, sequences of one length together.

    keep (batch, seq) says which tokens are no padding. `holes`: distances inside a sequence matter, so that one with
    padding between its tokens stands alone.
    """
    lengths = np.count_nonzero(keep, axis=1)
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        stop = start + max(1, int(np.searchsorted(np.cumsum(lengths[order[start:]]), tokens, side="right")))
        texts = order[start:stop]
        member, places = np.nonzero(keep[texts])
        yield Tile(texts[member], places, list(_groups(texts, lengths[texts], places, heads, holes)))
        start = stop


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


# -- computing ---------------------------------------------------------------------------------------------------


def run_blocks(stack: Stack, x: Array, tile: Tile, record: Recorder | None = None) -> Array:
    """Take packed tokens x (tokens, dim) through all blocks -> (tokens, dim). x may be overwritten."""
    biases = _biases(stack, tile)
    for i, block in enumerate(stack.blocks):
        step = _pre_norm if stack.pre_norm else _post_norm
        x = step(stack, block, x, tile, biases, f"attentions.{i}", record)
        if record and (i + 1 < len(stack.blocks) or not stack.last_norm):
            record.rows(f"hidden_states.{i + 1}", x)
    if stack.last_norm:
        stack.others[stack.last_norm].in_place(x)
        if record:
            record.rows(stack.last_norm, x)
            record.rows(f"hidden_states.{len(stack.blocks)}", x)
    return x


def _post_norm(
    stack: Stack, block: Block, x: Array, tile: Tile, biases: list[Array | None], name: str, record: Recorder | None
) -> Array:
    y = _attention(stack, block, x, tile, biases, name, record)
    x = _sum(x, y, block.sum_1, record)
    _norm(block, block.norm_1, x, record)
    y = _feed_forward(block, x, record)
    x = _sum(x, y, block.sum_2, record)
    _norm(block, block.norm_2, x, record)
    return x


def _pre_norm(
    stack: Stack, block: Block, x: Array, tile: Tile, biases: list[Array | None], name: str, record: Recorder | None
) -> Array:
    normed = x.copy()
    _norm(block, block.norm_1, normed, record)
    x = _sum(x, _attention(stack, block, normed, tile, biases, name, record), block.sum_1, record)
    np.copyto(normed, x)
    _norm(block, block.norm_2, normed, record)
    return _sum(x, _feed_forward(block, normed, record), block.sum_2, record)


def _attention(
    stack: Stack, block: Block, x: Array, tile: Tile, biases: list[Array | None], name: str, record: Recorder | None
) -> Array:
    """`self_attention` of the equations, group by group."""
    looks = [_linear(block, path, x, record) for path in block.projections]
    q, k, v = looks if len(looks) == 3 else np.split(looks[0], 3, axis=1)  # each (tokens, dim)
    context = np.empty_like(x)
    for group, bias in zip(tile.groups, biases, strict=True):
        shape = (len(group.texts), group.length, x.shape[1])
        heads = [split_heads(part[group.tokens].reshape(shape), stack.heads) for part in (q, k, v)]
        scores = attention_scores(heads[0], heads[1], block.scale, bias)  # (texts, heads, query, key)
        if record:
            record.pairs(block.scores, scores, group)
        if stack.causal:
            scores += additive_mask(np.tri(group.length, dtype=bool), scores.dtype)
        softmax(scores, out=scores)
        if record:
            record.pairs(name, scores, group)
        context[group.tokens] = join_heads(np.matmul(scores, heads[2])).reshape(-1, x.shape[1])
    if record:
        record.rows(block.context, context)
    return _linear(block, block.output, context, record)


def _feed_forward(block: Block, x: Array, record: Recorder | None) -> Array:
    """`feed_forward` of the equations; the activation works on pieces that stay in the cache."""
    hidden = _linear(block, block.up, x, record)  # (tokens, width)
    _activate(block.activate, hidden)
    if record:
        record.rows(block.activation, hidden)
    return _linear(block, block.down, hidden, record)


def _activate(activation: Activation, x: Array) -> None:
    flat = (x if x.flags.c_contiguous else x.T).reshape(-1)  # a view: a product's result has no gaps
    for start in range(0, len(flat), PIECE):
        piece = flat[start : start + PIECE]
        piece[:] = activation(piece)


def _linear(block: Block, path: str, x: Array, record: Recorder | None) -> Array:
    y: Array = block.modules[path](x)
    if record:
        record.rows(path, y)
    return y


def _sum(x: Array, y: Array, path: str, record: Recorder | None) -> Array:
    np.add(x, y, out=x)
    if record:
        record.rows(path, x)
    return x


def _norm(block: Block, path: str, x: Array, record: Recorder | None) -> None:
    block.modules[path].in_place(x)
    if record:
        record.rows(path, x)


def _biases(stack: Stack, tile: Tile) -> list[Array | None]:
    """The learned bias for each group's distances, which all blocks share."""
    if stack.bias is None:
        return [None] * len(tile.groups)
    longest = 1 + max(
        (group.length - 1 if group.places is None else int(group.places[-1]) for group in tile.groups), default=0
    )
    bias = stack.bias(longest)
    return [
        bias[:, : group.length, : group.length]
        if group.places is None
        else bias[:, group.places[:, None], group.places]
        for group in tile.groups
    ]
