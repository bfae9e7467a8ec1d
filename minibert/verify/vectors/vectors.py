"""Says whether vectors are the model's, and if not, which setting or mistake gives them: `minibert verify --vectors`.

Vectors pass as the model's own, or as its own computation in a narrower format. Else each other way from texts to
vectors is tried on the four shortest texts that differ, and what fits there on all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError
from minibert.files.lines import raw_lines
from minibert.models.encoder import Encoder
from minibert.models.open.load_encoder import load_encoder
from minibert.threads.computing import on_one_thread
from minibert.verify.differences import rms
from minibert.verify.mistakes.wrong_formulas import ROUNDINGS, Formula
from minibert.verify.places import ROUNDS
from minibert.verify.report import Comparison, table
from minibert.verify.shipped import TEXTS
from minibert.verify.traces import opened, read_npy

from .ways import FORMS, Make, Way, Ways

SAME = 1e-5  # of a vector's length: measured 1.3e-6 between right programs that compute all-MiniLM-L6-v2
STRAY = 1e-4  # a wrong model may be more sensitive: some text in ten may be so far away
FEW, SEVERAL = 4, 16  # texts by which most ways are ruled out, and by which formats are told from mistakes
DECIMALS = range(2, 7)  # more are within float32's own rounding; of one most vectors are zeros
LISTED, SHOWN = 20, 60  # texts of a list, and letters of a text
ALIKE = 0.4  # cosine of two differences: measured 0.62 and 0.64 where torch computes all-MiniLM-L6-v2 in FORMS
HALF, TINY = 0.5, 1e-30  # of a difference, squared; no division by 0
BROKEN, ANOTHER_ORDER = "NaN or infinity", "texts in another order"


def verify_vectors(
    model: str,
    vectors: Path | Array,
    texts: Sequence[str] | None = None,
    *,
    prompt: str | None = None,
    tolerance: float = 0.0,
    revision: str | None = None,
    local_files_only: bool = False,
) -> Comparison:
    """Say whether vectors are the model's, text by text, and which setting or mistake gives them if not.

    vectors: a file as `read_vectors` reads it, or an array (n, dim). texts: those of the vectors, in their order;
    without them they are those of the file of vectors, where that has them, else `TEXTS`. prompt: the text that stands
    before each of them; None: the model's own. tolerance: the largest distance that passes, as a share of a vector's
    length; `SAME` passes always.

    Raises ValueError where vectors and texts do not belong together, and what reading raises.
    """
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be from 0 to below 1, found {tolerance}")
    found, own = read_vectors(vectors) if isinstance(vectors, Path) else (as_vectors(vectors, "the array"), None)
    source = vectors if isinstance(vectors, Path) else "the array"
    if texts is not None and own is not None and list(texts) != own:
        raise ValueError(f"{source} has texts, and they are not those that were passed; leave one out")
    asked = list(texts or own or [each.text for each in TEXTS])
    if len(found) != len(asked):
        raise ValueError(f"{source} has {len(found)} vectors, but there are {len(asked)} texts")
    with load_encoder(model, revision=revision, local_files_only=local_files_only) as encoder:
        report = Comparison(f"{model} ({encoder.embeddings.family.model_type})", f"vectors of {source}", "")
        judge(report, encoder, asked, found, prompt, tolerance)
    return report


def read_vectors(path: Path) -> tuple[Array, list[str] | None]:
    """Read vectors (n, dim), float32 or wider, and their texts where the file has them.

    .npy; .jsonl with a "vector" or an "embedding" a line, and maybe a "text". Raises ValueError that names file and
    line.
    """
    ending = opened(path).suffix.lower()
    if ending == ".npy":
        return as_vectors(read_npy(path), str(path)), None
    if ending != ".jsonl":
        raise ValueError(f"{path}: vectors are read of .npy and .jsonl, found {path.suffix or 'no ending'!r}; read it "
                         "where it was written, and save the array by numpy.save")  # fmt: skip
    rows, texts = list[Any](), list[str]()
    for number, line in enumerate(raw_lines(str(path)), 1):
        try:
            if line.strip():
                row = json.loads(line)
                rows.append([float(x) for x in row["embedding" if "embedding" in row else "vector"]])
                texts += [str(row["text"])] if "text" in row else []
        except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            wanted = 'an object with "vector", a list of numbers, and maybe "text"'
            raise ValueError(f"{path}, line {number}: expected {wanted} ({error!r:.80})") from None
    if texts and len(texts) < len(rows):
        raise ValueError(f'{path}: {len(texts)} of {len(rows)} lines have a "text"; give all of them one, or none')
    return as_vectors(rows, str(path)), texts or None


def as_vectors(found: Any, where: str) -> Array:
    """Check that these are vectors, one a row: (n, dim). Raises ValueError."""
    try:
        array = np.asarray(found)
    except ValueError:  # rows of unequal length
        array = np.empty(0, object)
    if array.dtype.kind != "f" or array.ndim != 2 or not array.size:
        shown = "rows of unequal length" if array.dtype.kind == "O" else f"{array.dtype} of shape {array.shape}"
        raise ValueError(f"{where} must have one vector a row, (texts, numbers), as floats before they are quantized; "
                         f"found {shown}")  # fmt: skip
    return array.astype(np.float32) if array.dtype.itemsize < 4 else array


@on_one_thread
def judge(
    report: Comparison, encoder: Encoder, texts: Sequence[str], vectors: Array, prompt: str | None = None,
    tolerance: float = 0.0,
) -> None:  # fmt: skip
    """Compare vectors with the model's, and look for the way that makes them where they differ."""
    before, limit = encoder.sentence_config.prompt(None, prompt), max(tolerance, SAME)
    with np.errstate(all="ignore"):  # numbers of a port may be as large as they like
        right = np.asarray(encoder.encode([*texts], prompt=before))
        apart = distances(vectors, right)
        search = Search(Ways(encoder, before, texts, vectors.shape[1]), texts, vectors, right, apart)
        good = apart <= limit
        said = [] if good.all() else search.run(report)
        report.passed = bool(good.all() or report.rounding)
        good |= report.passed
        report.texts = [
            {"text": text, "distance": far if np.isfinite(far) else None, "passed": passed}
            for text, far, passed in zip(texts, apart.tolist(), good.tolist(), strict=True)
        ]
        wrong = np.flatnonzero(~good).tolist()
        how = f" in {report.rounding}" if report.rounding else f" within {limit:g}" if limit > SAME else ""
        others = f"; not those of texts {_numbers(wrong)}" if wrong else ""
        report.say(f"{len(texts) - len(wrong)} of {len(texts)} vectors are the model's{how}{others}", *said)
        rows = [[str(i + 1), f"{apart[i]:.2g}", repr(texts[i][:SHOWN])] for i in wrong[:LISTED]]
        if rows:
            report.say("", *table([["text", "distance", "of the vector's length, and text"], *rows]))


