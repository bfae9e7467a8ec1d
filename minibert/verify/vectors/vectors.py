"""Are these vectors the model's, and if not, which mistake is it? What `minibert verify --vectors` does and prints."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minibert.equations.input_layer import Array
from minibert.equations.sentences import dot, normalized
from minibert.files.lines import raw_lines
from minibert.models.encoder import Encoder
from minibert.models.open.load_encoder import load_encoder
from minibert.threads.computing import Slot
from minibert.verify.report import Report, table
from minibert.verify.sides.numpy_files import read_npy
from minibert.verify.sides.texts import TEXTS, read_texts
from minibert.verify.sides.traces import opened, read_arrays

from .vector_batches import OVER_BATCH, REMEDIES, ZEROS, empty_texts, one_factor, over_batches, twins, without_zeros
from .vector_recipes import SAME, Maker, distances
from .vector_verdict import Judge, Verdict

OTHER = 0.3  # |cosine|: below it on every text the directions have nothing to do with each other
SHOWN = 60  # letters of a text
AS_INT8 = 0.6  # of a vector's length: measured 0.53 where torch's dynamic int8 kernels compute all-MiniLM-L6-v2
BROKEN = "NaN or infinity"
CANNOT_TELL = (
    "from vectors alone int8 kernels, which round what enters a product too, cannot be told from a mistake: a missing "
    "bias, or a checkpoint that was trained further, can be as near"
)


def verify_vectors(
    model: str,
    vectors: Path | Array,
    texts: Path | Sequence[str] | None = None,
    *,
    prompt: str | None = None,
    tolerance: float = 0.0,
    revision: str | None = None,
    local_files_only: bool = False,
) -> Report:
    """Say whether vectors are the model's, text by text, and which setting or mistake gives them if not.

    vectors: a file as `read_vectors` reads it, or an array (n, dim). texts: a file with the texts, in the order of the
    vectors, or the texts themselves; without it they are those of the file of vectors, where that has them, else
    `TEXTS`. prompt: what the model puts before each text; None: its own.

    Raises ValueError where vectors and texts do not belong together, and what reading raises.
    """
    given = read_texts(texts) if isinstance(texts, Path) else texts
    found, own = read_vectors(vectors) if isinstance(vectors, Path) else (as_vectors(vectors, "the array"), None)
    source = vectors if isinstance(vectors, Path) else "the array"
    if given is not None and own is not None and list(given) != own:
        raise ValueError(f"{source} has texts of its own, which are not those of {texts}; leave one out")
    asked = list(given or own or [each.text for each in TEXTS])
    if len(found) != len(asked):
        named = str(texts) if isinstance(texts, Path) else "those that were passed"
        whose = named if given else "its own" if own else "those that minibert ships"
        raise ValueError(f"{source} has {len(found)} vectors, but there are {len(asked)} texts: {whose}")
    with load_encoder(model, revision=revision, local_files_only=local_files_only) as encoder:
        report = Report(f"{model} ({encoder.embeddings.family.model_type})", f"vectors of {source}", "")
        judge(report, encoder, asked, found, prompt=prompt)
    return report


def read_vectors(path: Path) -> tuple[Array, list[str] | None]:
    """Read vectors (n, dim), float32 or wider, and their texts where the file has them.

    .npy; .safetensors with one array; .jsonl with a "vector" or an "embedding" a line, and maybe a "text". Raises
    ValueError that names file and line.
    """
    ending, texts = opened(path).suffix.lower(), None
    if ending == ".npy":
        return as_vectors(read_npy(path), str(path)), None
    if ending == ".safetensors":
        names, arrays, _ = read_arrays(path, lambda names: names[:1])
        if len(names) != 1:
            raise ValueError(f"{path}: expected one array, found {', '.join(map(repr, names[:8])) or 'none'}")
        return as_vectors(arrays[names[0]], f"{path}: {names[0]}"), None
    if ending != ".jsonl":
        raise ValueError(
            f"{path}: vectors are read of .npy, .safetensors and .jsonl, found {path.suffix or 'no ending'!r}; read it "
            "where it was written, and save the array by numpy.save"
        )
    rows, texts = list[Any](), list[str]()
    for number, line in enumerate(raw_lines(str(path)), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            rows.append([float(x) for x in (row["vector"] if "vector" in row else row["embedding"])])
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
    if array.dtype.kind in "iub":
        raise ValueError(f"{where} has integers ({array.dtype}); give the vectors before they are quantized")
    if array.dtype.kind != "f" or array.ndim != 2 or not array.size:
        shown = "rows of unequal length, or no numbers" if array.dtype.kind != "f" else f"shape {array.shape}"
        raise ValueError(f"{where} must have one vector a row, (texts, numbers), float; found {shown}")
    return array if array.dtype == np.float64 else array.astype(np.float32)


def judge(
    report: Report, encoder: Encoder, texts: Sequence[str], vectors: Array, prompt_name: str | None = None,
    prompt: str | None = None,
) -> None:  # fmt: skip
    """Say of each vector whether it is the model's, and which mistake fits where some are not."""
    with Slot(1):  # in products as small as one text's BLAS's threads do little but wait for each other
        _judge(report, texts, vectors, Maker(encoder, prompt_name, prompt))


