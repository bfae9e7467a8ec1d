"""Reference values, printed numbers and texts that ship with the package, in `data/`.

`FILE`, made by scripts/reference/shipped.py, has a few texts with their ids, every intermediate of the input layer, and
for one text the output of each block. It is used for a checkpoint with the same bits in every parameter, whatever its
name: neither a name nor a size proves that.

`data/*.json` have a few hundred numbers of bert-base-uncased and gpt2, copied from notebooks that run the reference.
The digits are kept as printed. Each number may be off by half a unit of its last digit, or by half a float32 step if
that is more.

`TEXTS` are the texts to encode by a port or a server: for each kind of mistake one of them changes its vector. A file
of vectors has one row for each, in this order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from minibert.equations.input_layer import Array
from minibert.errors import HubError
from minibert.files.reading import arriving_texts
from minibert.files.tables import StoredTable
from minibert.models.encoder import Encoder
from minibert.models.input_layer import EmbeddingLayer
from minibert.models.open.load import load

from .counterparts import Counterpart, Sides
from .report import ERROR_SHARE, PORT_SHARE, Checked, Comparison, Shares, Text, compare_ids, over_kinds, table
from .subjects import Subject
from .traces import Traces, opened, read_traces

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
DATA = Path(__file__).parent / "data"
FILE = DATA / "all-MiniLM-L6-v2.safetensors"
AT_ONCE = 1 << 20  # numbers converted per step: a float64 copy of a whole table would be as large as the model
INPUT_LAYER = "embeddings."  # the paths of a BERT's input layer begin with it


class Values(NamedTuple):
    """The reference's inputs and intermediates of one published checkpoint, kind -> name -> array."""

    reference: str  # for example "transformers 5.23.0 on torch 2.13.0"
    texts: list[Text]  # the ids and types of each text or pair
    inputs: Traces
    traces: Traces  # every kind has the input layer's, some have hidden_states.1 and so on


