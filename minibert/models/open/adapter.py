"""LoRA adapters as PEFT saves them: two thin matrices for each linear map, merged into its weight as it is bound.

    W' = W + scale * B A,   scale = lora_alpha / r, or lora_alpha / sqrt(r) with `use_rslora`

A is (r, in) and B (out, r). Where a weight is stored (in, out), as GPT-2's are, the product is transposed
(`fan_in_fan_out`). Source: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models" (arXiv:2106.09685).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from minibert.errors import CheckpointError
from minibert.files.checkpoint import ADAPTER, Checkpoint
from minibert.files.reading import FileName
from minibert.files.tables import StoredTable, Table

TENSORS = "adapter_model.safetensors"
BEGINNING = "base_model.model."  # of every name in a file of PEFT
ENDINGS = (".lora_A.weight", ".lora_B.weight")
# keys that change no number of a saved adapter, or that the tensors' names say again
IGNORED = frozenset((
    "auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "exclude_modules", "fan_in_fan_out",
    "inference_mode", "layers_pattern", "layers_to_transform", "lora_alpha", "lora_dropout", "megatron_core",
    "peft_type", "peft_version", "qalora_group_size", "r", "revision", "target_modules", "task_type", "use_rslora",
))  # fmt: skip
PLAIN_STARTS = (True, False, None, "gaussian", "orthogonal")  # of init_lora_weights: others change the base's too
OTHER_BASE = "is this the base that it was trained for?"
MERGE = "merge it into the base's weights with PEFT's merge_and_unload, and save that model"


class Adapter:
    """The matrices of one folder, and the base that they belong to."""

    def __init__(self, settings: Mapping[str, Any], path: FileName | None, where: str) -> None:
        """`path`: of the tensors. Raises CheckpointError for another kind of adapter, by the setting that says so."""
        self.where = f"{where}: {ADAPTER}"
        self._refuse_other_kinds(settings)
        rank, alpha = settings.get("r"), settings.get("lora_alpha")
        if type(rank) is not int or rank < 1 or isinstance(alpha, bool) or not isinstance(alpha, int | float):
            raise self._refused(f"'r' must be an integer >= 1 and 'lora_alpha' a number, found {rank!r}, {alpha!r}")
        if path is None:
            raise CheckpointError(f"{where} has {ADAPTER}, but no {TENSORS}; {MERGE}")
        self._rank, self._scale = rank, alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank)
        self._transposed = bool(settings.get("fan_in_fan_out"))
        self._file = Checkpoint(lambda name: path)
        self._paths = self._maps()

    def _maps(self) -> dict[str, str]:
        """Give the path of each changed map -> the beginning of its names in the file."""
        odd = sorted(n for n in self._file.names if not (n.startswith(BEGINNING) and n.endswith(ENDINGS)))
        if odd:
            raise self._refused(f"{TENSORS} has {odd[0]!r}, which is no matrix of a linear map; {MERGE}")
        begins = {name.rpartition(".lora_")[0] for name in self._file.names}
        half = sorted(n for n in begins if not all(n + end in self._file.names for end in ENDINGS))
        if half:
            raise self._refused(f"{TENSORS} has one of two matrices for {half[0]!r}; fetch it again")
        return {begin.removeprefix(BEGINNING): begin for begin in begins}

    def found_in(self, names: Collection[str]) -> dict[str, str]:
        """Give each changed weight's name in the base -> the path in the adapter.

        Either may have a prefix that the other lacks. Raises CheckpointError for a map that the base does not have.
        """
        found: dict[str, str] = {}
        for path in self._paths:
            ends = f"{path}.weight"
            fitting = [name for name in names if f".{name}".endswith(f".{ends}") or f".{ends}".endswith(f".{name}")]
            if len(fitting) != 1:
                there = " and ".join(sorted(fitting)) or "no such weight"
                raise self._refused(f"the adapter changes {path!r}, and the base has {there}; {OTHER_BASE}")
            found[fitting[0]] = path
        return found

    def merged(self, path: str, table: Table) -> Table:
        """Give the base's weight with the adapter's product added, in the dtype that is computed in."""
        begin, dtype = self._paths[path], table.dtype
        a, b = (self._file.table(begin + end, dtype).array() for end in ENDINGS)
        change = (b @ a).T if self._transposed else b @ a
        if a.shape[0] != self._rank or change.shape != table.shape:
            found = f"for {path!r} of shape {table.shape} A is {a.shape} and B {b.shape}, with r {self._rank}"
            raise self._refused(f"{found}; {OTHER_BASE}")
        whole = table.array() + dtype.type(self._scale) * change
        return StoredTable(whole, {"float32": "F32", "float64": "F64"}[dtype.name], dtype)

    def _refuse_other_kinds(self, settings: Mapping[str, Any]) -> None:
        neutral = {"bias": ("none",), "init_lora_weights": PLAIN_STARTS}
        if (kind := settings.get("peft_type")) != "LORA":
            raise self._refused(f"'peft_type' is {kind!r}, and LORA alone is computed here; {MERGE}")
        for key, value in settings.items():
            if key not in IGNORED and value and value not in neutral.get(key, ()):
                raise self._refused(f"{key!r} is {value!r:.80}, which is not computed here; {MERGE}")

    def _refused(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {what}")
