"""The steps of an input layer: each names its tensors and calls one equation.

A step is a recipe (a frozen value in a family's row). `bind` takes its tensors from a checkpoint and returns a module;
`apply` computes the next x (batch, seq, dim) from the current one, in place if the width stays the same.
Steps never look across rows, so the tiles of a batch do not change a bit.
All kinds are in one file, since the author of a row chooses among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from minibert.equations.input_layer import Array, default_position_ids, mask_position_ids, padding_position_ids, project
from minibert.files.tables import FormulaTable, PaddedTable, Table, Weight

from .config import Config, Frozen, decided
from .modules import NORMS, Embedding, LayerNorm, Linear

MOST_ROWS = 1 << 17  # in a table of positions that a formula makes; models with one have 512 or 1024
Ids = Array | slice | int
Record = Callable[[str, Array], None] | None


def always(config: Config) -> bool:
    """Return True: the condition of a step that every model of the family has."""
    return True


class Tensors(Protocol):
    """Returns tensors by their candidate names."""

    def vector(self, names: tuple[str, ...], shape: tuple[int, ...]) -> Array:
        """Return a small tensor, read into memory in the dtype of the layer's products."""

    def weight(self, names: tuple[str, ...], shape: tuple[int, ...]) -> Weight:
        """Return a map's weight: an array as `vector` does, or a table that is converted again for each use."""


class Binder(Tensors, Protocol):
    """The checkpoint to which a step is bound: its config, and its tensors by their candidate names."""

    config: Config
    where: str  # name of the checkpoint, for errors

    def table(
        self, names: tuple[str, ...], shape: tuple[int, ...] | None, formats: tuple[str, ...] = ..., axes: int = ...
    ) -> Table:
        """Return a large table without reading it; by default it has the file's shape, with `axes` axes."""

    def stored_under(self, scope: tuple[str, ...]) -> list[str]:
        """List the names of all tensors that begin with one of `scope`, read or not."""

    def stores(self, name: str) -> bool:
        """Return whether the checkpoint has a tensor of this name."""


class Inputs(NamedTuple):
    """The arguments of a call, checked and completed.

    Ids are arrays (batch, seq) or (1, seq), one number for all tokens, or a slice of neighbouring positions.
    """

    batch: int
    seq: int
    ids: dict[str, Ids]
    inputs_embeds: Array | None = None
    attention_mask: Array | None = None

    def tile(self, batch: slice, seq: slice) -> Inputs:
        """Return the arguments of a tile: some texts, some positions."""

        def cut(ids: Ids) -> Ids:
            if isinstance(ids, slice):
                return slice(ids.start + seq.start, ids.start + seq.stop)
            if isinstance(ids, int):
                return ids
            return ids[batch if len(ids) > 1 else slice(None), seq]

        return Inputs(
            batch.stop - batch.start,
            seq.stop - seq.start,
            {name: cut(ids) for name, ids in self.ids.items()},
            None if self.inputs_embeds is None else self.inputs_embeds[batch, seq],
            None if self.attention_mask is None else self.attention_mask[batch, seq],
        )


class Step(Frozen):
    """Base class of steps. A step of your own is a subclass with annotated fields, `bind` and `apply`.

    path   the module's path in the reference's base model; "{side}" becomes "encoder" or "decoder"
    names  the tensors that may hold the weight, best first
    when   the condition on the config under which the step exists
    """

    path: str
    names: tuple[str, ...] = ()
    when: Callable[[Config], bool] = always

    def bind(self, binder: Binder) -> Any:
        """Read the step's tensors from the checkpoint, and return its module (or factor, or None)."""
        raise NotImplementedError

    def apply(self, module: Any, inputs: Inputs, x: Array, record: Record = None) -> Array:
        """Return the next x. `record` gets each named intermediate, and may change it in place."""
        raise NotImplementedError

    @property
    def key(self) -> str:
        """Return the name of the step's value in a trace."""
        return self.path + getattr(self, "role", "")

    def tensors(self, part: str = "weight") -> tuple[str, ...]:
        """Return the candidate names of one tensor: `names` for the weight if the row has them, else its path's."""
        return self.names if self.names and part == "weight" else (f"{self.path}.{part}",)


