"""`minibert.compare`: what `minibert verify` does with a port's numbers, for somebody's own tests."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from minibert.models.run.attributes import hinted

from .verify import verify

if TYPE_CHECKING:
    from minibert.equations.input_layer import Array

    from .report import Report

VECTORS = (".npy", ".jsonl", ".parquet")  # files that can hold nothing else; the last is refused in words


class Comparison(NamedTuple):
    """The comparison and its verdict; as a text it reads as `minibert verify` prints it.

    passed       all is there and equal within the tolerance
    differences  what is too far from the model's: intermediate, or text of a vector, -> how far
    mistakes     names of the mistakes that explain all of it, else of those that explain a module, as MISTAKES.md
                 has them
    lines        what a person reads
    """

    passed: bool
    differences: dict[str, float]
    mistakes: list[str]
    lines: list[str]

    def __bool__(self) -> bool:  # else `assert compare(...)` would hold of a wrong port
        return self.passed

    def __str__(self) -> str:
        return "\n".join(self.lines)


@hinted
def compare(
    model: str | os.PathLike[str],
    against: str | os.PathLike[str] | Mapping[str, Array] | Array,
    *,
    encoder: bool = True,
    side: str | None = None,
    texts: Sequence[str] = (),
    only: Sequence[str] | None = None,
    tolerance: float = 0.0,
    format: str = "float32",  # noqa: A002 - as the command's option
    batches: Sequence[str] | None = None,
    revision: str | None = None,
    local_files_only: bool = False,
) -> Comparison:
    """Compare a model with a port's numbers: is the port right, and if not, which mistake is it?

        def test_my_port():
            found = minibert.compare("./model", against=my_port.trace("./model"))
            assert found.passed, str(found)

    model: a folder or a Hub name. against, intermediates: a dict of arrays named as in a file that `minibert verify
    --save` writes ("plain|inputs|input_ids", "plain|sum"), such a file, a folder of transformers'
    debugger, or an ONNX model. Vectors: an array (n, dim), or a file .npy or .jsonl, of `texts`, or of those that
    `minibert verify --print-texts` prints.

    encoder: compare the whole model; False: its input layer alone, the `side` of it. texts: of intermediates, texts
    that the port has too, as "text 1" and so on. only, tolerance, format, batches: as the command's
    options.

    Raises TypeError for an argument of another type, and what the command ends with 2 or 3 for: ValueError and OSError
    for what cannot be compared, MinibertError for a model that cannot be opened.
    """
    _check(model, against, texts=texts, only=only or (), batches=batches or ())
    if not isinstance(tolerance, int | float):
        raise TypeError(f"tolerance must be a number, found {tolerance!r}")
    name = os.fspath(model)
    hub: dict[str, Any] = {"revision": revision, "local_files_only": local_files_only}
    if isinstance(against, np.ndarray) or (not isinstance(against, Mapping) and _is_vectors(Path(against))):
        if side or only or batches or format != "float32":
            raise ValueError("side, only, format and batches are for intermediates, not for vectors")
        from .vectors import verify_vectors

        given = against if isinstance(against, np.ndarray) else Path(against)
        return _compared(verify_vectors(name, given, list(texts) or None, tolerance=tolerance, **hub))
    report = verify(
        name, texts, encoder=encoder, side=side, against=against, only=only, tolerance=tolerance, kinds=batches,
        form=format, **hub,
    )  # fmt: skip
    return _compared(report)


def _check(model: object, against: object, **listed: object) -> None:
    if isinstance(against, str) and not against:
        raise ValueError("against is empty; name a file or a folder")
    if not isinstance(model, str | os.PathLike):
        raise TypeError(f"model must be a folder or a Hub name, found {type(model).__name__}")
    if not isinstance(against, str | os.PathLike | Mapping | np.ndarray):
        expected = "a path, a dict of arrays, or an array of vectors"
        raise TypeError(f"against must be {expected}, found {type(against).__name__}")
    for name, texts in listed.items():
        if not isinstance(texts, Sequence) or isinstance(texts, str) or not all(isinstance(x, str) for x in texts):
            raise TypeError(f"{name} must be a list of str, found {texts!r}")


def _is_vectors(path: Path) -> bool:
    return path.suffix.lower() in VECTORS and not path.is_dir()


def _compared(report: Report) -> Comparison:
    from .judge.compare import over_kinds

    wrong = {d.key: d.largest for d in over_kinds(report.differences) if not report.accepted.get(d.key, d.passes)}
    wrong |= {each["text"]: _far(each["distance"]) for each in report.texts if not each["passed"]}
    by_module = list(dict.fromkeys(fit for each in report.local for fit in each.fits))
    return Comparison(report.passed, wrong, report.matches or by_module, report.lines)


def _far(distance: float | None) -> float:
    return np.inf if distance is None else distance
