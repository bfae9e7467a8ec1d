"""Run bound blocks over packed tokens: an `Encoder` computes everything by `run_model` or `run_blocks`.

Matrix products, norms and activations are computed for all tokens of a tile at once, and attention for the sequences of
one length. Therefore nothing is computed for padding, and masks hide only later tokens and tokens outside a window.

Formulas here contain no hooks. To record or change a run, the blocks are bound again with a hook after each formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from minibert.equations.fast import FEW, activated, attention_scores, faster, linear, softmax
from minibert.equations.input_layer import Array
from minibert.families.parts.bound_blocks import BoundAttention, BoundBlock, BoundFeedForward, Modules
from minibert.families.parts.modules import Linear
from minibert.files.tables import ScratchBuffer
from minibert.threads.computing import Blas, compute, spreads
from minibert.threads.kernels import PAIRS, Rows, Shape, kernel, one_sum, rows_for

from .attention import KeyValueCache
from .packing import TILE_ROWS, Group, Layout, Packed, Piece, pieces_of

if TYPE_CHECKING:
    from minibert.families.parts.attention_schemes import Rotary

F = TypeVar("F", bound=Callable[..., Any])
Parts = tuple["Ready", ...]


class Hook(Protocol):
    """Receives each named intermediate of a run, and may overwrite it: see `changes.Recorder`."""

    def rows(self, name: str, x: Array) -> None:
        """Receive an intermediate with one row for each token."""

    def pairs(self, name: str, x: Array, group: Group) -> None:
        """Receive an intermediate with one number for each head, query and key of some sequences."""


class Stack:
    """All blocks of a model and their shared state. Everything that all runs need is computed once."""

    def __init__(
        self,
        blocks: tuple[BoundBlock, ...],
        heads: int,
        causal: bool,
        last_norm: str,
        rotary: Rotary | None,
        others: dict[str, Any],
        same_bits: bool = False,
    ) -> None:
        """`rotary` rotates queries and keys; `others`: path -> module outside the blocks, like the last norm.

        same_bits: no bit of a text's numbers may depend on the texts around it, even if that costs time. Raises
        ValueError if this processor's kernel cannot keep it.
        """
        self.blocks, self.heads, self.causal, self.last_norm = blocks, heads, causal, last_norm
        self.rotary, self.others = rotary, others
        attentions = [block.attention for block in blocks]
        self.windows = {attention.window for attention in attentions}
        self.rotations = {attention.layer_type for attention in attentions if attention.rotated}
        # whether scores depend on the distance of two tokens, and so on padding between them
        self.by_distance = any(attention.terms or attention.window is not None for attention in attentions)
        self.schemes = {term.scheme: term for attention in attentions for term in attention.terms}
        modules = ((path, module) for block in blocks for path, module in block.modules.items())
        self._maps = [(path, module) for path, module in modules if isinstance(module, Linear)]
        self._same_bits = same_bits
        if same_bits:
            self.rows  # noqa: B018  raises if the kernel cannot keep it
        self.bound = self.bind()

    def bind(self, hook: Hook | None = None) -> tuple[tuple[Parts, ...], Norms]:
        """Return the blocks and the last norm, ready to run, with a hook after each intermediate or without hooks."""
        return tuple(ready(block, hook) for block in self.blocks), norming(self.others, self.last_norm, hook)

    @cached_property
    def shapes(self) -> list[Shape]:
        """The shapes of the weights of all matrix products."""
        parts = [part.work for block in self.blocks for part in block.parts]
        halved = {own.up for own in parts if isinstance(own, BoundFeedForward) and own.gate == own.up}
        sizes = ((each.shape, path in halved, each.column_major) for path, each in self._maps)
        return [(outputs // (2 if half else 1), width, column_major) for (outputs, width), half, column_major in sizes]

    @cached_property
    def rows(self) -> Rows:
        """The layout of tokens among the rows of a product."""
        return rows_for(self._maps[0][1].dtype, self._same_bits) if self._maps else Rows()

    @cached_property
    def fewest(self) -> int:
        """The smallest number of rows in a product."""
        return max((self.rows.fewest(*shape) for shape in self.shapes), default=1)

    def takes_panels(self, tokens: int) -> bool:
        """Return whether products for this many tokens use panels of the weights."""
        return tokens <= FEW and self._panels

    def layout(self, lengths: Array, rows: Rows | None, panels: bool) -> tuple[Layout, bool]:
        """Return the layout of sequences of these lengths, and whether their products use panels, if `panels` permits.

        rows: None for no padding rows, the fastest for a single row: generation runs one text token by token.
        """
        if rows is None:
            return Layout.of(lengths, Rows()), False
        few = panels and self.takes_panels(int(lengths.sum()))
        return Layout.of(lengths, *((PAIRS, 1) if few else (rows, self.fewest))), few

    @cached_property
    def _panels(self) -> bool:
        return bool(self._maps) and all(each.panels for _, each in self._maps)

    @cached_property
    def each_text(self) -> bool:
        """Whether heads and pooling are computed text by text: their bits may depend on a row's position in a tile."""
        return self._same_bits and (self.rows.text > 1 or not kernel().always)

    @cached_property
    def promised(self) -> bool:
        """Whether no bit of a text may depend on the number of threads."""
        return self._same_bits or kernel().always

    @cached_property
    def shares(self) -> bool:
        """Whether products of these weights have the same bits on BLAS's own threads as on one thread."""
        return all(each.dtype == np.float32 and kernel().shares(each.shape[1]) for _, each in self._maps)

    @property
    def transposed_in_reference(self) -> list[str]:
        """The paths of outputs that the reference returns with the second and third axes exchanged."""
        return [path for block in self.blocks for path in block.attention.transposed_in_reference]

    @property
    def module_inputs(self) -> dict[str, str]:
        """Path of a module -> the name of its input in a trace: attention's context, or a sum.

        A sum is the input of the norm after it, or else of the first norm of the next part.
        """
        inputs: dict[str, str] = {}
        summed = ""
        for part in (part for block in self.blocks for part in block.parts):
            if summed and part.pre_norm:
                inputs[part.pre_norm] = summed
            if isinstance(part.work, BoundAttention):
                inputs[part.work.output] = part.work.context
            summed = "" if part.post_norm else part.sum
            inputs |= {part.post_norm: part.sum} if part.post_norm else {}
        return inputs | ({self.last_norm: summed} if summed and self.last_norm else {})


