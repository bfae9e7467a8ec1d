"""A folder's settings of sentence vectors are read once, or refused when the model is loaded."""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from checkpoints import change_json, same_bits
from command_line import Printed, ran
from reference_files import REFERENCE, changed
from safetensors.numpy import load_file, save_file

import minibert
from minibert.families.rows import BLOCKS, FAMILIES
from minibert.files import reading
from minibert.files.checkpoint import open_folder
from minibert.models.open.binder import unread
from minibert.models.sentences import folder as folders

SETTINGS, TOKENIZER, DENSE = "sentence_bert_config.json", "tokenizer_config.json", "sentences-dense"
CONFIG = "config_sentence_transformers.json"
FOLDERS = "sentences-dense sentences-bare late-pylate late-stanford uses-sparse-router uses-reranker static-dense"
NO_LIST, NO_CONFIG = "must be a list of modules, each with a type and a path", "the {} has no config.json, .* fetch the"
# folder, file, what is in it instead, None: it is not there
INSTEAD: list[tuple[str, str, str | None, str]] = [
    *((DENSE, "modules.json", text, NO_LIST)
      for text in ("{}", "3", "[1]", "[{}]", '[{"type": 3, "path": ""}]', "[", '[["a", "b"]]')),
    (DENSE, "2_Dense/model.safetensors", None, r"2_Dense: .*model\.safetensors"),
    *((name, f"{inside}/config.json", None, f"{inside}: {NO_CONFIG.format(inside[2:])}") for name, inside in (
        ("sentences-cls", "1_Pooling"), (DENSE, "2_Dense"), ("sentences-modules", "2_LayerNorm"),
        ("late-kept", "2_Dense"), ("static-dense", "1_Dense"))),
]  # fmt: skip


@pytest.mark.parametrize(("name", "file", "text", "message"), INSTEAD)
def test_a_file_that_is_none_or_not_there(tmp_path: Path, name: str, file: str, text: str | None, message: str) -> None:
    path = shutil.copytree(REFERENCE / name, tmp_path / "model") / file
    path.unlink()
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(minibert.CheckpointError, match=message):
        minibert.load_encoder(tmp_path / "model")


@pytest.mark.parametrize(
    ("name", "file", "change", "longest", "said"),
    [
        ("dense", SETTINGS, {"max_seq_length": 5}, 5, f"max_seq_length in {SETTINGS}"),
        ("dense", SETTINGS, {"max_seq_length": 500}, 32, "the position table"),
        ("dense", SETTINGS, {"max_seq_length": 9, "tokenizer_args": {"model_max_length": 6}}, 6, f"th in {SETTINGS}"),
        ("dense", SETTINGS, {"tokenizer_args": {"model_max_length": 6}}, 6, f"model_max_length in {SETTINGS}"),
        ("prompts", SETTINGS, {"max_seq_length": None}, 12, "model_max_length in tokenizer_config.json"),
        ("dense", "tokenizer_config.json", {"model_max_length": 1e30}, 32, "max_position_embeddings in config.json"),
        ("t5", "config.json", {"n_positions": 7}, 40, "model_max_length in tokenizer_config.json"),
        ("bare", SETTINGS, {"max_seq_length": 3}, 10, "model_max_length in tokenizer_config.json"),
        ("bare", TOKENIZER, {"model_max_length": None, "max_len": 7}, 7, f"max_len in {TOKENIZER}"),
    ],
)
def test_longest_lengths(name: str, file: str, change: Any, longest: int, said: str, tmp_path: Path) -> None:
    own = changed(tmp_path, f"sentences-{name}", file, change).sentence_config
    assert own.longest == longest and own.longest_from.endswith(said)


def test_true_is_no_number_of_tokens(tmp_path: Path) -> None:
    """transformers takes the whole text then; where the settings name no number of their own, it is refused."""
    with pytest.raises(minibert.CheckpointError):
        changed(tmp_path, DENSE, TOKENIZER, {"model_max_length": True})
    change_json(tmp_path / "model" / SETTINGS, max_seq_length=5)
    own = minibert.load_encoder(tmp_path / "model").sentence_config
    assert (own.longest, own.tokenizer_length) == (5, None)


@pytest.mark.parametrize("name", ["sentences-dense", "sentences-flags"])  # the second one lowercases on its own
def test_a_long_text_is_cut_where_the_tokenizer_says(tmp_path: Path, name: str) -> None:
    for side, kept in (("left", "above the clouds"), ("right", "We lived above")):
        with changed(tmp_path, name, TOKENIZER, {"truncation_side": side}) as encoder:
            encoder.max_seq_length = 5  # two special tokens
            whole = encoder.encode(["We lived above the clouds"])
            assert same_bits(whole, encoder.encode([kept])), side
            assert not same_bits(whole, encoder.encode(["lived above the"]))


