"""`TensorBinder`: find the tensors that a recipe names in a checkpoint, and refuse leftovers."""

from __future__ import annotations

from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError, nearest_name, some_of
from minibert.families.family import Family
from minibert.families.parts.config import Config
from minibert.families.parts.heads import LEFTOVERS, STANFORD, architectures
from minibert.families.rows import BLOCKS, HEADS
from minibert.files.checkpoint import Checkpoint
from minibert.files.tables import NUMPY_DTYPE, StoredTable, Table, Weight

PACKED = ("quantization", "quantization_config")  # MLX's and transformers' key in config.json
NAMED = 3  # leftover tensors that an error lists: there may be hundreds


def unread(family: Family, config: Config, source: Checkpoint) -> str:
    """Return the names of the tensors that no step, block or head of a model type reads; "" if there are none.

    Known leftovers do not count. Only names are compared: no further file is opened.
    """
    blocks = BLOCKS[family.model_type]
    parts = [*LEFTOVERS, *blocks.checked_prefixes]
    parts += [begin for side in family.sides for begin in family.scope_for(side)]
    parts += [f"{step.path}." for head in HEADS.get(family.model_type, ()) for step in head.steps]
    parts += [blocks.vector.projection] if blocks.vector else []
    parts += ["linear."] if STANFORD in architectures(config) else []
    begins = tuple(prefix + part for prefix in ("", *family.prefixes) for part in parts)
    left = set(source.names) - source.requested_tensors.keys()
    return some_of(sorted(name for name in left if not name.startswith(begins)), NAMED)


class TensorBinder:
    """The tensors of a checkpoint by the names of a recipe, with or without the prefix of a model with a head."""

    def __init__(
        self,
        config: Config,
        source: Checkpoint,
        prefixes: tuple[str, ...],
        dtype: np.dtype[Any],
        where: str,
        low_memory: bool = False,
    ) -> None:
        self.config, self.dtype, self.where = config, dtype, where
        self._source, self._low_memory, self._names = source, low_memory, set(source.names)
        self._prefixes = ("", *prefixes)
        self._tables: dict[str, Table] = {}

    def table(
        self,
        names: tuple[str, ...],
        shape: tuple[int, ...] | None,
        formats: tuple[str, ...] = tuple(NUMPY_DTYPE),
        axes: int = 2,
    ) -> Table:
        """Return the first stored tensor of `names` as a table, not read yet. Raises CheckpointError.

        shape: the shape that config.json implies; None accepts any shape with `axes` axes.
        """
        name = self._find(names)
        if name is None:
            raise self._missing(names)
        stored_shape = self._source.tensor(name).shape  # checked before any number is read
        if shape is None:
            shape = stored_shape
            if len(stored_shape) != axes or 0 in stored_shape:
                kind = "rows of numbers" if axes == 2 else "a list of numbers"
                raise self._refused(f"tensor {name!r} must be {kind}, found shape {stored_shape}; fetch it again")
        if stored_shape != shape or 0 in shape:
            why = self._other_shape(stored_shape, shape)
            raise self._refused(f"tensor {name!r} has shape {stored_shape}, but config.json says {shape}; {why}")
        if name not in self._tables:
            table = self._source.table(name, self.dtype, formats)
            self._tables[name] = self._source.merged[name](table) if name in self._source.merged else table
        return self._tables[name]

    def _other_shape(self, stored_shape: tuple[int, ...], shape: tuple[int, ...]) -> str:
        """Return a likely reason why a stored shape differs from config.json's."""
        if 0 in shape:
            return "a size of 0 leaves nothing to look up"
        packed = next((key for key in PACKED if self.config.get(key)), None)
        if packed:
            integers = "the weights are packed integers, which are not computed here"
            return f"config.json has {packed!r}: {integers}; load the model they were made from"
        if stored_shape == shape[::-1]:
            return "the tensor is transposed, as nanoGPT stores the linear layers of GPT-2; store tensor.T"
        return "config and tensors are of different models"

    def vector(self, names: tuple[str, ...], shape: tuple[int, ...]) -> Array:
        """Return a copy of a small tensor, in the dtype of the layer.

        A copy, since each use of a mapped tensor keeps the pages around it in memory.
        """
        vector = self.table(names, shape).array().copy()
        vector.flags.writeable = False
        return vector

    def weight(self, names: tuple[str, ...], shape: tuple[int, ...]) -> Weight:
        """Return the weight of a linear layer; with `low_memory` a narrow one as a table in its stored format."""
        return self.weight_of(self.table(names, shape))

    def weight_of(self, table: Table) -> Weight:
        """Return the weight that a table holds: see `weight`."""
        if self._low_memory and isinstance(table, StoredTable) and not table.zero_copy:
            return table
        return table.array()

    def stores(self, name: str) -> bool:
        """Return whether there is a tensor of this name, with or without one of the prefixes."""
        return self._find((name,)) is not None

    def _find(self, names: tuple[str, ...]) -> str | None:
        for name in names:
            matches = [prefix + name for prefix in self._prefixes if prefix + name in self._names]
            if len(matches) > 1:
                two = " and ".join(matches)
                raise self._refused(f"two tensors could be {name!r}: {two}; keep the one that is meant")
            if matches:
                return matches[0]
        aliases = self._source.aliases()  # metadata may list the dropped names of a tied tensor
        candidates = (aliases.get(prefix + name) for name in names for prefix in self._prefixes)
        return next((name for name in candidates if name is not None), None)

    def _missing(self, names: tuple[str, ...]) -> CheckpointError:
        tried = [prefix + name for name in names for prefix in self._prefixes]
        near = nearest_name(tried[0], self._names, cutoff=0.3)
        nearest = f"; the nearest name there is {near!r}" if near else ""
        why = self._adapters() or "does config.json belong to this file?"
        return self._refused(f"no tensor for {names[0]!r}; tried {', '.join(tried)}{nearest}; {why}")

    def _adapters(self) -> str:
        """Return how to load a file with LoRA matrices inside; "" for every other file."""
        adapters = sorted(name for name in self._names if "lora_" in name)
        if not adapters:
            return ""
        advice = "save the model with the one that you need merged into its weights"
        return f"it holds LoRA adapters of tasks ({adapters[0]}, ...), which are not computed here: {advice}"

    def expect(self) -> None:
        """Hint that all bound tensors will be read in full, unlike the tables of the input layer."""
        self._source.expect(self._tables)

    def stored_under(self, scope: tuple[str, ...]) -> list[str]:
        """Return the names of all stored tensors of one part of a model."""
        begins = tuple(prefix + part for prefix in self._prefixes for part in scope)
        return [name for name in self._names if name.startswith(begins)]

    def refuse_leftovers(
        self,
        scope: tuple[str, ...],
        unused_endings: tuple[str, ...],
        part: str = "the input layer",
        recipe: str = "the recipe of this family",
    ) -> None:
        """Raise CheckpointError if the recipe leaves tensors of one part of a model unused: it would be incomplete."""
        stored = set(self.stored_under(scope)) - self._tables.keys()
        left = some_of(sorted(name for name in stored if not name.endswith(unused_endings)), NAMED)
        if left:
            why = self._adapters() or f"{part} without them would give wrong numbers"
            raise self._refused(f"this file has tensors of {part} that {recipe} does not use: {left}; {why}")

    def _refused(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {problem}")
