"""Batches of every kind that a layer takes, and the comparison of two traces of them, intermediate by intermediate.

A trace here has two levels: kind of batch -> name of the intermediate -> array. The inputs are kept beside it. In a
file the names are "<kind>|inputs|<name>" and "<kind>|<key>".
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.families.steps import Add, Lookup, Norm, Positions, Project
from minibert.files.writing import write_output
from minibert.models.layer import EmbeddingLayer

if TYPE_CHECKING:
    from minibert.models.encoder import Encoder

Traces = dict[str, dict[str, Array]]  # kind -> name -> array

# |difference| / max(1, |value|) after a norm or a projection. Measured against torch: 5.7e-7 on 65 tiny checkpoints,
# 3.6e-7 on all-MiniLM-L6-v2 and on BERT's own sizes. Before them nothing may differ: rows are copied, sums round alike.
TOLERANCE = 2e-6

SEQUENCES, LENGTH, PAST = 3, 7, 3  # three sequences of seven tokens; three tokens in the cache
UNMASKED = {"right_pad": "right_pad_no_mask", "pads_inside_mask": "pads_inside"}
READABLE = ("F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")
NAMED = {"token_type_ids": "types", "langs": "languages", "task_type_ids": "tasks"}


# -- batches -----------------------------------------------------------------------------------------------------


def batches(layer: EmbeddingLayer) -> Traces:
    """Make a batch of every kind the layer takes: kind -> keywords of a call (past_length as an array of one number).

    plain; with a mask right_pad, left_pad, pads_inside_mask, mask_unlike_ids; without one pads_inside,
    right_pad_no_mask; inputs_embeds; types, languages, tasks; explicit_positions, full_length; cached and cached_mask.
    Made by integer arithmetic, the same on every machine.
    """
    longest = layer.max_length
    seq = LENGTH if longest is None else max(1, min(LENGTH, longest - PAST))
    ids = _ids((SEQUENCES, seq), layer, salt=1)
    kinds: Traces = {"plain": {"input_ids": ids}}
    for kind, mask in _masks(ids.shape).items():
        padded = np.where(mask == 1, ids, padding_id(layer))
        kinds[kind] = {"input_ids": padded, "attention_mask": mask}
        if kind != "left_pad":
            kinds[UNMASKED[kind]] = {"input_ids": padded}
    kinds["mask_unlike_ids"] = _mask_unlike_ids(ids, padding_id(layer))
    numbers = _hash((*ids.shape, layer.steps[0].module.table.shape[1]), 2)
    kinds["inputs_embeds"] = {"inputs_embeds": (numbers % 2001 / 10000 - 0.1).astype(np.float32)}
    for step, module in layer.steps:
        if isinstance(step, Add):
            kinds[NAMED.get(step.ids, step.ids)] = {
                "input_ids": ids,
                step.ids: _hash(ids.shape, 3) % min(3, module.table.shape[0]),
            }
        elif isinstance(step, Positions):
            kinds |= _positions(layer, step, module.table.shape[0] - step.extra, ids)
    return kinds


def _positions(layer: EmbeddingLayer, step: Positions, rows: int, ids: Array) -> Traces:
    """The batches that only layers with a position table take."""
    assert layer.max_length is not None  # there is a table
    batch, seq = ids.shape
    scattered = np.stack([np.arange(seq)[::-1], *(_hash((batch - 1, seq), 4) % rows)])
    scattered[-1, -1] = rows - 1
    kinds: Traces = {
        "explicit_positions": {"input_ids": ids, "position_ids": scattered},
        "full_length": {"input_ids": _ids((1, layer.max_length), layer, salt=5)},
    }
    if not step.cached or (layer.side == "encoder" and "decoder" in layer.family.sides):
        return kinds
    kinds["cached"] = {"input_ids": ids, "past_length": np.array(PAST)}
    if step.rule == "mask":
        mask = np.ones((batch, PAST + seq), np.int64)
        mask[1, : PAST - 1] = 0
        kinds["cached_mask"] = {**kinds["cached"], "attention_mask": mask}
    return kinds


def padding_id(layer: EmbeddingLayer) -> int:
    """The id of padding, or 0 where the config names none that is a row."""
    for step, _ in layer.steps:
        if isinstance(step, Positions) and step.rule == "padding":
            return step.padding(layer.config)
    pad = layer.config.get("pad_token_id")
    return pad if type(pad) is int and 0 <= pad < layer.steps[0].module.table.shape[0] else 0


def _hash(shape: tuple[int, ...], salt: int) -> Array:
    """Scattered integers of 31 bits, made by multiplications that overflow."""
    index = np.arange(1, 1 + int(np.prod(shape)), dtype=np.uint64) + np.uint64(salt << 32)
    mixed = index * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    scattered: Array = (mixed >> np.uint64(33)).astype(np.int64).reshape(shape)
    return scattered


def _ids(shape: tuple[int, int], layer: EmbeddingLayer, salt: int) -> Array:
    """Ids other than padding, among them the table's last row."""
    vocab, pad = layer.steps[0].module.table.shape[0], padding_id(layer)
    other = _hash(shape, salt) % max(1, vocab - 1)
    ids: Array = np.minimum(other + (other >= pad), vocab - 1)
    if pad != vocab - 1:
        ids[0, -1] = vocab - 1
    return ids


