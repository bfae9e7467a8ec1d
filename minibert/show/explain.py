"""The steps of one text through the input layer, or through one block, as plain text: what `minibert explain` prints.

Each step has a heading with its name, shape, function of `minibert.equations` and formula. Under it stand the first six
numbers of the text's first token. Scores and attention weights are shown for one head, since no model computes a mean
over heads; all other numbers belong to all heads together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.parts.plan import GIVEN, POSITIONS, Plan, Step, Trace, given, kind_of, layer_plan, value
from minibert.families.static import STATIC
from minibert.models.input_layer import EmbeddingLayer

from .text import EDGE, WIDTH, Style, beginning, columns_of, counted, fitting, padded, styles, wrap

if TYPE_CHECKING:
    from minibert.families.parts.bound_blocks import BoundAttention
    from minibert.models.encoder import Encoder

COLUMN = 7  # width of a weight in a table, and of its token's name


class Explanation(NamedTuple):
    """The formula of one value, and the function of `equations` that computes it, or None."""

    formula: str
    function: Callable[..., Any] | None = None


# -- the input layer ---------------------------------------------------------------------------------------------


def explain(
    layer: EmbeddingLayer, text: str, text_pair: str | None = None, colour: bool = False, truncation: bool = False
) -> Iterator[str]:
    """Yield the page line by line: a table of the tokens, then the steps of the input layer.

    All numbers are computed before the first line. Raises as `EmbeddingLayer.tokenize` and a call of the layer.
    """
    longest = layer.max_length
    if layer.family is STATIC and (limit := layer.tokenizer.truncation) is not None:
        longest = int(limit["max_length"])  # `encode` truncates here too
    truncation = truncation and longest is not None
    batch: dict[str, Any] = layer.tokenize(text, text_pair, truncation=truncation, max_length=longest)
    tokens = layer.tokenizer.tokens(batch["input_ids"][0])
    trace = layer.trace(**batch)
    output = layer(**batch)
    plan, values = layer_plan(layer.steps, layer.config), dict[str, Any]({GIVEN: given(batch)})
    ids = lookup_ids(plan, values)

    bold, dim = styles(colour)
    shape = output.shape
    yield bold(f"{counted(shape[1], 'token')} of {layer.family.model_type} -> {shape}, {output.dtype}")
    yield ""
    yield from _token_table(tokens, {kind_of(name): numbers[0].tolist() for name, numbers in ids.items()}, bold)
    position = first_of_text(layer, batch["input_ids"][0]) or 0
    for name, explanation, rows in _layer_steps(plan, trace, values):
        yield from _heading(name, explanation, rows, bold, dim)
        if len(tokens):
            yield f"  {fitting(tokens[position])}  {beginning(rows[0, position])}"
    yield ""
    yield dim("BERT's input layer by hand, in five minutes: scripts/study/five_minutes.py")


def lookup_ids(plan: Plan, values: dict[str, Any]) -> dict[str, Array]:
    """Return the ids of each lookup, (batch, seq), positions last.

    The ids were passed by the caller, counted by the layer, or are the family's default.
    """
    keys = {step.part.ids: key for key, step in plan.items() if step.kind in ("ids", "positions")}
    ids = {name: value(key, plan, values) for name, key in keys.items()}
    return {name: ids[name] for name in sorted(ids, key=lambda name: name == POSITIONS) if ids[name] is not None}


def expression(key: str, plan: Plan, values: dict[str, Any]) -> str:
    """Write a value as an expression of table rows: "LayerNorm((word + type) + position)"."""
    step, name = plan[key], name_of(key)
    inputs = [input_key for input_key in step.of if input_key in plan and value(input_key, plan, values) is not None]
    texts = [name] if step.kind == "rows" else [expression(input_key, plan, values) for input_key in inputs]
    # add parentheses around a text that has an operator outside parentheses
    inner = [f"({text})" if " " in re.sub(r"\(.*\)", "", text) else text for text in texts]
    if step.kind in ("rows", "embeds"):
        return texts[0]
    if step.kind == "add":
        return reduce(lambda a, b: f"({a}) + {b}" if " + " in a else f"{a} + {b}", inner)
    if step.kind == "scale":
        return f"{step.part:.6g} * {inner[0]}"
    return f"{inner[0]} * mask" if step.kind == "rows of padding" else f"{name}({texts[0]})"


def name_of(key: str) -> str:
    """Return a step's name in the reference's module tree: the last part of its path."""
    return key.rpartition(".")[2]


def first_of_text(layer: EmbeddingLayer, input_ids: Array) -> int | None:
    """Return the position of the text's first token after the special tokens; None if the text has no tokens."""
    special = layer.tokenize("")["input_ids"][0].tolist()
    pairs = zip(input_ids.tolist(), [*special, None], strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), None)


def _heading(name: str, explanation: Explanation, rows: Array, bold: Style, dim: Style) -> Iterator[str]:
    yield ""
    function = "" if explanation.function is None else dim(f"  equations.{explanation.function.__name__}")
    yield bold(f"{name}  {rows.shape}") + function
    yield from (dim(line) for line in wrap(explanation.formula, 2))


def _token_table(tokens: list[str | None], ids: Mapping[str, Sequence[Any]], bold: Style) -> Iterator[str]:
    """Write one line for each token with its ids, in aligned columns."""
    names = [fitting(token) for token in tokens]
    columns = list(ids.items())
    wide = max(columns_of(name) for name in ["token", *names])
    widths = [max(len(str(number)) for number in [title, *numbers]) for title, numbers in columns]
    titles = [title.rjust(width) for (title, _), width in zip(columns, widths, strict=True)]
    yield bold("  ".join(["token".ljust(wide), *titles]))
    for i, name in enumerate(names):
        numbers = [str(numbers[i]).rjust(width) for (_, numbers), width in zip(columns, widths, strict=True)]
        yield "  ".join([padded(name, wide), *numbers])


