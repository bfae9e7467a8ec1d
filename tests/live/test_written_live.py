"""What other programs write of a model, by the page's own recipes: the debugger of transformers, an export to ONNX."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from command_line import Patch
from reference_files import REFERENCE, recipe

from minibert.verify.verify import verify

pytestmark = pytest.mark.reference
PAGE = (REFERENCE / "GOLDEN.md").read_text(encoding="utf-8")
QUERY, DENSE = "encoder.layer.1.attention.self.query", "encoder.layer.0.intermediate.dense"


def run(code: str, change: Callable[[Any], None] | None = None) -> dict[str, Any]:
    """Run a recipe, with the model changed before it is called."""
    before, bar, after = code.partition("\ninputs = ")
    space: dict[str, Any] = {}
    exec(compile(before, "GOLDEN.md", "exec"), space)
    if change is not None:
        change(space["model"])
    exec(compile(bar + after, "GOLDEN.md", "exec"), space)
    return space


@pytest.fixture
def here(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A folder of its own, where "./model" is a small BERT."""
    monkeypatch.chdir(tmp_path)
    return encoders.write(tmp_path / "model", "bert")


def two_mistakes(model: Any) -> None:
    model.get_submodule(QUERY).bias.data.zero_()
    model.get_submodule(DENSE).weight.data = model.get_submodule(DENSE).weight.data.half().float()


def test_the_debugger_s_folder_of_a_right_and_a_wrong_model(here: Path) -> None:
    run(recipe("model_addition_debugger_context"))
    report = verify(str(here), encoder=True, against=here.parent / "debugged")
    assert report.passed and "compared" in report.lines[3], "\n".join(report.lines)
    hidden = ["position_ids"] + [f"encoder.layer.{i}.attention.self.scores" for i in range(encoders.DEPTH)]
    assert f"not shown, and not compared: {', '.join(hidden)}" in report.lines
    run(recipe("model_addition_debugger_context"), two_mistakes)
    report = verify(str(here), encoder=True, against=here.parent / "debugged")
    assert {each.key: each.fits for each in report.local} == {QUERY: ["bias missing"], DENSE: []}


def test_an_npz_of_torch_s_hooks(here: Path) -> None:
    only = [QUERY.replace(".1.", ".0."), *(f"encoder.layer.{i}.output.LayerNorm" for i in range(encoders.DEPTH))]
    run(recipe("hooked.npz"))
    report = verify(str(here), encoder=True, against=Path("hooked.npz"), only=only)
    assert report.passed and {d.key for d in report.compared} == {*only}, "\n".join(report.lines)
    run(recipe("hooked.npz"), lambda model: model.get_submodule(only[0]).bias.data.zero_())
    assert not verify(str(here), encoder=True, against=Path("hooked.npz"), only=only).passed


@pytest.mark.filterwarnings("ignore")
def test_an_onnx_model_of_t5_s_encoder(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = encoders.write(tmp_path / "model", "t5")
    run(recipe("torch.onnx.export").replace("AutoModel", "T5EncoderModel"))
    report = verify(str(folder), encoder=True, against=Path("marked.onnx"))
    compared = {d.key for d in report.compared}
    assert report.passed and len(compared) == 32, "\n".join(report.lines)
    assert {"attentions.1", "encoder.block.0.layer.0.SelfAttention.q", "encoder.final_layer_norm"} <= compared


@pytest.mark.filterwarnings("ignore")  # the exporter's own words about torch's parts
def test_an_onnx_model(here: Path) -> None:
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    run(recipe("torch.onnx.export"))
    against = partial(verify, str(here), encoder=True)
    report = against(against=Path("marked.onnx"))
    assert report.passed, "\n".join(report.lines)
    compared = {d.key for d in report.compared}
    assert {QUERY, DENSE, "sum", "attentions.1", "encoder.layer.0.output.sum"} <= compared and len(compared) == 33
    assert {"long", "left_pad", "pads_inside_mask"} <= {kind for d in report.compared for kind in d.kinds}
    model = onnx.load("marked.onnx")
    (bias,) = [x for x in model.graph.initializer if x.name == f"{QUERY}.bias"]
    bias.CopyFrom(onnx.numpy_helper.from_array(np.zeros(encoders.DIM, np.float32), bias.name))
    onnx.save(model, "wrong.onnx")
    wrong = against(against=Path("wrong.onnx"))
    assert {each.key: each.fits for each in wrong.local} == {QUERY: ["bias missing"]}
    quantize_dynamic("marked.onnx", "int8.onnx", reduce_range=True)
    assert not against(against=Path("int8.onnx")).passed
    assert against(against=Path("int8.onnx"), tolerance=0.5).passed
    # the same numbers without a name are not compared, whatever their shape
    model = onnx.load("marked.onnx")
    for node in model.graph.node:
        if any(QUERY in each.value for each in node.metadata_props):
            del node.metadata_props[:]
    onnx.save(model, "part.onnx")
    report = against(against=Path("part.onnx"))
    assert report.passed and QUERY not in {d.key for d in report.compared}
    for node in model.graph.node:
        del node.metadata_props[:]
    onnx.save(model, "silent.onnx")
    with pytest.raises(ValueError, match=re.escape("pkg.torch.onnx.name_scopes")):
        against(against=Path("silent.onnx"))
    for spoil in (without_weights, unknown_operator, endless_metadata, no_model):
        spoil(onnx, onnx.load("marked.onnx"))
        with pytest.raises(ValueError, match=r"^wrong.onnx: "):
            against(against=Path("wrong.onnx"))


def no_model(onnx: Any, model: Any) -> None:
    Path("wrong.onnx").write_bytes(b"\xff" * 20)


def without_weights(onnx: Any, model: Any) -> None:
    onnx.save(model, "wrong.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    Path("weights.bin").unlink()


def unknown_operator(onnx: Any, model: Any) -> None:
    model.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(model, "wrong.onnx")


def endless_metadata(onnx: Any, model: Any) -> None:
    (scopes,) = [each for each in model.graph.node[-1].metadata_props if "name_scopes" in each.key]
    scopes.value = "[" * 50_000
    onnx.save(model, "wrong.onnx")