def find(model: EmbeddingLayer | Encoder) -> Values | None:
    """Return the values of the checkpoint with these parameters: all of an encoder, or its input layer's.

    Nothing is read if a size differs. Else the sha256 of each parameter in float32 is compared, the smallest first,
    until one differs: a model on the Hub has its tables fetched only if all smaller parameters are the same.
    """
    about = _about()
    parameters, wanted = dict(_listed(model.modules)), about["parameters"]
    layer = {path for path in wanted if path.startswith(INPUT_LAYER)}
    if set(parameters) not in (layer, set(wanted)):
        return None
    if any(list(x.shape) != wanted[path][0] for path, x in parameters.items()):
        return None
    for path, x in sorted(parameters.items(), key=lambda item: int(np.prod(item[1].shape))):
        whole = x if isinstance(x, np.ndarray | StoredTable) else x.array()  # fetched from the Hub at once, not by rows
        if sha256_of(whole) != wanted[path][1]:
            return None
    inputs, traces = read_traces(FILE)
    versions = about["versions"]
    reference = f"transformers {versions['transformers']} on torch {versions['torch']}"
    ids = [{name: x[0].tolist() for name, x in inputs[f"text {i}"].items()} for i in range(1, 1 + len(about["texts"]))]
    return Values(reference, list(zip(about["texts"], ids, strict=True)), inputs, traces)


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
    """Return the sha256 of a parameter's numbers in float32; few rows are converted at once."""
    digest, step = hashlib.sha256(), max(1, AT_ONCE // max(1, int(np.prod(x.shape[1:]))))
    rows = x.rows if isinstance(x, StoredTable) else x.__getitem__
    for start in range(0, x.shape[0], step):
        digest.update(np.ascontiguousarray(rows(slice(start, start + step)), "<f4").data)
    return digest.hexdigest()


def _about() -> dict[str, Any]:
    from safetensors import safe_open

    with safe_open(str(FILE), framework="np") as file:
        about: dict[str, Any] = json.loads(file.metadata()["about"])
    return about


class Shipped(Counterpart):
    """The reference's values, computed from a checkpoint with the same weights."""

    whose = "reference"
    shares = Shares(ERROR_SHARE, PORT_SHARE)  # with our float64, which a wrong formula would make wrong too

    def __init__(self, values: Values) -> None:
        self.values = values
        self.about = (
            f"compared with what {values.reference} computes from {MODEL}",
            "the model is that checkpoint: its tables have the same bits, by their sha256; the values ship with "
            "minibert, the reference was not run",
        )

    def traces(self, report: Comparison, subject: Subject, batches: Traces, texts: Sequence[str]) -> Sides:
        if texts:
            report.say("the passed texts were not compared: only the reference itself can compute them")
        inputs, theirs = self.values.inputs, self.values.traces
        return inputs, subject.traces(inputs, theirs), theirs

    def not_compared(self, here: Sequence[str], there: Sequence[str], noun: str) -> Iterator[str]:
        return iter(())

    def close(self, report: Comparison, subject: Subject) -> None:
        compare_ids(report, subject.model, self.values.texts, "the reference's")
        if report.passed:
            largest = (f"{d.key.removeprefix('embeddings.')} {d.largest:.2g}" for d in over_kinds(report.compared))
            report.say(f"passed; largest differences: {', '.join(largest)}")


# -- numbers that public notebooks print ---------------------------------------------------------------------------

SLACK = 1e-15  # the rounding of a printed number that is read into float64


def printed_models() -> list[str]:
    """List the models whose numbers ship."""
    return [path.stem for path in sorted(DATA.glob("*.json"))]


def find_printed(model: str, layer: EmbeddingLayer) -> dict[str, Any] | None:
    """Return the printed values for a model of this name (a Hub name, a folder, the Hub's cache) and these sizes."""
    parts = {part.rpartition("--")[2] for part in PurePath(model).parts}
    for path in sorted(DATA.glob("*.json")):
        if path.stem in parts:
            stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if all(layer.config.get(key) == size for key, size in stored["sizes"].items()):
                return stored
    return None


def compare_printed(report: Comparison, subject: Subject, values: Mapping[str, Any], before: str) -> None:
    """Compare printed numbers and ids; `before` begins the first sentence."""
    report.say(
        f"{before}compared with printed numbers of {values['model']}, whose name and sizes this model has; they ship "
        f"with minibert: {values['source']}"
    )
    report.checked = check_printed(subject, values)
    rows = [["intermediate", "numbers", "max difference", "allowed there", "verdict"]]
    for c in report.checked:
        verdict = "as printed" if c.passes else "DIFFERENT"
        rows.append([c.key, str(c.numbers), f"{c.largest:.2g}", f"{c.allowed:.2g}", verdict])
    report.say("", *table(rows), "")
    texts = [((text["text"],), {"input_ids": text["input_ids"]}) for text in values["texts"]]
    compare_ids(report, subject.model, texts, "as printed")
    if not all(c.passes for c in report.checked):
        report.fail()
    elif report.passed:
        report.say("every number is the one that was printed")


def check_printed(subject: Subject, stored: Mapping[str, Any]) -> list[Checked]:
    """Compare every printed number with the layer's trace: half a printed unit, and a norm's rounding, are allowed."""
    # so that a remote table fetches all rows at once
    subject.layer.steps[0].module.table.expect(entry["input_ids"] for entry in stored["values"])
    distances: dict[str, list[tuple[float, float]]] = {}
    for entry in stored["values"]:
        key = entry["key"]
        rows = subject.trace({"input_ids": np.array([entry["input_ids"]])})[key][0]
        got = rows[np.ix_(entry["tokens"], np.arange(rows.shape[-1])[entry["columns"]])].astype(np.float64)
        printed = np.array(entry["printed"], np.float64)
        unit = np.maximum(half_units(entry["printed"]), half_steps(printed))
        limit = unit + SLACK + subject.allowed[key] * np.maximum(1, np.abs(printed))
        distances.setdefault(key, []).extend(zip(np.abs(got - printed).flat, limit.flat, strict=True))
    checked = []
    for key, pairs in distances.items():
        off, allowed = max(pairs, key=lambda pair: pair[0] / pair[1])
        passes = all(off <= most for off, most in pairs)
        checked.append(Checked(key, len(pairs), float(off), float(allowed), passes))
    return checked


def half_units(printed: Iterable[Iterable[str]]) -> Array:
    """Return half a unit of each number's last printed digit.

    >>> half_units([["0.0136", "1.7505e-02"]])
    array([[5.e-05, 5.e-07]])
    """

    def half_unit(text: str) -> float:
        digits, _, power = text.lower().partition("e")
        return 0.5 * 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))

    return np.array([[half_unit(text) for text in row] for row in printed])


