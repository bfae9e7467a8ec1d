"""The classic mistakes of the blocks, each a name, one sentence, and the wrong part that a port has.

A function gives choices with one wrong part, or None where a model cannot have this mistake. First the wrong parts,
last the list.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from minibert.equations.attention_positions import rotate
from minibert.equations.blocks import gelu, gelu_tanh, softmax
from minibert.equations.input_layer import Array, layer_norm
from minibert.families.bound_blocks import Attention, Dense, RMSNorm
from minibert.models.blocks import Stack

from .plain_blocks import Choices, Formula, angles
from .subject import Mistake

# -- wrong parts -------------------------------------------------------------------------------------------------


def is_square(module: Any) -> bool:
    """Whether it is a linear map whose shape does not show that it is transposed."""
    return isinstance(module, Dense) and module.shape[0] == module.shape[1]


def transposed(dense: Dense) -> Dense:
    """Transposed, for square matrices."""
    return Dense(dense.weight, dense.bias, not dense.transposed) if is_square(dense) else dense


def softmax_over(axis: int) -> Formula:
    """Softmax along another axis of (batch, heads, query, key)."""
    return lambda scores: np.swapaxes(softmax(np.swapaxes(scores, axis, -1)), axis, -1)


def split_without_turning(x: Array, heads: int) -> Array:
    """(batch, seq, dim) read as (batch, heads, seq, head_dim)."""
    return x.reshape(x.shape[0], heads, x.shape[1], x.shape[2] // heads)


def split_interleaved(x: Array, heads: int) -> Array:
    """Every heads-th number to one head."""
    return np.moveaxis(x.reshape(*x.shape[:-1], x.shape[-1] // heads, heads), -1, -3)


def neighbours(x: Array, cos: Array, sin: Array, pairing: str) -> Array:
    """Turn the other pairs."""
    return rotate(x, cos, sin, {"halves": "neighbours", "neighbours": "halves"}[pairing])


def other_layer_type(stack: Stack, own: Attention, places: Array) -> tuple[Array, Array]:
    """The rotation of the other type of blocks."""
    assert stack.rotary is not None  # the mistake is made of models with several rotations
    other = next(x for x in stack.rotary.rotations if x != own.layer_type)
    return angles(stack, own._replace(layer_type=other), places)


def window(change: Callable[[int], float | None]) -> Callable[[int | None], float | None]:
    """Another window, in the blocks that have one."""
    return lambda reach: None if reach is None else change(reach)


def without_one(module: Any) -> Formula:
    """Gemma's norm by the weight as the file has it."""
    return RMSNorm(module.weight, None, module.eps) if isinstance(module, RMSNorm) else module


def with_mean(module: Any) -> Formula:
    """A LayerNorm in the place of an RMSNorm."""
    if not isinstance(module, RMSNorm):
        return module  # type: ignore[no-any-return]
    return lambda x: layer_norm(x, module.weight + module.weight.dtype.type(module.plus), None, module.eps)


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
    """Of a model that divides by sqrt(head_dim); GPT-2's config can say that it does not, Gemma has another number."""
    return _made(lambda stack: _by_root(stack) and stack.heads >= least_heads, scale=scale)


def _by_root(stack: Stack) -> bool:
    own = stack.blocks[0].attention
    return math.isclose(own.scale, 1 / math.sqrt(own.head_dim))


def _attends(where: Callable[[Attention], Any], **changes: Any) -> Callable[[Stack], Choices | None]:
    """Of a model some of whose blocks have such an attention."""
    return _made(lambda stack: any(where(block.attention) for block in stack.blocks), **changes)


def _holds(where: Callable[[Any], Any], **changes: Any) -> Callable[[Stack], Choices | None]:
    """Of a model some of whose blocks have such a module."""
    return _made(lambda stack: any(where(x) for block in stack.blocks for x in block.modules.values()), **changes)