class Search:
    """Looks for a format in which vectors are the model's, and for the way by which they are not."""

    def __init__(self, ways: Ways, texts: Sequence[str], vectors: Array, right: Array, apart: Array) -> None:
        self.ways, self.texts, self.vectors, self.right, self.apart = ways, list(texts), vectors, right, apart
        differ = np.flatnonzero(apart > SAME).tolist()
        self.several: list[int] = sorted(differ, key=lambda i: (not texts[i].strip(), len(texts[i])))[:SEVERAL]
        self.few, self.every = self.several[:FEW], list(range(len(texts)))
        self.rounding, self.form = _stored(vectors)

    def run(self, report: Comparison) -> list[str]:
        """Give the lines that say what was found, and put the names into the report."""
        if broken := np.flatnonzero(~np.isfinite(self.vectors).all(1)).tolist():
            report.matches.append(BROKEN)
            return [f"matches: {BROKEN}, in texts {_numbers(broken)}. It comes of a division by 0, of a mask that "
                    "leaves nothing, or of a number too large for its format (float16 ends at 65,504)"]  # fmt: skip
        report.rounding = self._rounded()
        if report.rounding:
            return []
        if order := self._order():
            report.matches.append(ANOTHER_ORDER)
            return [f"matches: {ANOTHER_ORDER}. {order}"]
        tried, found = list[Way](), list[Way]()
        for tier in (self.ways.settings(), self.ways.padding(), self.ways.mistakes()):
            for way in () if found else tier:
                tried.append(way)
                found += [way] if self._fits(way.make) else []
        for form in FORMS if not found and self.right.shape == self.vectors.shape else ():
            ours = self._made(self.ways.computed_in(ROUNDINGS[form]), self.several) - self.right[self.several]
            if found := self._within(ours, tried if form == FORMS[0] else []):
                break
            if self._is_alike(ours):
                report.rounding = form
                hidden = f"{rms(self.apart):.1g} of their length"
                return [f"its rounding hides a mistake that changes vectors by less than {hidden}"]
        report.matches = list(dict.fromkeys(way.name for way in found))
        report.ruled_out = [name for name in dict.fromkeys(way.name for way in tried) if name not in report.matches]
        remedies = {way.name: way.remedy for way in found}
        return [f"matches: {name}. {remedies[name]}" for name in report.matches] or self._hints(len(report.ruled_out))

    def _fits(self, make: Make) -> bool:
        """Say whether a way gives all vectors; a few of them rule most ways out."""
        return all(same(self._far(self._made(make, which), which)) for which in (self.few, self.every))

    def _made(self, make: Make, which: Sequence[int]) -> Array:
        try:
            return make([self.texts[i] for i in which])
        except (ValueError, TypeError, IndexError, KeyError, CheckpointError):  # not with these texts
            return np.full((len(which), 0), np.nan)

    def _far(self, made: Array, which: Sequence[int]) -> Array:
        """Measure how far vectors are from those of a way; of a text that it leaves no token nothing is known."""
        unknown = np.isnan(made).all(1)
        if unknown.all() or made.shape[1] != self.vectors.shape[1]:
            return np.full(len(which), np.inf)
        return np.where(unknown, 0.0, distances(self.vectors[which], self._as_stored(made, which)))

    def _as_stored(self, made: Array, which: Sequence[int]) -> Array:
        """Round numbers as the vectors are rounded; one near a tie goes the vector's way."""
        if self.rounding is None:
            return made
        theirs, spread = self.vectors[which], SAME / 10 * np.abs(made).max(1, initial=0, keepdims=True)
        either = (theirs == self.rounding(made - spread)) | (theirs == self.rounding(made + spread))
        return np.where(either, theirs, self.rounding(made))

    # -- narrower formats ----------------------------------------------------------------------------------------

    def _rounded(self) -> str:
        """Name the format in which the numbers or the parameters explain the vectors exactly; "" for none."""
        if self.right.shape != self.vectors.shape:
            return ""
        if self.rounding and same(self._far(self.right, self.every)):
            return self.form
        return next((way.name for way in self.ways.mistakes(formats=True) if self._fits(way.make)), "")

    def _is_alike(self, ours: Array) -> bool:
        """Say whether all is computed in the format in which our own computation changes few vectors by `ours`.

        The vectors are no farther from the model than that, and the difference points where that one does: both round
        the same parameters. A mistake's points elsewhere.
        """
        theirs, right = self.vectors[self.several] - self.right[self.several], self.right[self.several]
        longer = max(np.linalg.norm(theirs), np.linalg.norm(ours))
        near = rms(self.apart) <= ROUNDS * rms(distances(right + ours, right))
        return bool(near and np.vdot(theirs, ours) >= ALIKE * longer * np.linalg.norm(ours))

    def _within(self, ours: Array, tried: Sequence[Way]) -> list[Way]:
        """Find the way that is in vectors of float16: of the difference beyond its rounding it leaves less than half.

        Ways that come no nearer on the few texts are not made of several: of so few, rounding is too large a share.
        """
        found, right, few = list[tuple[float, Way]](), self.right[self.several], slice(len(self.few))
        rest = self.vectors[self.several] - right - ours
        for way in tried:
            made = self._made(way.make, self.few)
            if made.shape == rest[few].shape and _leaves(rest[few], made - right[few]) < 1:
                left = _leaves(rest, self._made(way.make, self.several) - right)
                found += [(left, way)] if left <= HALF else []
        most = ROUNDS * distances(right + ours, right).max()
        nearest = [way._replace(remedy=f"In {FORMS[0]}. {way.remedy}")
                   for _, way in sorted(found, key=itemgetter(0))[:1]]  # fmt: skip
        return [way for way in nearest if self._far(self._made(way.make, self.every), self.every).max() <= most]

    # -- where no way fits ---------------------------------------------------------------------------------------

    def _order(self) -> str:
        """Say which texts the vectors are of, where all are there but in other places; else ""."""
        if self.vectors.shape != self.right.shape:
            return ""
        own = [_nearest(vector, self.right) for vector in self.right]  # of texts with one vector the first
        other = [_nearest(vector, self.right) for vector in self.vectors]
        moved = [f"{i + 1} is of text {j + 1}" for i, j in enumerate(other) if j != own[i]]
        return f"Of vectors {', '.join(moved[:4])}" if moved and sorted(own) == sorted(other) else ""

    def _hints(self, count: int) -> list[str]:
        lines = [f"none of {count} settings and mistakes gives all of these (the report as JSON has their names); the "
                 "place of the mistake shows in a port's intermediates"]  # fmt: skip
        first = {text: i for i, text in reversed([*enumerate(self.texts)])}
        for i, j in ((first[text], j) for j, text in enumerate(self.texts) if first[text] != j):
            if (apart := distances(self.vectors[[i]], self.vectors[[j]])[0]) > SAME:
                lines.append(f"texts {i + 1} and {j + 1} are one, their vectors {apart:.2g} of a length apart: random, "
                             "as with dropout on, or a vector depends on the texts beside it")  # fmt: skip
        if self.vectors.shape != self.right.shape:
            lines.append(f"the vectors have {self.vectors.shape[1]} numbers, this model's {self.right.shape[1]}")
        return lines


