"""`Encoder.identity`: one string for what a model computes, whatever the names and the format of its files.

A digest is the sha256 of a number's place and value; that of a model is the sha256 of a JSON object with the digests of
its parameters and its settings by name. Settings with their default value are left out, so that a setting which
minibert learns to read changes no identity before a folder uses it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError, TokenizerError
from minibert.families.parts.config import thawed
from minibert.families.parts.heads import BoundHead
from minibert.families.parts.modules import Embedding
from minibert.files.tables import FormulaTable, StoredTable, Table
from minibert.models.heads.labels import usual_activation
from minibert.threads.computing import cores
from minibert.threads.pool import parallel_for

from .folder import PAIRS, SPARSE, TokenWeights

if TYPE_CHECKING:
    from .sentences import Sentences

PIECE = 1 << 20  # numbers that are converted at once
# settings of config.json that are read and change no number; `only` of a row has more, each with one known value
SILENT = ("architectures", "auto_map", "model_type", "tie_word_embeddings", "tokenizer_class")
HEADS = {SPARSE: "masked_word", PAIRS: "classes", "": "classes"}  # class of a folder -> the head for its results


def identity_of(encoder: Sentences, settings: Mapping[str, Any], digests: Mapping[str, str]) -> str:
    """Return the identity; `settings`: the keys of config.json that were read, `digests`: see `parameter_digests`."""
    family, blocks = encoder.embeddings.family, encoder.block_family
    silent = {*SILENT, *family.only, *blocks.only}
    described = {
        "model_type": family.model_type,
        "config": {key: thawed(value) for key, value in settings.items() if value and key not in silent},
        "causal": encoder.stack.causal,
        "parameters": digests,
        "head": _head_settings(encoder),
        "tokenizer": _tokenizer_digest(encoder),
        "sentences": _sentence_settings(encoder),
    }
    return sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def parameter_digests(encoder: Sentences) -> dict[str, str]:
    """Return the digest of each parameter that the folder's results need, by its path in the reference."""
    numbers = {f"{path}.{part}": held for path, module in _modules(encoder) for part, held in _parts(module)}
    parts = (part for block in encoder.stack.blocks for part in block.parts)
    numbers |= {f"{part.sum}.factor": np.array([part.factor]) for part in parts if part.factor != 1}
    digests = dict.fromkeys(numbers, "")

    def compute_digest(path: str) -> None:
        digests[path] = digest(numbers[path])

    parallel_for(compute_digest, [*numbers], cores() if encoder.threads is None else encoder.threads)
    return digests


def digest(numbers: Array | Table) -> str:
    """Return the sha256 of a parameter: its shape, and its numbers as float32, row after row.

    >>> digest(np.array([1, 2], np.float16)) == digest(np.array([1.0, 2.0])) != digest(np.array([[1.0, 2.0]]))
    True
    """
    hasher = sha256(str(tuple(map(int, numbers.shape))).encode())
    count = max(1, PIECE // max(1, math.prod(numbers.shape[1:])))
    for first in range(0, numbers.shape[0], count):
        rows = slice(first, first + count)
        piece = numbers.rows(rows) if isinstance(numbers, Table) else numbers[rows]
        hasher.update(np.ascontiguousarray(piece, "<f4").data)
    return hasher.hexdigest()


def _modules(encoder: Sentences) -> Iterator[tuple[str, Any]]:
    """Yield the modules with parameters, by their paths."""
    yield from encoder.modules.items()
    if (head := _head(encoder)) is not None:
        yield from ((f"head.{path}", module) for path, module in (*head.works, (head.path, head.last)))


def _parts(module: Any) -> Iterator[tuple[str, Array | Table]]:
    """Yield a module's weight and bias, as they are in memory or mapped; a formula's rows are no parameters."""
    weight = module.table if isinstance(module, Embedding) else getattr(module, "source", None)
    weight = getattr(module, "weight", None) if weight is None else weight
    for part, numbers in (("weight", weight), ("bias", getattr(module, "bias", None))):
        if isinstance(numbers, np.ndarray | Table) and not isinstance(numbers, FormulaTable):
            yield part, numbers


def _tokenizer_digest(encoder: Sentences) -> str | None:
    """Return the tokenizer's digest; None without a tokenizer, since ids work without one."""
    with suppress(TokenizerError):
        return encoder.sentence_tokenizer.digest
    return None


def _head(encoder: Sentences) -> BoundHead | None:
    """Return the head that computes the results for which the folder was saved; None if no head does."""
    kind = encoder.sentence_config.kind
    if (name := HEADS.get(kind)) is None or (not kind and name not in encoder.heads):
        return None
    with suppress(*[CheckpointError] * (not kind)):  # a head that cannot be bound has no results
        return encoder.head(name)
    return None


def _head_settings(encoder: Sentences) -> Any:
    if (head := _head(encoder)) is None:
        return None
    steps = [work.__name__ for _, work in head.works if hasattr(work, "__name__")]
    described = {"labels": head.labels, "tokens": head.pooling, "steps": steps}
    if head.name == "classes":
        described["problem_type"] = encoder.config.get("problem_type")
        activation = usual_activation(encoder.sentence_config.activation, encoder.config, head.labels)
        described["activation"] = activation.__name__
    return described


def _sentence_settings(encoder: Sentences) -> dict[str, Any]:
    """Return the settings of sentence vectors that have another value than the default."""
    sentence_config = encoder.sentence_config
    usual = sentence_config._field_defaults
    changed = {name: value for name, value in sentence_config._asdict().items() if value != usual[name]}
    changed["similarity"] = sentence_config.measure
    if sentence_config.result == "dense" and sentence_config.kind:  # the tokenizer's own length is for a head
        changed.pop("tokenizer_length", None)
    if sentence_config.late and sentence_config.late.expansion:
        named = encoder.sentence_tokenizer.named
        changed["mask"] = sentence_config.late.expansion.token or named.get("mask") or named.get("eos")
    for name in ("longest_from", "static", "activation"):
        changed.pop(name, None)
    return {name: _plain(value) for name, value in changed.items()}


def _plain(value: Any) -> Any:
    """Return a setting as JSON: a function by its name and its keywords, numbers by their digest."""
    if isinstance(value, np.ndarray | StoredTable):
        return digest(value)
    if isinstance(value, partial):
        return [_plain(value.func), {name: _plain(one) for name, one in value.keywords.items()}]
    if isinstance(value, TokenWeights):
        return [digest(value.weights), value.tokenizer().digest, value.longest]
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value.__name__ if callable(value) else value
