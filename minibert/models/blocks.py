"""Runs bound blocks over packed tokens: what `Encoder` calls for each tile of sequences.

Matrix products, norms and activations work on all tokens of a tile at once. Only attention works sequence by sequence,
on several of one length together. Therefore nothing is computed for padding, and no mask is needed but for what a token
does not see: those after it, and those out of reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from minibert.equations.blocks import additive_mask, visible
from minibert.equations.fast import ACTIVATIONS, attention_scores, linear, softmax
from minibert.equations.input_layer import Array
from minibert.families.bound_blocks import Attention, BoundBlock, Dense, FeedForward, Modules
from minibert.files.tables import LargeRoom, Room

from . import packing
from .key_value_cache import KeyValueCache
from .packing import Group, Tile

if TYPE_CHECKING:
    from minibert.families.attention_schemes import Rotary

# Attention of a sequence of more tokens is cut by queries, so that memory grows with its length, not with the square.
# Each query has all its keys at once, so softmax needs no running sum. With a running maximum and sum, pieces of 512
# queries and 512 keys, attention alone takes 0.75 to 0.9 of the time, for 8,192 tokens and heads of 32 to 128 numbers:
# not enough for a second way. Six blocks of 384, 12 heads, two threads, beside torch's fused attention on a processor
# with AVX-512: of its time NomicBERT takes 0.6 for 512 tokens, 1.2 for 2,048 and 2.6 for 8,192; Llama 2.2, 1.1 and 1.9;
# ModernBERT with windows of 128 1.3 and 0.8 for the first two.
LONG = 1024
QUERIES = 128  # how many are computed at once: 64 and fewer take longer, 256 about as long
PIECE = 1 << 15  # how many numbers an activation works on at once: its intermediates stay in the L2 cache


class Stack(NamedTuple):
    """All blocks of a model, and what they share."""

    blocks: tuple[BoundBlock, ...]
    heads: int
    causal: bool
    last_norm: str
    rotary: Rotary | None  # what turns queries and keys
    others: dict[str, Any]  # modules that belong to no single block, by path: the last norm, the table of the bias
    steps: tuple[tuple[Ready, ...], ...]  # the blocks, ready to run
    last: Works  # the last norm, ready to run

    @property
    def pre_norm(self) -> bool:
        """Whether the norms stand before attention and feed-forward (GPT-2), not after the sums (BERT)."""
        return any(part.before for block in self.blocks for part in block.parts)

    @property
    def entering(self) -> dict[str, str]:
        """Path of a module -> what a trace calls its input: what is gathered from the values, and the sums.

        A sum enters the norm after it, or the first norm that stands before what follows.
        """
        found: dict[str, str] = {}
        summed = ""
        for part in (part for block in self.blocks for part in block.parts):
            if summed and part.before:
                found[part.before] = summed
            if isinstance(part.work, Attention):
                found[part.work.output] = part.work.context
            summed = "" if part.after else part.sum
            found |= {part.after: part.sum} if part.after else {}
        return found | ({self.last_norm: summed} if summed and self.last_norm else {})

    @property
    def widens(self) -> bool:
        """Whether there are weights that stay as they are stored."""
        modules = (module for block in self.blocks for module in block.modules.values())
        return any(isinstance(module, Dense) and module.stored for module in modules)

    @property
    def by_distance(self) -> bool:
        """Whether the distance between two tokens matters, so that padding between them does."""
        return any(block.attention.terms or block.attention.reach is not None for block in self.blocks)


class Recorder(Protocol):
    """Is handed each named intermediate; the run goes on with what it leaves there."""

    def rows(self, name: str, x: Array) -> None:
        """One row a token."""

    def pairs(self, name: str, x: Array, group: Group) -> None:
        """One number for each head, query and key of some sequences."""


# -- computing ---------------------------------------------------------------------------------------------------


# (first and last query, first and last key, a block's reach) -> what is added to its scores, and for which of the keys
Masks = Callable[[int, int, int, int, "int | None"], "list[tuple[slice, Array]]"]


class _Piece(NamedTuple):
    """What attention computes at a time: some sequences of one length, some heads, some queries."""

    group: Group
    keys: Group  # as `group`, and of tokens before them that a cache has
    heads: slice
    queries: slice
    seen: Mapping[int | None, slice]  # a block's reach -> the keys that these queries can see
    masks: Masks


class _Run(NamedTuple):
    """What all blocks of one run share."""

    pieces: list[_Piece]
    angles: Mapping[str | None, tuple[Array, Array, str]]  # a rotation's name -> cos and sin of each token, the pairing
    shared: Mapping[Any, Any]  # a scheme of positions -> what the terms of all blocks' scores take from it
    room: dict[str, Array]  # results that every block writes anew: fresh memory would cost a page fault each 4 KiB
    weights: Room  # for weights that stay as they are stored, while they are used
    record: Recorder | None
    cache: KeyValueCache | None
    take: Array | None = None  # of the last block: the tokens that go on after its attention

    def array(self, name: str, x: Array, width: int) -> Array:
        if name not in self.room or len(self.room[name]) < len(x) * width:
            self.room[name] = np.empty(len(x) * width, x.dtype)
        return self.room[name][: len(x) * width].reshape(len(x), width)


Work = Callable[[_Run, Array], Array]
Works = tuple[Work, ...]  # one after the other; of what a part lacks there is none


class Ready(NamedTuple):
    """One part of a block, ready to run: `x = after(x + within(work(before(x))))`."""

    works: Works  # before, work, within
    sum: str
    after: Works
    attends: bool


def run_blocks(
    stack: Stack,
    x: Array,
    tile: Tile,
    record: Recorder | None = None,
    cache: KeyValueCache | None = None,
    take: Array | None = None,
) -> Array:
    """Run all blocks on packed tokens: x (tokens, dim) -> (tokens, dim). x may be overwritten.

    `cache`: the tokens are the next ones of one text, after those that it has; then it has them too.
    `take`: only these tokens are asked for, (taken, dim). Only they pass what follows attention in the last block.
    """
    pieces = _pieces(stack, tile, x.dtype, whole=record is not None, past=cache.length if cache else 0)
    run = _Run(list(pieces), _angles(stack, tile), _shared(stack, tile), {}, Room(), record, cache)
    for i, block in enumerate(stack.steps):
        if record and i:
            record.rows(f"hidden_states.{i}", x)
        x = _one_block(run._replace(take=take) if i + 1 == len(stack.steps) else run, block, x)
    x = x[take] if take is not None and not stack.steps else x
    for norm in stack.last:
        norm(run, x)
    if record:
        record.rows(f"hidden_states.{len(stack.steps)}", x)
    if cache:
        cache.length += len(tile.rows)
    return x


def run_tiles(stack: Stack, given: Sequence[tuple[Array, Tile]]) -> list[Array]:
    """Run all blocks on several tiles, one block after another: a weight is widened once for all of them.

    The bits are those of `run_blocks` on each. The memory is that of one block's weights and of the tiles' x.
    """
    room, weights = dict[str, Array](), LargeRoom()
    runs = [
        _Run([*_pieces(stack, tile, x.dtype, whole=False, past=0)], _angles(stack, tile), _shared(stack, tile), room,
             weights, None, None)
        for x, tile in given
    ]  # fmt: skip
    found = [x for x, _ in given]
    for block in stack.steps:
        weights.empty()
        found = [_one_block(run, block, x) for run, x in zip(runs, found, strict=True)]
    for run, x in zip(runs, found, strict=True):
        for norm in stack.last:
            norm(run, x)
    return found


def _one_block(run: _Run, block: tuple[Ready, ...], x: Array) -> Array:
    for works, summed, after, attends in block:
        y = x
        for work in works:
            y = work(run, y)
        if attends and run.take is not None:  # y has the taken tokens alone
            x = x[run.take]
        np.add(x, y, out=x)
        if run.record:
            run.record.rows(summed, x)
        for norm in after:
            norm(run, x)
    return x


def ready(block: BoundBlock) -> tuple[Ready, ...]:
    """Make one block ready to run. What a part lacks is asked for here, once."""
    made = []
    for before, own, within, summed, after in block.parts:
        work = attending(block.modules, own) if isinstance(own, Attention) else feeding(block.modules, own)
        norms = (norming(block.modules, before, copied=True), norming(block.modules, within))
        attends = isinstance(own, Attention)
        made.append(Ready((*norms[0], work, *norms[1]), summed, norming(block.modules, after), attends))
    return tuple(made)


def norming(modules: Modules, path: str, copied: bool = False) -> Works:
    """A norm, in place or into a copy; none where there is none."""

    def work(run: _Run, x: Array) -> Array:
        y = x
        if copied:
            y = run.array("normed", x, x.shape[1])
            np.copyto(y, x)
        modules[path].in_place(y)
        if run.record:
            run.record.rows(path, y)
        return y

    return (work,) if path else ()


def mapping(modules: Modules, path: str, name: str) -> Work:
    """A linear map, into the memory of that name."""
    return _mapping(modules[path], path, name)


def _mapping(module: Dense, path: str, name: str) -> Work:
    def work(run: _Run, x: Array) -> Array:
        y = linear(x, module.matrix(run.weights), module.bias, run.array(name, x, module.shape[0]))
        if run.record and path:
            run.record.rows(path, y)
        return y

    return work


def attending(modules: Modules, own: Attention) -> Work:
    """`self_attention` of the equations, piece by piece."""
    maps = [mapping(modules, path, f"projection {i}") for i, path in enumerate(own.maps)]
    output = mapping(modules, own.output, "sum")
    of_queries, of_keys = (_each_head(modules, own, path) for path in own.norms)
    shared = own.key_heads != own.heads
    key_head = np.arange(own.heads) // (own.heads // own.key_heads)  # of each query head

    def work(run: _Run, x: Array) -> Array:
        qkv = [project(run, x) for project in maps]
        q, k, v = qkv if len(qkv) == 3 else np.split(qkv[0], own.edges, axis=1)  # each (tokens, width)
        for turn in of_queries:
            q = turn(run, q)
        for turn in of_keys:
            k = turn(run, k)
        if run.cache:
            k, v = run.cache.joined(own.scores, k, v)
        context = run.array("context", x, q.shape[1])
        if run.record and not run.pieces:  # no token: the names are there all the same
            for key in (own.scores, own.probabilities):
                run.record.pairs(key, np.empty((0, own.heads, 0, 0), x.dtype), Group(0, np.empty(0, int), 0, None))
        for piece in run.pieces:  # on one thread: those of BLAS stay awake after a product, a second one gains nothing
            group, heads = piece.group, piece.heads
            their = key_head[heads] if shared else heads
            queries, seen = piece.queries, piece.seen[own.reach]
            q_, context_ = (_heads(x, group, own.head_dim)[:, heads, queries] for x in (q, context))
            k_, v_ = (_heads(x, piece.keys, own.head_dim)[:, their, seen] for x in (k, v))
            scores = attention_scores(q_, k_, own.scale)  # (texts, heads, query, key)
            for term in own.terms:
                places = (some if group.places is None else group.places[some] for some in (queries, seen))
                scores += term.piece(run.shared[term.scheme], q_, k_, heads, *places)
            if run.record:
                run.record.pairs(own.scores, scores, group)
            for some, mask in piece.masks(queries.start, queries.stop, seen.start, seen.stop, own.reach):
                scores[..., some] += mask
            softmax(scores, out=scores)
            if run.record:
                run.record.pairs(own.probabilities, scores, group)
            np.matmul(scores, v_, out=context_)
        if run.record:
            run.record.rows(own.context, context)
        return output(run, context if run.take is None else context[run.take])

    return work


def _heads(x: Array, group: Group, head_dim: int) -> Array:
    """Cut some sequences' rows into heads: (tokens, width) -> (texts, heads, length, head_dim), a view."""
    return x[group.tokens].reshape(len(group.texts), group.length, -1, head_dim).swapaxes(1, 2)


