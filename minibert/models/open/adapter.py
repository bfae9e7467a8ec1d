"""LoRA adapters as PEFT saves them: two thin matrices for each linear layer, merged into its weight at loading.

    W' = W + scale * B A,   scale = lora_alpha / r, or lora_alpha / sqrt(r) with `use_rslora`

A is (r, in) and B (out, r). If the base's weight is stored as (in, out), as in GPT-2's blocks, the product is
transposed. `fan_in_fan_out` does not decide this: PEFT writes one value for all layers and corrects it for each.
The adapter of a classifier also holds the whole head (`modules_to_save`): its tensors replace the base's.
Sources: Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models" (arXiv:2106.09685); for the choice of
layers `check_target_module_exists` in PEFT's tuners_utils.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from minibert.errors import CheckpointError
from minibert.families.parts.heads import LABELS, POOLERS
from minibert.families.rows import BLOCKS, FAMILIES, HEADS
from minibert.files.checkpoint import ADAPTER, Checkpoint
from minibert.files.reading import FileName
from minibert.files.tables import StoredTable, Table

TENSORS = "adapter_model.safetensors"
BEGINNING = "base_model.model."  # the prefix of every name in PEFT's files
ENDINGS = (".lora_A.weight", ".lora_B.weight")
# keys that are read elsewhere, or that do not affect a saved adapter
IGNORED = frozenset((
    "auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "exclude_modules", "fan_in_fan_out",
    "inference_mode", "layers_pattern", "layers_to_transform", "lora_alpha", "lora_dropout", "megatron_core",
    "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "r", "revision", "target_modules", "task_type",
    "use_rslora",
))  # fmt: skip
# values of init_lora_weights that leave the base's weights unchanged
PLAIN_STARTS = (True, False, None, "gaussian", "orthogonal")
CLASSES = {  # task_type -> the end of the name of the transformers class that PEFT loads the base with
    "SEQ_CLS": "ForSequenceClassification", "TOKEN_CLS": "ForTokenClassification",
    "QUESTION_ANS": "ForQuestionAnswering",
}  # fmt: skip
OTHER_BASE = "is this the base that it was trained for?"
MERGE = "merge it into the base's weights with PEFT's merge_and_unload, and save that model"


class Adapter:
    """The LoRA tensors of one folder, for a base of one model_type."""

    def __init__(self, settings: Mapping[str, Any], path: FileName | None, where: str, model_type: str) -> None:
        """`path` is the tensors' file. Raises CheckpointError for another kind of adapter, and names the setting."""
        self.where, self._settings = f"{where}: {ADAPTER}", settings
        self._refuse_other_kinds()
        if path is None:
            raise CheckpointError(f"{where} has {ADAPTER}, but no {TENSORS}; {MERGE}")
        self._rank, self._scale = self._numbers()
        self._file = Checkpoint(lambda name: path)
        self._type, self._family = model_type, FAMILIES.get(model_type)
        # linear layers and whole tensors: name without the prefix of a model with a head -> its beginning in the file
        self._maps: dict[str, str] = {}
        self._whole: dict[str, str] = {}
        try:
            self._sort()
        except (re.error, TypeError) as error:
            raise self._refused(f"what chooses its maps cannot be followed ({error}); fetch it again") from None

    def _numbers(self) -> tuple[int, float]:
        """Return r and the scale."""
        rank, alpha = self._settings.get("r"), self._settings.get("lora_alpha")
        if type(rank) is int and rank >= 1 and isinstance(alpha, int | float) and type(alpha) is not bool:
            try:
                scale = float(alpha / (math.sqrt(rank) if self._settings.get("use_rslora") else rank))
            except OverflowError:
                scale = math.inf
            if abs(scale) <= float(np.finfo(np.float32).max):  # False for NaN too
                return rank, scale
        values = f"{rank!r:.40}, {alpha!r:.40}"
        raise self._refused(f"'r' must be an integer >= 1 and 'lora_alpha' a number of float32, found {values}")

    def _sort(self) -> None:
        """Sort the tensors into linear layers to change and tensors to replace."""
        kept = self._settings.get("modules_to_save") or ()
        for name in sorted(self._file.names):
            path, ending = name.removeprefix(BEGINNING), next(filter(name.endswith, ENDINGS), "")
            # "classifier" matches pre_classifier too
            saved = not ending and any(f"{module}." in path for module in kept)
            if not name.startswith(BEGINNING) or not (ending or saved):
                raise self._refused(f"{TENSORS} has {name!r}, which is no matrix of a linear map; {MERGE}")
            begin = name.removesuffix(ending)
            half = [begin + end for end in ENDINGS if ending and begin + end not in self._file.names]
            if half:
                raise self._refused(f"{TENSORS} has one of two matrices for {begin!r}; fetch it again")
            path = path.removesuffix(ending)
            if saved or self._is_chosen(path):
                group, key = self._whole if saved else self._maps, self._bare(path)
                if group.setdefault(key, begin) != begin:
                    raise self._refused(f"{TENSORS} has {group[key]!r} and {begin!r}, which are one; keep one of them")
        if not self._maps:
            raise self._refused(f"'target_modules' chooses no map of {TENSORS}; are they of one adapter?")

    def _is_chosen(self, path: str) -> bool:
        """Return whether PEFT changes the layer at `path`: targets are a pattern, or a list of paths or their ends."""
        targets, excluded = (self._settings.get(key) or () for key in ("target_modules", "exclude_modules"))
        layers, patterns = (self._settings.get(key) for key in ("layers_to_transform", "layers_pattern"))
        kept_pattern = "|".join(self._settings.get("modules_to_save") or ())
        saved = kept_pattern and re.match(rf"(.*\.)?({kept_pattern})(\..*)?$", path)
        if _names(excluded, path) or saved or not _names(targets, path):
            return False
        if layers in (None, []) or isinstance(targets, str) or path in targets:
            return True
        above = [patterns] if isinstance(patterns, str) and patterns else patterns or [r"[^.]*"]
        start = r"(?:.*?\.)?" if patterns else r".*?\."  # without a pattern PEFT requires a name above the layers'
        match = next(filter(None, (re.match(rf"{start}{parent}\.(\d+)\.", path) for parent in above)), None)
        return match is not None and int(match[1]) in ([layers] if isinstance(layers, int) else layers)

    def _bare(self, name: str) -> str:
        return name.removeprefix(next(filter(name.startswith, self._family.prefixes if self._family else ()), ""))

    def head_config(self) -> dict[str, Any]:
        """Return the keys of config.json that the adapter implies: the class of its head and the number of labels."""
        class_end = CLASSES.get(str(self._settings.get("task_type")))
        if class_end is None:
            return {}
        config: dict[str, Any] = {"architectures": [self._type.partition("_")[0] + class_end]}
        for head in HEADS.get(self._type, ()):
            name = self._whole.get(f"{head.maps[-1].path}.weight")
            if name and head.maps[-1].out == LABELS and class_end in head.architectures:
                config["num_labels"] = next(iter(self._file.tensor(name).shape), 0)
        return config

    def put_on(self, source: Checkpoint) -> None:
        """Merge the base's weights when they are bound, and add the head's tensors.

        Base and adapter may have different prefixes. Raises CheckpointError for a layer that the base does not have and
        for other shapes, before any number is read.
        """
        if source.merged:
            raise self._refused(f"the base has an adapter too; {MERGE}")
        named = {self._bare(name): name for name in source.names}  # binding refuses two tensors with one name
        blocks = BLOCKS.get(self._type)
        linears = [*POOLERS, *(linear for head in HEADS.get(self._type, ()) for linear in head.maps)]
        optional = {name for linear in linears if not linear.tied for name in linear.weights}  # `encode` needs no head
        merged: dict[str, Callable[[Table], Table]] = {}
        for path, begin in self._maps.items():
            name = named.get(weight := f"{path}.weight")
            if name is None and weight in optional:
                continue
            if name is None:
                message = f"the adapter changes {path!r}, and the base has no such weight; {OTHER_BASE} If it is, "
                raise self._refused(f"{message}transformers has a name for this map that its file lacks: {MERGE}")
            transposed = blocks is not None and blocks.transposed and path.startswith(blocks.begins)
            self._check_shapes(begin, source.tensor(name).shape, transposed)
            merged[name] = partial(self._merged, begin, transposed)
        source.merged = merged
        inside = self._family.scope_for(self._family.sides[0]) if self._family else ()
        for path, name in self._whole.items():
            if path.startswith((*inside, *(blocks.checked_prefixes if blocks else ()))):
                raise self._refused(f"{TENSORS} has {name!r} in place of the base's, and no head has it; {MERGE}")
            source.add(self._file, name, named.get(path, path))

    def _check_shapes(self, begin: str, shape: tuple[int, ...], transposed: bool) -> None:
        a, b = (self._file.tensor(begin + end).shape for end in ENDINGS)
        if (a[:1] + b[1:], b[:1] + a[1:]) != ((self._rank,) * 2, shape[::-1] if transposed else shape):
            shapes = f"for {begin!r}, a map of shape {shape}, A is {a} and B {b}, with r {self._rank}"
            raise self._refused(f"{shapes}; {OTHER_BASE}")

    def _merged(self, begin: str, transposed: bool, table: Table) -> Table:
        """Return the base's weight plus the adapter's product, in the table's dtype."""
        dtype = table.dtype
        with np.errstate(over="ignore", invalid="ignore"):
            a, b = (self._file.table(begin + end, dtype).array() for end in ENDINGS)
            change = (b @ a).T if transposed else b @ a
            weight = table.array() + dtype.type(self._scale) * change
        if not np.isfinite(weight).all():
            raise self._refused(f"{begin!r} makes a weight with numbers that are not finite; fetch it again")
        return StoredTable(weight, {"float32": "F32", "float64": "F64"}[dtype.name], dtype)

    def _refuse_other_kinds(self) -> None:
        neutral = {"bias": ("none",), "init_lora_weights": PLAIN_STARTS}
        if (kind := self._settings.get("peft_type")) != "LORA":
            raise self._refused(f"'peft_type' is {kind!r}, and LORA alone is computed here; {MERGE}")
        for key, value in self._settings.items():
            if key not in IGNORED and value and value not in neutral.get(key, ()):
                raise self._refused(f"{key!r} is {value!r:.80}, which is not computed here; {MERGE}")

    def _refused(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {problem}")


def _names(targets: str | Sequence[str], path: str) -> bool:
    """Return whether PEFT's setting matches a path: a pattern of the whole path, or a list of paths or their ends."""
    if isinstance(targets, str):
        return re.fullmatch(targets, path) is not None
    return any(f".{path}".endswith(f".{target}") for target in targets)
