"""Runs bound blocks over packed tokens: what `Encoder` calls for each tile of sequences.

Packed: the tokens of all sequences of a tile follow one another, (tokens, dim), without padding. Matrix products,
norms and activations work on all tokens at once. Only attention works sequence by sequence, on several of one length
together. Therefore nothing is computed for padding, and no mask is needed except the causal one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from minibert.equations.encoder import additive_mask, attention_scores, softmax, split_heads
from minibert.equations.input_layer import Array
from minibert.families.blocks import Block
from minibert.families.steps import Inputs

TILE_TOKENS = 1024  # a matrix product of more rows is no faster, and takes more memory
SCORES = 1 << 17  # how many scores are computed together: they stay in the L2 cache
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
    while start < max(1, len(order)):  # of a batch without sequences one tile, so that a trace has all its names
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


class _Part(NamedTuple):
    """What attention computes at a time: some sequences of one length, some heads."""

    group: Group
    heads: slice
    bias: Array | None


class _Run(NamedTuple):
    """What all blocks of one run share."""

    stack: Stack
    parts: list[_Part]
    room: dict[str, Array]  # results that every block writes anew: fresh memory would cost a page fault each 4 KiB
    record: Recorder | None

    def keep(self, name: str, x: Array) -> None:
        if self.record:
            self.record.rows(name, x)

    def array(self, name: str, x: Array, width: int) -> Array:
        if name not in self.room:
            self.room[name] = np.empty((len(x), width), x.dtype)
        return self.room[name]

    def linear(self, block: Block, path: str, x: Array, name: str) -> Array:
        module = block.modules[path]
        y: Array = module(x, self.array(name, x, len(module.bias)))
        self.keep(path, y)
        return y


def run_blocks(stack: Stack, x: Array, tile: Tile, record: Recorder | None = None) -> Array:
    """Take packed tokens x (tokens, dim) through all blocks -> (tokens, dim). x may be overwritten."""
    run = _Run(stack, list(_parts(stack, tile, whole=record is not None)), {}, record)
    step = _pre_norm if stack.pre_norm else _post_norm
    for i, block in enumerate(stack.blocks):
        step(run, block, x, f"attentions.{i}")
        if i + 1 < len(stack.blocks) or not stack.last_norm:
            run.keep(f"hidden_states.{i + 1}", x)
    if stack.last_norm:
        stack.others[stack.last_norm].in_place(x)
        run.keep(stack.last_norm, x)
        run.keep(f"hidden_states.{len(stack.blocks)}", x)
    return x


def _post_norm(run: _Run, block: Block, x: Array, name: str) -> None:
    _sum(run, x, _attention(run, block, x, name), block.sum_1)
    _norm(run, block, block.norm_1, x)
    _sum(run, x, _feed_forward(run, block, x), block.sum_2)
    _norm(run, block, block.norm_2, x)


def _pre_norm(run: _Run, block: Block, x: Array, name: str) -> None:
    normed = x.copy()
    _norm(run, block, block.norm_1, normed)
    _sum(run, x, _attention(run, block, normed, name), block.sum_1)
    np.copyto(normed, x)
    _norm(run, block, block.norm_2, normed)
    _sum(run, x, _feed_forward(run, block, normed), block.sum_2)


def _attention(run: _Run, block: Block, x: Array, name: str) -> Array:
    """`self_attention` of the equations, part by part."""
    looks = [run.linear(block, path, x, f"look {i}") for i, path in enumerate(block.projections)]
    q, k, v = looks if len(looks) == 3 else np.split(looks[0], 3, axis=1)  # each (tokens, dim)
    context = run.array("context", x, x.shape[1])
    if run.record and not run.parts:  # no token: the names are there all the same
        for key in (block.scores, name):
            run.record.pairs(key, np.empty((0, run.stack.heads, 0, 0), x.dtype), Group(0, np.empty(0, int), 0, None))
    for part in run.parts:  # on one thread: those of BLAS stay awake after a product, and a second one gains nothing
        group = part.group
        shape = (len(group.texts), group.length, x.shape[1])
        q_, k_, v_, context_ = (
            split_heads(each[group.tokens].reshape(shape), run.stack.heads)[:, part.heads]
            for each in (q, k, v, context)
        )  # each (texts, heads, length, head_dim)
        scores = attention_scores(q_, k_, block.scale, part.bias)  # (texts, heads, query, key)
        if run.record:
            run.record.pairs(block.scores, scores, group)
        if run.stack.causal:
            scores += additive_mask(np.tri(group.length, dtype=bool), scores.dtype)
        softmax(scores, out=scores)
        if run.record:
            run.record.pairs(name, scores, group)
        np.matmul(scores, v_, out=context_)
    run.keep(block.context, context)
    return run.linear(block, block.output, context, "sum")


def _feed_forward(run: _Run, block: Block, x: Array) -> Array:
    """`feed_forward` of the equations; the activation works on pieces that stay in the cache."""
    hidden = run.linear(block, block.up, x, "hidden")  # (tokens, width)
    flat = (hidden if hidden.flags.c_contiguous else hidden.T).reshape(-1)  # a view: there are no gaps
    for start in range(0, len(flat), PIECE):
        piece = flat[start : start + PIECE]
        piece[:] = block.activate(piece)
    run.keep(block.activation, hidden)
    return run.linear(block, block.down, hidden, "sum")


def _sum(run: _Run, x: Array, y: Array, path: str) -> None:
    np.add(x, y, out=x)
    run.keep(path, x)


def _norm(run: _Run, block: Block, path: str, x: Array) -> None:
    block.modules[path].in_place(x)
    run.keep(path, x)


def _parts(stack: Stack, tile: Tile, whole: bool) -> Iterator[_Part]:
    """Cut attention so that the scores stay in the cache: a long sequence by heads, unless `whole` is wanted."""
    for group, bias in zip(tile.groups, _biases(stack, tile), strict=True):
        numbers = len(group.texts) * stack.heads * group.length**2
        step = stack.heads if whole else -(-stack.heads // -(-numbers // SCORES))
        for first in range(0, stack.heads, step):
            heads = slice(first, first + step)
            yield _Part(group, heads, None if bias is None else bias[heads])


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
