"""Reference values that ship with the package, found by the numbers of a checkpoint, whatever its name.

`FILE`, made by scripts/reference/shipped.py: a few texts with their ids, every intermediate of the input layer, and for
one text the output of each block. A model is that checkpoint if all its parameters have the same bits; neither a name
nor a size proves it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minibert.files.tables import StoredTable
from minibert.models.encoder import Encoder
from minibert.models.input_layer import EmbeddingLayer
from minibert.verify.report import Text

from .traces import Traces, read_traces

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
FILE = Path(__file__).parents[1] / "data/all-MiniLM-L6-v2.safetensors"
AT_ONCE = 1 << 20  # numbers that are converted at once: a wide copy of a whole table would be as large as the model
INPUT_LAYER = "embeddings."  # where a BERT's parameters of it are


class Values(NamedTuple):
    """The reference's inputs and intermediates of one published checkpoint, kind -> name -> array."""

    reference: str  # such as "transformers 5.23.0 on torch 2.13.0"
    texts: list[Text]  # the ids and types of each text, or of two that go together
    inputs: Traces
    traces: Traces  # of the input layer for every kind, and for some hidden_states.1 and so on


def find(model: EmbeddingLayer | Encoder) -> Values | None:
    """Give the values of the checkpoint that has these parameters: those of the input layer, or all of an encoder.

    Where a size differs, nothing is read. Else the sha256 of each parameter in float32 is compared, the smallest first,
    until one differs. A model on the Hub has its tables fetched only if all smaller parameters are the same.
    """
    about = _about()
    if not _same(dict(_listed(model.modules)), about["parameters"]):
        return None
    inputs, traces = read_traces(FILE)
    versions = about["versions"]
    reference = f"transformers {versions['transformers']} on torch {versions['torch']}"
    ids = [{name: x[0].tolist() for name, x in inputs[f"text {i}"].items()} for i in range(1, 1 + len(about["texts"]))]
    return Values(reference, list(zip(about["texts"], ids, strict=True)), inputs, traces)


def _same(parameters: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether these are all the parameters that are wanted, or all of the input layer's, with the same numbers."""
    layer = {path for path in wanted if path.startswith(INPUT_LAYER)}
    if set(parameters) not in (layer, set(wanted)):
        return False
    if any(list(x.shape) != wanted[path][0] for path, x in parameters.items()):
        return False
    smallest_first = sorted(parameters.items(), key=lambda each: int(np.prod(each[1].shape)))
    return all(sha256_of(_whole(x)) == wanted[path][1] for path, x in smallest_first)


def _listed(modules: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """List the parameters of modules by their paths: arrays, and tables that are not read yet."""
    for path, module in modules.items():
        if hasattr(module, "table"):
            yield f"{path}.weight", module.table
            continue
        for name in ("weight", "bias"):
            if (array := getattr(module, name)) is not None:
                yield f"{path}.{name}", array


def sha256_of(x: Any) -> str:
    """Give the sha256 of a parameter's numbers in float32; few rows are converted at once."""
    found, step = hashlib.sha256(), max(1, AT_ONCE // max(1, int(np.prod(x.shape[1:]))))
    rows = x.rows if isinstance(x, StoredTable) else x.__getitem__
    for start in range(0, x.shape[0], step):
        found.update(np.ascontiguousarray(rows(slice(start, start + step)), "<f4").data)
    return found.hexdigest()


def _whole(x: Any) -> Any:
    """A table on the Hub is fetched at once, and not row by row."""
    return x if isinstance(x, np.ndarray | StoredTable) else x.array()


def _about() -> dict[str, Any]:
    from safetensors import safe_open

    with safe_open(str(FILE), framework="np") as file:
        about: dict[str, Any] = json.loads(file.metadata()["about"])
    return about