# -- computing ---------------------------------------------------------------------------------------------------


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


class _Run(NamedTuple):
    """State that all blocks of one run share."""

    rows: Rows
    pieces: list[Piece]
    angles: Mapping[str | None, tuple[Array, Array, str]]  # layer type -> cos and sin of each token, the pairing
    growth: Array | None  # the factor of each token's rotated query
    shared: Mapping[Any, Any]  # position scheme -> values for the terms of all blocks
    scratch: Scratch
    weights: ScratchBuffer  # for converting stored weights
    cache: KeyValueCache | None
    few: bool  # products use panels
    take: Array | None = None  # the rows that the last block keeps after its attention


Work = Callable[[_Run, Array], Array]
Norms = tuple[Callable[[Array], Array], ...]  # in place, in turn; empty if there is no norm


class Ready(NamedTuple):
    """One part of a block, ready to run: `x = post_norm(x + works(x))`; `works` include the other norms."""

    works: tuple[Work, ...]
    add: Callable[[Array, Array, Array | None], Array]
    post_norm: Norms
    attends: bool


def run_model(
    rows: Callable[[Packed], Array],
    stack: Stack,
    packed: Packed,
    put: Callable[[Packed, Array], object],
    threads: int | None = None,
    single_threaded: bool = False,
    take: Callable[[Packed], Array | None] | None = None,
) -> None:
    """Run packed tokens through the input layer (`rows`) and all blocks, tile by tile, and call `put` with each result.

    take: returns the tokens of a tile that are needed, None for all; the last block returns only these, (taken, dim).
    threads: see `computing.compute`. single_threaded: no bit depends on `threads`.
    """
    tiles = packed.tiles(None if stack.blocks else TILE_ROWS)
    # hold BLAS to one thread, even for one short text, if promised bits depend on it, through the weights' products
    # or through attention's sums over a text's tokens
    shares = stack.shares and one_sum(int(packed.lengths.max(initial=0)))
    single_threaded = (single_threaded or stack.promised) and not shares
    # on idle cores BLAS's threads share a short text's products; otherwise use panels, which need no BLAS threads
    blas: Blas = "small" if stack.takes_panels(packed.inputs.seq) else "held"
    if not single_threaded and len(tiles) == 1 and spreads(threads):
        blas = "own"

    def work(tile: Packed) -> None:
        taken = take(tile) if take and not stack.each_text else None
        x = run_blocks(stack, rows(tile), tile, taken, panels=blas == "small")
        for part, own in _by_text(tile, x, take) if stack.each_text else [(tile, x)]:
            put(part, own)

    compute(work, tiles, threads, blas)


