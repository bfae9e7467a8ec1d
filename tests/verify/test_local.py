"""Several modules of a port wrong at once: each is found by itself, named where its formula has that mistake."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import encoders
import loops
import numpy as np
import pytest
from encoder_files import CASE
from safetensors.numpy import load_file

from minibert.equations.input_layer import Array
from minibert.models.load_encoder import load_encoder
from minibert.verify.blocks import EncoderSubject, encoder_batches
from minibert.verify.local import local_mistakes
from minibert.verify.report import Report
from minibert.verify.traces import write_traces
from minibert.verify.verify import verify

KINDS = ("plain", "left_pad")
Q0, O1, UP0, DOWN1 = (f"encoder.layer.{path}" for path in (
    "0.attention.self.query", "1.attention.output.dense", "0.intermediate.dense", "1.output.dense"))  # fmt: skip
N0, N1 = "encoder.layer.0.attention.output.LayerNorm", "encoder.layer.1.output.LayerNorm"


class Wrong(loops.Port):
    """A port in loops with some modules replaced: path -> from the port and the module's rows."""

    def __init__(self, folder: Path, replaced: dict[str, Callable[[Any, Array], Array]]) -> None:
        super().__init__(folder)
        self.replaced = replaced

    def dense(self, path: str, rows: Array) -> Array:
        made = self.replaced[path](self, rows) if path in self.replaced else super().dense(path, rows)
        return np.asarray(made, np.float32)

    def norm(self, path: str, rows: Array) -> Array:
        made = self.replaced[path](self, rows) if path in self.replaced else super().norm(path, rows)
        return np.asarray(made, np.float32)


def weight(port: Any, path: str) -> Array:
    return np.asarray(port.tensors[f"{path}.weight"])


def bias(port: Any, path: str) -> Array:
    return np.asarray(port.tensors[f"{path}.bias"])


def no_bias(path: str) -> Callable[[Any, Array], Array]:
    return lambda port, x: x @ weight(port, path).T


def transposed(path: str) -> Callable[[Any, Array], Array]:
    return lambda port, x: x @ weight(port, path) + bias(port, path)


def halved(path: str) -> Callable[[Any, Array], Array]:
    return lambda port, x: x @ weight(port, path).astype(np.float16).astype(np.float32).T + bias(port, path)


def of(path: str, other: str) -> Callable[[Any, Array], Array]:
    return lambda port, x: x @ weight(port, other).T + bias(port, other)


def normed(
    path: str, ddof: int = 0, eps: float = 1e-12, outside: bool = False, rms: bool = False
) -> Callable[[Any, Array], Array]:
    def made(port: Any, x: Array) -> Array:
        centred = x - (0 if rms else x.mean(-1, keepdims=True))
        variance = (centred**2).sum(-1, keepdims=True) / (x.shape[-1] - ddof)
        root = np.sqrt(variance) + eps if outside else np.sqrt(variance + eps)
        return np.asarray(centred / root * weight(port, path) + bias(port, path))

    return made