def _layer_steps(plan: Plan, trace: Trace, values: dict[str, Any]) -> Iterator[tuple[str, Explanation, Array]]:
    """Yield each value of the input layer's trace: its name, its explanation and its rows."""
    last_rows: Array | None = None
    for key, rows in trace.items():
        step = plan[key]
        if step.kind == "positions" or (key == "sum" and last_rows is not None and np.array_equal(rows, last_rows)):
            continue  # the table shows the ids; a sum of one addend repeats the rows just shown
        formula = expression(key, plan, values)
        if step.kind != "add":
            names = (name_of(x) if x in trace else expression(x, plan, values) for x in step.of if x in plan)
            formula = step.says if step.kind == "rows" else step.says.format(*names)
        yield name_of(key), Explanation(formula, step.function), rows
        last_rows = rows


# -- one block ---------------------------------------------------------------------------------------------------


def explain_block(
    encoder: Encoder,
    text: str,
    block: int,
    head: int = 0,
    text_pair: str | None = None,
    colour: bool = False,
    truncation: bool = False,
) -> Iterator[str]:
    """Yield the page of block `block` line by line, with the scores and attention weights of head `head`, both from 0.

    Raises ValueError for a block or head that the model does not have and for a text without tokens; else as a call of
    the encoder.
    """
    from minibert.models.knock_out import check_there

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
    shape, attention = trace["hidden_states.0"].shape, stack.blocks[block].attention
    yield bold(f"block {block} of {len(stack.blocks)} of {encoder.embeddings.family.model_type} -> {shape}")
    yield from wrap(f"head {head} of {stack.heads} in scores and weights, {attention.head_dim} numbers wide", 2)
    for name, key, explanation in block_steps(encoder, trace, block, head):
        x = trace[key]
        yield from _heading(name, explanation, x, bold, dim)
        if key.startswith("attentions."):
            yield from pair_table(tokens, x[0, head], bold)
        else:
            row = x[0, head, position] if key == attention.scores else x[0, position].ravel()
            yield f"  {tokens[position]}  {beginning(row)}"


def block_steps(encoder: Encoder, trace: Trace, i: int, head: int) -> Iterator[tuple[str, str, Explanation]]:
    """Yield each value of block i in the order of computation: its name, its key in the trace, its explanation."""
    keys, last_key = list(trace), f"hidden_states.{i + 1}"
    keys = keys[keys.index(f"hidden_states.{i}") : keys.index(last_key) + 1]
    plan = encoder.stack.blocks[i].plan(i, encoder.stack)
    prefix = encoder.block_family.prefix(encoder.config, i)

    def named(key: str) -> str:
        """Return a value's name in a trace; for a value that no trace has, its formula."""
        return formula(plan[key]) if key in plan and plan[key].hidden else key.removeprefix(prefix)

    def formula(step: Step) -> str:
        columns = f"; {_columns(step.part, head)}" if step.kind == "scores" else ""
        return step.says.format(*map(named, step.of)) + columns

    for key, following in zip(keys, [*keys[1:], ""], strict=True):
        if key == last_key:  # the rows that were just shown
            return
        name = f"probabilities, attentions.{i}" if key.startswith("attentions.") else key.removeprefix(prefix)
        explanation = Explanation("what enters: the output of " + (f"block {i - 1}" if i else "the input layer"))
        if key in plan:
            explanation = Explanation(formula(plan[key]), plan[key].function)
        yield f"{name} = {last_key}" if following == last_key else name, key, explanation


def _columns(attention: BoundAttention, head: int) -> str:
    if attention.key_heads != attention.heads:
        return f"head {head} uses key head {head // (attention.heads // attention.key_heads)} of {attention.key_heads}"
    parts = "" if len(attention.maps) == 3 else " (q, k and v side by side)"
    first, end = head * attention.head_dim, (head + 1) * attention.head_dim
    return f"columns {first} to {end - 1} of each are head {head}{parts}"


def pair_table(tokens: Sequence[str], x: Array, bold: Style) -> Iterator[str]:
    """Write the attention weights of each query token, (query, key): a line has all that its sum of 1 is made of.

    If the line is too short for a column per key token, it has the largest weights, each before its key token and that
    token's position, and the sum of the others.
    """
    wide = max(map(columns_of, tokens))
    if len(tokens) <= max(2 * EDGE, (WIDTH - 4 - wide) // (COLUMN + 2)):
        names = [fitting(token, COLUMN) for token in tokens]
        titles = [" " * (COLUMN - columns_of(name)) + name for name in names]  # right-aligned over the numbers
        yield bold("  " + " " * wide + "  " + "  ".join(titles))
        for token, row in zip(tokens, x.tolist(), strict=True):
            yield "  " + padded(token, wide) + "  " + "  ".join(f"{weight:{COLUMN}.4f}" for weight in row)
        return
    yield bold(f"  {' ' * wide}  the {EDGE} largest weights, and the sum of the other {len(tokens) - EDGE}")
    for token, row in zip(tokens, x, strict=True):
        largest = np.argsort(-row, kind="stable")[:EDGE]
        keys = [padded(f"{fitting(tokens[key], COLUMN)} {key}", COLUMN + 4) for key in largest]
        weights = "  ".join(f"{row[key]:.4f} {name}" for key, name in zip(largest, keys, strict=True))
        yield f"  {padded(token, wide)}  {weights}  {np.delete(row, largest).sum():.4f}"
