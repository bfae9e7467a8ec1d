"""A text's way through one block, as a page of plain text: what `minibert explain TEXT --block 3` prints.

Of scores and probabilities one head is shown, with the tokens beside the rows: a mean over heads is no step of any
model. All else is of all heads together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from minibert.equations import encoder as equations
from minibert.equations.encoder import Affine, additive_mask
from minibert.equations.input_layer import Array, layer_norm
from minibert.families.blocks import Block
from minibert.models.encoder import Encoder

from .explain import BOLD, DIM, EDGE, PLAIN, beginning, columns_of, first_of_text, fitting, torch_text, wrap

COLUMN = 7  # columns of one number of a table: a sign, and four decimals
CUT = " ..."


class Step(NamedTuple):
    """How one intermediate comes about: the formula, and the function of `equations` that computes it."""

    formula: str
    function: str


def explain_block(
    encoder: Encoder,
    text: str,
    block: int,
    head: int = 0,
    text_pair: str | None = None,
    colour: bool = False,
    full: bool = False,
    truncation: bool = False,
) -> Iterator[str]:
    """Give the page line by line: of each step of block `block` (from 0) name, shape, function, formula and numbers.

    The numbers are the first six of the text's first token; `full` gives all rows as torch prints them, and the block
    computed once more by one function. Of head `head` (from 0) the probabilities of all tokens are shown in each case.
    Raises ValueError for a block or head that is not there, and as a call of the encoder.
    """
    stack = encoder.stack
    _check("block", block, len(stack.blocks))
    _check("head", head, stack.heads)
    batch: dict[str, Any] = encoder.tokenize(text, text_pair, truncation=truncation and encoder.max_length is not None)
    tokens = [fitting(token) for token in encoder.embeddings.tokenizer.tokens(batch["input_ids"][0])]
    if not tokens:
        raise ValueError("this text has no token, so that nothing enters a block; pass another one")
    trace = encoder.trace(**batch)
    place = first_of_text(encoder.embeddings, batch["input_ids"][0])

    def bold(line: str) -> str:
        return f"{BOLD}{line}{PLAIN}" if colour else line

    def dim(line: str) -> str:
        return f"{DIM}{line}{PLAIN}" if colour else line

    shape = trace["hidden_states.0"].shape
    yield bold(f"block {block} of {len(stack.blocks)} of {encoder.embeddings.family.model_type} -> {shape}")
    yield from wrap(
        f"head {head} of {stack.heads} in scores and probabilities, {shape[2] // stack.heads} numbers wide", 2
    )
    for name, key, step in steps(encoder, trace, block, head):
        x = trace[key]
        yield ""
        yield bold(f"{name}  {x.shape}") + (dim(f"  {step.function}") if step.function else "")
        yield from (dim(line) for line in wrap(step.formula, 2))
        if x.ndim == 4 and (full or key.startswith("attentions.")):
            yield from pair_table(tokens, x[0, head], bold)
        elif full:
            yield from ("  " + torch_text(x, indent=2)).split("\n")
        else:
            yield f"  {tokens[place]}  {beginning(x[0, head, place] if x.ndim == 4 else x[0, place])}"
    if full and (closing := by_hand(encoder, trace, block)) is not None:
        yield ""
        yield bold("by hand, with the weights of this block")
        yield from (f"  {line}" for line in closing)


def _check(what: str, number: int, count: int) -> None:
    if not 0 <= number < count:
        there = f"0..{count - 1}" if count else "none"
        raise ValueError(f"{what} {number} is not there: this model has {what}s {there}; choose one of them")


def steps(encoder: Encoder, trace: dict[str, Array], i: int, head: int) -> Iterator[tuple[str, str, Step]]:
    """Give each intermediate of block i in the order in which it arises: name, key of the trace, and how it is made."""
    keys, last = list(trace), f"hidden_states.{i + 1}"
    own = keys[keys.index(f"hidden_states.{i}") : keys.index(last) + 1]
    told = _steps(encoder, i, head)
    prefix = encoder.block_family.path.format(i=i) + "."
    for key, after in zip(own, [*own[1:], ""], strict=True):
        if key == last:  # the rows that were just shown
            return
        name = f"probabilities, attentions.{i}" if key.startswith("attentions.") else key.removeprefix(prefix)
        yield f"{name} = {last}" if after == last else name, key, told[key]


def _steps(encoder: Encoder, i: int, head: int) -> dict[str, Step]:
    stack, block = encoder.stack, encoder.stack.blocks[i]
    prefix, first = encoder.block_family.path.format(i=i) + ".", f"hidden_states.{i}"
    short: Callable[[str], str] = lambda path: path.removeprefix(prefix)  # noqa: E731
    attended = short(block.norm_1) if stack.pre_norm else first
    worked = short(block.norm_2) if stack.pre_norm else short(block.norm_1)
    sums = (block.sum_1, block.sum_2)
    entering = dict.fromkeys(block.projections, attended)
    entering |= {block.output: short(block.context), block.up: worked, block.down: short(block.activation)}
    norms = dict(zip((block.norm_1, block.norm_2), (first, sums[0]) if stack.pre_norm else sums, strict=True))
    if stack.last_norm:
        norms[stack.last_norm] = block.sum_2
    told = {
        first: Step("what enters: " + (f"the output of block {i - 1}" if i else "the output of the input layer"), "")
    }
    for path, x in entering.items():
        stored = "weight" if block.modules[path].transposed else "weight^T"
        told[path] = Step(f"{block.modules[path]!r}: {x} @ {stored} + bias", named(equations.linear))
    for path, x in norms.items():
        module = stack.others[path] if path == stack.last_norm else block.modules[path]
        formula = f"(x - mean) / sqrt(variance + {module.eps}) * weight + bias, x = {short(x)}, each row by itself"
        told[path] = Step(formula, named(layer_norm))
    told[block.sum_1] = Step(f"{first} + {short(block.output)}", "")
    told[block.sum_2] = Step(f"{short(block.sum_1 if stack.pre_norm else block.norm_1)} + {short(block.down)}", "")
    _, _, told_there = (block.activate.__doc__ or "").partition("`")  # the equation's own docstring has its formula
    formula = told_there.partition("`")[0]
    told[block.activation] = Step(f"{formula}, x = {short(block.up)}, each number by itself", named(block.activate))
    return told | _attention(encoder, block, i, head)


def _attention(encoder: Encoder, block: Block, i: int, head: int) -> dict[str, Step]:
    stack = encoder.stack
    width = encoder.dim // stack.heads
    q, k, v = ("q", "k", "v") if len(block.projections) == 1 else (p.rpartition(".")[2] for p in block.projections)
    of_root = f", 1 / sqrt({width}) = {block.scale:.6g}" if math.isclose(block.scale, 1 / math.sqrt(width)) else ""
    bias = " + the learned bias of the distance" if stack.bias is not None else ""
    parts = "" if len(block.projections) == 3 else " (q, k and v side by side)"
    mask = ", what comes after a token masked" if stack.causal else ""
    return {
        block.scores: Step(
            f"{block.scale:.6g} * {q} @ {k}^T{bias}{of_root}; columns {head * width} to {(head + 1) * width - 1} of "
            f"each are head {head}{parts}",
            named(equations.attention_scores),
        ),
        f"attentions.{i}": Step(
            f"softmax(scores){mask}: how much the token of a row takes from each token; a row's sum is 1",
            named(equations.softmax),
        ),
        block.context: Step(
            f"probabilities @ {v} in each head, all {stack.heads} heads side by side", named(equations.join_heads)
        ),
    }


def named(function: Callable[..., Any]) -> str:
    """Name a function of `equations` as a reader can find it.

    >>> named(equations.softmax)
    'equations.encoder.softmax'
    """
    return f"{function.__module__}.{function.__name__}".removeprefix("minibert.")


def pair_table(tokens: Sequence[str], x: Array, bold: Callable[[str], str]) -> Iterator[str]:
    """Write one number for each pair of tokens, (seq, seq): rows are the tokens that look, columns those looked at.

    What does not fit into a line is left out in the middle.
    """
    wide = max(map(columns_of, tokens))
    shown = list(range(len(tokens)))
    cut = len(tokens) > max(2 * EDGE, (80 - 4 - wide) // (COLUMN + 2))
    if cut:
        shown = [*shown[:EDGE], *shown[-EDGE:]]
    heads = [_cell(tokens[place]) for place in shown]
    heads[EDGE:EDGE] = [CUT] * cut
    yield bold("  " + " " * wide + "  " + "  ".join(heads).rstrip())
    for token, row in zip(tokens, x[:, shown].tolist(), strict=True):
        numbers = [f"{number:{COLUMN}.4f}" if abs(number) < 100 else f"{number:{COLUMN}.1f}" for number in row]
        numbers[EDGE:EDGE] = [CUT] * cut
        yield "  " + token + " " * (wide - columns_of(token)) + "  " + "  ".join(numbers)


def _cell(token: str) -> str:
    """Cut a token to a column and set it to the right, over its numbers."""
    while columns_of(token) > COLUMN:
        token = token.removesuffix("…")[:-1] + "…"
    return " " * (COLUMN - columns_of(token)) + token


def by_hand(encoder: Encoder, trace: dict[str, Array], i: int) -> list[str] | None:
    """Compute the block once more, by the one function that is a whole block; None where it has another scale."""
    stack, block = encoder.stack, encoder.stack.blocks[i]
    x, heads = trace[f"hidden_states.{i}"], stack.heads
    if not math.isclose(block.scale, 1 / math.sqrt(encoder.dim // heads)):
        return None
    seq = x.shape[1]
    mask = additive_mask(np.tri(seq, dtype=bool), x.dtype) if stack.causal else None
    bias = None if stack.bias is None else stack.bias(seq)
    arrays, eps = plain_block(block), block.modules[block.norm_1].eps
    if stack.pre_norm:
        function: Callable[..., Array] = equations.pre_norm_block
        y = equations.pre_norm_block(x, arrays, heads, eps, block.activate, mask)
    else:
        function = equations.post_norm_block
        y = equations.post_norm_block(x, arrays, heads, eps, block.activate, mask, bias)
    off = float(np.max(np.abs(y - trace[block.sum_2 if stack.pre_norm else block.norm_2])))
    most = f"at most {off:.1e}" if off else "0"
    return [f"{named(function)}(hidden_states.{i}, ...)", f"  differs from the encoder by {most}"]


def plain_block(block: Block) -> equations.Block:
    """Give a bound block's arrays as the equations take them: (out, in), query, key and value apart."""

    def affine(path: str) -> Affine:
        dense = block.modules[path]
        return Affine(dense.weight.T if dense.transposed else dense.weight, dense.bias)

    def norm(path: str) -> Affine:
        return Affine(block.modules[path].weight, block.modules[path].bias)

    looks = [affine(path) for path in block.projections]
    if len(looks) == 1:
        looks = [Affine(*parts) for parts in zip(*(np.split(array, 3) for array in looks[0]), strict=True)]
    q, k, v = looks
    up, down = affine(block.up), affine(block.down)
    return equations.Block(q, k, v, affine(block.output), norm(block.norm_1), up, down, norm(block.norm_2))
