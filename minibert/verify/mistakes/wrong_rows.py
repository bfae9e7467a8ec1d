"""Mistakes of an input layer: ids, positions, rows, sums and factors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array, default_position_ids, mask_position_ids, scale, sinusoidal_positions
from minibert.families.parts.config import replace
from minibert.families.parts.modules import Embedding
from minibert.families.parts.plan import GIVEN, Step, looked_up, passed, positions, times
from minibert.families.parts.steps import Add, Inputs, Lookup, Positions, Tokens
from minibert.files.tables import FormulaTable

from .mistake import At, Mistake, Wrong, curried, on, then

Count = Callable[[Positions, Inputs, Any, int], Any]  # a step, the inputs, the config, cached tokens -> positions

SINUSOIDS = ".sinusoids"

# -- ids and positions -------------------------------------------------------------------------------------------


@curried
def counted(at: At, when: str | Callable[[Positions], Any], count: Count) -> Iterator[Step]:
    """Count positions by `count`, in models with the rule `when` or for which `when` is true."""
    for step in at.steps("positions"):
        if step.part.rule == when if isinstance(when, str) else when(step.part):
            yield step._replace(formula=partial(positions, partial(count, step.part), at.layer.config))


def as_if(**changes: Any) -> Count:
    """Count as a step with other fields does."""
    return lambda step, inputs, config, past: replace(step, **changes).default(inputs, config, past)


def padding_counted(step: Positions, inputs: Inputs, config: Any, past: int) -> slice:
    """Begin at RoBERTa's first position, but count padding like any token."""
    start = step.first(config) + (past if step.cached else 0)
    return slice(start, start + inputs.seq)


def opt_by_ids(step: Positions, inputs: Inputs, config: Any, past: int) -> Any:
    """Count by OPT's rule, with a mask made from the ids."""
    if inputs.inputs_embeds is not None:
        return step.default(inputs, config, past)
    real = np.asarray(inputs.ids["input_ids"]) != config.integer("pad_token_id")
    return mask_position_ids(np.concatenate([np.ones((inputs.batch, past), bool), real], axis=1), past)


def roberta_by_mask(step: Positions, inputs: Inputs, config: Any, past: int) -> Any:
    """Count by RoBERTa's rule, with the attention mask instead of the ids."""
    if inputs.attention_mask is None:
        return step.default(inputs, config, past)
    return mask_position_ids(inputs.attention_mask, past) + step.padding(config) + 1


def as_generate(padding: int, step: Positions, inputs: Inputs, config: Any, past: int) -> Any:
    """Count as `generate()` does: cumsum(mask) - 1 for tokens, the number `padding` for padding."""
    if inputs.attention_mask is None:
        return step.default(inputs, config, past)
    real = np.asarray(inputs.attention_mask) != 0
    return np.where(real, np.cumsum(real, axis=1) - 1, padding)[:, past:]


def from_start(start: int, at: At) -> Iterator[Step]:
    """Begin at another first position."""
    for step in at.steps("positions"):
        if further := start - step.part.first(at.layer.config):
            yield then(step, partial(np.add, further))


def first_type(at: At) -> Iterator[Step]:
    """Add row 0 of the types if none are passed, in a model that then adds none."""
    for step in at.steps("ids"):
        if step.part.ids == "token_type_ids" and isinstance(step.part, Add) and step.part.missing is None:
            yield step._replace(formula=partial(passed, replace(step.part, missing=0), at.layer.config))


# -- rows --------------------------------------------------------------------------------------------------------


def rows(
    kind: type[Lookup] | tuple[type[Lookup], ...], change: Callable[[Any, Embedding, Array], Array],
    when: Callable[[Any, Embedding], Any] = lambda step, module: True,
) -> Wrong:  # fmt: skip
    """Look up other rows in lookups of one kind, from the step, its module and the ids."""

    def wrong(at_step: Step) -> Step | None:
        step, module = at_step.part
        if not isinstance(step, kind) or not when(step, module):
            return None
        return at_step._replace(formula=lambda ids: None if ids is None else change(step, module, ids))

    return on("rows", wrong)


def further_in_table(many: int, step: Any, module: Embedding, ids: Array) -> Array:
    """Look up the row beside the right one: the last row before the first, and the last row again after it."""
    count = module.table.shape[0]
    return module(np.minimum((ids + step.extra + many) % (count + 1), count - 1))