def _each_head(modules: Modules, own: Attention, path: str) -> Works:
    """What happens to queries or keys in each head: a norm, and a rotation."""
    norms = norming(modules, path)
    if not norms and not own.rotated:
        return ()
    from minibert.equations.attention_positions import rotate  # here, since most models have no use for it

    def work(run: _Run, x: Array) -> Array:
        y = np.ascontiguousarray(x).reshape(len(x), x.shape[1] // own.head_dim, own.head_dim)
        for norm in norms:
            norm(run, y)
        if own.rotated:
            cos, sin, pairing = run.angles[own.layer_type]
            y = rotate(y, cos[:, None], sin[:, None], pairing)
        return y.reshape(x.shape)

    return (work,)


def feeding(modules: Modules, own: FeedForward) -> Work:
    """`feed_forward` of the equations; the activation works on pieces that stay in the cache."""
    activate = ACTIVATIONS.get(own.activate, own.activate)
    up, down = mapping(modules, own.up, "hidden"), mapping(modules, own.output, "sum")
    gate = mapping(modules, own.gate, "gate") if own.gate else None
    both = bool(own.gate) and own.gate == own.up
    if both:
        first, second = halves(modules[own.up])
        gate, up = _mapping(first, "", "gate"), _mapping(second, "", "hidden")

    def work(run: _Run, x: Array) -> Array:
        hidden = (gate or up)(run, x)  # (tokens, width)
        other = None
        if run.record and both:
            whole = np.concatenate([hidden, up(run, x)], axis=1)
            run.record.rows(own.up, whole)
            hidden, other = np.split(whole, 2, axis=1)
            hidden = hidden.copy()  # without gaps
        flat = (hidden if hidden.flags.c_contiguous else hidden.T).reshape(-1)  # a view: there are no gaps
        for start in range(0, len(flat), PIECE):
            piece = flat[start : start + PIECE]
            piece[:] = activate(piece)
        if run.record:
            run.record.rows(own.activation, hidden)
        if gate:
            np.multiply(hidden, up(run, x) if other is None else other, out=hidden)
        return down(run, hidden)

    return work


def halves(module: Dense) -> tuple[Dense, Dense]:
    """Cut a map that holds two side by side: views, so that neither is copied."""
    width = module.shape[0] // 2
    return module.part(slice(width)), module.part(slice(width, None))


# -- what attention is given besides -----------------------------------------------------------------------------


def _pieces(stack: Stack, tile: Tile, dtype: np.dtype[Any], whole: bool, past: int) -> Iterator[_Piece]:
    """Cut attention so that few scores are there at once: by heads, and a long sequence by queries too.

    `whole` wants all scores of a sequence together.
    """
    reaches = {block.attention.reach for block in stack.blocks}
    for group in tile.groups:
        keys = group._replace(length=past + group.length)
        places = np.arange(keys.length) if group.places is None else group.places
        cut = QUERIES if keys.length > LONG and not whole else max(1, group.length)
        masks = _masks(places, past, stack.causal, dtype, len(reaches))
        numbers = len(group.texts) * stack.heads * min(cut, group.length) * keys.length
        step = stack.heads if whole else -(-stack.heads // -(-numbers // packing.SCORES))
        for start in range(0, group.length, cut):
            queries = slice(start, min(start + cut, group.length))
            seen = {reach: _within(queries, past, keys.length, stack.causal, reach) for reach in reaches}
            for first in range(0, stack.heads, step):
                heads = slice(first, first + step)
                yield _Piece(group, keys, heads, queries, seen, masks)


def _within(queries: slice, past: int, length: int, causal: bool, reach: int | None) -> slice:
    """The keys among which are all that these queries see; padding between tokens only makes them fewer."""
    first, last = past + queries.start, past + queries.stop
    stop = last if causal else length if reach is None else min(length, last + reach)
    return slice(0 if reach is None else max(0, first - reach), stop)


def _masks(places: Array, past: int, causal: bool, dtype: np.dtype[Any], kept: int) -> Masks:
    """What is added to the scores of some queries; the last ones are kept, for the heads and blocks that follow.

    Keys that all of these queries see need no mask: of a long text those are nearly all, and a pass over their scores
    would take as long as the exponentials.
    """

    @lru_cache(maxsize=max(1, kept))
    def mask(first: int, last: int, start: int, stop: int, reach: int | None) -> list[tuple[slice, Array]]:
        queries, keys = places[past + first : past + last], places[start:stop]
        left, right = 0, len(keys)  # between the two nothing is hidden
        if reach is not None:
            left = int(np.searchsorted(keys, queries[-1] - reach))
        if causal or reach is not None:
            right = int(np.searchsorted(keys, queries[0] + (0 if causal else reach), "right"))
        parts = [slice(0, left), slice(right, len(keys))] if left < right else [slice(0, len(keys))]
        return [
            (some, additive_mask(visible(queries, keys[some], causal, reach), dtype))
            for some in parts
            if some.start < some.stop
        ]

    return mask


def _angles(stack: Stack, tile: Tile) -> dict[str | None, tuple[Array, Array, str]]:
    """cos, sin and pairing of each rotation that a block asks for, at the places of these tokens."""
    names = {block.attention.layer_type for block in stack.blocks if block.attention.rotated}
    return {name: (*stack.rotary.rotary(tile.places, name), stack.rotary.pairing) for name in names if stack.rotary}


def _shared(stack: Stack, tile: Tile) -> dict[Any, Any]:
    """What terms of the scores take from their schemes, for all of a tile's texts."""
    schemes = {term.scheme: term for block in stack.blocks for term in block.attention.terms}
    if not schemes:
        return {}
    longest = 1 + max(
        (group.length - 1 if group.places is None else int(group.places[-1]) for group in tile.groups), default=0
    )
    return {scheme: term.shared(longest) for scheme, term in schemes.items()}