def _judge(report: Report, texts: Sequence[str], vectors: Array, maker: Maker) -> None:
    right = np.concatenate([maker.vectors(text, maker.right) for text in texts])
    maker.aside = empty_texts(right, vectors, maker, texts)
    broken = [i for i in np.flatnonzero(~np.isfinite(vectors).all(1)).tolist() if texts[i] not in maker.aside]
    if len(broken) + len(maker.aside) >= len(texts) or not vectors.any():
        maker.aside = {}  # the empty text is as all others are
    else:  # the others show what they show without these
        maker.aside |= dict.fromkeys((texts[i] for i in broken), BROKEN)
    vectors = np.where([[text in maker.aside] for text in texts], np.float32(0), vectors)
    shorter = without_zeros(vectors, right.shape[1]) if np.isfinite(vectors).all() else vectors
    also = [*[ZEROS] * (shorter.shape != vectors.shape), *dict.fromkeys(maker.aside.values())]
    _look(report, Judge(maker, texts, shorter))
    if also:
        if report.passed:
            report.lines[-1] += ", but for this:"
        explained = [[name] for name in report.matches] or [[]] * report.passed
        report.matches = [" + ".join([*each, *also]) for each in explained]
        report.fail(*(_broken(broken) if name == BROKEN else f"matches: {name}. {REMEDIES[name]}" for name in also))


def _broken(which: Sequence[int]) -> str:
    return (
        f"matches: {BROKEN}, in the vectors of texts {', '.join(str(i + 1) for i in which)}. It comes of a division by "
        "0, of a mask that leaves nothing, or of a number too large for its format (float16 ends at 65,504)"
    )