def _by_text(tile: Packed, x: Array, take: Callable[[Packed], Array | None] | None) -> Iterator[tuple[Packed, Array]]:
    """Yield the texts of a tile one by one, with the rows to keep of each."""
    start = 0
    for text in tile.tiles(1):
        own = x[start : (start := start + text.inputs.seq)]
        taken = take(text) if take else None
        yield text, own if taken is None else own[taken]


def run_blocks(
    stack: Stack,
    x: Array,
    tile: Packed,
    take: Array | None = None,
    hook: Hook | None = None,
    cache: KeyValueCache | None = None,
    panels: bool = True,
) -> Array:
    """Run all blocks and the last norm on a tile: x (tokens, dim) -> (tokens, dim). x may be overwritten.

    take: the rows that the last block returns, None for all. panels: whether few tokens use panels; the bits are the
    same without. cache: the tokens follow the cached tokens of one text, and are added to the cache.
    """
    blocks, last = stack.bound if hook is None else stack.bind(hook)
    past, whole, dtype = cache.length if cache else 0, hook is not None, x.dtype
    # a hook receives the tokens of a tile without padding rows
    rows = kernel().usual if hook and stack.rows.text > 1 else stack.rows

    layout, few = stack.layout(tile.lengths, None if cache else rows, panels)
    x = layout.filled(x)
    if blocks:
        groups = [group for group in tile.groups(stack.by_distance, rows.text) if group.length or whole]
        groups = groups or [Group(0, tile.texts, 0, None, 0)] * whole  # a hook receives scores of no token too
        pieces = pieces_of(groups, stack.heads, stack.causal, stack.windows, dtype, past, whole)
        angles, growth = {}, None
        if rotary := stack.rotary:
            positions = layout.filled(tile.where()[1])
            angles = {each: (*rotary.rotary(positions, each), rotary.pairing) for each in stack.rotations}
            growth = rotary.query_factor(positions)
        shared = _shared_terms(stack.schemes, pieces) if stack.schemes else {}
        run = _Run(rows, pieces, angles, growth, shared, Scratch(layout.rows, dtype), ScratchBuffer(), cache, few)
    for i, block in enumerate(blocks):
        if hook and i:
            hook.rows(f"hidden_states.{i}", x)
        if take is not None and i + 1 == len(blocks):
            layout, few = stack.layout(np.array([len(take)]), None if cache else rows, panels)
            run = run._replace(take=layout.filled(take), few=few)
        for works, add, post_norm, attends in block:
            y = x
            for work in works:
                y = work(run, y)
            if attends and run.take is not None:  # y has only the taken tokens
                x = x[run.take]
            x = add(x, y, x)
            for norm in post_norm:
                norm(x)
    for norm in last:
        norm(x)
    if hook:
        hook.rows(f"hidden_states.{len(blocks)}", x)
    if cache:
        cache.length += tile.inputs.seq
    return x[layout.tokens]


def ready(block: BoundBlock, hook: Hook | None = None) -> Parts:
    """Return one block, ready to run. Absent norms and gates are dropped here, not in each call."""
    parts = list[Ready]()
    for pre_norm, sublayer, output_norm, summed, post_norm in block.parts:
        attends = isinstance(sublayer, BoundAttention)
        bind: Callable[..., tuple[Work, ...]] = attending if attends else feeding
        works = _normed(norming(block.modules, pre_norm, hook), copied=True) + bind(block.modules, sublayer, hook)
        works += _normed(norming(block.modules, output_norm, hook))
        norms = norming(block.modules, post_norm, hook)
        parts.append(Ready(works, hooked(hook, summed, np.add), norms, attends))
    return tuple(parts)


