"""Reference values and texts that ship with the package.

`FILE`, made by scripts/reference/shipped.py, has a few texts with their ids, every intermediate of the input layer, and
for one text the output of each block. It is used for a checkpoint with the same bits in every parameter, whatever its
name: neither a name nor a size proves that.

`TEXTS` are the texts to encode by a port or a server: for each kind of mistake one of them changes its vector. A file
of vectors has one row for each, in this order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from minibert.files.reading import arriving_texts
from minibert.files.tables import StoredTable
from minibert.models.encoder import Encoder
from minibert.models.input_layer import EmbeddingLayer

from .counterparts import Counterpart, Sides
from .report import ERROR_SHARE, PORT_SHARE, Comparison, Shares, Text, compare_ids, over_kinds
from .subjects import Subject
from .traces import Traces, opened, read_traces

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
FILE = Path(__file__).parent / "data/all-MiniLM-L6-v2.safetensors"
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
    for path, x in sorted(parameters.items(), key=lambda each: int(np.prod(each[1].shape))):
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


# -- texts -------------------------------------------------------------------------------------------------------


class ProbeText(NamedTuple):
    """A text, and the mistakes that change its vector."""

    text: str
    why: str


_LINES = (Path(__file__).parent / "data/texts.jsonl").read_text("utf-8").splitlines()
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
