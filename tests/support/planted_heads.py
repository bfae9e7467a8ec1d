"""Ports with a mistake in a head or an input layer, made by transformers' own models, changed or patched.

`PLANTED` has for each the case of `head_files`, where it is, the name that is right, and how it is made.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from head_files import HEAD_CASE
from planted_ports import Change, bias, weight
from ports import verify_part

from minibert.models.open.load_encoder import load_encoder
from minibert.verify.judge.blocks import EncoderSubject, encoder_batches
from minibert.verify.report import Report
from minibert.verify.sides.reference import Reference
from minibert.verify.sides.traces import write_traces

DIM = 12  # numbers of a row in these models
HEAD, INPUT = "head", "input layer"
WORDS = "bert.embeddings.word_embeddings"


class Planted(NamedTuple):
    """One port; `name` is a part of what is said of each module that is wrong."""

    case: str
    place: str
    name: str
    change: Change


def judged(port: Planted, tmp: Path) -> Report:
    """What verify says of it."""
    folder = HEAD_CASE[port.case].folder
    with load_encoder(folder) as encoder:
        reference = Reference(EncoderSubject(encoder, partial(load_encoder, folder)), str(folder))
        inputs = {kind: x for kind, x in encoder_batches(encoder).items() if reference.takes(x)}
        port.change(reference._model)
        traces = {kind: reference.trace(batch) for kind, batch in inputs.items()}
        for key in reference._subject.pairs:
            traces["long"].pop(key, None)
    write_traces(tmp / "port.safetensors", inputs, traces)
    return verify_part(str(folder), encoder=True, against=tmp / "port.safetensors")


def right(port: Planted, report: Report) -> bool:
    """Whether each module that is wrong is at its place, and has the name."""
    return bool(report.local) and all(
        each.place.startswith(port.place) and any(re.search(port.name, fit) for fit in each.fits)
        for each in report.local
    )


def un_normed(norm: str, head: str) -> Change:
    """A head of what enters the last norm."""

    def changed(model: Any) -> None:
        entered: list[Any] = []
        model.get_submodule(norm).register_forward_pre_hook(lambda module, args: entered.append(args[0]))
        work = model.get_submodule(head)
        forward = work.forward
        work.forward = lambda x: forward(entered[-1])

    return changed


def given(path: str, change: Callable[[Any], Any]) -> Change:
    """Another output of a module."""
    return lambda model: model.get_submodule(path).register_forward_hook(lambda module, args, x: change(x))


def looked_up(path: str, change: Callable[[Any, int], Any]) -> Change:
    """Other ids for a table: from the right ones, and how many rows there are."""

    def changed(model: Any) -> None:
        table = model.get_submodule(path)
        forward = table.forward
        table.forward = lambda ids: forward(change(ids, table.num_embeddings))

    return changed


def own_numbers(path: str) -> Change:
    """A matrix of its own in the place of the word table's."""

    def changed(model: Any) -> None:
        import torch

        module = model.get_submodule(path)
        drawn = torch.randn(module.weight.shape, generator=torch.Generator().manual_seed(1))
        module.weight = torch.nn.Parameter(drawn)

    return changed


def words_for(path: str, table: str) -> Change:
    """The word table in the place of a head's own."""

    def changed(model: Any) -> None:
        model.get_submodule(path).weight = model.get_submodule(table).weight

    return changed


def positions_by_mask(model: Any) -> None:
    forward = model.forward

    def called(**named: Any) -> Any:
        mask = named.get("attention_mask")
        if mask is not None:
            named["position_ids"] = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)
        return forward(**named)

    model.forward = called


def before(x: Any) -> Any:
    made = x.roll(1, 1)
    made[:, 0] = 0
    return made


UN_NORMED, SHIFTED = "last norm not applied before the head", "logits shifted by a token"
DIVIDED, OWN = r"logits divided by sqrt\(dim\)", "weights of its own, not the word table's"
PLANTED: dict[str, Planted] = {
    "Qwen3: shared": Planted(
        "qwen3-next_word", HEAD, "word table where the head has its own", words_for("lm_head", "model.embed_tokens")),
    "BERT: transposed": Planted("bert-masked_word", HEAD, "weight transposed",
                                weight("cls.predictions.transform.dense", lambda x: x.T)),
    "BERT: bias": Planted("bert-answer", HEAD, "bias missing", bias("qa_outputs")),
    "BERT: times sqrt(dim)": Planted(
        "bert-masked_word", INPUT, r"word rows times sqrt\(dim\)", given(WORDS, lambda x: x * DIM**0.5)),
    "BERT: ids + 1": Planted("bert-masked_word", INPUT, r"rows of ids \+1", looked_up(WORDS, lambda i, n: (i + 1) % n)),
    "Llama: ids - 1": Planted("llama-next_word", INPUT, "rows of ids -1", looked_up(
        "model.embed_tokens", lambda i, n: (i - 1).clamp(min=0))),
    "BERT: positions": Planted("bert-masked_word", INPUT, "positions counted by the mask", positions_by_mask),
}  # fmt: skip