def norming(modules: Modules, path: str, hook: Hook | None = None) -> Norms:
    """Return the norm at a path, applied in place; empty if there is none."""
    return (hooked(hook, path, modules[path].in_place),) if path else ()


def _normed(norms: Norms, copied: bool = False) -> tuple[Work, ...]:
    """Return norms as a step of a run, in place or on a copy."""

    def work(run: _Run, x: Array) -> Array:
        y = x
        if copied:
            y = run.scratch["normed", len(x), x.shape[1]]
            np.copyto(y, x)
        for norm in norms:
            norm(y)
        return y

    return (work,) if norms else ()


def hooked(hook: Hook | None, name: str, work: F, pairs: bool = False) -> F:
    """Call a hook after `work`, which returns one row for each token, or with `pairs` one number for each pair."""
    if hook is None:
        return work

    def then(*arguments: Any) -> Array:
        x: Array = work(*arguments)
        if pairs:
            hook.pairs(name, x, arguments[0].group)
        else:
            hook.rows(name, x)
        return x

    return then  # type: ignore[return-value]


def hooked_halves(hook: Hook | None, name: str, first: F, second: F) -> tuple[F, F]:
    """Call a hook after one linear layer that is computed in two halves: it receives both outputs as one."""
    if hook is None:
        return first, second
    later: list[Array] = []

    def both(*arguments: Any) -> Array:
        x = np.concatenate([first(*arguments), second(*arguments)], axis=1)
        hook.rows(name, x)
        left, right = np.split(x, 2, axis=1)
        later.append(right)
        return left.copy()  # contiguous

    return both, lambda *arguments: later.pop()  # type: ignore[return-value]


def mapping(module: Linear, name: str) -> Work:
    """Return a linear layer as a step of a run; `name`: its buffer in `Scratch`.

    The output is always row-major, even for few rows: the bits of the next step depend on it.
    """
    width, bias, panels = module.shape[0], module.bias, module.panels
    weight = None if module.stored else module.matrix(ScratchBuffer())
    column_major = module.column_major

    def work(run: _Run, x: Array) -> Array:
        matrix = module.matrix(run.weights) if weight is None else weight
        out, columns = run.scratch[name, len(x), width], run.rows.columns
        if run.few and panels and len(x) <= FEW:  # in the last block few tokens may be taken of many
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
    of_queries, of_keys = (_each_head(modules, attention, path, hook) for path in attention.norms)
    if attention.rotated:
        of_queries += (_grow,)
    score, weigh = (partial(each, attention) for each in (_scores, _weights))
    score, weigh = hooked(hook, attention.scores, score, True), hooked(hook, attention.probabilities, weigh, True)
    shared, head_dim = attention.key_heads != attention.heads, attention.head_dim
    key_head = np.arange(attention.heads) // (attention.heads // attention.key_heads)  # the key head of each query head

    def gather(run: _Run, x: Array) -> Array:
        qkv = [project(run, x) for project in maps]
        q, k, v = qkv if len(qkv) == 3 else np.split(qkv[0], attention.qkv_splits, axis=1)  # each (tokens, width)
        for change in of_queries:
            q = change(run, q)
        for change in of_keys:
            k = change(run, k)
        if run.cache:
            k, v = run.cache.joined(attention.scores, k, v)
        context = run.scratch["context", len(x), q.shape[1]]
        for piece in run.pieces:  # on one thread: BLAS's threads still spin, so a second one gains nothing
            heads, queries, visible = piece.heads, piece.queries, piece.visible[attention.window]
            their = key_head[heads] if shared else heads
            # views (texts, heads, length, head_dim) of the rows of some sequences
            q_, context_ = (
                piece.group.of(x.reshape(len(x), attention.heads, head_dim)).swapaxes(1, 2)[:, heads, queries]
                for x in (q, context)
            )
            k_, v_ = (
                piece.keys.of(x.reshape(len(x), attention.key_heads, head_dim)).swapaxes(1, 2)[:, their, visible]
                for x in (k, v)
            )
            np.matmul(weigh(piece, score(piece, run.shared, q_, k_)), v_, out=context_)
        return context if run.take is None else context[run.take]

    return hooked(hook, attention.context, gather), output


