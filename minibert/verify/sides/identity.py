"""The metadata of a saved file names its model and hashes its parameters; a file of another model is refused.

    {"format": 1, "versions": {...}, "model": name, "model_type": type, "sha256": of all of them,
     "parameters": {path: sha256}}

A parameter's sha256 is of its shape and its numbers in float32, whatever the file stores. Tables that are read from the
Hub row by row, or made by a formula, are left out. A file of the whole model can be compared with its input layer
alone: the parameters that both have are compared. A file without metadata is compared only by its numbers.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from minibert.files.tables import StoredTable
from minibert.verify.judge.input_layer import Subject

FORMAT = 1  # of the file's metadata, and of the names in it
AT_ONCE = 1 << 20  # numbers that are converted at once


def about(subject: Subject, name: str) -> str:
    """Give the metadata of a file that is saved from this subject, as JSON."""
    parameters = parameters_of(subject)
    versions = {"minibert": sys.modules["minibert"].__version__, "numpy": np.__version__}
    return json.dumps({
        "format": FORMAT, "versions": versions, "model": name, "model_type": subject.layer.family.model_type,
        "sha256": _of_all(parameters), "parameters": parameters,
    })  # fmt: skip


def parameters_of(subject: Subject) -> dict[str, str]:
    """Give the sha256 of each parameter that is at hand, by its path."""
    named = listed(subject.model.modules)
    at_hand = {path: x for path, x in named if isinstance(x, StoredTable | np.ndarray)}
    return {path: sha256_of(x, repr(tuple(map(int, x.shape))).encode()) for path, x in at_hand.items()}


def sha256_of(x: Any, before: bytes = b"") -> str:
    """Give the sha256 of a parameter's numbers in float32, after some bytes.

    Few rows are converted at once: a wide copy of a whole table would be as large as the model.
    """
    found, step = hashlib.sha256(before), max(1, AT_ONCE // max(1, int(np.prod(x.shape[1:]))))
    rows = x.rows if isinstance(x, StoredTable) else x.__getitem__
    for start in range(0, x.shape[0], step):
        found.update(np.ascontiguousarray(rows(slice(start, start + step)), "<f4").data)
    return found.hexdigest()


def listed(modules: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """List the parameters of modules by their paths: arrays, and tables that are not read yet."""
    for path, module in modules.items():
        if hasattr(module, "table"):
            yield f"{path}.weight", module.table
            continue
        for name in ("weight", "bias"):
            if (array := getattr(module, name)) is not None:
                yield f"{path}.{name}", array


def check(metadata: str | None, subject: Subject, name: str, path: str) -> None:
    """Refuse a file of another model, or of a format that is newer. Raises ValueError, which names both."""
    if metadata is None:
        return
    try:
        read = json.loads(metadata)
        number, theirs = read["format"], read["parameters"]
        if not isinstance(number, int) or not isinstance(theirs, dict):
            raise TypeError
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"{path}: its metadata is damaged; write it anew, as `save` writes it") from None
    if number > FORMAT:
        made = read.get("versions")
        raise ValueError(
            f"{path} is of format {number}, by {made!r:.80}; this minibert reads up to {FORMAT}: install a newer one"
        )
    ours = parameters_of(subject)
    both = [key for key in ours if key in theirs]
    other = [key for key in both if ours[key] != theirs[key]]
    if other or (ours and theirs and not both):
        shown = "no parameter is in both"
        if other:
            shown = f"{len(other)} of {len(both)} parameters differ, first {other[0]}"
        kind, whole = read.get("model_type"), str(read.get("sha256"))
        raise ValueError(
            f"{path} was saved from {read.get('model')!r} ({kind}, sha256 {whole[:12]}), which is another model than "
            f"{name!r} ({subject.layer.family.model_type}, sha256 {_of_all(ours)[:12]}): {shown}; save it anew from "
            "this model"
        )


def _of_all(parameters: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(sorted(parameters.items())).encode()).hexdigest()