class Bound(NamedTuple):
    """A step with its loaded module, a factor, or None."""

    step: Step
    module: Any


def run_steps(steps: Sequence[Bound], inputs: Inputs, out: Array, width: int, record: Record = None) -> Array:
    """Run a tile through all steps. `out` (batch, seq, dim) receives the result; word rows have `width` numbers."""
    x = out if width == out.shape[-1] else np.empty((*out.shape[:-1], width), out.dtype)
    for step, module in steps:
        # a user's step may return another dtype, or a memory order for which sums have other bits
        x = np.asarray(step.apply(module, inputs, x, record), out.dtype, order="C")
    if x is not out:
        out[...] = x
    return out


class Lookup(Step):
    """Base class of steps that look rows up in a table.

    ids          the argument of a call that has the ids
    rows, width  config keys of the table's two sizes
    extra        how many rows stand before position 0 (BART, OPT)
    padding_idx  the padding id, or its config key; a lookup does not treat its row differently
    """

    ids: str
    rows: str
    width: str = "hidden_size"
    extra: int = 0
    padding_idx: str | int | None = None

    def bind(self, binder: Binder) -> Embedding:
        return self.module(binder.table(self.tensors(), self.shape(binder.config)), binder.config)

    def shape(self, config: Config) -> tuple[int, int]:
        return config.integer(self.rows) + self.extra, config.integer(self.width)

    def module(self, table: Table, config: Config, factor: float = 1.0) -> Embedding:
        padding_idx = config.get(self.padding_idx) if isinstance(self.padding_idx, str) else self.padding_idx
        return Embedding(table, padding_idx, factor)

    def default(self, inputs: Inputs, config: Config, past_length: int) -> Ids | None:
        """Return the ids for a call without ids, or None to skip the step."""
        return None

    def lowest(self) -> int:
        """Return the smallest id that a caller may pass."""
        return 0


class Tokens(Lookup):
    """x = word[input_ids], or the caller's inputs_embeds.

    scale  the factor by which the reference's module multiplies
    head   the output layer's tensor that is tied to this table
    padded config keys of ids that have the padding row
    """

    ids: str = "input_ids"
    rows: str = "vocab_size"
    padding_idx: str | int | None = "pad_token_id"
    scale: Callable[[Config], float] | None = None
    head: str = "lm_head.weight"
    padded: tuple[str, ...] = ()

    def bind(self, binder: Binder) -> Embedding:
        names = self.tensors()
        if binder.config.flag("tie_word_embeddings", True):
            names = (*names, self.head)  # a file stores one of two tied tensors, sometimes the output's
        table = binder.table(names, self.shape(binder.config))
        if self.padded:
            ids = [binder.config.integer(key) for key in self.padded if binder.config.get(key) is not None]
            table = PaddedTable(table, ids, binder.config.integer("pad_token_id"))
        return self.module(table, binder.config, 1.0 if self.scale is None else self.scale(binder.config))

    def apply(self, module: Embedding, inputs: Inputs, x: Array, record: Record = None) -> Array:
        if inputs.inputs_embeds is not None:
            np.copyto(x, inputs.inputs_embeds)
            return x
        ids = inputs.ids["input_ids"]
        assert not isinstance(ids, int)  # only the ids of `Add` are one number
        module.table.rows(ids, x)
        if module.scale != 1.0:
            x *= x.dtype.type(module.scale)  # `equations.scale`, in place
        if record:
            record(self.path, x)
        return x


