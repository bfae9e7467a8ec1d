"""Run bound blocks over packed tokens: an `Encoder` computes everything by `run_model` or `run_blocks`.

Matrix products, norms and activations are computed for all tokens of a tile at once, and attention for the sequences of
one length. Therefore nothing is computed for padding, and masks hide only later tokens and tokens outside a window.

`ready_blocks` computes one block.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from minibert.equations.fast import FEW
from minibert.equations.input_layer import Array
from minibert.families.parts.bound_blocks import BoundAttention, BoundBlock, BoundFeedForward
from minibert.families.parts.modules import Linear
from minibert.files.tables import ScratchBuffer
from minibert.threads.computing import Blas, blas_takes, compute, spreads
from minibert.threads.kernels import PAIRS, Rows, Shape, kernel, one_sum, rows_for

from .layer import InputLayer
from .packing import TILE_ROWS, Group, Layout, Packed, Piece, pieces_of
from .ready_blocks import (
    Hook,
    KeyValueCache,
    Norms,
    Parts,
    Run,
    Scratch,
    Work,
    hooked,
    mapping,
    norming,
    piecing,
    ready,
)

if TYPE_CHECKING:
    from minibert.families.parts.attention_schemes import Rotary

SHORT = 48  # tokens of a text that panels on one core compute as fast as BLAS's threads do on two


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
        last_map: str = "",
    ) -> None:
        """`rotary` rotates queries and keys; `others`: path -> module outside the blocks, like the last norm.

        same_bits: no bit of a text's numbers may depend on the texts around it, even if that costs time. Raises
        ValueError if this processor's kernel cannot keep it.
        """
        self.blocks, self.heads, self.causal, self.last_norm = blocks, heads, causal, last_norm
        self.rotary, self.others, self.last_map = rotary, others, last_map
        self.pieces = blocks[0].pieces if blocks else None
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

    @cached_property
    def bound(self) -> tuple[tuple[Parts, ...], Norms, Work | None, Work | None]:
        """`bind` without a hook. The first run asks for it: weights are laid out after the stack is made."""
        return self.bind()

    def bind(self, hook: Hook | None = None) -> tuple[tuple[Parts, ...], Norms, Work | None, Work | None]:
        """Return the blocks, the last norm, the last map and the pieces, ready to run.

        There is a hook after each intermediate, or no hook.
        """
        last_map = pieced = None
        if self.last_map:
            last_map = hooked(hook, self.last_map, mapping(self.blocks[-1].modules[self.last_map], "last"))
        if self.pieces:
            pieced = piecing(self.blocks[0].modules, self.pieces, hook)
        last_norm = norming(self.others, self.last_norm, hook)
        return tuple(ready(block, i, hook) for i, block in enumerate(self.blocks)), last_norm, last_map, pieced

    def width(self, dim: int) -> int:
        """Return the width of the last hidden state; `dim`: of the blocks."""
        return int(self.blocks[-1].modules[self.last_map].shape[0]) if self.last_map else dim

    @cached_property
    def shapes(self) -> list[Shape]:
        """The shapes of the weights of all matrix products."""
        sublayers = [part.work for block in self.blocks for part in block.parts]
        halved = {ffn.up for ffn in sublayers if isinstance(ffn, BoundFeedForward) and ffn.gate == ffn.up}
        sizes = ((module.shape, path in halved, module.column_major) for path, module in self._maps)
        return [(outputs // (2 if half else 1), width, column_major) for (outputs, width), half, column_major in sizes]

    @cached_property
    def rows(self) -> Rows:
        """The layout of tokens among the rows of a product."""
        return rows_for(self._maps[0][1].dtype, self._same_bits) if self._maps else Rows()

    @cached_property
    def fewest(self) -> int:
        """The smallest number of rows in a product."""
        return max((self.rows.fewest(*shape) for shape in self.shapes), default=1)

    @cached_property
    def panel_rows(self) -> int:
        """The most rows of products with panels: 0 without panels, FEW if some are views, whose rows lie far apart."""
        panel_pieces = [piece for _, module in self._maps if module.panels for _, piece in module.panels.pieces]
        if not panel_pieces or not all(module.panels for _, module in self._maps):
            return 0
        return sys.maxsize if all(piece.flags.c_contiguous for piece in panel_pieces) else FEW

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
        return all(module.dtype == np.float32 and kernel().shares(module.shape[1]) for _, module in self._maps)

    @property
    def transposed_in_reference(self) -> list[str]:
        """The paths of outputs that the reference returns with the second and third axes exchanged."""
        return [path for block in self.blocks for path in block.attention.transposed_in_reference]

    @property
    def module_inputs(self) -> dict[str, str]:
        """Path of a module -> the name of its input in a trace: attention's context, or a sum.

        A sum is the input of the norm after it, or else of the first norm of the next part, or of its module.
        """
        inputs: dict[str, str] = {}
        summed = ""
        for modules, part in ((block.modules, part) for block in self.blocks for part in block.parts):
            if summed and (first := part.pre_norm or (part.sum if part.sum in modules else "")):
                inputs[first] = summed
            if isinstance(part.work, BoundAttention):
                inputs[part.work.output] = part.work.context
            summed = "" if part.post_norm or part.factor != 1 else part.sum
            inputs |= {part.post_norm: part.sum} if part.post_norm else {}
        return inputs | ({self.last_norm: summed} if summed and self.last_norm else {})


# -- computing ---------------------------------------------------------------------------------------------------


def run_model(
    layer: InputLayer,
    stack: Stack,
    packed: Packed,
    put: Callable[[Packed, Array], object],
    threads: int | None = None,
    single_threaded: bool = False,
    take: Callable[[Packed], Array | None] | None = None,
) -> None:
    """Run packed tokens through the input layer and all blocks, tile by tile, and call `put` with each result.

    take: returns the tokens of a tile that are needed, None for all; the last block returns only these, (taken, dim).
    threads: see `computing.compute`. single_threaded: no bit depends on `threads`.
    """
    tiles = packed.tiles(None if stack.blocks else TILE_ROWS)
    # hold BLAS to one thread, even for one short text, if promised bits depend on it, through the weights' products
    # or through attention's sums over a text's tokens
    shares = stack.shares and one_sum(int(packed.lengths.max(initial=0)))
    single_threaded = (single_threaded or stack.promised) and not shares
    # on idle cores BLAS's threads share the products of one text; a short one is as fast with panels on one core
    tokens = packed.inputs.seq
    blas: Blas = "small" if tokens <= stack.panel_rows and (tokens <= SHORT or blas_takes() == 1) else "held"
    if blas == "held" and not single_threaded and len(tiles) == 1 and spreads(threads):
        blas = "own"

    def work(tile: Packed) -> None:
        needed = take(tile) if take and not stack.each_text else None
        x = run_blocks(stack, layer.rows(tile), tile, needed, panels=blas != "own")
        for part, states in _by_text(tile, x, take) if stack.each_text else [(tile, x)]:
            put(part, states)

    compute(work, tiles, threads, blas)


def _by_text(tile: Packed, x: Array, take: Callable[[Packed], Array | None] | None) -> Iterator[tuple[Packed, Array]]:
    """Yield the texts of a tile one by one, with the rows to keep of each."""
    start = 0
    for text in tile.tiles(1):
        states = x[start : (start := start + text.inputs.seq)]
        needed = take(text) if take else None
        yield text, states if needed is None else states[needed]


def run_blocks(
    stack: Stack,
    x: Array,
    tile: Packed,
    needed: Array | None = None,
    hook: Hook | None = None,
    cache: KeyValueCache | None = None,
    panels: bool = True,
) -> Array:
    """Run all blocks and the last norm and map on a tile: x (tokens, dim) -> (tokens, dim). x may be overwritten.

    needed: the rows that the last block returns; None: all. panels: whether to use panels if they are there; the bits
    are the same without. cache: the tokens follow the cached tokens of one text, and are added to the cache.
    """
    blocks, last_norm, last_map, pieced = stack.bound if hook is None else stack.bind(hook)
    past, whole, dtype = cache.length if cache else 0, hook is not None, x.dtype
    # a hook receives the tokens of a tile without padding rows
    rows = kernel().usual if hook and stack.rows.text > 1 else stack.rows

    panels = panels and tile.inputs.seq <= stack.panel_rows and not cache
    padding, fewest = (PAIRS, 1) if panels else (rows, stack.fewest)
    if cache:  # generation runs one text token by token: a single row is fastest without padding rows
        padding, fewest = Rows(), 1
    layout = Layout.of(tile.lengths, padding, fewest)
    x = layout.filled(x)
    if blocks:
        groups = [group for group in tile.groups(stack.by_distance, rows.text) if group.length or whole]
        groups = groups or [Group(0, tile.texts, 0, None, 0)] * whole  # a hook receives scores of no token too
        pieces = pieces_of(groups, stack.heads, stack.causal, stack.windows, dtype, past, whole)
        angles, growth = {}, None
        if rotary := stack.rotary:
            positions = layout.filled(tile.where()[1])
            angles = {kind: (*rotary.rotary(positions, kind), rotary.pairing) for kind in stack.rotations}
            growth = rotary.query_factor(positions)
        shared = _shared_terms(stack.schemes, pieces) if stack.schemes else {}
        run = Run(rows, pieces, angles, growth, shared, Scratch(layout.rows, dtype), ScratchBuffer(), cache, panels)
        if pieced:
            run = run._replace(fed=pieced(run, x))
    for i, block in enumerate(blocks):
        if hook and i:
            hook.rows(f"hidden_states.{i}", x)
        if needed is not None and i + 1 == len(blocks):
            layout = Layout.of(np.array([len(needed)]), padding, fewest)
            run = run._replace(take=layout.filled(needed))
        for works, add, post_norm, attends in block:
            y = x
            for work in works:
                y = work(run, y)
            if attends and run.take is not None:  # y has only the taken tokens
                x = x[run.take]
            x = add(x, y, x)
            for norm in post_norm:
                norm(x)
    for norm in last_norm:
        norm(x)
    if last_map:
        x = last_map(run, x)
    if hook:
        hook.rows(f"hidden_states.{len(blocks)}", x)
    if cache:
        cache.length += tile.inputs.seq
    return x[layout.tokens]


def _shared_terms(schemes: Mapping[Any, Any], pieces: Sequence[Piece]) -> dict[Any, Any]:
    """Return for each position scheme the values that the terms of all blocks share, for the longest text."""
    gaps = ((piece.keys.length + piece.group.unseen, piece.group.positions) for piece in pieces)
    longest = max((length if gap is None else int(gap[-1]) + 1 for length, gap in gaps), default=1)
    return {scheme: term.shared(longest) for scheme, term in schemes.items()}
