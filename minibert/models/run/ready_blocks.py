"""Blocks ready to run: each part of a block is a list of functions of a tile's rows, with a hook after each formula.

`blocks` runs them. Matrix products, norms and activations are computed for all tokens of a tile at once, and attention
for the sequences of one length. To record or change a run, the blocks are
bound again, with a hook.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from minibert.equations.fast import activated, attention_scores, faster, linear, softmax
from minibert.equations.input_layer import Array
from minibert.families.parts.bound_blocks import BoundAttention, BoundBlock, BoundFeedForward, BoundPieces, Modules
from minibert.families.parts.modules import Linear
from minibert.files.tables import ScratchBuffer
from minibert.threads.kernels import Rows

from .packing import Group, Piece

F = TypeVar("F", bound=Callable[..., Any])
Parts = tuple["Ready", ...]


class Hook(Protocol):
    """Receives each named intermediate of a run, and may overwrite it: see `changes.Recorder`."""

    def rows(self, name: str, x: Array) -> None:
        """Receive an intermediate with one row for each token."""

    def pairs(self, name: str, x: Array, group: Group) -> None:
        """Receive an intermediate with one number for each head, query and key of some sequences."""


class KeyValueCache:
    """The keys and values of one text's earlier tokens, for each block.

    In a causal model, a new token needs only the keys and values of earlier tokens, and they never change. So one more
    token costs one row in each linear layer, not all rows again. `length`: the number of tokens in the cache.
    """

    def __init__(self) -> None:
        self.length = 0
        self._kept: dict[str, Array] = {}  # (2, capacity, width); the capacity is doubled when it is used up

    def joined(self, block: str, keys: Array, values: Array) -> tuple[Array, Array]:
        """Add keys and values of new tokens, (new, width); return them for all tokens, (length + new, width)."""
        end = self.length + len(keys)
        buffer = self._kept.get(block, np.empty((2, 0, keys.shape[1]), keys.dtype))
        if buffer.shape[1] < end:
            earlier, buffer = buffer[:, : self.length], np.empty((2, 2 * end, keys.shape[1]), keys.dtype)
            buffer[:, : self.length] = earlier
            self._kept[block] = buffer
        buffer[0, self.length : end], buffer[1, self.length : end] = keys, values
        return buffer[0, :end], buffer[1, :end]


class Scratch(dict[tuple[str, int, int], Array]):
    """Buffers that every block overwrites, by (name, rows, width): new memory would cost a page fault for each 4 KiB.

    The blocks of a tile share them; the largest have `tokens` rows.
    """

    def __init__(self, tokens: int, dtype: np.dtype[Any]) -> None:
        self.tokens, self.dtype, self.memory = tokens, dtype, dict[tuple[str, int], Array]()

    def __missing__(self, key: tuple[str, int, int]) -> Array:
        name, rows, width = key
        if (name, width) not in self.memory:
            self.memory[name, width] = np.zeros(self.tokens * width, self.dtype)  # padding rows need valid numbers too
        buffer: Array = self.memory[name, width][: rows * width].reshape(rows, width)
        self[key] = buffer
        return buffer


class Run(NamedTuple):
    """State that all blocks of one run share."""

    rows: Rows
    pieces: list[Piece]
    angles: Mapping[str | None, tuple[Array, Array, str]]  # layer type -> cos and sin of each token, the pairing
    growth: Array | None  # the factor of each token's rotated query
    shared: Mapping[Any, Any]  # position scheme -> values for the terms of all blocks
    scratch: Scratch
    weights: ScratchBuffer  # for converting stored weights
    cache: KeyValueCache | None
    panels: bool  # products use panels
    fed: Array | None = None  # the pieces of all blocks: (tokens, blocks, width)
    take: Array | None = None  # the rows that the last block keeps after its attention


Work = Callable[[Run, Array], Array]
Norms = tuple[Callable[[Array], Array], ...]  # in place, in turn; empty if there is no norm


class Ready(NamedTuple):
    """One part of a block, ready to run: `x = post_norm(x + works(x))`; `works` include the other norms.

    A factor of the part is the last of `post_norm`.
    """

    works: tuple[Work, ...]
    add: Callable[[Array, Array, Array | None], Array]
    post_norm: Norms
    attends: bool


def ready(block: BoundBlock, i: int, hook: Hook | None = None) -> Parts:
    """Return block i, ready to run. Absent norms and gates are dropped here, not in each call."""
    parts = list[Ready]()
    for pre_norm, sublayer, output_norm, summed, post_norm, factor in block.parts:
        attends = isinstance(sublayer, BoundAttention)
        bind: Callable[..., tuple[Work, ...]] = attending if attends else partial(feeding, i)
        works = _normed(norming(block.modules, pre_norm, hook), copied=True) + bind(block.modules, sublayer, hook)
        works += _normed(norming(block.modules, output_norm, hook))
        norms = norming(block.modules, post_norm, hook) + ((partial(_multiply, factor),) if factor != 1 else ())
        parts.append(Ready(works, hooked(hook, summed, np.add), norms, attends))
    return tuple(parts)


def _multiply(factor: float, x: Array) -> Array:
    x *= x.dtype.type(factor)
    return x


def piecing(modules: Modules, pieces: BoundPieces, hook: Hook | None = None) -> Work:
    """Compute the pieces of all blocks from their input: (tokens, dim) -> (tokens, blocks, width)."""
    project = hooked(hook, pieces.map, mapping(modules[pieces.map], "pieces"))
    norm = hooked(hook, pieces.norm, modules[pieces.norm].in_place)
    blocks = modules[pieces.map].shape[0] // pieces.width
    return lambda run, x: norm(_multiply(pieces.factor, project(run, x)).reshape(len(x), blocks, pieces.width))


def norming(modules: Modules, path: str, hook: Hook | None = None) -> Norms:
    """Return the norm at a path, applied in place; empty if there is none."""
    return (hooked(hook, path, modules[path].in_place),) if path else ()


def _normed(norms: Norms, copied: bool = False) -> tuple[Work, ...]:
    """Return norms as a step of a run, in place or on a copy."""

    def work(run: Run, x: Array) -> Array:
        y = x
        if copied:
            y = run.scratch["normed", len(x), x.shape[1]]
            np.copyto(y, x)
        for norm in norms:
            norm(y)
        return y

    return (work,) if norms else ()


def hooked(hook: Hook | None, name: str, work: F) -> F:
    """Call a hook after `work`, which returns one row for each token."""
    if hook is None:
        return work

    def then(*arguments: Any) -> Array:
        x: Array = work(*arguments)
        hook.rows(name, x)
        return x

    return then  # type: ignore[return-value]


def hooked_halves(hook: Hook | None, name: str, first: F, second: F) -> tuple[F, F]:
    """Call a hook after one linear layer that is computed in two halves: it receives both outputs as one."""
    if hook is None:
        return first, second
    later: list[Array] = []

    def first_half(*arguments: Any) -> Array:
        x = np.concatenate([first(*arguments), second(*arguments)], axis=1)
        hook.rows(name, x)
        left, right = np.split(x, 2, axis=1)
        later.append(right)
        return left.copy()  # contiguous

    return first_half, lambda *arguments: later.pop()  # type: ignore[return-value]


def mapping(module: Linear, name: str) -> Work:
    """Return a linear layer as a step of a run; `name`: its buffer in `Scratch`.

    The output is always row-major, even for few rows: the bits of the next step depend on it.
    """
    width, bias, panels = module.shape[0], module.bias, module.panels
    weight = None if module.stored else module.matrix(ScratchBuffer())
    column_major = module.column_major

    def work(run: Run, x: Array) -> Array:
        matrix = module.matrix(run.weights) if weight is None else weight
        out, columns = run.scratch[name, len(x), width], run.rows.columns
        if run.panels and panels:
            return panels.linear(x, bias, out)
        if column_major or len(x) > columns:
            return linear(x, matrix, bias, out)
        y = linear(x, matrix, None, run.scratch["columns", len(x), width], columns)
        if bias is not None:
            return np.add(y, bias, out=out)
        np.copyto(out, y)
        return out

    return work


def attending(modules: Modules, attention: BoundAttention, hook: Hook | None = None) -> tuple[Work, ...]:
    """Compute `equations.self_attention` piece by piece, then the output layer."""
    maps = [hooked(hook, path, mapping(modules[path], f"projection {i}")) for i, path in enumerate(attention.maps)]
    output = hooked(hook, attention.output, mapping(modules[attention.output], "sum"))
    rotated = (attention.rotated, attention.rotated, False)
    of_queries, of_keys, of_values = (
        _each_head(modules, attention, path, turns, hook) for path, turns in zip(attention.norms, rotated, strict=True)
    )
    if attention.rotated:
        of_queries += (lambda run, x: x if run.growth is None else np.multiply(x, run.growth[:, None], out=x),)
    grouped, head_dim = attention.key_heads != attention.heads, attention.head_dim
    key_head = np.arange(attention.heads) // (attention.heads // attention.key_heads)  # the key head of each query head

    def gather(run: Run, x: Array) -> Array:
        qkv = [project(run, x) for project in maps]
        q, k, v = qkv if len(qkv) == 3 else np.split(qkv[0], attention.qkv_splits, axis=1)  # each (tokens, width)
        for change in of_queries:
            q = change(run, q)
        for change in of_keys:
            k = change(run, k)
        for change in of_values:
            v = change(run, v)
        if run.cache:
            k, v = run.cache.joined(attention.scores, k, v)
        context = run.scratch["context", len(x), q.shape[1]]
        for piece in run.pieces:  # on one thread: BLAS's threads still spin, so a second one gains nothing
            heads, queries, visible = piece.heads, piece.queries, piece.visible[attention.window]
            their = key_head[heads] if grouped else heads
            # views (texts, heads, length, head_dim) of the rows of some sequences
            q_, context_ = (
                piece.group.select(x.reshape(len(x), attention.heads, head_dim)).swapaxes(1, 2)[:, heads, queries]
                for x in (q, context)
            )
            k_, v_ = (
                piece.keys.select(x.reshape(len(x), attention.key_heads, head_dim)).swapaxes(1, 2)[:, their, visible]
                for x in (k, v)
            )
            np.matmul(_weights(attention, piece, run.shared, q_, k_, hook), v_, out=context_)
        return context if run.take is None else context[run.take]

    return hooked(hook, attention.context, gather), output


def _weights(
    attention: BoundAttention, piece: Piece, shared: Mapping[Any, Any], q: Array, k: Array, hook: Hook | None
) -> Array:
    """Return the weights of some queries for the keys that they see: (texts, heads, query, key)."""
    group, queries, visible = piece.group, piece.queries, piece.visible[attention.window]
    y = attention_scores(q, k, attention.scale)
    for term in attention.terms:
        gaps, past = group.positions, piece.keys.length + group.unseen - group.length
        ranges = slice(past + queries.start, past + queries.stop), visible
        positions = (some if gaps is None else gaps[some] for some in ranges)
        y += term.piece(shared[term.scheme], q, k, piece.heads, *positions)
    if hook:
        hook.pairs(attention.scores, y, group)
    if y.size:
        if piece.masks:
            masks = piece.masks(queries.start, queries.stop, visible.start, visible.stop, attention.window)
            for some, mask in masks:
                y[..., some] += mask
        y = softmax(y, out=y)
        if attention.window is not None and group.unseen:  # the last queries may see no key at all
            y[..., max(0, piece.keys.length + attention.window - queries.start) :, :] = 0
    if hook:
        hook.pairs(attention.probabilities, y, group)
    return y


def _each_head(
    modules: Modules, attention: BoundAttention, path: str, turns: bool, hook: Hook | None
) -> tuple[Work, ...]:
    """Return the norm and rotation of queries, keys or values in each head; empty if there are none."""
    norms = norming(modules, path, hook)
    if not norms and not turns:
        return ()
    from minibert.equations.rotary import rotate  # imported here: most models do not need it

    def work(run: Run, x: Array) -> Array:
        y = np.ascontiguousarray(x).reshape(len(x), x.shape[1] // attention.head_dim, attention.head_dim)
        for norm in norms:
            norm(y)
        if turns:
            cos, sin, pairing = run.angles[attention.layer_type]
            y = rotate(y, cos[:, None], sin[:, None], pairing)
        return y.reshape(x.shape)

    return (work,)


def feeding(i: int, modules: Modules, feed: BoundFeedForward, hook: Hook | None = None) -> tuple[Work, ...]:
    """Return `feed_forward` of the equations, in block i."""
    down = hooked(hook, feed.output, mapping(modules[feed.output], "sum"))
    activate = hooked(hook, feed.activation, partial(activated, faster(feed.activate)))
    gate: Work | None = None
    if feed.gate == feed.up:
        module, width = modules[feed.up], modules[feed.up].shape[0] // 2
        halves = (module.part(slice(width)), module.part(slice(width, None)))  # views: neither is copied
        gate, up = hooked_halves(hook, feed.up, *map(mapping, halves, ("gate", "hidden")))
    else:
        up = hooked(hook, feed.up, mapping(modules[feed.up], "hidden")) if feed.up else partial(_own_piece, i)
        if feed.gate:
            gate = hooked(hook, feed.gate, mapping(modules[feed.gate], "gate"))

    def work(run: Run, x: Array) -> Array:
        if gate is None:
            return down(run, activate(up(run, x)))
        hidden = activate(gate(run, x))  # (tokens, width)
        return down(run, np.multiply(hidden, up(run, x), out=hidden))

    return (work,)


def _own_piece(i: int, run: Run, x: Array) -> Array:
    """Return the piece of block i, for the tokens of x."""
    assert run.fed is not None
    return run.fed[:, i] if run.take is None else run.fed[run.take, i]