class Add(Lookup):
    """x += table[ids]: token types, languages, tasks.

    missing  the id of all tokens if a call passes none; None: nothing is added
    role     the end of its name in a trace, for a second use of one table: GPT-2 looks types up in its word table
    """

    missing: int | None = None
    role: str = ""

    def default(self, inputs: Inputs, config: Config, past_length: int) -> Ids | None:
        return self.missing

    def apply(self, module: Embedding, inputs: Inputs, x: Array, record: Record = None) -> Array:
        ids = inputs.ids.get(self.ids)
        if ids is None:
            return x
        if isinstance(ids, np.ndarray) and ids.size and ids.min() == ids.max():
            ids = int(ids.flat[0])  # one row for the whole tile, the common case of types
        rows = module.table.rows(slice(ids, ids + 1) if isinstance(ids, int) else ids)
        if record:
            rows = np.array(np.broadcast_to(rows, x.shape))  # a copy, since `record` may change it
            record(self.key, rows)
        return np.add(x, rows, out=x)


class Positions(Lookup):
    """x += table[position_ids]. `rule` counts the tokens if the caller passes no positions:

    "count"    0, 1, 2, ... padding included                       (equations.default_position_ids)
    "padding"  tokens that are no padding, from padding_idx + 1    (equations.padding_position_ids)
    "mask"     tokens that the attention mask keeps                (equations.mask_position_ids)

    cached    whether tokens in a cache shift positions
    generate  makes the table's first rows, (length, dim), if the file holds none
    """

    ids: str = "position_ids"
    rows: str = "max_position_embeddings"
    rule: str = "count"
    cached: bool = True
    generate: Callable[[int, int], Array] | None = None

    def bind(self, binder: Binder) -> Embedding:
        first = self.first(binder.config)
        shape = self.shape(binder.config)
        if first >= shape[0] - self.extra:  # refused now, not at a call
            why = "token positions begin after the padding row"
            raise binder.config.refused(f"{why}, so {self.rows!r} must be larger than 'pad_token_id' + 1")
        if self.generate is None or any(map(binder.stores, self.tensors())):
            return super().bind(binder)
        if shape[0] > MOST_ROWS:
            why = f"but the file has no table of positions, and a formula makes at most {MOST_ROWS} here"
            raise binder.config.refused(f"{self.rows!r} is {shape[0]}, {why}")
        return self.module(FormulaTable(self.generate, shape), binder.config)

    def first(self, config: Config) -> int:
        """Return the position of the first token: RoBERTa starts after its padding row."""
        return self.padding(config) + 1 if self.rule == "padding" else 0

    def lowest(self) -> int:
        return -1 if self.rule == "mask" and self.extra else 0  # the rule's number for a masked token

    def padding(self, config: Config) -> int:
        return self.padding_idx if isinstance(self.padding_idx, int) else config.integer("pad_token_id")

    def default(self, inputs: Inputs, config: Config, past_length: int) -> Ids | None:
        past = past_length if self.cached else 0
        if self.rule == "mask" and inputs.attention_mask is not None:
            return mask_position_ids(inputs.attention_mask, past)
        if self.rule == "padding" and inputs.inputs_embeds is None:
            input_ids = inputs.ids["input_ids"]
            assert isinstance(input_ids, np.ndarray)
            return padding_position_ids(input_ids, self.padding(config), past)
        start = past + (self.first(config) if self.rule == "padding" else 0)
        return slice(start, start + inputs.seq)

    def apply(self, module: Embedding, inputs: Inputs, x: Array, record: Record = None) -> Array:
        ids = inputs.ids["position_ids"]
        if isinstance(ids, slice):
            ids = slice(ids.start + self.extra, ids.stop + self.extra)
        elif self.extra:
            ids = ids + self.extra
        assert not isinstance(ids, int)  # only the ids of `Add` are one number
        rows = module.table.rows(ids)
        if record:
            rows = np.array(rows if rows.ndim == 3 else rows[None])  # a copy, since `record` may change it
            record(self.path, rows)
        return np.add(x, rows, out=x)