def _look(report: Report, judging: Judge) -> None:
    right, vectors, maker = judging.right, judging.vectors, judging.maker
    apart = np.array([distances(vector, own[None])[0] for vector, own in zip(vectors, right, strict=True)])
    _tell_texts(report, judging, apart, (apart <= SAME).tolist())
    if names := over_batches(right, vectors, maker, judging.texts):
        report.matches += names
        report.fail(*(f"matches: {name}. {OVER_BATCH}" for name in names))
        return
    factor, remedy = one_factor(right, vectors)
    if factor:
        report.matches.append(factor)
        report.fail(f"matches: {factor}. {remedy}")
        return
    if broken := np.flatnonzero(~np.isfinite(vectors).all(1)).tolist():
        report.matches.append(BROKEN)
        report.fail(_broken(broken))
        return
    if order := _order(right, vectors):
        report.matches.append("another order")
        report.fail(f"matches: another order. The vectors are the model's, but of other texts: {_shown_order(order)}")
        return
    verdict = judging.verdict()
    report.say(*_of_each_text(judging, verdict, right), "")
    form = judging.form(verdict)
    near = [form is not None or bool(judging.level(each)) for each in verdict.right.tolist()]
    _tell_texts(report, judging, verdict.right, near)
    report.ruled_out = [name for name, _ in verdict.ruled]
    if form is not None:
        names = [fit.name for fit in verdict.fits if fit.mistakes]
        report.rounding = form
        rounded = f", in {form}" if form else ""
        report.say(f"this is the model{rounded}" + (f" (as {' or '.join(names)} would be)" if names else ""))
        return
    report.passed = False
    if verdict.fits and not any(fit.real for fit in verdict.fits):
        wrong = [str(i + 1) for i, apart in enumerate(verdict.right) if not judging.level(apart)]
        report.say(
            f"not passed: most vectors are as near as a narrower format rounds, not texts {', '.join(wrong)}"
            if 0 < len(wrong) < len(verdict.right) / 2 else
            f"not passed: the vectors are farther than a narrower format rounds; {CANNOT_TELL}"
            if wrong else
            f"not passed: the vectors are as near as {verdict.level} rounds, {verdict.right.max():.2g} of a vector's "
            f"length at most, but their numbers are in no format that explains them; {CANNOT_TELL}"
        )  # fmt: skip
        _say_random(report, judging, dict(judging.limits)["bfloat16"])
    elif verdict.fits:
        _say_matches(report, verdict)
    else:
        _say_nothing_fits(report, judging, verdict, right)


def _tell_texts(report: Report, judging: Judge, apart: Array, near: Iterable[bool]) -> None:
    """Put down how far each vector is from the right one, for programs."""
    aside = [text in judging.maker.aside for text in judging.texts]
    report.texts = [
        {"text": text, "distance": None if left or not np.isfinite(far) else far, "passed": good and not left}
        for text, far, good, left in zip(judging.texts, apart.tolist(), near, aside, strict=True)
    ]


def _say_matches(report: Report, verdict: Verdict) -> None:
    if len(verdict.fits) > 1:
        report.say(f"{len(verdict.fits)} explanations fit all texts as well as each other:")
    rounding = f" (in {verdict.level})" if verdict.level not in ("", "float32") else ""
    for fit in verdict.fits:
        report.matches.append(fit.name)
        remedies = " ".join(mistake.remedy for mistake in fit.mistakes if not mistake.rounding)
        report.say(f"matches: {fit.name}{rounding}. {remedies}")


def _say_nothing_fits(report: Report, judging: Judge, verdict: Verdict, right: Array) -> None:
    limit = judging.limits[-1][1]
    good = int(np.count_nonzero(verdict.right <= SAME)) - sum(text in judging.maker.aside for text in judging.texts)
    report.say(f"none of the {len(judging.known)} mistakes fits all texts, alone or in pairs")
    if good:
        wrong = np.flatnonzero(verdict.right > SAME).tolist()
        report.say(f"{good} of {len(judging.texts)} vectors are the model's; not those of texts "
                   f"{', '.join(str(i + 1) for i in wrong)}")  # fmt: skip
    elif (farthest := verdict.right.max()) <= AS_INT8:
        report.say(f"the vectors are {farthest:.2g} of a vector's length away at most; {CANNOT_TELL}")
    elif verdict.nearest.mistakes:
        report.say(f"nearest: {verdict.nearest.name}, which leaves {verdict.nearest.worst:.2g} of a vector's length; "
                   f"rounding to int8 would leave {limit:.2g}")  # fmt: skip
    width, rows = judging.vectors.shape[1], judging.maker.encoder.dim
    if width == rows != right.shape[1]:
        report.say(f"the vectors have {width} numbers, as a token's row has; this model's have {right.shape[1]}")
    elif width > max(rows, right.shape[1]) and width % rows and width % right.shape[1]:  # no part, and not several
        report.matches.append("another model's vectors")
        report.say(f"the vectors have {width} numbers, this model's {right.shape[1]}: another model's")
    elif width != right.shape[1]:
        report.say(f"the vectors have {width} numbers, this model's {right.shape[1]}")
    elif not judging.vectors.any():
        report.say("every vector is zeros: nothing was computed, or nothing handed on")
    elif _say_random(report, judging, limit):
        pass
    elif (alike := unrelated(right, judging.vectors)) is not None:
        report.say(
            "the directions have nothing to do with this model's, and vectors alone do not say why: another model, "
            "weights read wrongly and a mistake in every block look alike "
            f"(which texts are alike agrees with this model by a correlation of {alike:.2f})"
        )
    if verdict.ruled:
        report.say("ruled out:", *_shown_ruled(verdict.ruled))


