"""What other programs write of a model, by the page's own recipes: the debugger of transformers, an export to ONNX."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import encoders
import numpy as np
import pytest
from honest_ports import dynamic_int8
from reference_files import REFERENCE

from minibert.verify.verify import verify

pytestmark = pytest.mark.reference
PAGE = (REFERENCE / "GOLDEN.md").read_text(encoding="utf-8")
ACT = "encoder.layer.0.intermediate.intermediate_act_fn"
QUERY, DENSE = "encoder.layer.1.attention.self.query", "encoder.layer.0.intermediate.dense"


def recipe(word: str) -> str:
    (code,) = [found for found in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if word in found]
    return code


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
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, where "./model" is a small BERT."""
    monkeypatch.chdir(tmp_path)
    return encoders.write(tmp_path / "model", "bert")


def two_mistakes(model: Any) -> None:
    model.get_submodule(QUERY).bias.data.zero_()
    model.get_submodule(DENSE).weight.data = model.get_submodule(DENSE).weight.data.half().float()


def test_the_debugger_s_folder(here: Path) -> None:
    run(recipe("model_addition_debugger_context"))
    report = verify(str(here), encoder=True, against=here.parent / "debugged")
    assert report.passed and "compared" in report.lines[3], "\n".join(report.lines)
    hidden = ["position_ids"] + [f"encoder.layer.{i}.attention.self.scores" for i in range(encoders.DEPTH)]
    assert f"not shown, and not compared: {', '.join(hidden)}" in report.lines


def test_a_wrong_model_s_folder(here: Path) -> None:
    run(recipe("model_addition_debugger_context"), two_mistakes)
    report = verify(str(here), encoder=True, against=here.parent / "debugged")
    assert {each.key: each.fits for each in report.local} == {QUERY: ["bias missing"], DENSE: ["weight in float16"]}


def test_a_folder_of_dynamic_int8(here: Path) -> None:
    """The debugger keeps no output of a quantized map, but what entered it, and what came of it."""

    def narrow(model: Any, wrong: bool) -> None:
        if wrong:
            model.get_submodule(DENSE).bias.data.zero_()
        dynamic_int8(model)

    for wrong in (False, True):
        run(
            recipe("model_addition_debugger_context").replace("debugged", f"int8-{wrong}"), partial(narrow, wrong=wrong)
        )
        source = here.parent / f"int8-{wrong}"
        assert not verify(str(here), encoder=True, against=source).passed
        report = verify(str(here), encoder=True, against=source, form="int8")
        assert report.passed != wrong, "\n".join(report.lines)
        assert [each.key for each in report.local] == [ACT] * wrong
        assert any(line.startswith("not shown") and QUERY in line for line in report.lines)


@pytest.mark.filterwarnings("ignore")
def test_an_onnx_model_of_t5_s_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = encoders.write(tmp_path / "model", "t5")
    run(recipe("torch.onnx.export").replace("AutoModel", "T5EncoderModel"))
    report = verify(str(folder), encoder=True, against=Path("marked.onnx"))
    compared = {d.key for d in report.differences}
    assert report.passed and len(compared) == 32, "\n".join(report.lines)
    assert {"attentions.1", "encoder.block.0.layer.0.SelfAttention.q", "encoder.final_layer_norm"} <= compared


@pytest.mark.parametrize(
    ("kept", "said"),
    [("", "printed tensors and no middle layers"), ("use_repr=False", "has no module of block 1")],
)
def test_a_default_folder_is_refused(kept: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = encoders.write(tmp_path / "model", "bert", num_hidden_layers=4)
    run(recipe("model_addition_debugger_context").replace("do_prune_layers=False, use_repr=False", kept))
    with pytest.raises(ValueError, match=f"{said}.*do_prune_layers=False, use_repr=False"):
        verify(str(folder), encoder=True, against=tmp_path / "debugged")


@pytest.mark.filterwarnings("ignore")  # the exporter's own words about torch's parts
def test_an_onnx_model(here: Path) -> None:
    """Every batch that it takes, every module; a wrong bias in the graph is found where it is, in int8 too."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    run(recipe("torch.onnx.export"))
    report = verify(str(here), encoder=True, against=Path("marked.onnx"))
    assert report.passed, "\n".join(report.lines)
    compared = {d.key for d in report.differences}
    assert {QUERY, DENSE, "sum", "attentions.1", "encoder.layer.0.output.sum"} <= compared and len(compared) == 33
    assert {"long", "left_pad", "pads_inside_mask"} <= {kind for d in report.differences for kind in d.kinds}
    model = onnx.load("marked.onnx")
    (bias,) = [x for x in model.graph.initializer if x.name == f"{QUERY}.bias"]
    bias.CopyFrom(onnx.numpy_helper.from_array(np.zeros(encoders.DIM, np.float32), bias.name))
    onnx.save(model, "wrong.onnx")
    wrong = verify(str(here), encoder=True, against=Path("wrong.onnx"))
    assert {each.key: each.fits for each in wrong.local} == {QUERY: ["bias missing"]}
    unsigned: dict[str, Any] = {"weight_type": QuantType.QUInt8}
    # without one of these, sums saturate where a processor has no VNNI: wrong numbers, and judged so
    narrow_weight: dict[str, Any] = {"reduce_range": True}
    ways = (narrow_weight, narrow_weight | {"per_channel": True}, unsigned, unsigned | narrow_weight)
    for (source, passes), way in product((("marked.onnx", True), ("wrong.onnx", False)), ways):
        quantize_dynamic(source, "int8.onnx", **way)
        assert not verify(str(here), encoder=True, against=Path("int8.onnx")).passed
        narrow = verify(str(here), encoder=True, against=Path("int8.onnx"), form="int8")
        assert narrow.passed == passes and [each.key for each in narrow.local] == [QUERY] * (not passes)
    for node in model.graph.node:
        del node.metadata_props[:]
    onnx.save(model, "silent.onnx")
    with pytest.raises(ValueError, match=re.escape("no node has pkg.torch.onnx.name_scopes")):
        verify(str(here), encoder=True, against=Path("silent.onnx"))
    Path("broken.onnx").write_bytes(b"\xff" * 20)
    with pytest.raises(ValueError, match="expected an ONNX model"):
        verify(str(here), encoder=True, against=Path("broken.onnx"))


@pytest.mark.filterwarnings("ignore")
def test_where_nodes_name_no_module_nothing_is_guessed(here: Path) -> None:
    """The same numbers without a name are not compared, whatever their shape."""
    import onnx

    run(recipe("torch.onnx.export"))
    model = onnx.load("marked.onnx")
    for node in model.graph.node:
        if any(QUERY in each.value for each in node.metadata_props):
            del node.metadata_props[:]
    onnx.save(model, "part.onnx")
    report = verify(str(here), encoder=True, against=Path("part.onnx"))
    assert report.passed and QUERY not in {d.key for d in report.differences}
    assert any("of the others 2 come of nodes that name no module" in line for line in report.lines), report.lines
