"""Mistakes of an input layer: other ids, rows, sums and factors in the place of a bound layer's own."""

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
from minibert.models.input_layer import EmbeddingLayer

from .mistake import At, Mistake, Wrong, on

Counted = Callable[[Positions, Inputs, Any, int], Any]  # a step, what is passed, the config, cached tokens -> positions

SINUSOIDS = ".sinusoids"

# -- ids and positions -------------------------------------------------------------------------------------------


def counted(where: Callable[[Positions], Any], count: Counted, at: At) -> Iterator[Step]:
    """Positions counted in another way, in models with such positions."""
    for step in at.of("positions"):
        if where(step.part):
            yield step._replace(formula=partial(positions, partial(count, step.part), at.layer.config))


def by(rule: str) -> Callable[[Positions], bool]:
    """Models that count by this rule."""
    return lambda own: own.rule == rule


def as_if(**changes: Any) -> Counted:
    """As a step with other fields counts."""
    return lambda own, inputs, config, past: replace(own, **changes).default(inputs, config, past)


def padding_counted(own: Positions, inputs: Inputs, config: Any, past: int) -> slice:
    """RoBERTa's first position, but padding counted like any token."""
    start = own.first(config) + (past if own.cached else 0)
    return slice(start, start + inputs.seq)


def by_ids(own: Positions, inputs: Inputs, config: Any, past: int) -> Any:
    """OPT's rule with a mask made from the ids."""
    if inputs.inputs_embeds is not None:
        return own.default(inputs, config, past)
    real = np.asarray(inputs.ids["input_ids"]) != config.integer("pad_token_id")
    return mask_position_ids(np.concatenate([np.ones((inputs.batch, past), bool), real], axis=1), past)


def by_mask(own: Positions, inputs: Inputs, config: Any, past: int) -> Any:
    """RoBERTa's rule with the attention mask in the place of the ids."""
    if inputs.attention_mask is None:
        return own.default(inputs, config, past)
    return mask_position_ids(inputs.attention_mask, past) + own.padding(config) + 1


def as_generate(masked: int, own: Positions, inputs: Inputs, config: Any, past: int) -> Any:
    """Positions that `generate()` passes: cumsum(mask) - 1; where masked another number."""
    if inputs.attention_mask is None:
        return own.default(inputs, config, past)
    seen = np.asarray(inputs.attention_mask) != 0
    return np.where(seen, np.cumsum(seen, axis=1) - 1, masked)[:, past:]


def from_start(start: int, at: At) -> Iterator[Step]:
    """Positions from another first one on."""
    for step in at.of("positions"):
        if further := start - step.part.first(at.layer.config):
            yield _after(step, partial(np.add, further))


def first_type(at: At) -> Iterator[Step]:
    """Row 0 of the types where none are passed, and the model then adds none."""
    for step in at.of("ids"):
        if step.part.ids == "token_type_ids" and isinstance(step.part, Add) and step.part.missing is None:
            yield step._replace(formula=partial(passed, replace(step.part, missing=0), at.layer.config))


def _after(step: Step, change: Callable[[Array], Array]) -> Step:
    right = step.formula
    return step._replace(formula=lambda *x: None if (made := right(*x)) is None else np.asarray(change(made)))


# -- rows --------------------------------------------------------------------------------------------------------


def rows(
    kind: type[Lookup] | tuple[type[Lookup], ...], change: Callable[[Any, Embedding, Array], Array],
    where: Callable[[Any, Embedding], Any] = lambda own, module: True,
) -> Wrong:  # fmt: skip
    """Other rows of lookups of one kind: from the step, its module and the ids."""

    def made(step: Step) -> Step | None:
        own, module = step.part
        if not isinstance(own, kind) or not where(own, module):
            return None
        return step._replace(formula=lambda ids: None if ids is None else change(own, module, ids))

    return on("rows", made)


