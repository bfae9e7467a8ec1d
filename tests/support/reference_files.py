"""Reads tests/reference: one `Case` for each tiny checkpoint that the reference has written and run."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from safetensors.numpy import load_file, save_file

import minibert
from minibert.equations.input_layer import Array
from minibert.families.parts.plan import run
from minibert.verify.mistakes import MISTAKES
from minibert.verify.mistakes.mistake import all_places, begin
from minibert.verify.mistakes.mistake import with_mistake as steps_with
from minibert.verify.report import Difference, compare
from minibert.verify.subjects import tolerances, trace
from minibert.verify.traces import Traces, read_traces

REFERENCE = Path(__file__).parents[1] / "reference"


@dataclass(frozen=True)
class Stored:
    """A folder that the reference has written: a model, facts about it, inputs and what the reference gives."""

    name: str
    root: ClassVar[Path] = REFERENCE

    @property
    def folder(self) -> Path:
        return self.root / self.name

    @cached_property
    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads((self.folder / "case.json").read_text(encoding="utf-8"))
        return facts

    @cached_property
    def read(self) -> tuple[Traces, Traces]:
        """Inputs and the reference's intermediates, kind by kind."""
        return read_traces(self.folder / "trace.safetensors")

    def __str__(self) -> str:
        return self.name


class Case(Stored):
    @property
    def side(self) -> str:
        return self.facts["side"] or "encoder"

    def own_file(self, folder: Path) -> Path:
        """The reference's file as somebody's own: its batches are not those that verify makes, so other names."""
        arrays = load_file(self.folder / "trace.safetensors")
        save_file({f"reference_{name}": array for name, array in arrays.items()}, path := folder / "own.safetensors")
        return path

    def layer(self, **changes: Any) -> minibert.EmbeddingLayer:
        return minibert.load(self.folder, side=self.side, **changes)

    def differences(self, layer: minibert.EmbeddingLayer) -> list[Difference]:
        """Its intermediates beside the reference's."""
        inputs, theirs = self.read
        return compare({kind: trace(layer, batch) for kind, batch in inputs.items()}, theirs, {}, tolerances(layer))

    def with_words(self, folder: Path, *words: str) -> minibert.EmbeddingLayer:
        """Open a copy that has a tokenizer, split at spaces: of these words by their places, else of w0, w1, ..."""
        from tokenizers import Tokenizer, models, pre_tokenizers

        words = words or tuple(f"w{i}" for i in range(53))
        tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
        copy = shutil.copytree(self.folder, folder / "with words")
        tokenizer.save(str(copy / "tokenizer.json"))
        return minibert.load(copy, side=self.side)


CASES = tuple(Case(path.parent.name) for path in sorted(REFERENCE.glob("*/case.json")))
BY_NAME = {case.name: case for case in CASES}


def changed(tmp_path: Path, name: str, file: str, change: Any) -> minibert.Encoder:
    """Open a copy of a folder with one JSON file changed: some keys, or what a function makes of all."""
    shutil.rmtree(folder := tmp_path / "model", ignore_errors=True)
    path = shutil.copytree(REFERENCE / name, folder) / file
    data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(change(data) if callable(change) else data | change), encoding="utf-8")
    return minibert.load_encoder(folder)


def recipe(word: str) -> str:
    """The block of Python on the page of golden files that has this word."""
    page = (REFERENCE / "GOLDEN.md").read_text(encoding="utf-8")
    (code,) = [found for found in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if word in found]
    return code


def opened(name: str) -> minibert.Encoder:
    return minibert.load_encoder(REFERENCE / name)


def with_mistake(layer: minibert.EmbeddingLayer, name: str, batch: dict[str, Array]) -> dict[str, Array]:
    """Trace a batch by an input layer's steps, with the mistake of this name. Raises ValueError where none has it."""
    (at,) = all_places(layer)
    for mistake in MISTAKES:
        if mistake.name == name and (plan := steps_with(mistake, at)):
            return dict(run(plan, begin(batch)))
    raise ValueError(f"{name} cannot be made in {layer.family.model_type}")