def _ordered(order: tuple[int, int, int]) -> Callable[[Stack], Choices | None]:
    """Queries that are as wide as keys can be taken for them."""
    return _made(lambda stack: order[0] == 0 or stack.blocks[0].attention.key_heads == stack.heads, order=order)


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
            _holds(is_square, dense=transposed)),
    *(Mistake(f"q k v in another order: {' '.join('qkv'[i] for i in order)}", "The order is query, key, value.",
              _ordered(order)) for order in ((1, 0, 2), (2, 1, 0), (0, 2, 1), (1, 2, 0), (2, 0, 1))),
    Mistake("last norm forgotten", "After the last block comes one more norm, which GPT-2 calls ln_f.",
            _made(lambda stack: bool(stack.last_norm), last_norm=False)),
    Mistake("causal mask one token too far", "A token sees itself and those before it, not the next one.",
            _made(lambda stack: stack.causal, ahead=1)),
    Mistake("causal mask hides the token itself", "A token sees itself and those before it.",
            _made(lambda stack: stack.causal, ahead=-1)),
    Mistake("causal mask forgotten", "No token of this model sees those after it.",
            _made(lambda stack: stack.causal, causal=False)),
    Mistake("causal mask where there is none", "Every token of this model sees all others.",
            _made(lambda stack: not stack.causal, causal=True)),
    Mistake("scale by head_dim", "This model's config has a number of its own for the scale of the scores.",
            _made(lambda stack: stack.blocks[0].attention.scale != 1 and not _by_root(stack),
                  scale=lambda own: 1 / math.sqrt(own.head_dim))),
    Mistake("neighbours turned instead of halves", "A rotation turns pairs (x[i], x[i + n]), not (x[2i], x[2i + 1]).",
            _attends(lambda own: own.rotated, turn=neighbours)),
    Mistake("queries and keys not turned", "In each block queries and keys are turned by their token's place.",
            _attends(lambda own: own.rotated, turn=lambda x, cos, sin, pairing: x)),
    Mistake("rotation of the other layer type", "Blocks with a window have a rope_theta of their own.",
            _attends(lambda own: own.layer_type, angles=other_layer_type)),
    Mistake("queries and keys not normed", "Queries and keys are normed in each head before they are turned.",
            _attends(lambda own: any(own.norms), head_norms=False)),
    Mistake("key head taken modulo", "Query head h uses key head h // (heads / key_heads), not h % key_heads.",
            _attends(lambda own: 1 < own.key_heads < own.heads,
                     key_heads=lambda heads, key_heads: np.arange(heads) % key_heads)),
    Mistake("window one token too wide", "A causal window of w tokens counts the token itself; ModernBERT's has "
            "w // 2 tokens on each side.",
            _attends(lambda own: own.reach is not None, reach=window(lambda reach: reach + 1))),
    Mistake("window one token too narrow", "A causal window of w tokens counts the token itself; ModernBERT's has "
            "w // 2 tokens on each side.",
            _attends(lambda own: own.reach, reach=window(lambda reach: reach - 1))),
    Mistake("window forgotten", "Some blocks of this model see near tokens alone.",
            _attends(lambda own: own.reach is not None, reach=window(lambda reach: None))),
    Mistake("weight without 1 +", "Gemma's RMSNorm multiplies by 1 + weight.",
            _holds(lambda module: isinstance(module, RMSNorm) and module.plus, norm=without_one)),
    Mistake("mean subtracted in RMSNorm", "RMSNorm divides by the root of the mean square; the mean stays.",
            _holds(lambda module: isinstance(module, RMSNorm), norm=with_mean)),
    Mistake("norm within forgotten", "What attention and feed-forward give is normed before it is added.",
            _made(lambda stack: any(part.within for block in stack.blocks for part in block.parts),
                  part=lambda part: part._replace(within=""))),
    Mistake("gate and up exchanged", "The activation is of the gate; what `up` gives multiplies it.",
            _made(lambda stack: bool(stack.blocks[0].feed_forward.gate), gated=(1, 0))),
)
# fmt: on
