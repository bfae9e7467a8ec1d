"""Mistakes of an input layer: other ids, rows, sums and factors in the place of a bound layer's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array, default_position_ids, mask_position_ids, scale, sinusoidal_positions
from minibert.families.parts.frozen import replace
from minibert.families.parts.layer_plan import GIVEN, looked_up, passed, positions, times
from minibert.families.parts.modules import Embedding
from minibert.families.parts.plan import Step
from minibert.families.parts.steps import Add, Inputs, Lookup, Positions, Tokens
from minibert.files.tables import FormulaTable
from minibert.models.input_layer import EmbeddingLayer

from .mistake import At, Mistake, Wrong, given_place, on

Counted = Callable[[Positions, Inputs, Any, int], Any]  # a step, what is passed, the config, cached tokens -> positions

SHARED, SINUSOIDS = "shared.weight", ".sinusoids"
# -- ids and positions -------------------------------------------------------------------------------------------


@given_place
def counted(at: At, where: Callable[[Positions], Any], count: Counted) -> Iterator[Step]:
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


def as_generate(masked: int | None, own: Positions, inputs: Inputs, config: Any, past: int) -> Any:
    """Positions that `generate()` passes: cumsum(mask) - 1; where masked another number (None: what that gives)."""
    if inputs.attention_mask is None:
        return own.default(inputs, config, past)
    seen = np.asarray(inputs.attention_mask) != 0
    found = np.maximum(np.cumsum(seen, axis=1) - 1, 0)
    return (found if masked is None else np.where(seen, found, masked))[:, past:]


@given_place
def from_start(at: At, start: int) -> Iterator[Step]:
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


def further_in_table(many: int, wraps: bool, own: Any, module: Embedding, ids: Array) -> Array:
    """The same to the table's end, where a port takes the other end's row (`wraps`) or the last one's again."""
    rows, ids = module.table.shape[0], ids + own.extra + many
    return module(ids % rows if wraps else np.clip(ids, 0, rows - 1))


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


@given_place
def sums(at: At, change: Callable[[At, tuple[str, ...]], Iterable[str]]) -> Iterator[Step]:
    """Other rows added up, or in another order."""
    for step in at.of("add"):
        if (of := tuple(change(at, step.of))) not in (step.of, ()):
            yield step._replace(of=of)


def _of_ids(at: At, key: str, ids: str) -> bool:
    step = at.plan[key]
    step = at.plan[step.of[1]] if step.kind == "embeds" else step  # the words, or the caller's own rows
    step = at.plan[step.of[0]] if step.kind == "scale" else step
    return step.kind == "rows" and step.part.step.ids == ids


def left_out(ids: str) -> Wrong:
    """A sum without the rows of one kind."""
    return sums(lambda at, of: [key for key in of if not _of_ids(at, key, ids)])


def in_order(order: Callable[[tuple[str, ...]], tuple[str, ...]]) -> Wrong:
    """A sum of three or more in another order; of two it makes no difference."""
    return sums(lambda at, of: order(of) if len(of) > 2 else of)


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


def factors(rows: Callable[[float, Array], Array]) -> Wrong:
    """Words times the model's factor in another way: from the factor and the rows as they are stored."""

    def of_step(step: Step) -> Step:
        return step._replace(formula=lambda x: None if x is None else rows(step.part, x))

    def of_rows(step: Step) -> Step | None:
        module = step.part.module
        stored = Embedding(module.table)
        formula: Any = lambda ids: None if ids is None else rows(module.scale, stored(ids))  # noqa: E731
        return None if module.scale == 1 else step._replace(formula=formula)

    return lambda at: [*on("scale", of_step)(at), *on("rows", of_rows)(at)]


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


def types_exchanged(at: At) -> Iterator[Step]:
    """Row 1 of the types for the first text, row 0 for the second."""
    for step in at.of("rows"):
        own, module = step.part
        if own.ids == "token_type_ids" and module.table.shape[0] == 2:
            right = step.formula
            yield step._replace(formula=lambda ids: None if ids is None else right(1 - np.minimum(ids, 1)))  # noqa: B023


def second_type(at: At) -> Iterator[Step]:
    """Row 1 of the types for all tokens."""
    for step in at.of("rows"):
        own, module = step.part
        if own.ids == "token_type_ids" and module.table.shape[0] > 1:
            right = step.formula
            yield step._replace(formula=lambda ids: None if ids is None else right(np.ones_like(ids)))  # noqa: B023


# -- the list ----------------------------------------------------------------------------------------------------

