"""verify reads a dict, and refuses a debugger's folder that it cannot compare."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import ports
import pytest
from safetensors.numpy import save_file

from minibert.verify import sources
from minibert.verify.sources import TREE, read_against
from minibert.verify.verify import verify

BERT = str(ports.BERT.folder)


def test_a_dict_has_the_verdict_of_the_one_file() -> None:
    arrays = ports.saved()
    right = verify(BERT, against=arrays)
    assert right.passed and "12 of 12 batches compared" in right.lines, right.lines
    arrays["types|sum"] = arrays["types|sum"] + np.float32(1)
    wrong = verify(BERT, against=arrays)
    assert [(d.key, d.kinds) for d in wrong.compared if not d.passes] == [("sum", ("types",))]
    del arrays["types|sum"]
    missing = verify(BERT, against=arrays)
    assert not missing.passed and missing.missing == ["types|sum"]


def tree(folder: Path, value: object) -> Path:
    """What the debugger writes of one module, cut short."""
    folder.mkdir()
    shown = {"shape": "torch.Size([1, 2])", "dtype": "torch.int64", "value": value}
    words = {"module_path": "BertModel.embeddings.word_embeddings", "inputs": {"args": [shown]}, "outputs": shown}
    whole = {"module_path": "BertModel", "inputs": {"kwargs": {"input_ids": shown}}, "children": [words]}
    (folder / f"BertModel{TREE}").write_text(json.dumps(whole), "utf-8")
    return folder


def test_a_debugger_s_default_folder_is_refused_with_what_is_wrong(tmp_path: Path) -> None:
    wanted = "printed tensors and no middle layers.*do_prune_layers=False, use_repr=False"
    with pytest.raises(ValueError, match=wanted):
        verify(BERT, against=tree(tmp_path / "printed", ["tensor([[1, 2]])"]))


def test_a_debugger_s_folder_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = tree(tmp_path / "other", "./ids.safetensors")
    save_file({"data": np.array([[1, 2]])}, folder / "ids.safetensors")
    path = next(folder.glob("*.json"))
    path.write_text(path.read_text("utf-8").replace("embeddings.word_embeddings", "wte"), "utf-8")
    with pytest.raises(ValueError, match=re.escape("expected a module embeddings.word_embeddings")):
        verify(BERT, against=folder)
    module = {"module_path": "BertModel"}
    given: list[object] = [[1], {"kwargs": [1]}, {"args": {"a": 1}}]
    inside = [{"children": [module | {"inputs": each}]} for each in given]
    for broken in ({"children": 3}, *({"inputs": each} for each in given), *inside):
        path.write_text(json.dumps(module | broken), "utf-8")
        with pytest.raises(ValueError):
            verify(BERT, against=folder)


def test_a_debugger_s_folder_without_ids_is_refused(tmp_path: Path) -> None:
    folder = tree(tmp_path / "none", "./ids.safetensors")
    save_file({"data": np.array([[1, 2]])}, folder / "ids.safetensors")
    path = next(folder.glob("*.json"))
    path.write_text(path.read_text("utf-8").replace("input_ids", "attention_mask"), "utf-8")
    with pytest.raises(ValueError, match=re.escape("no input_ids or inputs_embeds of the whole model, only ['att")):
        verify(BERT, against=folder)


def test_another_folder_says_what_is_expected(tmp_path: Path) -> None:
    np.save(tmp_path / "sum.npy", np.zeros(3))
    with pytest.raises(ValueError):
        read_against(tmp_path)


def test_an_array_of_texts_or_objects_is_no_number() -> None:
    with pytest.raises(ValueError, match=re.escape("against['plain|sum'] is stored as")):
        read_against({"plain|sum": np.array(["a"])})


def test_without_onnx_what_to_install_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: None)
    (tmp_path / "model.onnx").touch()
    with pytest.raises(ImportError, match="'onnx>="):
        verify(BERT, against=tmp_path / "model.onnx")
