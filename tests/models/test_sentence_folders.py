"""Settings of sentence vectors: a folder's are read once, or refused when the model is loaded; a caller's stand before.

What a caller cannot ask for is refused by its name.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from checkpoints import change_json, same_bits
from command_line import Printed, ran
from reference_files import REFERENCE, changed, opened
from safetensors.numpy import load_file, save_file

import minibert
from minibert.equations.input_layer import Array
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
    *((name, f"{inside}/model.safetensors", None, rf"{inside}: .*model\.safetensors")
      for name, inside in ((DENSE, "2_Dense"), ("uses-sparse-router", "query_0_SparseStaticEmbedding"))),
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


def test_true_is_no_number_of_tokens_and_lengths_of_tasks_end_at_the_positions(tmp_path: Path) -> None:
    """transformers takes the whole text then; where the settings name no number of their own, it is refused."""
    with pytest.raises(minibert.CheckpointError):
        changed(tmp_path, DENSE, TOKENIZER, {"model_max_length": True})
    change_json(tmp_path / "model" / SETTINGS, max_seq_length=5)
    own = minibert.load_encoder(tmp_path / "model").sentence_config
    assert (own.longest, own.tokenizer_length) == (5, None)
    settings = {"max_seq_length": 9, "query_length": 500, "document_length": 6}
    encoder = changed(tmp_path, DENSE, SETTINGS, settings)
    cut = {"encode": 7, "encode_query": 30, "encode_document": 4}  # beside [CLS] and [SEP]; there are 32 positions
    for method, count in cut.items():
        whole = encoder.encode("we " * count, task="query")
        assert np.abs(getattr(encoder, method)("we " * 50) - whole).max() < 1e-6, method


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


# -- a caller's lengths, prompts, sizes and measure -------------------------------------------------------------------

LONG = "we lived above the clouds, we lived above the clouds"
SAME = 2e-6  # a text cut by us and the same text cut by hand; measured: 1.2e-7
dense = partial(minibert.load_encoder, REFERENCE / DENSE)
TEXTS = ["we lived", "above the clouds", ""]


def cut_by_hand(tokens: int) -> Array:
    return dense().encode(" ".join(LONG.replace(",", " ,").split()[: tokens - 2]))


@pytest.mark.parametrize("name", ["sentences-last-token", "sentences-two-dense", "sentences-search"])
def test_without_a_table_of_positions_the_config_s_number_is_the_limit(name: str, tmp_path: Path) -> None:
    """As in sentence-transformers: the tokenizer's length is held to the config's, one in the settings is not."""
    folder = shutil.copytree(REFERENCE / name, tmp_path / "model")
    change_json(folder / "config.json", max_position_embeddings=11)
    for tokenizer_s, own, longest in ((None, None, 11), (10**30, None, 11), (7, None, 7), (None, 20, 20)):
        change_json(folder / TOKENIZER, model_max_length=tokenizer_s)
        change_json(folder / SETTINGS, max_seq_length=own)
        with minibert.load_encoder(folder) as encoder:
            assert encoder.max_seq_length == longest and encoder.max_length is None, (tokenizer_s, own)
            assert len(encoder.encode("we " * 40, output_value="token_embeddings")) == longest


def test_the_longest_length_can_be_set_acts_from_the_next_call_on_or_is_refused() -> None:
    encoder = dense()
    assert encoder.max_seq_length == encoder.max_length == 32
    for length in (8, 4, np.int64(6), 32, 3, None):
        encoder.max_seq_length = length  # type: ignore[assignment]
        assert encoder.max_seq_length == (length or 32)
        said = "max_seq_length, which was set" if length else "the position table"
        assert encoder.sentence_config.longest_from == said
        assert type(encoder.max_seq_length) is int  # JSON knows no integer of NumPy's
        for method in (encoder.encode, encoder.encode_query, encoder.encode_document):
            assert np.abs(method(LONG) - cut_by_hand(int(length or 32))).max() <= SAME
        assert len(encoder.encode(LONG, output_value="token_embeddings")) == min(length or 32, 13)
    assert encoder.tokenize(LONG)["input_ids"].shape == (1, 13)  # `encode` alone truncates
    encoder.max_seq_length = 5  # one that cannot be changes nothing
    with pytest.raises(ValueError, match=r"^max_seq_length .*\b33\b"):
        encoder.max_seq_length = 33
    assert encoder.max_seq_length == 5
    encoder.max_seq_length = 1
    with pytest.raises(ValueError, match=r"^max_length 1 "):
        encoder.encode("we")
    prompted = minibert.load_encoder(REFERENCE / "sentences-prompts", max_seq_length=5)
    found = prompted.encode("we", prompt="the clouds: the clouds: ")  # of which nothing is pooled
    assert np.isfinite(found).all()  # [SEP] is pooled: without it the largest of nothing is minus infinity


def test_lengths_set_from_two_threads_at_once() -> None:
    """Each vector is that of one of the lengths, whole: no call sees a length change under it."""
    encoder, known = dense(), [cut_by_hand(4), cut_by_hand(9)]

    def use(i: int) -> float:
        encoder.max_seq_length = 4 if i % 2 else 9
        found = encoder.encode([LONG] * 5)
        return float(min(np.abs(found - want).max() for want in known))

    with ThreadPoolExecutor(2) as pool:
        assert max(pool.map(use, range(60))) <= SAME
    encoder.max_seq_length = 9
    stream = encoder.pipeline().stream([[LONG]] * 4)  # which keeps the length that it began with
    first = next(stream)
    encoder.max_seq_length = 4
    assert all(np.abs(vector - first).max() <= SAME for vector in stream)
    assert np.abs(encoder.encode(LONG) - first).max() > 0.01


def test_a_mistyped_attribute_is_an_error() -> None:
    encoder = dense()
    for name in ("max_seq_lenght", "truncate_dim", "dim", "dtype", "config", "encode", "embeddings", "prompts"):
        with pytest.raises(AttributeError, match=f"'{name}'"):
            setattr(encoder, name, 8)
    for name in ("max_seq_length", "max_length", "dim", "word_embeddings", "family"):
        with pytest.raises(AttributeError, match=f"'{name}'"):
            setattr(encoder.embeddings, name, 8)
    assert encoder.dim == 8 and encoder.encode("we").shape == (6,)


SIZE, ENDS, NONE = "numbers, {} over a text's tokens; by cosine", "tokens (model_max_length in tok", "none in this file"
# folder -> what each line begins with; "" where there is no such line
INFO: dict[str, dict[str, str]] = {
    "sentences-dense": {
        "sentence vectors": f"6 {SIZE.format('mean')}", "longest sentence": f"32 {ENDS}", "heads": NONE,
        "prompts": "none", "longest sequence": "32 tokens",
    },
    "sentences-causal": {"sentence vectors": f"16 {SIZE.format('weightedmean and lasttoken')}"},
    "sentences-bare": {"sentence vectors": f"8 {SIZE.format('mean')}", "longest sentence": f"10 {ENDS}"},
    "sentences-prompts": {"heads": NONE, "prompts": "query 'the clouds: ', passage 'above! ' (if none is named)"},
    "uses-reranker": {"heads": "classes", "made for": "predict and rank, as a CrossEncoder"},
    "late-fixed": {
        "made for": "encode_query, encode_document, encode and rank, as a MultiVectorEncoder",
        "queries": "at most 12 tokens, filled up to 12 with mask tokens, not seen by the others",
        "documents": 'at most 14 tokens, without ! " #', "prompts": "query 'the ', document 'we '",
        "token vectors": "6 numbers for each token; by maxsim",
    },
    "late-least": {
        "queries": "at most 14 tokens, filled up to 9 with the, seen by the others, without we ! notatoken",
        "token vectors": "4 numbers for each token; by meanmaxsim",
    },
    "late-stanford": {"token vectors": "6 numbers for each token"},  # no weight is read
    "static-dense": {
        "family": "static", "blocks": "none: a static model is an input layer and nothing else",
        "sentence vectors": f"5 {SIZE.format('mean')}", "longest sentence": "6 tokens (truncation in tokenizer.json)",
        "prompts": "query 'the clouds: ', document",
    },
    "xlnet": {"heads": "", "sentence vectors": ""},
}  # fmt: skip


@pytest.mark.parametrize("folder", INFO)
def test_info_tells_sizes_heads_and_prompts(folder: str, capsys: Printed) -> None:
    out, _ = ran(capsys, "info", REFERENCE / folder)
    told = dict(line.split("  ", 1) for line in out.splitlines() if "  " in line)
    assert told["width"].strip().endswith("numbers a token")
    for key, begins in INFO[folder].items():
        assert told.get(key, "").strip().startswith(begins) and (key in told) == bool(begins)
    if told.get("heads", NONE).strip() != NONE:
        assert told["heads"].strip() == ", ".join(opened(folder).heads)


def test_info_of_sentences_that_are_not_computed(tmp_path: Path, capsys: Printed) -> None:
    folder = shutil.copytree(REFERENCE / DENSE, tmp_path / "pooled")
    (folder / "1_Pooling" / "config.json").unlink()
    assert f"not available: {folder}/1_Pooling: the Pooling has no config.json" in ran(capsys, "info", folder)[0]
    (folder / "modules.json").write_text('[{"type": "mine.Own", "path": ""}]', encoding="utf-8")
    out, _ = ran(capsys, "info", folder)
    assert "sentence vectors  not available: " in out and "names 'mine.Own'" in out


def test_a_size_and_a_length_of_the_loader() -> None:
    whole, encoder = dense(max_seq_length=6), dense(truncate_dim=4, max_seq_length=6)
    assert same_bits(encoder.encode(TEXTS), whole.encode(TEXTS)[:, :4])
    assert (encoder.get_embedding_dimension(), whole.get_embedding_dimension()) == (4, 6)
    assert same_bits(encoder.encode(TEXTS, truncate_dim=2), whole.encode(TEXTS)[:, :2])
    assert np.abs(whole.encode(LONG) - cut_by_hand(6)).max() <= SAME and whole.tokens_cut(LONG) == 7
    pair, reranker = ("we lived above the clouds", "the clouds above we lived in"), opened(RERANKER)
    short = minibert.load_encoder(REFERENCE / RERANKER, max_seq_length=8).predict(pair)
    assert short != reranker.predict(pair)
    reranker.max_seq_length = 8
    assert short == reranker.predict(pair)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_keeps_what_was_asked_for_and_set(copied: Any) -> None:
    asked: dict[str, Any] = dict(prompts={"own": "a "}, default_prompt_name="own", truncate_dim=3, max_seq_length=5)
    encoder = dense(similarity_fn_name="dot", **asked)
    other = copied(encoder)
    assert same_bits(other.encode([LONG]), encoder.encode([LONG])) and other.prompts == encoder.prompts
    assert other.max_seq_length == 5 and other.similarity([3.0], [4.0]) == 12
    encoder.max_seq_length = 6
    other = copied(encoder)
    assert other.max_seq_length == 6 and same_bits(other.encode([LONG]), encoder.encode([LONG]))
    other.max_seq_length = 8
    assert encoder.max_seq_length == 6 and copied(other).max_seq_length == 8


def test_what_code_for_sentence_transformers_passes_and_reads() -> None:
    # also a device that is no text, as torch's
    habits: dict[str, Any] = dict(trust_remote_code=False, backend="torch", model_kwargs={}, config_kwargs=None)
    encoder = dense(device="cpu", token="hf_none", cache_folder="/nowhere", **habits)
    assert same_bits(encoder.encode(TEXTS), dense().encode(TEXTS))
    assert dense(device=type("device", (), {"__str__": lambda self: "cpu"})()).device == "cpu"
    options = dict(similarity_fn_name="dot", truncate_dim=3, default_prompt_name="query", max_seq_length=9)
    encoder = minibert.load_encoder(REFERENCE / "sentences-prompts", **options)  # type: ignore[arg-type]
    found = encoder.similarity_fn_name, encoder.truncate_dim, encoder.default_prompt_name, encoder.get_max_seq_length()
    assert found == ("dot", 3, "query", 9)
    assert encoder.tokenizer is encoder.sentence_tokenizer and encoder.get_sentence_embedding_dimension() == 3
    assert encoder.model_card_data.set_evaluation_metrics(None, {"a": 1}, -1, -1) is None
    plain = opened("sentences-bare")
    assert (plain.similarity_fn_name, plain.truncate_dim, plain.default_prompt_name) == ("cosine", None, None)
    assert [opened(name).similarity_fn_name for name in ("uses-sparse", "late-fixed")] == ["dot", "maxsim"]


MEASURE, RERANKER, LATE = "similarity_fn_name of this model must be one of", "uses-reranker", "late-fixed"
REFUSED: list[tuple[type[Exception], str, str, dict[str, Any]]] = [
    *((TypeError, "prompts ", DENSE, {"prompts": odd}) for odd in (["query: "], {"query": None})),
    (TypeError, "default_prompt_name ", DENSE, {"default_prompt_name": 1}),
    (ValueError, "default_prompt_name .*'query', 'document'.*'x'", DENSE, {"default_prompt_name": "x"}),
    (ValueError, "truncate_dim", DENSE, {"truncate_dim": 0}),
    (ValueError, r"max_seq_length .*\b33\b", DENSE, {"max_seq_length": 33}),
    *((ValueError, "similarity_fn_name .*cosine, do", DENSE, {"similarity_fn_name": odd}) for odd in ("near", ["dot"])),
    (ValueError, "truncate_dim .*CrossEncoder", RERANKER, {"truncate_dim": 3}),
    (ValueError, "similarity_fn_name .*Cro", RERANKER, {"similarity_fn_name": "dot"}),
    *((TypeError, f"load_encoder: {name} ", DENSE, {name: value})
      for name, value in (("device", "cuda"), ("trust_remote_code", True), ("backend", "onnx"),
                          ("model_kwargs", {"dtype": "float16"}), ("modules", []))),
    (TypeError, "load_encoder: .*'threds'.*threads", DENSE, {"threds": 2}),
    (ValueError, "truncate_dim .*SparseEncoder", "uses-sparse", {"truncate_dim": 3}),
    (ValueError, "truncate_dim .*MultiVectorEncoder", LATE, {"truncate_dim": 3}),
    (ValueError, f"{MEASURE} maxsim, meanmaxsim.*'co", LATE, {"similarity_fn_name": "cosine"}),
    (ValueError, f"{MEASURE} cosine, dot, .*'maxsim'", DENSE, {"similarity_fn_name": "maxsim"}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "folder", "options"), REFUSED)
def test_what_cannot_be_asked_for(kind: type[Exception], message: str, folder: str, options: dict[str, Any]) -> None:
    with pytest.raises(kind, match=f"^{message}"):
        minibert.load_encoder(REFERENCE / folder, **options)