def test_a_model_made_to_continue_a_text_takes_its_last_token(tmp_path: Path) -> None:
    def poolings(**config: Any) -> tuple[str, ...]:
        return changed(tmp_path, "sentences-bare", "config.json", config).sentence_config.poolings

    assert poolings(architectures=["BertModel"]) == poolings(architectures=None) == ("mean",)
    assert poolings(architectures=["RobertaForCausalLM"]) == ("lasttoken",)
    assert poolings(architectures=["RobertaForCausalLM"], is_causal=False) == ("mean",)
    assert poolings(architectures=["GPT2LMHeadModel"]) == ("mean",)
    with pytest.raises(minibert.CheckpointError, match=r"'is_causal' .*'false'"):
        poolings(architectures=["XForCausalLM"], is_causal="false")
    for odd in (5, {}, [], "BertModel", [None]):
        assert poolings(architectures=odd) == ("mean",)


def test_what_older_files_leave_out_or_say_twice_and_that_each_tensor_has_its_use(tmp_path: Path) -> None:
    def off(change: Any, file: str = "2_Dense/config.json") -> float:
        found = changed(tmp_path, DENSE, file, change).encode("we lived")
        return float(np.abs(found - load_file(REFERENCE / DENSE / "vectors.safetensors")["1"]).max())

    left_out = {"bias", "activation_function", "module_input_name"}
    assert off(lambda data: {key: data[key] for key in data.keys() - left_out}) <= 2e-6
    assert off({"word_embedding_dimension": 5}, "1_Pooling/config.json") <= 2e-6  # today's name of the width counts
    for other in ("torch.nn.Identity", "torch.nn.ReLU"):
        assert off({"activation_function": other}) > 0.01
    path = tmp_path / "model" / "2_Dense" / "model.safetensors"  # a tensor has no default, and each is used
    stored = load_file(path)
    for tensors, says in (
        ({**stored, "residual.weight": np.ones((6, 8), np.float32)}, "2_Dense/model.safetensors: .*residual.w"),
        ({**stored, "linear.extra": np.ones(6, np.float32)}, r"linear\.extra"),
        ({"linear.weight": stored["linear.weight"]}, "'linear.bias'.*linear.weight"),
    ):
        save_file(tensors, path)
        with pytest.raises(minibert.CheckpointError, match=says):
            minibert.load_encoder(tmp_path / "model")


@pytest.mark.parametrize("named", ["Dot", "dot_score", "maxsim", ["dot"], 1])
def test_a_measure_by_another_name_is_passed_over_with_a_word(named: Any, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="'similarity_fn_name'"):
        encoder = changed(tmp_path, DENSE, CONFIG, {"similarity_fn_name": named})
    assert encoder.similarity([3.0, 4.0], [[6.0, 8.0]]).tolist() == [[1]]
    with pytest.warns(UserWarning, match=r"\bdot\b"):
        encoder = changed(tmp_path, "uses-sparse", CONFIG, {"similarity_fn_name": named})
    assert encoder.sentence_config.measure == "dot"


def test_lengths_of_tasks_end_at_the_positions(tmp_path: Path) -> None:
    settings = {"max_seq_length": 9, "query_length": 500, "document_length": 6}
    encoder = changed(tmp_path, DENSE, SETTINGS, settings)
    cut = {"encode": 7, "encode_query": 30, "encode_document": 4}  # beside [CLS] and [SEP]; there are 32 positions
    for method, count in cut.items():
        whole = encoder.encode("we " * count, task="query")
        assert np.abs(getattr(encoder, method)("we " * 50) - whole).max() < 1e-6, method


MAKES: dict[str, Callable[[Path], None]] = {
    "is a link to nothing": lambda path: path.symlink_to(path.parent / "nowhere"),
    "is a link to nothing or to itself": lambda path: path.symlink_to(path),
    "is a folder": Path.mkdir,
    "is no file": os.mkfifo,
}
FILES = ("modules.json", "config.json", "1_Pooling/config.json", SETTINGS, TOKENIZER)


@pytest.mark.parametrize("file", [*FILES, CONFIG, "2_Dense/model.safetensors"])
@pytest.mark.parametrize("said", MAKES)
def test_what_is_no_file_is_not_taken_as_absent(tmp_path: Path, file: str, said: str) -> None:
    path = shutil.copytree(REFERENCE / DENSE, tmp_path / "model") / file
    path.unlink()
    MAKES[said](path)
    with pytest.raises(minibert.CheckpointError, match=f"{file} {said}"):
        minibert.load_encoder(tmp_path / "model")