def half_steps(printed: Array) -> Array:
    """Return half the distance to the next float32: a number in full has just enough digits to identify a float32.

    >>> half_steps(np.array([0.05135201, 0.18410145]))
    array([1.86264515e-09, 7.45058060e-09])
    """
    return np.asarray(np.spacing(np.abs(printed).astype(np.float32)) / 2, np.float64)


class Seed(NamedTuple):
    """A model's name on the Hub, and the commit whose numbers were printed."""

    model: str
    commit: str


# Independent public repositories name these as the commit of `main`; for gpt2 the documentation of huggingface_hub is
# one of them. `verify MODEL` takes today's main
SEEDS = (
    Seed("bert-base-uncased", "86b5e0934494bd15c9632b12f734a8a67f723594"),
    Seed("gpt2", "607a30d783dfa663caf39e06633721c8d4cfcd7e"),
)


def verify_seed(seed: Seed, local_files_only: bool = False) -> Comparison:
    """Compare one model with its printed numbers; `ran` is False if the Hub did not answer.

    Only the header, the small tensors, the printed rows (about 150 kB) and the tokenizer are fetched.
    """
    report = Comparison(f"{seed.model} at {seed.commit}")
    open_model = partial(load, seed.model, revision=seed.commit, local_files_only=local_files_only, lazy=True)
    try:
        with open_model() as layer:
            known = find_printed(seed.model, layer)
            if known is None:
                report.fail(f"DIFFERENT: its sizes are not those of {seed.model}; is HF_ENDPOINT a right mirror?")
            else:
                compare_printed(report, Subject(layer, open_model), known, "")
    except HubError as error:
        report.ran = report.passed = False
        report.lines = [f"not run here: {error}"]
    return report


# -- texts -------------------------------------------------------------------------------------------------------


class ProbeText(NamedTuple):
    """A text, and the mistakes that change its vector."""

    text: str
    why: str


_LINES = (DATA / "texts.jsonl").read_text("utf-8").splitlines()
TEXTS: tuple[ProbeText, ...] = tuple(ProbeText(**json.loads(line)) for line in _LINES)


def read_texts(path: Path) -> list[str]:
    """Read one text per line; in a .jsonl file, the "text" of each line. Raises ValueError for a bad line."""
    if path.suffix.lower() in (".parquet", ".csv", ".tsv", ".arrow"):
        raise ValueError(f"{path}: expected a file of lines or JSON lines; write the texts to a file, one per line")
    texts = list[str]()
    for number, text in enumerate(chain.from_iterable(arriving_texts(str(opened(path)))), 1):
        try:
            texts.append(json.loads(text)["text"] if path.suffix.lower() == ".jsonl" else text)
            if not isinstance(texts[-1], str):
                raise ValueError(f'"text" is {texts[-1]!r:.40}')
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            expected = 'a text, in JSON an object with "text"'
            raise ValueError(f"{path}, line {number}: expected {expected} ({error})") from None
    if not texts:
        raise ValueError(f"{path} has no text")
    return texts
