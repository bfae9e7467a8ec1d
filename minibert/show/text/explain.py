"""A text's way through the layer, step by step, as a page of plain text: what `minibert explain` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from minibert import equations
from minibert.equations.input_layer import Array
from minibert.families.parts.steps import Add, Bound, Lookup, Mask, Norm, Positions, Project, Scale, Step, Tokens
from minibert.models.input_layer import EmbeddingLayer

from .text import Style, all_rows, beginning, columns_of, counted, fitting, padded, styles, wrap

COUNTED = {"input_ids": "id", "position_ids": "position", "token_type_ids": "type", "langs": "language"}
FUNCTIONS = {Lookup: equations.lookup, Norm: equations.layer_norm, Project: equations.project, Scale: equations.scale}


class Told(NamedTuple):
    """How one intermediate is computed: the formula, and the function of `equations`, where it is one."""

    formula: str
    function: Callable[..., Any] | None = None


# -- the steps by hand --------------------------------------------------------------------------------------------


def looked_up(steps: Sequence[Bound], batch: Mapping[str, Array], trace: Mapping[str, Array]) -> dict[str, Array]:
    """The ids of each kind of lookup, (batch, seq): passed, counted, or the family's default."""
    ids = {name: value for name, value in batch.items() if name != "attention_mask"}
    for step, _ in steps:
        if isinstance(step, Positions):
            ids[step.ids] = trace["position_ids"]
        elif isinstance(step, Add) and step.missing is not None:
            ids.setdefault(step.ids, np.full_like(batch["input_ids"], step.missing))
    return ids


def by_hand(steps: Sequence[Bound], ids: Mapping[str, Array], mask: Array) -> tuple[Array, str]:
    """Compute the steps one by one with the layer's submodules: the result, and the formula in words.

    ids: those of each kind of lookup, (batch, seq); a lookup without ids is left out. mask (batch, seq).
    """
    x, formula, closed = np.zeros(()), "", True
    for step, module in steps:
        inner = formula if closed else f"({formula})"
        if isinstance(step, Tokens):
            x, formula, closed = module(ids[step.ids]), name_of(step), True
        elif isinstance(step, Lookup):
            if step.ids in ids:
                rows = module(ids[step.ids] + step.extra)
                x, formula, closed = x + rows, f"{inner} + {name_of(step)}", False
        elif isinstance(step, Scale):
            x, formula, closed = x * x.dtype.type(module), f"{module:.6g} * {inner}", False
        elif isinstance(step, Mask):
            x, formula, closed = x * mask[..., None].astype(x.dtype), f"{inner} * mask", False
        else:
            x, formula, closed = module(x), f"{name_of(step)}({formula})", True
    return x, formula


def name_of(step: Step) -> str:
    """The step's name in the reference's module tree: the last part of its path."""
    return step.key.rpartition(".")[2]


def function_of(step: Step) -> Callable[..., Array] | None:
    """The function of `equations` that this step calls."""
    return next((function for kind, function in FUNCTIONS.items() if isinstance(step, kind)), None)


def other_order(steps: Sequence[Bound], ids: Mapping[str, Array]) -> list[Bound] | None:
    """The same steps with the two additions of a sum of three exchanged; None where there are fewer or more."""
    added = [i for i, (step, _) in enumerate(steps) if isinstance(step, Add | Positions) and step.ids in ids]
    if len(added) != 2:
        return None
    first, second = added
    swapped = list(steps)
    swapped[first], swapped[second] = steps[second], steps[first]
    return swapped


# -- the page ----------------------------------------------------------------------------------------------------


def explain(
    layer: EmbeddingLayer,
    text: str,
    text_pair: str | None = None,
    colour: bool = False,
    full: bool = False,
    truncation: bool = False,
) -> Iterator[str]:
    """Give the page line by line: the tokens, and of each step its name, shape, formula, function and some numbers.

    Those are the first six of the text's first token; `full` gives the rows of all tokens instead, as torch prints
    them, and the same steps by hand. Everything is computed before the first line. Raises as
    `EmbeddingLayer.tokenize` and a call of the layer.
    """
    batch: dict[str, Any] = layer.tokenize(text, text_pair, truncation=truncation and layer.max_length is not None)
    # not layer.tokens: no need to check ids that the tokenizer has just given
    tokens = layer.tokenizer.tokens(batch["input_ids"][0])
    trace = layer.trace(**batch)
    output = layer(**batch)
    ids = looked_up(layer.steps, batch, trace)

    bold, dim = styles(colour)
    shape = output.shape
    yield bold(f"{counted(shape[1], 'token')} of {layer.family.model_type} -> {shape}, {output.dtype}")
    yield ""
    yield from _table(tokens, ids, bold)
    position = first_of_text(layer, batch["input_ids"][0]) or 0
    for name, told, rows in _steps(layer, trace, ids, batch["attention_mask"]):
        yield from heading(name, told, rows, bold, dim)
        if full:
            yield from all_rows(rows)
        elif len(tokens):
            yield f"  {fitting(tokens[position])}  {beginning(rows[0, position])}"
    if not full:
        return
    yield ""
    yield bold("by hand, with the parts of this layer")
    yield from _closing(layer, ids, batch["attention_mask"], output, dim)


