"""A text's way through the layer, step by step, as a page of plain text: what `minibert explain` prints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.parts.plan import GIVEN, POSITIONS, Plan, given, kind_of, layer_plan, value
from minibert.families.static import STATIC
from minibert.models.input_layer import EmbeddingLayer

from .text import Style, beginning, columns_of, counted, fitting, padded, styles, wrap


class Told(NamedTuple):
    """Say how one intermediate is computed: the formula, and the function of `equations`, where it is one."""

    formula: str
    function: Callable[..., Any] | None = None


# -- the steps in words -------------------------------------------------------------------------------------------


def looked_up(plan: Plan, values: dict[str, Any]) -> dict[str, Array]:
    """Give the ids of each kind of lookup, (batch, seq): passed, counted, or the family's default; positions last."""
    counted = {key: step.part.ids for key, step in plan.items() if step.kind in ("ids", "positions")}
    found = {name: value(key, plan, values) for key, name in counted.items()}
    return {name: found[name] for name in sorted(found, key=lambda name: name == POSITIONS) if found[name] is not None}


def expression(key: str, plan: Plan, values: dict[str, Any]) -> str:
    """Write a value as an expression of looked-up rows: "LayerNorm((word + type) + position)"."""
    step, name = plan[key], name_of(key)
    of = [each for each in step.of if each in plan and value(each, plan, values) is not None]
    texts = [name] if step.kind == "rows" else [expression(each, plan, values) for each in of]
    # in parentheses, where an operator stands outside of those that are there
    inner = [f"({text})" if " " in re.sub(r"\(.*\)", "", text) else text for text in texts]
    if step.kind in ("rows", "embeds"):
        return texts[0]
    if step.kind == "add":
        return reduce(lambda a, b: f"({a}) + {b}" if " + " in a else f"{a} + {b}", inner)
    if step.kind == "scale":
        return f"{step.part:.6g} * {inner[0]}"
    return f"{inner[0]} * mask" if step.kind == "rows of padding" else f"{name}({texts[0]})"


def name_of(key: str) -> str:
    """Give a step's name in the reference's module tree: the last part of its path."""
    return key.rpartition(".")[2]


# -- the page ----------------------------------------------------------------------------------------------------


def explain(
    layer: EmbeddingLayer,
    text: str,
    text_pair: str | None = None,
    colour: bool = False,
    truncation: bool = False,
) -> Iterator[str]:
    """Give the page line by line: the tokens, and of each step its name, shape, formula, function and some numbers.

    The numbers are the first six of the text's first token. Everything is computed before the first line. Raises as
    `EmbeddingLayer.tokenize` and a call of the layer.
    """
    longest = layer.max_length
    if layer.family is STATIC and (limit := layer.tokenizer.truncation) is not None:
        longest = int(limit["max_length"])  # where `encode` truncates
    truncation = truncation and longest is not None
    batch: dict[str, Any] = layer.tokenize(text, text_pair, truncation=truncation, max_length=longest)
    tokens = layer.tokenizer.tokens(batch["input_ids"][0])
    trace = layer.trace(**batch)
    output = layer(**batch)
    plan, values = layer_plan(layer.steps, layer.config), dict[str, Any]({GIVEN: given(batch)})
    ids = looked_up(plan, values)

    bold, dim = styles(colour)
    shape = output.shape
    yield bold(f"{counted(shape[1], 'token')} of {layer.family.model_type} -> {shape}, {output.dtype}")
    yield ""
    yield from _table(tokens, {kind_of(name): numbers[0].tolist() for name, numbers in ids.items()}, bold)
    position = first_of_text(layer, batch["input_ids"][0]) or 0
    for name, told, rows in _steps(plan, trace, values):
        yield from heading(name, told, rows, bold, dim)
        if len(tokens):
            yield f"  {fitting(tokens[position])}  {beginning(rows[0, position])}"
    yield ""
    yield dim("BERT's input layer by hand, in five minutes: scripts/study/five_minutes.py")


def heading(name: str, told: Told, rows: Array, bold: Style, dim: Style) -> Iterator[str]:
    """Write a step's heading: its name, shape, function and formula."""
    yield ""
    function = "" if told.function is None else dim(f"  equations.{told.function.__name__}")
    yield bold(f"{name}  {rows.shape}") + function
    yield from (dim(line) for line in wrap(told.formula, 2))


def first_of_text(layer: EmbeddingLayer, input_ids: Array) -> int | None:
    """Give the position of the text's first token, after the special ones; None if the text has no tokens."""
    alone = layer.tokenize("")["input_ids"][0].tolist()
    pairs = zip(input_ids.tolist(), [*alone, None], strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), None)


def _table(tokens: list[str | None], given: Mapping[str, Sequence[Any]], bold: Style) -> Iterator[str]:
    """Write one line for each token with its values, in aligned columns."""
    names = [fitting(token) for token in tokens]
    columns = list(given.items())
    wide = max(columns_of(name) for name in ["token", *names])
    widths = [max(len(str(number)) for number in [head, *numbers]) for head, numbers in columns]
    heads = [head.rjust(width) for (head, _), width in zip(columns, widths, strict=True)]
    yield bold("  ".join(["token".ljust(wide), *heads]))
    for i, name in enumerate(names):
        numbers = [str(numbers[i]).rjust(width) for (_, numbers), width in zip(columns, widths, strict=True)]
        yield "  ".join([padded(name, wide), *numbers])


def _steps(plan: Plan, trace: Mapping[str, Array], values: dict[str, Any]) -> Iterator[tuple[str, Told, Array]]:
    """Give each intermediate's name, how it is computed, and its rows."""
    last: Array | None = None
    for key, rows in trace.items():
        step = plan[key]
        if step.kind == "positions" or (key == "sum" and last is not None and np.array_equal(rows, last)):
            continue  # ids stand in the table; a sum of one is the rows just shown
        says = expression(key, plan, values)
        if step.kind != "add":
            of = (name_of(x) if x in trace else expression(x, plan, values) for x in step.of if x in plan)
            says = step.says if step.kind == "rows" else step.says.format(*of)
        yield name_of(key), Told(says, step.function), rows
        last = rows