# with BERT's eps the two cannot be told apart
DDOF = "variance divided by dim - 1 or variance divided by dim - 1, eps outside the root"
PLANTED: dict[str, dict[str, tuple[str, Callable[[Any, Array], Array]]]] = {
    "a bias": {Q0: ("bias missing", no_bias(Q0))},
    "a matrix of many": {O1: ("weight transposed", transposed(O1))},
    "two matrices in two blocks": {
        Q0: ("weight transposed", transposed(Q0)), DOWN1: ("bias missing", no_bias(DOWN1))},
    "another block's": {O1: ("weight and bias of encoder.layer.0.attention.output.dense",
                             of(O1, "encoder.layer.0.attention.output.dense"))},
    "float16": {UP0: ("weight in float16", halved(UP0))},
    "dim - 1": {N0: (DDOF, normed(N0, ddof=1))},
    "rms and a bias after it": {
        N0: ("RMSNorm for LayerNorm", normed(N0, rms=True)), DOWN1: ("bias missing", no_bias(DOWN1))},
    "the last norm, and the first matrix": {
        Q0: ("bias missing", no_bias(Q0)), N1: (DDOF, normed(N1, ddof=1))},
    "four at once": {
        Q0: ("bias missing", no_bias(Q0)), N0: ("RMSNorm for LayerNorm", normed(N0, rms=True)),
        O1: ("weight transposed", transposed(O1)), DOWN1: ("weight in float16", halved(DOWN1))},
    "what no list has": {Q0: ("", lambda port, x: np.tanh(x @ weight(port, Q0).T) + bias(port, Q0))},
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoders.write(tmp_path_factory.mktemp("local") / "bert", "bert")


def judged(folder: Path, path: Path, port: loops.Port) -> Report:
    with load_encoder(folder) as encoder:
        inputs = {kind: batch for kind, batch in encoder_batches(encoder).items() if kind in KINDS}
    write_traces(path, inputs, {kind: port.run(batch) for kind, batch in inputs.items()})
    return verify(str(folder), encoder=True, against=path)


@pytest.mark.parametrize("name", PLANTED)
def test_each_wrong_module_is_found_and_named_by_itself(name: str, folder: Path, tmp_path: Path) -> None:
    planted = PLANTED[name]
    replaced = {path: made for path, (_, made) in planted.items()}
    report = judged(folder, tmp_path / "port.safetensors", Wrong(folder, replaced))
    assert not report.passed
    assert {each.key: each.fits for each in report.local} == {
        path: fits.split(" or ") if fits else [] for path, (fits, _) in planted.items()
    }, "\n".join(report.lines)


@pytest.mark.parametrize("block", [0, 1])
def test_a_module_that_several_blocks_use_is_judged_in_each(block: int) -> None:
    """ALBERT: one matrix, and a key of the trace for each block that it works in."""
    path, case = "encoder.albert_layer_groups.0.albert_layers.0", CASE["albert"]
    key, entering = f"{path}[{block}].attention.query", f"hidden_states.{block}"
    stored = {name.removeprefix("albert."): x for name, x in load_file(case.folder / "model.safetensors").items()}
    with case.load() as encoder:
        subject = EncoderSubject(encoder, case.load)
        inputs = {kind: batch for kind, batch in encoder_batches(encoder).items() if kind in KINDS}
        theirs = {}
        for kind, batch in inputs.items():
            right = encoder.trace(**batch)
            made = right[entering] @ stored[f"{path}.attention.query.weight"]
            made += stored[f"{path}.attention.query.bias"]
            theirs[kind] = {name: right[name] for name in ("hidden_states.0", entering)} | {key: made}
        found = local_mistakes(subject, inputs, theirs)
    assert [(each.key, each.place, each.fits) for each in found] == [(key, f"block {block}", ["weight transposed"])]


def test_an_activation_of_one_block(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feed_forward = loops.Port.feed_forward

    def first_by_tanh(self: Any, at: str, x: Array, kept: dict[str, Array]) -> Array:
        self.wrong = "gelu by tanh" if ".0." in at else ""
        return feed_forward(self, at, x, kept)

    monkeypatch.setattr(loops.Port, "feed_forward", first_by_tanh)
    report = judged(folder, tmp_path / "port.safetensors", loops.Port(folder))
    assert [(each.key, each.fits) for each in report.local] == [
        ("encoder.layer.0.intermediate.intermediate_act_fn", ["activation gelu_new"])
    ]


def test_a_wrong_input_layer_leaves_every_module_right(folder: Path, tmp_path: Path, monkeypatch: Any) -> None:
    input_layer = loops.Port.input_layer
    monkeypatch.setattr(
        loops.Port, "input_layer", lambda self, given, kept: input_layer(self, given, kept) + np.float32(1)
    )
    report = judged(folder, tmp_path / "port.safetensors", loops.Port(folder))
    assert not report.passed and report.local == []
    assert "on the port's own inputs every module of the blocks that is in the file is right" in report.lines


def test_a_right_port_is_not_looked_at(folder: Path, tmp_path: Path) -> None:
    report = judged(folder, tmp_path / "port.safetensors", loops.Port(folder))
    assert report.passed and report.local == []


def test_numbers_of_padding_that_are_none_do_not_spread(folder: Path, tmp_path: Path) -> None:
    """A port may leave anything at padding."""
    with load_encoder(folder) as encoder:
        inputs = {"left_pad": encoder_batches(encoder)["left_pad"]}
        subject = EncoderSubject(encoder, partial(load_encoder, folder))
        assert subject.noun == "encoder"
    made = Wrong(folder, {Q0: no_bias(Q0)}).run(inputs["left_pad"])
    padding = inputs["left_pad"]["attention_mask"] == 0
    for key, x in made.items():
        if x.ndim == 3 and not key.startswith("embeddings") and key != "sum":
            x[padding] = math.nan
    write_traces(tmp_path / "port.safetensors", inputs, {"left_pad": made})
    report = verify(str(folder), encoder=True, against=tmp_path / "port.safetensors")
    assert [each.key for each in report.local] == [Q0]