class Scale(Step):
    """x *= factor: the reference multiplies outside the word module (Marian, Pegasus, Granite).

    embeds  whether the caller's inputs_embeds are scaled too
    """

    path: str = "scaled"
    factor: Callable[[Config], float]
    embeds: bool = False

    def bind(self, binder: Binder) -> float:
        return self.factor(binder.config)

    def apply(self, module: float, inputs: Inputs, x: Array, record: Record = None) -> Array:
        if self.embeds or inputs.inputs_embeds is None:
            x *= x.dtype.type(module)  # `equations.scale`, in place
            if record:
                record(self.path, x)
        return x


class Project(Step):
    """x = weight @ x + bias: from the width of the tables to the width of the model."""

    source: str = "embedding_size"
    target: str = "hidden_size"
    biased: bool = True

    def bind(self, binder: Binder) -> Linear:
        dim, width = binder.config.integer(self.target), binder.config.integer(self.source)
        bias = binder.vector(self.tensors("bias"), (dim,)) if self.biased else None
        return Linear(binder.vector(self.tensors(), (dim, width)), bias, product=project)

    def apply(self, module: Linear, inputs: Inputs, x: Array, record: Record = None) -> Array:
        x = project(x, module.weight, module.bias)
        if record:
            record(self.path, x)
        return x


class Norm(Step):
    """x = LayerNorm(x), in the input layer, a block or a head; without a path there is none.

    names   here paths; gamma and beta are the older names of weight and bias
    eps     a config key, or the number if the reference fixes it
    kind    its class: LayerNorm; RMSNorm or GemmaRMSNorm, which have no bias
    biased  whether a LayerNorm has a bias: a config key that decides it, or a condition
    """

    path: str = ""
    eps: str | float = "layer_norm_eps"
    width: str = "hidden_size"
    kind: str = "LayerNorm"
    biased: bool | str | Callable[[Config], bool] = True

    def tensors(self, part: str = "weight", prefix: str = "") -> tuple[str, ...]:
        older = {"weight": "gamma", "bias": "beta"}[part]
        return tuple(f"{prefix}{path}.{word}" for path in self.names or (self.path,) for word in (part, older))

    def bind(self, binder: Binder) -> LayerNorm:
        module: LayerNorm = self.bound(binder.config, binder, "", binder.config.integer(self.width))[self.path]
        return module

    def bound(self, config: Config, binder: Tensors, prefix: str, width: int) -> dict[str, Any]:
        """Read its tensors: path -> module, {} without a path. `prefix` is put before the names, a block's path."""
        if not self.path:
            return {}
        eps = config.number(self.eps) if isinstance(self.eps, str) else self.eps
        weight = binder.vector(self.tensors("weight", prefix), (width,))
        biased = self.kind == "LayerNorm" and decided(config, self.biased)
        bias = binder.vector(self.tensors("bias", prefix), (width,)) if biased else None
        return {prefix + self.path: NORMS[self.kind](weight, bias, eps)}

    def apply(self, module: LayerNorm, inputs: Inputs, x: Array, record: Record = None) -> Array:
        if record:
            record("sum", x)
        module.in_place(x)
        if record:
            record(self.path, x)
        return x


class Mask(Step):
    """x *= attention_mask: padding rows become zero.

    counted  if no mask is passed, the mask begins with as many ones as there are ids that are not padding (XLM, which
             therefore assumes right padding)
    """

    path: str = "masked"
    counted: bool = False

    def bind(self, binder: Binder) -> None:
        return None

    def default(self, inputs: Inputs, config: Config) -> Array | None:
        if not self.counted or inputs.inputs_embeds is not None:
            return None
        length = np.count_nonzero(inputs.ids["input_ids"] != config.integer("pad_token_id"), axis=-1)
        mask: Array = default_position_ids(inputs.seq) < length[:, None]
        return mask

    def apply(self, module: None, inputs: Inputs, x: Array, record: Record = None) -> Array:
        if inputs.attention_mask is not None:
            x *= inputs.attention_mask[..., None]
        if record:
            record(self.path, x)
        return x