def further_in_table(many: int, own: Any, module: Embedding, ids: Array) -> Array:
    """Rows beside the right ones: before the first one comes the last, after the last one the last again."""
    rows = module.table.shape[0]
    return module(np.minimum((ids + own.extra + many) % (rows + 1), rows - 1))


def without_offset(own: Any, module: Embedding, ids: Array) -> Array:
    """Positions looked up without the rows that the table has in front."""
    return np.asarray(looked_up(module, 0, ids))


def zeroed_padding(at: At) -> Iterator[Step]:
    """The row of padding read as zeros, in a table that knows which it is or by the config."""
    pad = at.layer.config.get("pad_token_id")
    for step in at.of("rows"):
        own, module = step.part
        row = pad if module.padding_idx is None and type(pad) is int else module.padding_idx
        if isinstance(own, Tokens) and row is not None:
            yield step._replace(formula=partial(_zero_row, row, module))


def _zero_row(row: int, module: Embedding, ids: Array | None) -> Array | None:
    return None if ids is None else np.where((ids == row)[..., None], 0, module(ids)).astype(module(ids).dtype)


def computed(table: Callable[[int, int], Array], learned: bool = False) -> Wrong:
    """Another formula's positions, where a formula makes them or where they are `learned`."""

    def change(own: Any, module: Embedding, ids: Array) -> Array:
        rows, dim = module.table.shape
        return np.asarray(looked_up(Embedding(FormulaTable(table, (rows, dim))), own.extra, ids))

    return rows(Positions, change, lambda own, module: (own.generate is None) == learned)