def _shown_ruled(ruled: Sequence[tuple[str, int]]) -> list[str]:
    """Write a line for each mistake and the text that rules it out; one for all blocks that it was tried in alone."""
    blocks: dict[tuple[str, int], list[str]] = {}
    for name, i in ruled:
        mistake, where, block = name.partition(" in block ")
        alone = block.isdecimal()
        blocks.setdefault((mistake + where if alone else name, i), []).append(block if alone else "")
    return [f"  {name}{', '.join(some)} (text {i + 1})" for (name, i), some in blocks.items()]


def _say_random(report: Report, judging: Judge, limit: float) -> bool:
    """Name it where one text has two vectors, further apart than the limit."""
    if said := twins(judging.right, judging.vectors, judging.texts, limit):
        report.matches.append("random")
        report.say(f"matches: random: {said}. {REMEDIES['random']}")
    return bool(said)


def unrelated(right: Array, vectors: Array) -> float | None:
    """Where no vector is near the right one: how far the similarities between texts agree; else None."""
    if len(right) < 3 or not vectors.any():
        return None
    a, b = normalized(right.astype(np.float64)), normalized(vectors.astype(np.float64))
    if np.abs(np.vecdot(a, b)).max() > OTHER:
        return None
    upper = np.triu_indices(len(a), 1)
    return float(np.corrcoef(dot(a, a)[upper], dot(b, b)[upper])[0, 1])


def _order(right: Array, vectors: Array) -> list[tuple[int, int]]:
    """Which text each vector is of, where all are there but in other places; only those that moved. Else nothing."""
    if right.shape != vectors.shape:
        return []
    first = [int(np.argmax(distances(each, right) <= SAME)) for each in right]  # of texts with one vector the first
    moved = []
    for i, vector in enumerate(vectors):
        apart = distances(vector, right)
        if apart[i] > SAME:
            moved.append((i, int(np.argmin(apart))))
            if not apart.min() <= SAME:
                return []
    same = sorted(first[i] for i, _ in moved) == sorted(first[j] for _, j in moved)
    return moved if same else []


def _shown_order(order: Sequence[tuple[int, int]]) -> str:
    shown = ", ".join(f"{i + 1} is of text {j + 1}" for i, j in order[:4])
    return shown + (f" and {len(order) - 4} more" if len(order) > 4 else "")


def _of_each_text(judging: Judge, verdict: Verdict, right: Array) -> Iterator[str]:
    """One line for each text: tokens, cosine, distance, verdict."""
    rows = [["text", "tokens", "cosine", "distance", "verdict and text"]]
    for i, (text, apart) in enumerate(zip(judging.texts, verdict.right.tolist(), strict=True)):
        own, theirs = right[i].astype(float), judging.vectors[i].astype(float)
        cosine = "-"
        if own.shape == theirs.shape and own.any() and theirs.any():
            cosine = f"{own @ theirs / np.sqrt((own @ own) * (theirs @ theirs)):.6f}"
        level = judging.level(apart)
        aside = judging.maker.aside.get(text, "").replace(BROKEN, "not judged").rpartition(" as ")[2]
        word = aside or ("the model's" if level == "float32" else f"as {level} rounds" if level else "DIFFERENT")
        shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
        rows.append(
            [str(i + 1), str(judging.tokens[i]), cosine, "-" if aside else f"{apart:.2g}", f"{word:18} {shown!r}"]
        )
    yield from table(rows)
    yield ""
    yield "distance: |here - there| / |there|, of a vector's length; " + ", ".join(
        f"{name} up to {limit:.2g}" for name, limit in judging.limits
    )