def _scores(attention: BoundAttention, piece: Piece, shared: Mapping[Any, Any], q: Array, k: Array) -> Array:
    """Return the scores of some queries for the keys that they see: (texts, heads, query, key)."""
    scores = attention_scores(q, k, attention.scale)
    for term in attention.terms:
        gaps, past = piece.group.positions, piece.keys.length + piece.group.unseen - piece.group.length
        queries = slice(past + piece.queries.start, past + piece.queries.stop)
        positions = (some if gaps is None else gaps[some] for some in (queries, piece.visible[attention.window]))
        scores += term.piece(shared[term.scheme], q, k, piece.heads, *positions)
    return scores


def _weights(attention: BoundAttention, piece: Piece, scores: Array) -> Array:
    """Softmax over visible keys, in place."""
    if not scores.size:
        return scores
    if piece.masks:
        queries, visible = piece.queries, piece.visible[attention.window]
        for some, mask in piece.masks(queries.start, queries.stop, visible.start, visible.stop, attention.window):
            scores[..., some] += mask
    y = softmax(scores, out=scores)
    if attention.window is not None and piece.group.unseen:  # the last queries may see no key at all
        y[..., max(0, piece.keys.length + attention.window - piece.queries.start) :, :] = 0
    return y


def _each_head(modules: Modules, attention: BoundAttention, path: str, hook: Hook | None) -> tuple[Work, ...]:
    """Return the norm and rotation of queries or keys in each head; empty if there are none."""
    norms = norming(modules, path, hook)
    if not norms and not attention.rotated:
        return ()
    from minibert.equations.rotary import rotate  # imported here: most models do not need it

    def work(run: _Run, x: Array) -> Array:
        y = np.ascontiguousarray(x).reshape(len(x), x.shape[1] // attention.head_dim, attention.head_dim)
        for norm in norms:
            norm(y)
        if attention.rotated:
            cos, sin, pairing = run.angles[attention.layer_type]
            y = rotate(y, cos[:, None], sin[:, None], pairing)
        return y.reshape(x.shape)

    return (work,)


def _grow(run: _Run, x: Array) -> Array:
    """Multiply rotated queries by the factor of their positions, in place."""
    return x if run.growth is None else np.multiply(x, run.growth[:, None], out=x)


def feeding(modules: Modules, feed: BoundFeedForward, hook: Hook | None = None) -> tuple[Work, ...]:
    """Return `feed_forward` of the equations."""
    down = hooked(hook, feed.output, mapping(modules[feed.output], "sum"))
    activate = hooked(hook, feed.activation, partial(activated, faster(feed.activate)))
    gate: Work | None = None
    if feed.gate == feed.up:
        both, width = modules[feed.up], modules[feed.up].shape[0] // 2
        halves = (both.part(slice(width)), both.part(slice(width, None)))  # views: neither is copied
        gate, up = hooked_halves(hook, feed.up, *map(mapping, halves, ("gate", "hidden")))
    else:
        up = hooked(hook, feed.up, mapping(modules[feed.up], "hidden"))
        if feed.gate:
            gate = hooked(hook, feed.gate, mapping(modules[feed.gate], "gate"))

    def work(run: _Run, x: Array) -> Array:
        if gate is None:
            return down(run, activate(up(run, x)))
        hidden = activate(gate(run, x))  # (tokens, width)
        return down(run, np.multiply(hidden, up(run, x), out=hidden))

    return (work,)


def _shared_terms(schemes: Mapping[Any, Any], pieces: Sequence[Piece]) -> dict[Any, Any]:
    """Return for each position scheme the values that the terms of all blocks share, for the longest text."""
    gaps = ((piece.keys.length + piece.group.unseen, piece.group.positions) for piece in pieces)
    longest = max((length if gap is None else int(gap[-1]) + 1 for length, gap in gaps), default=1)
    return {scheme: term.shared(longest) for scheme, term in schemes.items()}
