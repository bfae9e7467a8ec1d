"""What `encode` and its kin are passed, by the names of sentence-transformers, and what of it is refused."""

from __future__ import annotations

from typing import Any, TypedDict

from numpy.typing import ArrayLike

from minibert.equations.input_layer import Array
from minibert.equations.quantization import STEPS, check_precision, quantized
from minibert.errors import warn
from minibert.models.run.pipeline import check_positive

OUTPUTS = ("sentence_embedding", "token_embeddings")
TASKS = (None, "query", "document")
TRUNCATIONS = ("ignore", "warn", "error")


class EncodeOptions(TypedDict, total=False):
    """What else `encode` takes by name, for the types of its overloads."""

    batch_size: int
    show_progress_bar: bool | None
    precision: str | None
    convert_to_numpy: bool
    convert_to_tensor: bool
    device: Any
    normalize_embeddings: bool
    truncate_dim: int | None
    task: str | None
    threads: int | None
    ranges: ArrayLike | None
    truncation: str


class PredictOptions(TypedDict, total=False):
    """What else `predict` takes by name, for the types of its overloads."""

    batch_size: int
    show_progress_bar: bool | None
    activation_fn: Any
    apply_softmax: bool
    convert_to_numpy: bool
    convert_to_tensor: bool
    device: Any
    threads: int | None


ENOUGH = 100  # vectors, of which int8 and uint8 may take their ranges without a word


def given_once(what: str, **given: Any) -> Any:
    """Give an argument that has several names. Raises TypeError unless one is used."""
    found = [value for value in given.values() if value is not None]
    if len(found) != 1:
        names, count = ", ".join(given), len(found) or "none"
        raise TypeError(f"{next(iter(given))} must be {what}, passed once, as {names}; found {count}")
    return found[0]


def check_task(task: Any) -> None:
    """Refuse another task than those that a folder may treat in its own way. Raises ValueError."""
    if task not in TASKS:
        raise ValueError(f"task must be None, 'query' or 'document', found {task!r}")


def check_smaller(precision: str | None, output_value: str) -> None:
    """Raises ValueError for an unknown precision, and for another than float32 of tokens."""
    if precision is None:
        return
    check_precision(precision)
    if precision != "float32" and output_value == OUTPUTS[1]:
        raise ValueError(f"precision {precision!r} is for sentence vectors; leave it out with {OUTPUTS[1]}")


def smaller(vectors: Array, precision: str | None, ranges: ArrayLike | None = None) -> Array:
    """Quantize vectors; warn where int8 and uint8 take their ranges from few. Raises as `quantized`."""
    if ranges is not None and precision not in STEPS:
        raise ValueError(f"ranges are for precision int8 or uint8, found {precision!r}; leave them out")
    if precision is None:
        return vectors
    if ranges is None and (said := few(precision, len(vectors))):
        warn(f"{said}; pass ranges, as equations.ranges_of gives them of others")
    return quantized(vectors, precision, ranges)


def few(precision: str, count: int) -> str:
    """Say that ranges come from few vectors, if so."""
    if precision not in STEPS or not 1 < count < ENOUGH:
        return ""
    return f"{precision} takes its ranges from {count} vectors; {ENOUGH} or more make better ones"


def check_truncation(truncation: Any) -> None:
    """Refuse what `encode` does not do with texts that are too long. Raises ValueError."""
    if truncation not in TRUNCATIONS:
        raise ValueError(f"truncation must be one of {', '.join(map(repr, TRUNCATIONS))}, found {truncation!r}")


def check_other_arguments(batch_size: Any, convert_to_numpy: Any, convert_to_tensor: Any, device: Any) -> None:
    """Refuse arguments of sentence-transformers that ask for something else than arrays of float32 on the CPU."""
    check_positive("batch_size", batch_size)
    advice = "this encoder gives NumPy arrays on the CPU; leave it out"
    if convert_to_numpy is not True:
        raise ValueError(f"convert_to_numpy must be True, found {convert_to_numpy!r}: {advice}")
    if convert_to_tensor is not False:
        raise ValueError(f"convert_to_tensor must be False, found {convert_to_tensor!r}: {advice}")
    if device is not None and str(device) != "cpu":
        raise ValueError(f"device must be None or 'cpu', found {device!r}: {advice}")