def zeroed_padding(at: At) -> Iterator[Step]:
    """Read the row of padding as zeros: that of the table's padding_idx, or else of the config's pad_token_id."""

    def zeroed(row: int, module: Embedding, ids: Array | None) -> Array | None:
        return None if ids is None else np.where((ids == row)[..., None], 0, module(ids)).astype(module(ids).dtype)

    pad_id = at.layer.config.get("pad_token_id")
    for step in at.steps("rows"):
        lookup, module = step.part
        row = pad_id if module.padding_idx is None and type(pad_id) is int else module.padding_idx
        if isinstance(lookup, Tokens) and row is not None:
            yield step._replace(formula=partial(zeroed, row, module))


def computed(table: Callable[[int, int], Array], learned: bool = False) -> Wrong:
    """Compute position rows by another formula; with `learned`, in models that look them up instead."""

    def change(step: Any, module: Embedding, ids: Array) -> Array:
        count, dim = module.table.shape
        return np.asarray(looked_up(Embedding(FormulaTable(table, (count, dim))), step.extra, ids))

    return rows(Positions, change, lambda step, module: (step.generate is None) == learned)


def sinusoids_in_float32(rows: int, dim: int) -> Array:
    """Compute Marian's table from float32 angles."""
    exponent = np.float32(2) * (np.arange(dim) // 2).astype(np.float32) / np.float32(dim)
    angle = default_position_ids(rows)[0][:, None].astype(np.float32) / np.float32(10000) ** exponent
    return np.concatenate([np.sin(angle[:, 0::2]), np.cos(angle[:, 1::2])], axis=1)


def types(change: Callable[[Array], Array], when: Callable[[int], bool]) -> Wrong:
    """Look up other token types, if `when` is true for the number of rows in the type table."""
    return rows(
        Add, lambda step, module, ids: module(change(ids)),
        lambda step, module: step.ids == "token_type_ids" and when(module.table.shape[0]),
    )  # fmt: skip


# -- sums and factors --------------------------------------------------------------------------------------------


@curried
def sums(at: At, change: Callable[[At, tuple[str, ...]], Iterable[str]]) -> Iterator[Step]:
    """Add up other rows, or the same rows in another order."""
    for step in at.steps("add"):
        if (of := tuple(change(at, step.of))) not in (step.of, ()):
            yield step._replace(of=of)


def zeros(ids: str) -> Wrong:
    """Store zeros for the rows of one kind."""
    return on("rows", lambda step: then(step, lambda x: x * 0) if step.part.step.ids == ids else None)


def left_out(ids: str) -> Wrong:
    """Leave the rows of one kind out of the sum."""
    return sums(lambda at, of: (key for key in of if at.plan[key].kind != "rows" or at.plan[key].part.step.ids != ids))


def rows_in_order(order: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Wrong:
    """Add three or more rows in another order; the order of two makes no difference."""
    return sums(lambda at, of: order(of) if len(of) > 2 else of)


def with_sinusoids(at: At) -> Iterator[Step]:
    """Add sinusoids in a model that adds no positions."""

    def sinusoids(given: tuple[Inputs, int]) -> Array:
        inputs, past = given
        rows = sinusoidal_positions(past + inputs.seq, at.layer.steps[0].module.table.shape[1])
        return rows[None, past:].astype(at.layer.dtype)

    if not at.steps("positions"):
        for step in at.steps("add")[:1]:
            yield step._replace(of=(*step.of, SINUSOIDS))
            yield Step(SINUSOIDS, "rows", sinusoids, (GIVEN,))


def without_factor(at: At) -> Iterator[Step]:
    """Add word rows without the factor of the model."""
    for step in at.steps("scale"):
        yield step._replace(formula=lambda x: x)
    for step in at.steps("rows"):
        lookup, module = step.part
        if module.scale != 1:
            yield step._replace(formula=partial(looked_up, Embedding(module.table), lookup.extra))


def word_rows_by_root(at: At) -> Iterator[Step]:
    """Multiply word rows by the root of their width, in a model without a factor."""
    for step in at.steps("rows") if not at.steps("scale") else ():
        lookup, module = step.part
        if isinstance(lookup, Tokens) and module.scale == 1:
            yield then(step, partial(scale, factor=math.sqrt(module.table.shape[1])))


def embeds_scaled(step: Step) -> Step | None:
    """Multiply the caller's inputs_embeds by the factor too."""
    factor = step.part

    def formula(given: tuple[Inputs, int], rows: Array | None) -> Array | None:
        return rows if rows is not None else times(factor, given[0].inputs_embeds)

    return None if factor == 1 else step._replace(formula=formula)


# -- the list ----------------------------------------------------------------------------------------------------

FIRST = "The family says which position is the first: 0, or in RoBERTa padding_idx + 1, after the padding row."
POSITION = "RoBERTa's positions skip padding."
TYPES_ARE = "Types are 0 in a single text, and 1 in the second text of a pair."
COUNTED = "Only `generate()` does so, and passes them; a plain call counts padding."

# fmt: off
ROWS: tuple[Mistake, ...] = (
    Mistake("position rows left out", "Each token's position adds a row.", left_out("position_ids"),
            on_vectors=True),
    Mistake("type rows left out", "Without types the reference still adds row 0.", left_out("token_type_ids"),
            on_vectors=True),
    Mistake("position rows left out", "Each token's position adds a row, not zeros.", zeros("position_ids")),
    Mistake("type rows left out", "Without types the reference still adds row 0, not zeros.", zeros("token_type_ids")),
    *(Mistake("rows added in the other order", "Float addition is not associative; a third of all entries differ.",
              rows_in_order(order)) for order in (lambda of: (of[0], *reversed(of[1:])), lambda of: (*of[1:], of[0]))),
    Mistake("type row 0 added", "GPT-2 and XLM add a row for types only if types are passed.", first_type),
    Mistake("type 0 for all tokens", TYPES_ARE, types(np.zeros_like, lambda rows: rows > 1)),
    Mistake("type 1 for all tokens", TYPES_ARE, types(np.ones_like, lambda rows: rows > 1), on_vectors=True),
    Mistake("token types exchanged", TYPES_ARE, types(lambda ids: 1 - ids, lambda rows: rows == 2)),
    Mistake("positions from 0", FIRST, counted("padding", as_if(rule="count")), on_vectors=True),
    Mistake("padding counted as tokens", POSITION, counted("padding", padding_counted)),
    Mistake("positions by the mask instead of the ids", "RoBERTa counts ids that are not padding, whatever the "
            "attention mask says.", counted("padding", roberta_by_mask)),
    Mistake("padding id of positions from the config", "MPNet's positions skip id 1 whatever config.json says.",
            counted(lambda step: step.padding_idx == 1, as_if(padding_idx="pad_token_id"))),
    Mistake("positions by the ids instead of the mask", "OPT counts the tokens that the attention mask keeps; "
            "padding without a mask counts.", counted("mask", opt_by_ids)),
    Mistake("mask ignored in positions", "OPT counts the tokens that the attention mask keeps.",
            counted("mask", as_if(rule="count"))),
    *(Mistake("positions counted by the mask", COUNTED, counted("count", partial(as_generate, masked)))
      for masked in (0, 1)),
    Mistake("cached tokens not counted", "With a cache the first new token comes after the cached ones.",
            counted(lambda step: step.rule != "mask" and step.cached, as_if(cached=False))),
    *(Mistake(f"positions from {start}", FIRST, partial(from_start, start), on_vectors=True) for start in (1, 2)),
    Mistake("offset of the position table missing", "BART's and OPT's tables have two rows in front of position 0.",
            rows(Positions, lambda step, module, ids: np.asarray(looked_up(module, 0, ids)),
                 lambda step, module: step.extra)),
    Mistake("sinusoids in the other layout", "Marian has all sines first, Vaswani's paper alternates.",
            computed(sinusoidal_positions)),
    Mistake("sinusoids in the place of learned positions", "This file holds a learned row for each position.",
            computed(sinusoidal_positions, learned=True)),
    Mistake("sinusoids from float32 angles", "At position 4095 a float32 angle is 1e-4 off.",
            computed(sinusoids_in_float32)),
    Mistake("sinusoids added", "T5, Llama and similar models add no position row; positions act in attention.",
            with_sinusoids),
    Mistake("factor of the word rows left out", "Word rows are multiplied by sqrt(dim) before positions are added.",
            without_factor),
    Mistake("word rows times sqrt(dim)", "Only some models multiply the word rows, and their config.json says so.",
            word_rows_by_root),
    Mistake("inputs_embeds scaled", "BART scales inside its word module, so the caller's own embeddings stay.",
            on("embeds", embeds_scaled)),
    Mistake("padding row zeroed", "padding_idx starts a row at zero before training; trained files hold numbers there.",
            zeroed_padding),
    *(Mistake(f"rows of ids {many:+d}", "Each id has one row, and row 0 is the first.",
              rows((Tokens, Positions), partial(further_in_table, many))) for many in (-1, 1)),
    Mistake("mask not applied to the rows", "DeBERTa and XLM multiply the rows by the attention mask after the norm.",
            on("rows of padding", lambda step: step._replace(formula=lambda x, given: x))),
)
# fmt: on