def sinusoids_in_float32(rows: int, dim: int) -> Array:
    """Marian's table with angles computed in float32."""
    exponent = np.float32(2) * (np.arange(dim) // 2).astype(np.float32) / np.float32(dim)
    angle = default_position_ids(rows)[0][:, None].astype(np.float32) / np.float32(10000) ** exponent
    return np.concatenate([np.sin(angle[:, 0::2]), np.cos(angle[:, 1::2])], axis=1)


# -- sums and factors --------------------------------------------------------------------------------------------


def sums(change: Callable[[At, tuple[str, ...]], Iterable[str]], at: At) -> Iterator[Step]:
    """Other rows added up, or in another order."""
    for step in at.of("add"):
        if (of := tuple(change(at, step.of))) not in (step.of, ()):
            yield step._replace(of=of)


def left_out(ids: str) -> Wrong:
    """A sum without the rows of one kind."""

    def others(at: At, of: tuple[str, ...]) -> Iterator[str]:
        return (key for key in of if at.plan[key].kind != "rows" or at.plan[key].part.step.ids != ids)

    return partial(sums, others)


def in_order(order: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Wrong:
    """A sum of three or more in another order; of two it makes no difference."""
    return partial(sums, lambda at, of: order(of) if len(of) > 2 else of)


def with_sinusoids(at: At) -> Iterator[Step]:
    """Sinusoids where the model adds no positions."""
    if not at.of("positions"):
        for step in at.of("add")[:1]:
            yield step._replace(of=(*step.of, SINUSOIDS))
            yield Step(SINUSOIDS, "rows", partial(_sinusoids, at.layer), (GIVEN,))


def _sinusoids(layer: EmbeddingLayer, given: tuple[Inputs, int]) -> Array:
    inputs, past = given
    rows = sinusoidal_positions(past + inputs.seq, layer.steps[0].module.table.shape[1])
    return rows[None, past:].astype(layer.dtype)


def without_factor(at: At) -> Iterator[Step]:
    """Words as they are stored, where the model has a factor."""
    for step in at.of("scale"):
        yield step._replace(formula=lambda x: x)
    for step in at.of("rows"):
        own, module = step.part
        if module.scale != 1:
            yield step._replace(formula=partial(looked_up, Embedding(module.table), own.extra))


def word_rows_by_root(at: At) -> Iterator[Step]:
    """Words times the root of their width, where the model has no factor."""
    for step in at.of("rows") if not at.of("scale") else ():
        own, module = step.part
        if isinstance(own, Tokens) and module.scale == 1:
            yield _after(step, partial(scale, factor=math.sqrt(module.table.shape[1])))


def embeds_scaled(step: Step) -> Step | None:
    """The caller's own rows times the factor too."""
    factor = step.part

    def formula(given: tuple[Inputs, int], rows: Array | None) -> Array | None:
        return rows if rows is not None else times(factor, given[0].inputs_embeds)

    return None if factor == 1 else step._replace(formula=formula)


def types(change: Callable[[Array], Array], where: Callable[[int], bool]) -> Wrong:
    """The rows of other types, in tables whose number of rows `where` takes."""
    return rows(
        Add, lambda own, module, ids: module(change(ids)),
        lambda own, module: own.ids == "token_type_ids" and where(module.table.shape[0]),
    )  # fmt: skip


# -- the list ----------------------------------------------------------------------------------------------------

FIRST = "The family says which position is the first: 0, or in RoBERTa padding_idx + 1, after the padding row."
POSITION = "RoBERTa's positions skip padding."
TYPES_ARE = "Types are 0 in a single text, and 1 in the second text of a pair."
COUNTED = "Only `generate()` does so, and passes them; a plain call counts padding."

# fmt: off
OF_ROWS: tuple[Mistake, ...] = (
    Mistake("position rows left out", "Each token's position adds a row.", left_out("position_ids"),
            on_vectors=True),
    Mistake("type rows left out", "Without types the reference still adds row 0.", left_out("token_type_ids"),
            on_vectors=True),
    *(Mistake("rows added in the other order", "Float addition is not associative; a third of all entries differ.",
              in_order(order)) for order in (lambda of: (of[0], *reversed(of[1:])), lambda of: (*of[1:], of[0]))),
    Mistake("type row 0 added", "GPT-2 and XLM add a row for types only where types are passed.", first_type),
    Mistake("type 0 for all tokens", TYPES_ARE, types(np.zeros_like, lambda rows: rows > 1)),
    Mistake("type 1 for all tokens", TYPES_ARE, types(np.ones_like, lambda rows: rows > 1), on_vectors=True),
    Mistake("token types exchanged", TYPES_ARE, types(lambda ids: 1 - ids, lambda rows: rows == 2)),
    Mistake("positions from 0", FIRST, partial(counted, by("padding"), as_if(rule="count")), on_vectors=True),
    Mistake("padding counted as tokens", POSITION, partial(counted, by("padding"), padding_counted)),
    Mistake("positions by the mask instead of the ids", "RoBERTa counts ids that are not padding, whatever the "
            "attention mask says.", partial(counted, by("padding"), by_mask)),
    Mistake("padding id of positions from the config", "MPNet's positions skip id 1 whatever config.json says.",
            partial(counted, lambda own: own.padding_idx == 1, as_if(padding_idx="pad_token_id"))),
    Mistake("positions by the ids instead of the mask", "OPT counts the tokens that the attention mask keeps; "
    "padding without a "
            "mask counts.", partial(counted, by("mask"), by_ids)),
    Mistake("mask ignored in positions", "OPT counts the tokens that the attention mask keeps.",
            partial(counted, by("mask"), as_if(rule="count"))),
    *(Mistake("positions counted by the mask", COUNTED, partial(counted, by("count"), partial(as_generate, masked)))
      for masked in (0, 1)),
    Mistake("cached tokens not counted", "With a cache the first new token comes after the cached ones.",
            partial(counted, lambda own: own.rule != "mask" and own.cached, as_if(cached=False))),
    *(Mistake(f"positions from {start}", FIRST, partial(from_start, start), on_vectors=True) for start in (1, 2)),
    Mistake("offset of the position table missing", "BART's and OPT's tables have two rows in front of position 0.",
            rows(Positions, without_offset, lambda own, module: own.extra)),
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
