"""A text's way through one block, as a page of plain text: what `minibert explain TEXT --block 3` prints.

Scores and attention weights are those of one head, since no model computes a mean over heads. All other numbers are of
all heads together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from minibert.equations import blocks as equations
from minibert.equations import gated_blocks
from minibert.equations.input_layer import Array
from minibert.families.parts.bound_blocks import BoundAttention
from minibert.families.parts.plan import Step
from minibert.models.encoder import Encoder
from minibert.models.knock_out import check_there
from minibert.models.run.blocks import Stack

from .explain import Told, first_of_text, heading
from .text import EDGE, Style, beginning, columns_of, fitting, padded, styles, wrap

COLUMN = 7  # columns of one number of a table: a sign, and four decimals
CUT = " ..."


def explain_block(
    encoder: Encoder,
    text: str,
    block: int,
    head: int = 0,
    text_pair: str | None = None,
    colour: bool = False,
    truncation: bool = False,
) -> Iterator[str]:
    """Give the page line by line: of each step of block `block` (from 0) name, shape, function, formula and numbers.

    The numbers are the first six of the text's first token. Of head `head` (from 0) the weights of all tokens are
    shown. Raises ValueError for a block or head that is not there, and as a call of the encoder.
    """
    stack = encoder.stack
    check_there("block", block, len(stack.blocks))
    check_there("head", head, stack.heads)
    batch: dict[str, Any] = encoder.tokenize(text, text_pair, truncation=truncation and encoder.max_length is not None)
    tokens = [fitting(token) for token in encoder.embeddings.tokenizer.tokens(batch["input_ids"][0])]
    if not tokens:
        raise ValueError("this text has no tokens, so no block can be computed; give another one")
    position = first_of_text(encoder.embeddings, batch["input_ids"][0]) or 0
    trace = encoder.trace(**batch)
    bold, dim = styles(colour)
    shape, own = trace["hidden_states.0"].shape, stack.blocks[block].attention
    yield bold(f"block {block} of {len(stack.blocks)} of {encoder.embeddings.family.model_type} -> {shape}")
    yield from wrap(f"head {head} of {stack.heads} in scores and weights, {own.head_dim} numbers wide", 2)
    for name, key, step in steps(encoder, trace, block, head):
        x = trace[key]
        yield from heading(name, step, x, bold, dim)
        if key.startswith("attentions."):
            yield from pair_table(tokens, x[0, head], bold)
        else:
            row = x[0, head, position] if key == own.scores else x[0, position].ravel()
            yield f"  {tokens[position]}  {beginning(row)}"


def steps(encoder: Encoder, trace: dict[str, Array], i: int, head: int) -> Iterator[tuple[str, str, Told]]:
    """Give each intermediate of block i in the order of computing: name, key of the trace, formula and function."""
    keys, last = list(trace), f"hidden_states.{i + 1}"
    own = keys[keys.index(f"hidden_states.{i}") : keys.index(last) + 1]
    plan = encoder.stack.blocks[i].plan(i, encoder.stack)
    prefix = encoder.block_family.prefix(encoder.config, i)

    def named(key: str) -> str:
        """Name a value as formulas do: its name in a trace; a hidden value has none, so its own formula."""
        return said(plan[key]) if key in plan and plan[key].hidden else key.removeprefix(prefix)

    def said(step: Step) -> str:
        columns = f"; {_columns(step.part, head)}" if step.kind == "scores" else ""
        return step.says.format(*map(named, step.of)) + columns

    for key, after in zip(own, [*own[1:], ""], strict=True):
        if key == last:  # the rows that were just shown
            return
        name = f"probabilities, attentions.{i}" if key.startswith("attentions.") else key.removeprefix(prefix)
        told = Told("what enters: the output of " + (f"block {i - 1}" if i else "the input layer"))
        if key in plan:
            told = Told(said(plan[key]), plan[key].function)
        yield f"{name} = {last}" if after == last else name, key, told


def _columns(own: BoundAttention, head: int) -> str:
    """Find one head's numbers in queries and keys."""
    if own.key_heads != own.heads:
        return f"head {head} uses key head {head // (own.heads // own.key_heads)} of {own.key_heads}"
    parts = "" if len(own.maps) == 3 else " (q, k and v side by side)"
    return f"columns {head * own.head_dim} to {(head + 1) * own.head_dim - 1} of each are head {head}{parts}"


def pair_table(tokens: Sequence[str], x: Array, bold: Style) -> Iterator[str]:
    """Write one number for each pair of tokens, (seq, seq): rows are queries, columns keys.

    Columns that do not fit into a line are left out in the middle.
    """
    wide = max(map(columns_of, tokens))
    shown = list(range(len(tokens)))
    cut = len(tokens) > max(2 * EDGE, (80 - 4 - wide) // (COLUMN + 2))
    if cut:
        shown = [*shown[:EDGE], *shown[-EDGE:]]
    names = [fitting(tokens[position], COLUMN) for position in shown]
    heads = [" " * (COLUMN - columns_of(name)) + name for name in names]  # right-aligned over the numbers
    heads[EDGE:EDGE] = [CUT] * cut
    yield bold("  " + " " * wide + "  " + "  ".join(heads).rstrip())
    for token, row in zip(tokens, x[:, shown].tolist(), strict=True):
        numbers = [f"{number:{COLUMN}.4f}" if abs(number) < 100 else f"{number:{COLUMN}.1f}" for number in row]
        numbers[EDGE:EDGE] = [CUT] * cut
        yield "  " + padded(token, wide) + "  " + "  ".join(numbers)


def functions(stack: Stack) -> set[Any]:
    """List the functions of `equations` that compute the blocks: of the steps, attention and feed-forward."""
    used = {step.function for i, block in enumerate(stack.blocks) for step in block.plan(i, stack).values()} - {None}
    for block in stack.blocks:
        used |= {
            equations.attention,
            gated_blocks.rotary_attention if block.attention.rotated else equations.self_attention,
        }
        used |= {gated_blocks.gated_feed_forward if block.feed_forward.gate else equations.feed_forward}
    return used
