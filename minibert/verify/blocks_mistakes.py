"""The classic mistakes of the blocks: a simple computation of the blocks, and the one part that each mistake replaces.

`plain_trace` computes a padded batch from the equations, without packing, as a port does. `Choices` hold the parts
that ports get wrong. Without arguments all parts are right, and a test compares the numbers with the encoder's. A
mistake is a name, one sentence, and a function that gives choices with one wrong part, or None where a model cannot
have this mistake. First the computation, then the wrong parts, last the list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.blocks import (
    additive_mask,
    attention_scores,
    gelu,
    gelu_tanh,
    join_heads,
    softmax,
    split_heads,
)
from minibert.equations.input_layer import Array
from minibert.families.block_parts import Attention, BoundBlock, Dense, FeedForward, Part
from minibert.models.blocks import Stack
from minibert.models.encoder import Encoder

from .subject import Mistake

Formula = Callable[[Array], Array]


class Choices(NamedTuple):
    """The parts of the computation that a mistake replaces; the defaults are right."""

    part: Callable[[Part], Part] = lambda part: part  # where the norms stand
    residual: Callable[[Array, Array, Array], Array] = lambda x, normed, total: x  # what is added to
    dense: Callable[[Dense], Callable[[Array], Array]] = lambda dense: dense
    order: tuple[int, int, int] = (0, 1, 2)  # which projection is taken for the query, the key, the value
    split: Callable[[Array, int], Array] = split_heads
    join: Formula = join_heads
    scale: Callable[[Attention], float] = lambda own: own.scale
    mask: Callable[[Array, Any], Array] = additive_mask
    causal: bool | None = None  # None: as the model has it
    ahead: int = 0  # how many tokens after itself a token of a causal model sees
    softmax: Formula = softmax
    activation: Callable[[Formula], Formula] = lambda right: right
    last_norm: bool = True


# -- the computation ---------------------------------------------------------------------------------------------


def plain_trace(encoder: Encoder, inputs: Mapping[str, Array], choices: Choices | None = None) -> dict[str, Array]:
    """Trace one padded batch by choices: keys as of `Encoder.trace`, with numbers at padding where that has zeros."""
    keywords = dict(inputs)
    found = encoder.embeddings.trace(keywords.pop("input_ids", None), **keywords)
    x = found[next(reversed(found))]
    found["hidden_states.0"] = x
    mask = np.asarray(inputs.get("attention_mask", np.ones(x.shape[:2], np.int64))).reshape(x.shape[:2])
    return PlainBlocks(encoder.stack, choices or Choices(), mask, found).run(x)


class PlainBlocks:
    """All blocks over one padded batch, (batch, seq, dim); every intermediate goes into `found`."""

    def __init__(self, stack: Stack, choices: Choices, mask: Array, found: dict[str, Array]) -> None:
        self.stack, self.choices, self.found = stack, choices, found
        keep = mask[:, None, None, :] != 0  # (batch, 1, 1, key)
        if stack.causal if choices.causal is None else choices.causal:
            keep = keep & np.tri(mask.shape[1], k=choices.ahead, dtype=bool)  # (batch, 1, query, key)
        self.keep = keep
        self.bias = None if stack.bias is None else stack.bias(mask.shape[1])

    def run(self, x: Array) -> dict[str, Array]:
        """Take x through all blocks."""
        stack, last = self.stack, len(self.stack.blocks)
        for i, block in enumerate(stack.blocks):
            x = self.block(block, x)
            if i + 1 == last and stack.last_norm and self.choices.last_norm:
                x = self.record(stack.last_norm, stack.others[stack.last_norm](x))
            self.record(f"hidden_states.{i + 1}", x)
        return self.found

    def record(self, name: str, x: Array) -> Array:
        """Keep one intermediate."""
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
        module = block.modules[path]
        return self.record(path, (self.choices.dense(module) if isinstance(module, Dense) else module)(x))

    def attention(self, block: BoundBlock, own: Attention, x: Array) -> Array:
        """Queries, keys and values, attention in each head, and the output's map."""
        choices = self.choices
        if len(own.maps) == 3:  # a wrong order is then one of the weights
            swapped = dict(zip(own.maps, (own.maps[i] for i in choices.order), strict=True))
            looks = [self.record(path, choices.dense(block.modules[taken])(x)) for path, taken in swapped.items()]
        else:
            parts = np.split(self.module(block, own.maps[0], x), own.edges, axis=-1)
            looks = [parts[i] for i in choices.order]
        q, k, v = (choices.split(part, own.heads) for part in looks)
        scores = self.record(own.scores, attention_scores(q, k, choices.scale(own), self.bias))
        weights = self.record(own.probabilities, choices.softmax(scores + choices.mask(self.keep, scores.dtype)))
        context = self.record(own.context, choices.join(np.matmul(weights, v)))
        return self.module(block, own.output, context)

    def feed_forward(self, block: BoundBlock, own: FeedForward, x: Array) -> Array:
        """To the larger width, the activation, and back."""
        hidden = self.choices.activation(own.activate)(self.module(block, own.up, x))
        return self.module(block, own.output, self.record(own.activation, hidden))


# -- wrong parts -------------------------------------------------------------------------------------------------


def transposed(dense: Dense) -> Dense:
    """Transposed, for square matrices: their shape does not show it."""
    square = dense.weight.shape[0] == dense.weight.shape[1]
    return Dense(dense.weight, dense.bias, not dense.transposed) if square else dense


def softmax_over(axis: int) -> Formula:
    """Softmax along another axis of (batch, heads, query, key)."""
    return lambda scores: np.swapaxes(softmax(np.swapaxes(scores, axis, -1)), axis, -1)


