"""A simple computation of the blocks: one padded batch, straight from the equations, as a port does it.

`Choices` hold the parts that ports get wrong. Without arguments all parts are right, and a test compares the numbers
with the encoder's; `blocks_mistakes` puts wrong ones in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.attention_positions import rotate
from minibert.equations.blocks import additive_mask, attention_scores, join_heads, softmax, split_heads, visible
from minibert.equations.input_layer import Array
from minibert.families.bound_blocks import Attention, BoundBlock, BoundResidual, Dense, FeedForward
from minibert.models.blocks import Stack
from minibert.models.encoder import Encoder

from .traces import trace

Formula = Callable[[Array], Array]


def angles(stack: Stack, own: Attention, places: Array) -> tuple[Array, Array]:
    """cos and sin of this block's rotation at the tokens' places."""
    assert stack.rotary is not None  # asked of models that turn
    cos, sin = stack.rotary.rotary(places, own.layer_type)
    return cos, sin


class Choices(NamedTuple):
    """The parts of the computation that a mistake replaces; the defaults are right."""

    part: Callable[[BoundResidual], BoundResidual] = lambda part: part  # where the norms stand
    residual: Callable[[Array, Array, Array], Array] = lambda x, normed, total: x  # what is added to
    dense: Callable[[Dense], Callable[[Array], Array]] = lambda dense: dense
    order: tuple[int, int, int] = (0, 1, 2)  # which projection is taken for the query, the key, the value
    use: tuple[int, int, int] = (0, 1, 2)  # the same, of the projections' results
    split: Callable[[Array, int], Array] = split_heads
    join: Formula = join_heads
    scale: Callable[[Attention], float] = lambda own: own.scale
    bias: Callable[[Array | None, Attention], Array | None] = lambda bias, own: bias
    mask: Callable[[Array, Any], Array] = additive_mask
    causal: bool | None = None  # None: as the model has it
    ahead: int = 0  # how many tokens after itself a token of a causal model sees
    softmax: Formula = softmax
    after: Callable[[Array, Array], Array] = lambda weights, keep: weights  # what is done with probabilities
    gather: Callable[[Array, Array], Array] = np.matmul
    activation: Callable[[Formula], Formula] = lambda right: right
    last_norm: bool = True
    norm: Callable[[Any], Formula] = lambda module: module
    head_norms: bool = True  # whether queries and keys are normed in each head, where the model does it
    angles: Callable[[Stack, Attention, Array], tuple[Array, Array]] = angles
    turn: Callable[[Array, Array, Array, str], Array] = rotate
    turned: tuple[bool, bool] = (True, True)  # whether queries are, and keys
    key_heads: Callable[[int, int], Array] = lambda heads, key_heads: np.arange(heads) // (heads // key_heads)
    reach: Callable[[int | None], float | None] = lambda reach: reach
    gated: tuple[int, int] = (0, 1)  # which of gate and up passes the activation, and which multiplies


def plain_trace(encoder: Encoder, inputs: Mapping[str, Array], choices: Choices | None = None) -> dict[str, Array]:
    """Trace one padded batch by choices: keys as of `Encoder.trace`, with numbers at padding where that has zeros."""
    found = trace(encoder.embeddings, inputs)
    x = found["hidden_states.0"] = found[next(reversed(found))]
    return PlainBlocks(encoder.stack, choices or Choices(), real_tokens(inputs, x.shape[:2]), found).run(x)


def real_tokens(inputs: Mapping[str, Array], shape: tuple[int, ...]) -> Array:
    """Which tokens of a batch (batch, seq) are no padding, bool: all where it has no mask."""
    return np.asarray(np.reshape(inputs.get("attention_mask", np.ones(shape)), shape) != 0)


class PlainBlocks:
    """All blocks over one padded batch, (batch, seq, dim), with a bool mask; every intermediate goes into `found`."""

    def __init__(self, stack: Stack, choices: Choices, mask: Array, found: dict[str, Array]) -> None:
        self.stack, self.choices, self.found = stack, choices, found
        self.masks: dict[str, Array] = {}  # what is added to scores, which no trace has
        keep = mask[:, None, None, :]  # (batch, 1, 1, key)
        if stack.causal if choices.causal is None else choices.causal:
            keep = keep & np.tri(mask.shape[1], k=choices.ahead, dtype=bool)  # (batch, 1, query, key)
        self.keep, self.places = keep, np.arange(mask.shape[1])
        (self.bias,) = [term.shared(mask.shape[1]) for term in stack.blocks[0].attention.terms] or [None]

    def run(self, x: Array) -> dict[str, Array]:
        for i in range(len(self.stack.blocks)):
            x = self.numbered(i, x)
        return self.found

    def numbered(self, i: int, x: Array) -> Array:
        """Take x through block i; after the last one comes the last norm."""
        stack = self.stack
        x = self.block(stack.blocks[i], x)
        if i + 1 == len(stack.blocks) and stack.last_norm and self.choices.last_norm:
            x = self.record(stack.last_norm, self.choices.norm(stack.others[stack.last_norm])(x))
        return self.record(f"hidden_states.{i + 1}", x)

    def record(self, name: str, x: Array) -> Array:
        self.found[name] = x
        return x

    def block(self, block: BoundBlock, x: Array) -> Array:
        """`x = after(x + within(work(before(x))))`, part by part."""
        total = x
        for part in map(self.choices.part, block.parts):
            normed = self.module(block, part.before, x)
            if isinstance(part.work, Attention):
                made = self.attention(block, part.work, normed)
            else:
                made = self.feed_forward(block, part.work, normed)
            added = self.module(block, part.within, made)
            total = self.record(part.sum, self.choices.residual(x, normed, total) + added)
            x = self.module(block, part.after, total)
        return x

    def module(self, block: BoundBlock, path: str, x: Array) -> Array:
        """Apply one module of the block; without a path there is none."""
        if not path:
            return x
        module, choices = block.modules[path], self.choices
        return self.record(path, (choices.dense if isinstance(module, Dense) else choices.norm)(module)(x))

    def attention(self, block: BoundBlock, own: Attention, x: Array) -> Array:
        """Queries, keys and values, attention in each head, and the output's map."""
        choices = self.choices
        if len(own.maps) == 3:  # a wrong order is then one of the weights
            swapped = dict(zip(own.maps, (own.maps[i] for i in choices.order), strict=True))
            qkv = [self.record(path, choices.dense(block.modules[taken])(x)) for path, taken in swapped.items()]
        else:
            parts = np.split(self.module(block, own.maps[0], x), own.edges, axis=-1)
            qkv = [parts[i] for i in choices.order]
        counts = (own.heads, own.key_heads, own.key_heads)
        normed = (*(self.head_norm(block, own, path, x) for path, x in zip(own.norms, qkv, strict=False)), qkv[2])
        q, k, v = (choices.split(normed[i], count) for i, count in zip(choices.use, counts, strict=True))
        if own.rotated and self.stack.rotary is not None:
            by = choices.angles(self.stack, own, self.places)
            q, k = (
                choices.turn(part, *by, self.stack.rotary.pairing) if turned else part
                for part, turned in zip((q, k), choices.turned, strict=True)
            )
        shared = choices.key_heads(own.heads, own.key_heads)
        k, v = k[:, shared], v[:, shared]
        scores = self.record(own.scores, attention_scores(q, k, choices.scale(own), choices.bias(self.bias, own)))
        keep, reach = self.keep, choices.reach(own.reach)
        if reach is not None:
            keep = keep & visible(self.places, self.places, reach=reach)
        added = self.masks[own.scores] = choices.mask(keep, scores.dtype)
        weights = choices.after(choices.softmax(scores + added), keep)
        weights = self.record(own.probabilities, weights)
        context = self.record(own.context, choices.join(choices.gather(weights, v)))
        return self.module(block, own.output, context)

    def head_norm(self, block: BoundBlock, own: Attention, path: str, x: Array) -> Array:
        """Queries or keys, normed in each head where the model does it: (batch, seq, width) -> the same."""
        if not path:
            return x
        normed = self.module(block, path, x.reshape(*x.shape[:2], -1, own.head_dim)).reshape(x.shape)
        return normed if self.choices.head_norms else x

    def feed_forward(self, block: BoundBlock, own: FeedForward, x: Array) -> Array:
        """To the larger width, the activation, and back; with a gate, which the activation is of."""
        activate = self.choices.activation(own.activate)
        if not own.gate:
            hidden = self.record(own.activation, activate(self.module(block, own.up, x)))
            return self.module(block, own.output, hidden)
        if own.gate == own.up:
            both = np.split(self.module(block, own.up, x), 2, axis=-1)
        else:
            both = [self.record(path, self.choices.dense(block.modules[path])(x)) for path in (own.gate, own.up)]
        first, second = (both[i] for i in self.choices.gated)
        hidden = self.record(own.activation, activate(first))
        if own.gate != own.up and own.up in self.found:
            self.found[own.up] = self.found.pop(own.up)  # a trace has it after the activation
        return self.module(block, own.output, hidden * second)