def heading(name: str, told: Told, rows: Array, bold: Style, dim: Style) -> Iterator[str]:
    """Write what stands above the numbers of a step: its name, shape, function and formula."""
    yield ""
    function = "" if told.function is None else dim(f"  equations.{told.function.__name__}")
    yield bold(f"{name}  {rows.shape}") + function
    yield from (dim(line) for line in wrap(told.formula, 2))


def differs(x: Array, y: Array, whom: str) -> str:
    """Say by how much two arrays differ."""
    difference = float(np.max(np.abs(x - y), initial=0.0))
    return f"  differs from the {whom} by {f'at most {difference:.1e}' if difference else '0'}"


def first_of_text(layer: EmbeddingLayer, input_ids: Array) -> int | None:
    """Give the position of the first token of the text, after the special ones; None where there is none."""
    alone = layer.tokenize("")["input_ids"][0].tolist()
    pairs = zip(input_ids.tolist(), [*alone, None], strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), None)


def _table(tokens: list[str | None], ids: Mapping[str, Array], bold: Style) -> Iterator[str]:
    """Write tokens and what is looked up for each, one line a token, in aligned columns."""
    names = [fitting(token) for token in tokens]
    columns = [(COUNTED.get(name, name.removesuffix("_ids")), value[0].tolist()) for name, value in ids.items()]
    wide = max(columns_of(name) for name in ["token", *names])
    widths = [max(len(str(number)) for number in [head, *numbers]) for head, numbers in columns]
    heads = [head.rjust(width) for (head, _), width in zip(columns, widths, strict=True)]
    yield bold("  ".join(["token".ljust(wide), *heads]))
    for i, name in enumerate(names):
        numbers = [str(numbers[i]).rjust(width) for (_, numbers), width in zip(columns, widths, strict=True)]
        yield "  ".join([padded(name, wide), *numbers])


def _steps(
    layer: EmbeddingLayer, trace: Mapping[str, Array], ids: Mapping[str, Array], mask: Array
) -> Iterator[tuple[str, Told, Array]]:
    """Give each intermediate's name, how it is computed, and its rows."""
    by_key = {step.key: (step, module) for step, module in layer.steps}
    norms = [i for i, (step, _) in enumerate(layer.steps) if isinstance(step, Norm)]
    summing = layer.steps[: norms[0]] if norms else layer.steps
    last: Array | None = None
    for name, rows in trace.items():
        if name in ids:
            continue
        if name != "sum":
            step, module = by_key[name]
            formula = _formula(step, module)
            if isinstance(step, Project):  # x may be a sum of which only the addends were shown
                formula += f", x = {by_hand(layer.steps[: layer.steps.index((step, module))], ids, mask)[1]}"
            yield name_of(step), Told(formula, function_of(step)), rows
        elif last is None or not np.array_equal(rows, last):  # a sum of one is the rows just shown
            yield name, Told(by_hand(summing, ids, mask)[1]), rows
        last = rows


def _formula(step: Step, module: Any) -> str:
    if isinstance(step, Lookup):
        kind = COUNTED.get(step.ids, step.ids.removesuffix("_ids").replace("_", " "))
        offset = f" + {step.extra}" if step.extra else ""
        factor = f", times {module.scale:.6g}" if module.scale != 1.0 else ""
        return f"{module!r}: the row of each {kind}{offset}{factor}"
    if isinstance(step, Norm):
        bias = " + bias" if module.bias is not None else ""
        return f"(x - mean) / sqrt(variance + {module.eps}) * weight{bias}, each row by itself"
    if isinstance(step, Project):
        return f"{module!r}: weight @ x{' + bias' if module.bias is not None else ''}"
    if isinstance(step, Scale):
        return f"times {module:.6g}"
    return "times the attention mask, so that rows of padding become zero"


def _closing(layer: EmbeddingLayer, ids: Mapping[str, Array], mask: Array, output: Array, dim: Style) -> Iterator[str]:
    """Compare the layer's output with its steps computed by hand, in its own order and in another one."""
    other = other_order(layer.steps, ids)
    for steps in (layer.steps, other):
        if steps is not None:
            result, formula = by_hand(steps, ids, mask)
            yield from wrap(formula, 2)
            yield "  " + differs(result, output, "layer")
    notes = ["Both sides come from this layer. This shows what it does; it proves nothing about the reference."]
    if other is not None:
        notes[:0] = [
            "Each + rounds, so the order of a sum changes the last digits. The layer uses the reference's order."
        ]
    yield from (dim(line) for note in notes for line in wrap(note, 2))