@pytest.mark.parametrize("kind", ["BoW", "WordEmbeddings", "Asym"])
def test_a_folder_without_a_transformer_is_refused_by_its_module(tmp_path: Path, kind: str) -> None:
    name = f"sentence_transformers.models.{kind}"
    text = json.dumps([{"idx": 0, "name": "0", "path": f"0_{kind}", "type": name}])
    (tmp_path / "modules.json").write_text(text, encoding="utf-8")
    (tmp_path / f"0_{kind}").mkdir()
    for load in (minibert.load_encoder, minibert.load):
        with pytest.raises(minibert.CheckpointError, match=name) as refused:
            load(tmp_path)
        assert "fetch" not in str(refused.value) and "copy" not in str(refused.value)


def test_an_input_layer_in_a_subfolder_says_where_it_is() -> None:
    with pytest.raises(minibert.CheckpointError, match="'0_Transformer'"):
        minibert.load(REFERENCE / "sentences-cls")
    assert minibert.load(REFERENCE / "sentences-cls" / "0_Transformer").dim == 8


def test_prompts_that_a_folder_does_not_name_are_empty(tmp_path: Path) -> None:
    """ "query" and "document" are there in any case, and null is no text."""
    for prompts in (None, {}, {"passage": "a: "}, {"query": None, "document": "", "passage": "a: "}):
        encoder = changed(tmp_path, DENSE, CONFIG, {"prompts": prompts})
        for method in (encoder.encode_query, encoder.encode_document):
            assert same_bits(method("we lived"), encoder.encode("we lived"))
    assert np.abs(encoder.encode("we lived", "passage") - encoder.encode("a: we lived")).max() <= 1e-6


def warned(folder: Path) -> list[str]:
    """What a load and a call warn of, in this file's name."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        minibert.load_encoder(folder).encode("we lived")
    assert {Path(each.filename) for each in caught} <= {Path(__file__)}
    return [str(each.message) for each in caught]


@pytest.mark.parametrize(
    ("named", "pooling", "says"),
    [
        ("Qwen3BidirectionalModel", "lasttoken", ['as Qwen3BidirectionalModel says, set "is_causal": false']),
        ("OwnEmbedding", "mean", ['as a mean over tokens suggests, set "is_causal": false']),
        ("OwnEmbedding", "lasttoken", ["no token sees those after it$"]),
        ("Qwen3ForCausalLM", "mean", []), ("Qwen3Model", "mean", []),
    ],
)  # fmt: skip
def test_a_causal_model_s_own_code(tmp_path: Path, named: str, pooling: str, says: list[str]) -> None:
    folder = shutil.copytree(REFERENCE / "sentences-last-token", tmp_path / "model")
    change_json(folder / "config.json", architectures=[named], auto_map={"AutoModel": "modeling_own.Own"})
    change_json(folder / "1_Pooling" / "config.json", pooling_mode=pooling)
    for message, said in zip(warned(folder), says, strict=True):
        assert re.search(rf"'auto_map'.* not run: .*{said}", message)


def test_tensors_that_nothing_reads_are_named_once(tmp_path: Path, capsys: Printed) -> None:
    """voyage-4-nano is a qwen3 with a map of each token that its own code applies."""
    folder = shutil.copytree(REFERENCE / "sentences-last-token", tmp_path / "model")
    change_json(folder / "config.json", architectures=["VoyageQwen3BidirectionalEmbedModel"], is_causal=False)
    named = load_file(folder / "model.safetensors")
    save_file(named | {"linear.weight": np.ones((4, 8), np.float32)}, folder / "model.safetensors")
    assert ["linear.weight" in message for message in warned(folder)] == [True]
    assert re.search(r"^not read +linear\.weight$", ran(capsys, "info", folder)[0], re.MULTILINE)


def test_all_tensors_of_the_reference_s_folders_are_read_or_known(minilm: Path) -> None:
    seen = set()
    for folder in (minilm, *(file.parent for file in REFERENCE.rglob("model.safetensors"))):
        file = folder / "config.json"
        config = json.loads(file.read_text("utf-8")) if file.exists() else {}  # a static model has none
        if (model_type := config.get("model_type")) in BLOCKS:
            family = FAMILIES[model_type]
            assert not unread(family, family.configure(config), open_folder(str(folder))), folder
            seen.add(model_type)
    assert seen == {*BLOCKS}


@pytest.mark.parametrize("name", FOLDERS.split())
def test_each_small_file_is_opened_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a load; the tokenizer's are opened when a text comes, but of a static model, whose length one says."""
    noted = mock.Mock(side_effect=open)
    for module in (reading, folders):
        monkeypatch.setattr(module, "open", noted, raising=False)
    minibert.load_encoder(REFERENCE / name).close()
    paths = [str(call.args[0]) for call in noted.call_args_list]
    small = [path for path in paths if path.endswith((".json", ".metadata"))]
    assert len(small) == len(set(small)) > 1, small
