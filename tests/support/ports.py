"""The output of `minibert verify --save` for the tiny BERT, and a port's file made from it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from reference_files import BY_NAME
from safetensors.numpy import load_file, save_file

from minibert.equations.input_layer import Array
from minibert.families.parts.heads import BoundHead
from minibert.families.parts.plan import run
from minibert.models.encoder import Encoder
from minibert.models.open.load_encoder import load_encoder
from minibert.verify.mistakes.mistake import Mistake, all_places, begin, kept, with_mistake
from minibert.verify.report import Comparison
from minibert.verify.subjects import PARTS, EncoderSubject, batches, encoder_batches, trace
from minibert.verify.traces import Traces
from minibert.verify.verify import verify

BERT = BY_NAME["bert"]
KINDS = ("plain", "left_pad")  # of batches: enough for most mistakes


def arrays(inputs: Traces, traces: Traces) -> dict[str, Array]:
    """A port's numbers by their names in a file, which verify takes as they are."""
    found = {f"{kind}|inputs|{name}": array for kind, named in inputs.items() for name, array in named.items()}
    return found | {f"{kind}|{key}": array for kind, named in traces.items() for key, array in named.items()}


@cache
def _saved() -> dict[str, Array]:
    with BERT.layer() as layer:
        inputs = batches(layer)
        traces = {kind: trace(layer, batch) for kind, batch in inputs.items()}
    return {name: np.array(array) for name, array in arrays(inputs, traces).items()}


def saved() -> dict[str, Array]:
    """Inputs and intermediates of every batch, by their names in a file."""
    return dict(_saved())


def ported(named: dict[str, Array], folder: Path, name: str = "port.safetensors") -> Path:
    """Write a port's file."""
    save_file(named, path := folder / name)
    return path


def verify_part(model: str | Path, against: dict[str, Array] | None = None, **options: Any) -> Comparison:
    """Verify a port that has some of the batches alone: these, by their names."""
    if against is not None:
        options = {"batches": [*dict.fromkeys(name.partition("|")[0] for name in against)], **options}
    return verify(str(model), against=against, **options)


verify_encoder = partial(verify_part, encoder=True)


def saved_of(folder: Path, path: Path) -> dict[str, Array]:
    """The keys that verify saves of a whole model: every intermediate of every batch."""
    assert verify_encoder(folder, save=path).passed
    return dict(load_file(path))


def rewritten(folder: Path, copy: Path, change: Callable[[str, Array], Array]) -> Path:
    """A copy of a model's folder with other numbers, each tensor's made of its name and its own."""
    shutil.copytree(folder, copy)
    for path in copy.rglob("*.safetensors"):
        save_file({name: np.ascontiguousarray(change(name, x)) for name, x in load_file(path).items()}, path)
    return copy


def first_difference(report: Comparison) -> str:
    """Its place, its intermediate and its batches, as the report says them."""
    (line,) = [line for line in report.lines if line.startswith("first difference: ")]
    return line.removeprefix("first difference: ")


def few(encoder: Encoder, *kinds: str) -> Traces:
    """Some of an encoder's batches."""
    batches = encoder_batches(encoder)
    return {kind: batches[kind] for kind in kinds or KINDS}


@contextmanager
def opened(folder: Path, *kinds: str) -> Iterator[tuple[EncoderSubject, Traces]]:
    """An encoder as verify compares it, and some of its batches."""
    with load_encoder(folder) as encoder:
        yield EncoderSubject(encoder, partial(load_encoder, folder)), few(encoder, *kinds)


def planted(folder: Path, mistake: Mistake, *kinds: str, parts: Collection[str] = PARTS) -> dict[str, Array]:
    """The numbers of a model with a mistake in some of its parts."""
    with opened(folder, *kinds) as (subject, inputs):
        return arrays(inputs, {
            kind: by_steps(subject.encoder, x, mistake, parts, subject.head) for kind, x in inputs.items()
        })  # fmt: skip


def numbers(folder: Path, port: Any, *kinds: str) -> dict[str, Array]:
    """The numbers of a port whose `run` gives the intermediates of one batch."""
    with load_encoder(folder) as encoder:
        inputs = few(encoder, *kinds)
    return arrays(inputs, {kind: port.run(batch) for kind, batch in inputs.items()})


def judged(folder: Path, port: Any, *kinds: str, **options: Any) -> Comparison:
    return verify_encoder(folder, numbers(folder, port, *kinds), **options)


def by_steps(
    encoder: Encoder, batch: Mapping[str, Array], mistake: Mistake | None = None, parts: Collection[str] = PARTS,
    head: BoundHead | None = None,
) -> dict[str, Array]:  # fmt: skip
    """Trace one padded batch by the model's steps, with a mistake in `parts`. Padding has numbers, not zeros."""
    values, found = begin(batch), dict[str, Array]()
    for at in all_places(encoder, head):
        wrong = with_mistake(mistake, at) if mistake and at.part in parts else None
        found |= run(wrong or at.plan, values)
        values = kept(values)
    return found