def _masks(shape: tuple[int, ...]) -> dict[str, Array]:
    right, left, inside = (np.ones(shape, np.int64) for _ in range(3))
    right[1, shape[1] // 2 :] = 0
    left[1, : shape[1] // 2] = 0
    inside[0, 1::3] = inside[1, ::2] = 0
    return {"right_pad": right, "left_pad": left, "pads_inside_mask": inside}


def _mask_unlike_ids(ids: Array, padding: int) -> dict[str, Array]:
    """Words that the mask hides, and padding that it keeps: positions count by the one or by the other."""
    mask, padded = np.ones_like(ids), ids.copy()
    mask[0, 1::3] = 0
    padded[1, ::3] = padding
    mask[2, : ids.shape[1] // 2] = 0
    return {"input_ids": padded, "attention_mask": mask}


def trace(layer: EmbeddingLayer | Encoder, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Trace one batch, with past_length as a file holds it."""
    keywords: dict[str, Any] = dict(inputs)
    if "past_length" in keywords:
        keywords["past_length"] = int(np.asarray(keywords["past_length"]).item())
    return layer.trace(keywords.pop("input_ids", None), **keywords)


# -- comparison --------------------------------------------------------------------------------------------------


class Difference(NamedTuple):
    """How one intermediate of one or several kinds of batches compares.

    largest is |ours - theirs| / max(1, |theirs|); equal the share of entries with the same value; the two errors are
    root mean squares against float64, NaN where there is no float64 to compare with.
    """

    key: str
    kinds: tuple[str, ...]
    largest: float
    equal: float
    error_ours: float
    error_theirs: float
    tolerance: float

    @property
    def passes(self) -> bool:
        """Whether the difference is within what rounding allows."""
        return self.largest <= self.tolerance  # False for NaN


def tolerances(layer: EmbeddingLayer) -> dict[str, float]:
    """How much each intermediate may differ: 0 before the first norm or projection, `TOLERANCE` after it."""
    allowed, so_far = {"position_ids": 0.0}, 0.0
    for step, _ in layer.steps:
        if isinstance(step, Norm):
            allowed["sum"] = so_far
        if isinstance(step, Norm | Project):
            so_far = TOLERANCE
        allowed[step.path + getattr(step, "role", "")] = 0.0 if isinstance(step, Lookup) else so_far
    allowed.setdefault("sum", so_far)
    return allowed


def compare(ours: Traces, theirs: Traces, truth: Traces, allowed: Mapping[str, float]) -> list[Difference]:
    """Compare every intermediate that both have, kind by kind; `truth` is the same layer in float64."""
    return [
        _compare(key, kind, mine[key], theirs[kind][key], truth.get(kind, {}).get(key), allowed.get(key, TOLERANCE))
        for kind, mine in ours.items()
        for key in mine
        if key in theirs.get(kind, {})
    ]


def misfits(ours: Traces, theirs: Traces) -> list[str]:
    """List the intermediates whose shape is not that of ours: they cannot be the same thing."""
    return [
        f"{kind}|{key} has shape {theirs[kind][key].shape}, expected {mine[key].shape}"
        for kind, mine in ours.items()
        for key in mine
        if key in theirs.get(kind, {}) and not fits(mine[key], theirs[kind][key])
    ]


def _compare(key: str, kind: str, ours: Array, theirs: Array, truth: Array | None, tolerance: float) -> Difference:
    if not fits(ours, theirs):
        return Difference(key, (kind,), np.inf, 0.0, np.nan, np.nan, tolerance)
    shape = np.broadcast_shapes(ours.shape, theirs.shape)
    a, b = (np.broadcast_to(x, shape).astype(np.float64) for x in (ours, theirs))
    with np.errstate(invalid="ignore"):  # infinity less infinity is NaN, which passes nothing
        largest = float(np.max(np.abs(a - b) / np.maximum(1, np.abs(b)), initial=0.0))
    equal = float(np.mean(a == b)) if a.size else 1.0
    errors = (np.nan, np.nan)
    if truth is not None and truth.dtype.kind == "f":
        errors = (rms(a - truth), rms(b - truth))
    return Difference(key, (kind,), largest, equal, *errors, tolerance)


def fits(ours: Array, theirs: Array) -> bool:
    """Whether two arrays can be compared: of one shape, or one of them a batch of one that stands for all.

    References differ in that: positions are (seq,), (1, seq) or (batch, seq). Without a batch axis an array stands for
    all only where ours are all the same; else an axis was lost.

    >>> rows, same = np.arange(6).reshape(2, 3), np.ones((2, 3))
    >>> fits(rows, rows[:1]), fits(same, same[0]), fits(rows, rows[0]), fits(rows, rows[:0])
    (True, True, False, False)
    """
    axes = max(ours.ndim, theirs.ndim)
    a, b = (x.reshape((1,) * (axes - x.ndim) + x.shape) for x in (ours, theirs))
    if a.shape == b.shape:
        return True
    if a.shape[1:] != b.shape[1:] or not a.size or not b.size:
        return False
    return len(a) == 1 or (len(b) == 1 and (theirs.ndim == ours.ndim or bool(np.all(a == a[:1]))))


def rms(x: Array) -> float:
    """Root mean square; 0 of nothing."""
    return float(np.sqrt(np.mean(np.square(x)))) if x.size else 0.0


def over_kinds(differences: Iterable[Difference]) -> list[Difference]:
    """Combine all kinds: for each intermediate the largest difference, the mean share, the root mean square errors."""
    grouped: dict[str, list[Difference]] = {}
    for difference in differences:
        grouped.setdefault(difference.key, []).append(difference)
    return [
        Difference(
            key,
            tuple(kind for d in group for kind in d.kinds),
            max((d.largest for d in group), key=lambda x: (np.isnan(x), x)),
            float(np.mean([d.equal for d in group])),
            rms(np.array([d.error_ours for d in group])),
            rms(np.array([d.error_theirs for d in group])),
            group[0].tolerance,
        )
        for key, group in grouped.items()
    ]


# -- files -------------------------------------------------------------------------------------------------------


def write_traces(path: Path, inputs: Traces, traces: Traces) -> None:
    """Write inputs and intermediates for a port in another language; the file appears complete or not at all."""
    from safetensors.numpy import save

    arrays = {f"{kind}|inputs|{name}": np.asarray(a) for kind, named in inputs.items() for name, a in named.items()}
    arrays |= {f"{kind}|{key}": array for kind, named in traces.items() for key, array in named.items()}
    # not save_file, which makes files that their owner alone may read
    write_output(path, save({name: np.array(array, order="C") for name, array in arrays.items()}))


def read_traces(path: Path) -> tuple[Traces, Traces]:
    """Read such a file: inputs and intermediates. Raises ValueError for another file."""
    from safetensors import SafetensorError, safe_open

    if path.is_dir():  # the library would speak of a device
        raise IsADirectoryError(f"{path} is a folder; name the file in it")
    inputs: Traces = {}
    traces: Traces = {}
    try:
        with safe_open(str(path), framework="np") as file:
            names = list(file.keys())
            for name in names:
                kind, _, key = name.partition("|")
                if not key:
                    continue
                stored = file.get_slice(name).get_dtype()
                if stored not in READABLE:
                    raise ValueError(f"{path}: {name} is stored as {stored}; store it as F32, integers as I64")
                array = file.get_tensor(name)
                if key.startswith("inputs|"):
                    inputs.setdefault(kind, {})[key.removeprefix("inputs|")] = array
                else:
                    traces.setdefault(kind, {})[key] = array
    except SafetensorError:
        raise ValueError(f"{path}: {_why_unreadable(path)}; write it anew, as `save` writes it") from None
    if not traces:
        raise ValueError(f'{path}: expected names such as "plain|sum", found {_some(names)}')
    return inputs, traces


def _why_unreadable(path: Path) -> str:
    with open(path, "rb") as file:
        size, length = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
    if size < 8 + length:
        return f"not a safetensors file, or cut short: its {size} bytes should begin with a header of {length}"
    return f"cut short or damaged: its header does not describe the {size - 8 - length} bytes that follow"


def _some(names: Iterable[str]) -> str:
    shown: Sequence[str] = sorted(names)[:4]
    return ", ".join(map(repr, shown)) or "no tensor"