FIRST = "The family says which position is the first: 0, or in RoBERTa padding_idx + 1, after the padding row."
POSITION = "RoBERTa's positions skip padding."
TYPES_ARE = "Types are 0 in a single text, and 1 in the second text of a pair."
SUM = "The rows of each kind are added once."
WORDS = {
    "input_ids": "word", "position_ids": "position", "token_type_ids": "type",
}  # fmt: skip
LEFT_OUT = {
    "token_type_ids": "Without types the reference still adds row 0.",
    "position_ids": "Each token's position adds a row of its own.",
}
COUNTED = "Only `generate()` does so, and passes them; a plain call counts padding."

# fmt: off
OF_ROWS: tuple[Mistake, ...] = (
    *(Mistake(f"{word} rows left out", LEFT_OUT.get(ids, SUM), left_out(ids), on_vectors=ids in LEFT_OUT)
      for ids, word in WORDS.items()),
    *(Mistake("rows added in the other order", "Float addition is not associative; a third of all entries differ.",
              in_order(order)) for order in (lambda of: (of[0], *reversed(of[1:])), lambda of: (*of[1:], of[0]))),
    Mistake("type row 0 added", "GPT-2 and XLM add a row for types only where types are passed.", first_type),
    Mistake("type 1 for all tokens", TYPES_ARE, second_type, on_vectors=True),
    Mistake("token types exchanged", TYPES_ARE, types_exchanged),
    Mistake("positions from 0", FIRST, counted(by("padding"), as_if(rule="count")), on_vectors=True),
    Mistake("padding counted as tokens", POSITION, counted(by("padding"), padding_counted)),
    Mistake("positions by the mask instead of the ids", "RoBERTa counts ids that are not padding, whatever the "
            "attention mask says.", counted(by("padding"), by_mask)),
    Mistake("padding id of positions from the config", "MPNet's positions skip id 1 whatever config.json says.",
            counted(lambda own: own.padding_idx == 1, as_if(padding_idx="pad_token_id"))),
    Mistake("positions by the ids instead of the mask", "OPT counts what the attention mask keeps; padding without a "
            "mask counts.", counted(by("mask"), by_ids)),
    Mistake("mask ignored in positions", "OPT counts what the attention mask keeps.",
            counted(by("mask"), as_if(rule="count"))),
    *(Mistake("positions counted by the mask", COUNTED, counted(by("count"), partial(as_generate, masked)))
      for masked in (0, 1, None)),
    Mistake("cached tokens not counted", "With a cache the first new token comes after the cached ones.",
            counted(lambda own: own.rule != "mask" and own.cached, as_if(cached=False))),
    *(Mistake(f"positions from {start}", FIRST, from_start(start), on_vectors=True) for start in (1, 2)),
    Mistake("offset of the position table missing", "BART's and OPT's tables have two rows in front of position 0.",
            rows(Positions, without_offset, lambda own, module: own.extra)),
    Mistake("sinusoids in the other layout", "Marian has all sines first, Vaswani's paper alternates.",
            computed(sinusoidal_positions)),
    *(Mistake("sinusoids in the place of learned positions", "This file holds a learned row for each position.",
              computed(partial(sinusoidal_positions, layout=layout), learned=True))
      for layout in ("interleaved", "halves")),
    Mistake("sinusoids from float32 angles", "At position 4095 a float32 angle is 1e-4 off.",
            computed(sinusoids_in_float32)),
    Mistake("sinusoids added", "T5, Llama and similar models add no position row; positions act in attention.",
            with_sinusoids),
    Mistake("factor of the word rows left out", "Word rows are multiplied by sqrt(dim) before positions are added.",
            factors(lambda factor, x: x)),
    Mistake("word rows times sqrt(dim)", "Only some models multiply the word rows, and their config.json says so.",
            word_rows_by_root),
    Mistake("inputs_embeds scaled", "BART scales inside its word module, so the caller's own embeddings stay.",
            on("embeds", embeds_scaled)),
    Mistake("padding row zeroed", "padding_idx starts a row at zero before training; trained files hold numbers there.",
            zeroed_padding),
    *(Mistake(f"rows of ids {many:+d}", "Each id has a row of its own, and row 0 is the first.",
              rows((Tokens, Positions), partial(further_in_table, many, wraps)))
      for many in (-1, 1) for wraps in (True, False)),
    Mistake("mask not applied to the rows", "DeBERTa and XLM multiply the rows by the attention mask after the norm.",
            on("rows of padding", lambda step: step._replace(formula=lambda x, given: x))),
)
# fmt: on