def distances(vectors: Array, made: Array) -> Array:
    """Measure how far each vector is from the one made, as a share of that one's length; infinity for another width.

    >>> distances(np.array([[3.0, 0.0]]), np.array([[4.0, 0.0]]))
    array([0.25])
    """
    if vectors.shape != made.shape:
        return np.full(len(vectors), np.inf)
    off, true = vectors.astype(np.float64) - made, made.astype(np.float64)
    length = np.linalg.norm(true, axis=1)
    far = np.linalg.norm(off, axis=1) / np.where(length == 0, 1, length)
    return np.where(np.isfinite(far), far, np.inf)


def _nearest(vector: Array, others: Array) -> int:
    """Find the first of the others that is the same; -1 for none."""
    fits = distances(np.broadcast_to(vector, others.shape), others) <= SAME
    return int(fits.argmax()) if fits.any() else -1


def _leaves(rest: Array, change: Array) -> float:
    """Say which share of a difference a change leaves, squared."""
    return float(np.sum(np.square(rest - change)) / max(np.sum(np.square(rest)), TINY))


def same(apart: Array) -> bool:
    """Say whether distances are those of one computation: some text in ten may be as far away as `STRAY`."""
    return bool(apart.max(initial=0.0) <= STRAY and np.count_nonzero(apart > SAME) <= len(apart) / 10)


def _stored(vectors: Array) -> tuple[Formula | None, str]:
    """Find the narrowest format that has all numbers as they are."""
    formats: dict[str, Formula] = {f"{count} decimals": partial(_rounded_to, count) for count in DECIMALS}
    formats |= {form: ROUNDINGS[form] for form in reversed(FORMS)}
    held = [name for name, rounding in formats.items() if np.array_equal(rounding(vectors), vectors)]
    return (formats[held[0]], held[0]) if held else (None, "")


def _rounded_to(decimals: int, x: Array) -> Array:
    return np.round(x.astype(np.float64), decimals).astype(x.dtype)


def _numbers(which: Sequence[int]) -> str:
    shown = ", ".join(str(i + 1) for i in which[:LISTED])
    return shown + (f" and {len(which) - LISTED} more" if len(which) > LISTED else "")
