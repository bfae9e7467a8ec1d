"""Compare vectors with the model's, and name the setting or mistake behind wrong ones: `minibert verify --vectors`.

Vectors pass if they are the model's, or the model's computed in a narrower format. Else each variant of the model is
tried on the shortest text that differs, then on the four shortest, and a variant that fits these on all texts.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import CheckpointError, some_of
from minibert.files.reading import raw_lines
from minibert.models.encoder import Encoder
from minibert.models.open.load_encoder import load_encoder
from minibert.threads.computing import on_one_thread

from .mistakes.mistake import plainest
from .mistakes.wrong_modules import FORMATS, ROUNDINGS, Formula
from .places import BROKEN, CAUSES, ROUNDS
from .report import Comparison, rms, table
from .shipped import TEXTS
from .traces import opened, read_npy
from .variants import Make, Variant, Variants

SAME = 1e-5  # share of a vector's length; measured 1.3e-6 between right programs that compute all-MiniLM-L6-v2
STRAY = 1e-4  # a wrong model may be more sensitive: one text in ten may be this far away
FEW, SEVERAL = 4, 16  # texts that rule most variants out, and texts that tell formats from mistakes
DECIMALS = range(2, 7)  # a seventh decimal is float32's rounding; with one decimal most vectors are all zeros
LISTED, ROWS, SHOWN = 20, 5, 60  # most texts in a printed list, most distances, and most letters of a text
ALIKE = 0.4  # cosine of two differences: measured 0.62 and 0.64 if torch computes all-MiniLM-L6-v2 in ROUNDINGS
ALIKE_VARIANT = 0.15  # if a variant pools other tokens, which round otherwise: measured 0.24 and 0.25; by chance 0.01
HALF, TINY = 0.5, 1e-30  # share of a squared difference; against division by 0
ANOTHER_ORDER = "texts in another order"


def verify_vectors(
    model: str,
    vectors: Path | Array,
    texts: Sequence[str] | None = None,
    *,
    prompt: str | None = None,
    tolerance: float = 0.0,
    **hub: Any,
) -> Comparison:
    """Report text by text whether vectors are the model's, and which setting or mistake explains wrong ones.

    vectors     a file as `read_vectors` reads it, or an array (n, dim)
    texts       the texts of the vectors, in their order; by default the texts in the file of vectors, or else `TEXTS`
    prompt      the text that stands before each text; None: the model's
    tolerance   the largest distance that passes, as a share of a vector's length; `SAME` passes always
    hub         `revision` and `local_files_only`, as `load_encoder` takes them

    Raises ValueError if vectors and texts do not belong together, and the errors of reading.
    """
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be from 0 to below 1, found {tolerance}")
    theirs, stored = read_vectors(vectors) if isinstance(vectors, Path) else (as_vectors(vectors, "the array"), None)
    source = vectors if isinstance(vectors, Path) else "the array"
    if texts is not None and stored is not None and list(texts) != stored:
        raise ValueError(f"{source} has texts, and they differ from the texts that were passed; leave one out")
    known = list(texts or stored or [probe.text for probe in TEXTS])
    if len(theirs) != len(known):
        raise ValueError(f"{source} has {len(theirs)} vectors, but there are {len(known)} texts")
    with load_encoder(model, **hub) as encoder:
        report = Comparison(f"{model} ({encoder.embeddings.family.model_type})", f"vectors of {source}", "")
        judge(report, encoder, known, theirs, prompt, tolerance)
    return report


def read_vectors(path: Path) -> tuple[Array, list[str] | None]:
    """Read vectors (n, dim), float32 or wider, and their texts if the file has them.

    The file is .npy, or .jsonl with a "vector" or an "embedding" on each line, and optionally a "text". Raises
    ValueError with file and line.
    """
    ending = opened(path).suffix.lower()
    if ending == ".npy":
        return as_vectors(read_npy(path), str(path)), None
    if ending != ".jsonl":
        raise ValueError(f"{path}: expected vectors in .npy or .jsonl, found {path.suffix or 'no ending'!r}; save the "
                         "array by numpy.save")  # fmt: skip
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
        advice = "write one on every line, or on none"
        raise ValueError(f'{path}: {len(texts)} of {len(rows)} lines have a "text"; {advice}')
    return as_vectors(rows, str(path)), texts or None


def as_vectors(vectors: Any, source: str) -> Array:
    """Check that these are vectors, one in each row: (n, dim). Raises ValueError."""
    try:
        array = np.asarray(vectors)
    except ValueError:  # rows of unequal length
        array = np.empty(0, object)
    if array.dtype.kind != "f" or array.ndim != 2 or not array.size:
        shown = "rows of unequal length" if array.dtype.kind == "O" else f"{array.dtype} of shape {array.shape}"
        raise ValueError(f"{source} must have one vector a row, (texts, numbers), as floats before they are quantized; "
                         f"found {shown}")  # fmt: skip
    return array.astype(np.float32) if array.dtype.itemsize < 4 else array


@on_one_thread
@np.errstate(all="ignore")  # a port's numbers may be of any size
def judge(
    report: Comparison, encoder: Encoder, texts: Sequence[str], vectors: Array, prompt: str | None = None,
    tolerance: float = 0.0,
) -> None:  # fmt: skip
    """Compare vectors with the model's, and search for the variant that explains a difference."""
    right_prompt, limit = encoder.sentence_config.prompt(None, prompt), max(tolerance, SAME)
    right = np.asarray(encoder.encode([*texts], prompt=right_prompt))
    apart = distances(vectors, right)
    search = Search(Variants(encoder, right_prompt, texts, vectors.shape[1]), texts, vectors, right, apart)
    good = apart <= limit
    explanation = [] if good.all() else search.run(report)
    report.passed = bool(good.all() or report.rounding)
    good |= report.passed
    report.texts = [
        {"text": text, "distance": distance if np.isfinite(distance) else None, "passed": passed}
        for text, distance, passed in zip(texts, apart.tolist(), good.tolist(), strict=True)
    ]
    wrong = np.flatnonzero(~good).tolist()
    how = f" in {report.rounding}" if report.rounding else f" within {limit:g}" if limit > SAME else ""
    rest = f"; not those of texts {_numbers(wrong)}" if wrong else ""
    report.say(f"{len(texts) - len(wrong)} of {len(texts)} vectors are the model's{how}{rest}", *explanation)
    if wrong:
        encoded = encoder.pipeline(prompt=right_prompt).tokenize([texts[i] for i in wrong[:ROWS]], 0)
        rows = [[str(i + 1), f"{apart[i]:.2g}", str(len(ids.input_ids)), repr(texts[i][:SHOWN])]
                for i, ids in zip(wrong, encoded, strict=False)]  # fmt: skip
        more = [f"and {len(wrong) - ROWS} more texts"] if len(wrong) > ROWS else []
        report.say("", *table([["text", "distance of its length", "tokens", "text"], *rows]), *more)