def split_without_turning(x: Array, heads: int) -> Array:
    """(batch, seq, dim) read as (batch, heads, seq, head_dim)."""
    return x.reshape(x.shape[0], heads, x.shape[1], x.shape[2] // heads)


def split_interleaved(x: Array, heads: int) -> Array:
    """Every heads-th number to one head."""
    return np.moveaxis(x.reshape(*x.shape[:-1], x.shape[-1] // heads, heads), -1, -3)


def join_without_turning(x: Array) -> Array:
    """(batch, heads, seq, head_dim) read as (batch, seq, dim)."""
    batch, heads, seq, head_dim = x.shape
    return x.reshape(batch, seq, heads * head_dim)


# -- the list ----------------------------------------------------------------------------------------------------


def _made(where: Callable[[Stack], bool] = lambda stack: True, **changes: Any) -> Callable[[Stack], Choices | None]:
    """A mistake that can be made in models of which this is true."""
    return lambda stack: Choices(**changes) if where(stack) else None


def _norms(before: bool, **changes: Any) -> Callable[[Stack], Choices | None]:
    return _made(lambda stack: stack.pre_norm == before, **changes)


def _heads(**changes: Any) -> Callable[[Stack], Choices | None]:
    """With one head there is nothing to split."""
    return _made(lambda stack: stack.heads > 1, **changes)


def _scaled(scale: Callable[[Attention], float], least_heads: int = 1) -> Callable[[Stack], Choices | None]:
    """Of a model that divides by sqrt(head_dim): GPT-2's config can say that it does not."""
    return _made(lambda stack: stack.blocks[0].attention.scale != 1 and stack.heads >= least_heads, scale=scale)


def _gelu(right: Formula, wrong: Formula) -> Callable[[Stack], Choices | None]:
    return _made(lambda stack: stack.blocks[0].feed_forward.activate is right, activation=lambda formula: wrong)


# fmt: off
MISTAKES: tuple[Mistake, ...] = (
    Mistake("no division by sqrt(head_dim)", "Scores grow with head_dim, and softmax then keeps only the largest.",
            _scaled(lambda own: own.scale * math.sqrt(own.head_dim))),
    Mistake("division by sqrt(dim)", "Each head's product has head_dim terms, not dim.",
            _scaled(lambda own: own.scale / math.sqrt(own.heads), least_heads=2)),
    Mistake("gelu by tanh", "This model's gelu is the exact one, by erf; the tanh form is up to 5e-4 away.",
            _gelu(gelu, gelu_tanh)),
    Mistake("gelu by erf", "This model's gelu is the tanh form (gelu_new); the exact one is up to 5e-4 away.",
            _gelu(gelu_tanh, gelu)),
    Mistake("mask added as 0 and 1", "A mask that is added is 0 for kept tokens, the most negative number for others.",
            _made(mask=lambda keep, dtype: keep.astype(dtype))),
    Mistake("mask ignored", "Padding gets attention weights.", _made(mask=lambda keep, dtype: np.zeros((), dtype))),
    Mistake("softmax over the queries", "Each query's probabilities sum to 1: softmax is over the keys, the last axis.",
            _made(softmax=softmax_over(-2))),
    Mistake("softmax over the heads", "Each query's probabilities sum to 1: softmax is over the keys, the last axis.",
            _heads(softmax=softmax_over(-3))),
    Mistake("norm before instead of after", "BERT normalises each sum, GPT-2 what enters attention and feed-forward.",
            _norms(False, part=lambda part: part._replace(before=part.after, after=""))),
    Mistake("norm after instead of before", "GPT-2 normalises what enters attention and feed-forward, BERT each sum.",
            _norms(True, part=lambda part: part._replace(before="", after=part.before))),
    Mistake("residual from the normed x", "In GPT-2 x itself is not normalised between blocks, only what is added.",
            _norms(True, residual=lambda x, normed, total: normed)),
    Mistake("residual from before the norm", "In BERT the second sum begins with the first norm's output.",
            _norms(False, residual=lambda x, normed, total: total)),
    Mistake("heads split without turning the axes", "Cut rows into (heads, head_dim), then exchange seq and heads.",
            _heads(split=split_without_turning)),
    Mistake("heads interleaved", "A head's numbers stand side by side in a row; the axes are (heads, head_dim).",
            _heads(split=split_interleaved)),
    Mistake("heads joined without turning the axes", "Exchange heads and seq before rows are made of them again.",
            _heads(join=join_without_turning)),
    Mistake("square weights transposed", "GPT-2 stores (in, out), others (out, in); square ones fit both ways.",
            _made(dense=transposed)),  # the output's map always is square
    *(Mistake(f"q k v in another order: {' '.join('qkv'[i] for i in order)}", "The order is query, key, value.",
              _made(order=order)) for order in ((1, 0, 2), (2, 1, 0), (0, 2, 1), (1, 2, 0), (2, 0, 1))),
    Mistake("last norm forgotten", "After GPT-2's last block comes one more norm, ln_f.",
            _made(lambda stack: bool(stack.last_norm), last_norm=False)),
    Mistake("causal mask one token too far", "A token sees itself and those before it, not the next one.",
            _made(lambda stack: stack.causal, ahead=1)),
    Mistake("causal mask hides the token itself", "A token sees itself and those before it.",
            _made(lambda stack: stack.causal, ahead=-1)),
    Mistake("causal mask forgotten", "No token of this model sees those after it.",
            _made(lambda stack: stack.causal, causal=False)),
    Mistake("causal mask where there is none", "Every token of this model sees all others.",
            _made(lambda stack: not stack.causal, causal=True)),
)
# fmt: on