class Search:
    """Search for the format in which vectors are the model's, or for the variant that explains them."""

    def __init__(self, variants: Variants, texts: Sequence[str], vectors: Array, right: Array, apart: Array) -> None:
        self.variants, self.texts, self.vectors, self.right, self.apart = variants, list(texts), vectors, right, apart
        differ = np.flatnonzero(apart > SAME).tolist()
        self.several: list[int] = sorted(differ, key=lambda i: (not texts[i].strip(), len(texts[i])))[:SEVERAL]
        self.few, self.every = self.several[:FEW], list(range(len(texts)))
        alike = [i for i in self.every if apart[i] <= SAME and texts[i].strip()]
        self.alike = sorted(alike, key=lambda i: len(texts[i]))[:1]  # the shortest text with the model's vector
        self.rounds = len(alike) <= len(texts) / 2  # a narrower format changes every vector
        self.rounding, self.form = _stored(vectors)
        self._of_first = cache(lambda make: self._computed(make, self.few[:1]))  # the shortest text

    def run(self, report: Comparison) -> list[str]:
        """Write the names that fit into the report, and return the lines that explain them."""
        if broken := np.flatnonzero(~np.isfinite(self.vectors).all(1)).tolist():
            report.matches.append(BROKEN)
            return [f"matches: {BROKEN}, in texts {_numbers(broken)}. {CAUSES[BROKEN]}"]
        report.rounding = self._rounded()
        if report.rounding:
            return []
        if order := self._order():
            report.matches.append(ANOTHER_ORDER)
            return [f"matches: {ANOTHER_ORDER}. {order}"]
        tried, fits = list[Variant](), list[Variant]()
        for tier in (self.variants.settings(), self.variants.padding(), self.variants.mistakes()):
            for variant in () if fits else tier:
                tried.append(variant)
                fits += [variant] if self._fits(variant.make) else []
        rounds = self.rounds and not fits and self.right.shape == self.vectors.shape
        for form, rounding in FORMATS.items() if rounds else ():
            change = self._computed(self.variants.computed_in(rounding), self.several) - self.right[self.several]
            if form == "float16" and (fits := self._in_float16(change, tried)):
                break
            if self._is_alike(change):
                report.rounding = form
                hidden = f"{rms(self.apart):.1g} of their length"
                return [f"its rounding hides a mistake that changes vectors by less than {hidden}"]
        report.matches = plainest(variant.name for variant in fits)
        names = dict.fromkeys(variant.name for variant in tried)
        report.ruled_out = [name for name in names if name not in report.matches]
        remedies = {variant.name: variant.remedy for variant in fits}
        return [f"matches: {name}. {remedies[name]}" for name in report.matches] or self._hints(len(report.ruled_out))

    def _fits(self, make: Make) -> bool:
        """Return whether a variant has these vectors; one short text, then a few texts rule most variants out."""
        if self.alike and not same(self._distances(self._computed(make, self.alike), self.alike)):
            return False
        if not same(self._distances(self._of_first(make), self.few[:1])):
            return False
        return all(same(self._distances(self._computed(make, which), which)) for which in (self.few, self.every))

    def _computed(self, make: Make, which: Sequence[int]) -> Array:
        """Compute a variant's vectors of some texts; no columns if the variant cannot take these texts."""
        try:
            return make([self.texts[i] for i in which])
        except (ValueError, TypeError, IndexError, KeyError, CheckpointError):
            return np.full((len(which), 0), np.nan)

    def _distances(self, computed: Array, which: Sequence[int]) -> Array:
        """Measure the distances from a variant's vectors; 0 for a text of which the variant leaves no token."""
        unknown = np.isnan(computed).all(1)
        if unknown.all() or computed.shape[1] != self.vectors.shape[1]:
            return np.full(len(which), np.inf)
        return np.where(unknown, 0.0, distances(self.vectors[which], self._as_stored(computed, which)))

    def _as_stored(self, computed: Array, which: Sequence[int]) -> Array:
        """Round numbers as the vectors are rounded; a number near a tie is rounded as the vector's."""
        if self.rounding is None:
            return computed
        theirs, spread = self.vectors[which], SAME / 10 * np.abs(computed).max(1, initial=0, keepdims=True)
        either = (theirs == self.rounding(computed - spread)) | (theirs == self.rounding(computed + spread))
        return np.where(either, theirs, self.rounding(computed))

    # -- narrower formats ----------------------------------------------------------------------------------------

    def _rounded(self) -> str:
        """Return the format whose rounding of numbers or parameters explains the vectors exactly; "" if none does."""
        if self.right.shape != self.vectors.shape:
            return ""
        if self.rounding and same(self._distances(self.right, self.every)):
            return self.form
        formats = self.variants.mistakes(formats=True)
        return next((variant.name for variant in formats if self._fits(variant.make)), "")

    def _is_alike(self, change: Array) -> bool:
        """Return whether the vectors are computed in the format that changes a few of the model's by `change`.

        Then they are no farther from the model's than this change, and their difference points in its direction, since
        both round the same parameters; the difference of a mistake points elsewhere.
        """
        right = self.right[self.several]
        near = rms(self.apart) <= ROUNDS * rms(distances(right + change, right))
        return bool(near and _points_as(self.vectors[self.several] - right, change, ALIKE))

    def _in_float16(self, change: Array, tried: Sequence[Variant]) -> list[Variant]:
        """Find the variant that was computed in float16: it leaves at most half of what the rounding does not explain.

        A variant must come nearer on one text before several are computed; one text alone proves nothing.
        """
        fits, right = list[tuple[float, Variant]](), self.right[self.several]
        rest = self.vectors[self.several] - right - change
        for variant in tried:
            computed = self._of_first(variant.make)
            if computed.shape == rest[:1].shape and _left(rest[:1], computed - right[:1]) < 1:
                wrong = self._computed(variant.make, self.several)
                left = _left(rest, wrong - right)
                rounds = _points_as(self.vectors[self.several] - wrong, change, ALIKE_VARIANT)  # the rest is float16's
                fits += [(left, variant)] if left <= HALF and rounds else []
        most = ROUNDS * distances(right + change, right).max()
        nearest = [variant._replace(remedy=f"In float16. {variant.remedy}")
                   for _, variant in sorted(fits, key=itemgetter(0))[:1]]  # fmt: skip
        return [variant for variant in nearest
                if self._distances(self._computed(variant.make, self.every), self.every).max() <= most]  # fmt: skip

    # -- if no variant fits --------------------------------------------------------------------------------------

    def _order(self) -> str:
        """Describe which vector belongs to which text, if all are there in another order; else ""."""
        if self.vectors.shape != self.right.shape:
            return ""
        right = [_nearest(vector, self.right) for vector in self.right]  # texts with one vector: the first of them
        theirs = [_nearest(vector, self.right) for vector in self.vectors]
        moved = [f"vector {i + 1} is of text {j + 1}" for i, j in enumerate(theirs) if j != right[i]]
        return ", ".join(moved[:4]) if sorted(right) == sorted(theirs) else ""

    def _hints(self, count: int) -> list[str]:
        lines = [f"none of {count} settings and mistakes gives all of these (the report as JSON has their names); a "
                 "port's intermediates show where the mistake is"]  # fmt: skip
        first = {text: i for i, text in reversed([*enumerate(self.texts)])}
        for i, j in ((first[text], j) for j, text in enumerate(self.texts) if first[text] != j):
            if (apart := distances(self.vectors[[i]], self.vectors[[j]])[0]) > SAME:
                lines.append(f"texts {i + 1} and {j + 1} are one, their vectors {apart:.2g} of a length apart: random, "
                             "as with dropout on, or a vector depends on the other texts of its batch")  # fmt: skip
        if self.vectors.shape != self.right.shape:
            lines.append(f"the vectors have {self.vectors.shape[1]} numbers, this model's {self.right.shape[1]}")
        return lines


def distances(vectors: Array, right: Array) -> Array:
    """Measure the distance of each vector from the right one, as a share of its length; infinity for another width.

    >>> distances(np.array([[3.0, 0.0]]), np.array([[4.0, 0.0]]))
    array([0.25])
    """
    if vectors.shape != right.shape:
        return np.full(len(vectors), np.inf)
    difference, true = vectors.astype(np.float64) - right, right.astype(np.float64)
    length = np.linalg.norm(true, axis=1)
    apart = np.linalg.norm(difference, axis=1) / np.where(length == 0, 1, length)
    return np.where(np.isfinite(apart), apart, np.inf)


def _nearest(vector: Array, rows: Array) -> int:
    """Return the index of the first row that equals the vector; -1 if none does."""
    fits = distances(np.broadcast_to(vector, rows.shape), rows) <= SAME
    return int(fits.argmax()) if fits.any() else -1


def _points_as(difference: Array, change: Array, least: float) -> bool:
    """Return whether a difference is about as long as a rounding's, and their cosine is at least `least`."""
    longer, length = max(np.linalg.norm(difference), np.linalg.norm(change)), np.linalg.norm(change)
    return bool(np.vdot(difference, change) >= least * longer * length)


def _left(rest: Array, change: Array) -> float:
    """Return the share of a difference, squared, that a change leaves."""
    return float(np.sum(np.square(rest - change)) / max(np.sum(np.square(rest)), TINY))


def same(apart: Array) -> bool:
    """Return whether distances are within rounding: one text in ten may be as far away as `STRAY`."""
    return bool(apart.max(initial=0.0) <= STRAY and np.count_nonzero(apart > SAME) <= len(apart) / 10)


def _stored(vectors: Array) -> tuple[Formula | None, str]:
    """Return the narrowest format that stores all numbers exactly."""

    def to_decimals(count: int, x: Array) -> Array:
        return np.round(x.astype(np.float64), count).astype(x.dtype)

    formats: dict[str, Formula] = {f"{count} decimals": partial(to_decimals, count) for count in DECIMALS}
    formats |= dict(reversed([*ROUNDINGS.items()]))
    exact = [name for name, rounding in formats.items() if np.array_equal(rounding(vectors), vectors)]
    return (formats[exact[0]], exact[0]) if exact else (None, "")


def _numbers(which: Sequence[int]) -> str:
    return some_of([str(i + 1) for i in which], LISTED)
