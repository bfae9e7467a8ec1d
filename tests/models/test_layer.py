"""The layer as its callers meet it: arguments, ways to look inside, threads, bits, and a layer in another process."""

from __future__ import annotations

import copy
import gc
import json
import multiprocessing
import pickle
import shutil
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from checkpoints import BERT, GPT2, ROBERTA, T5, VOCAB, same_bits, tensors, write, write_wordpiece
from fake_hub import FakeHub, commit_of, use
from layers import CONFIGS, Make
from limits import CHILD_SECONDS

import minibert
from minibert import EmbeddingLayer, Family
from minibert.equations.input_layer import Array
from minibert.families.parts import modules
from minibert.families.parts.steps import Norm, Positions, Tokens

# a float32 layer against the same in float64, numbers below 30: measured at most 3.4e-6 over 300 batches
FLOAT64_TOLERANCE = 2e-5


def some_ids(*shape: int, below: int = VOCAB) -> Array:
    return np.random.default_rng(shape).integers(0, below, shape)


FORMS = [
    [[5, 6, 7], [8, 9, 10]], ((5, 6, 7), (8, 9, 10)), [np.array([5, 6, 7]), np.array([8, 9, 10])],
    *(np.array([[5, 6, 7], [8, 9, 10]], kind) for kind in (np.int32, np.uint8, np.uint64, ">i4")),
    np.array([[5, 8], [6, 9], [7, 10]]).T, np.ma.masked_array([[5, 6, 7], [8, 9, 10]]),
]  # fmt: skip


@pytest.mark.parametrize("name", ["bert", "deberta-v2"])
def test_call_takes_ids_in_every_form(load: Make, name: str) -> None:
    layer, want = load(name), np.array([[5, 6, 7], [8, 9, 10]])
    want.flags.writeable = False  # what is passed is left alone
    assert all(same_bits(layer(ids), layer(want)) for ids in FORMS)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (3, 0), (1, 0), (0,)])
def test_a_batch_of_none_works(load: Make, name: str, shape: tuple[int, ...]) -> None:
    layer, ids = load(name), np.zeros(shape, np.int64)
    assert layer(ids).shape == (*shape, 8)
    trace = layer.trace(ids)
    assert list(trace.values())[-1].size == 0
    assert layer([]).shape == (0, 8)
    (word, *_) = layer.modules.values()
    assert layer(inputs_embeds=word(ids)).shape == (*shape, 8)
    assert load("roberta")(np.full((0, 17), 5)).shape == (0, 17, 8), "of no token none counts too far"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_call_by_sequence_rows_and_memory_and_its_trace(load: Make, name: str) -> None:
    layer, ids = load(name), some_ids(7)
    y, batch = layer(ids), layer(ids[None])
    assert batch.dtype == np.float32 and batch.flags.c_contiguous and batch.flags.writeable
    assert batch.shape == (1, 7, layer.dim) and y.shape == (7, 8)
    assert same_bits(y, batch[0])
    assert same_bits(layer(ids, attention_mask=np.ones(7, int)), y)
    mask = np.arange(7) % 3 > 0
    masked = layer(ids, attention_mask=mask)  # alone deberta-v2 multiplies by it
    assert same_bits(masked, layer(ids, attention_mask=mask.astype(int)))
    assert name == "deberta-v2" or same_bits(masked, y)
    assert same_bits(masked[mask], y[mask])
    layer, ids = load(name), some_ids(2, 5) % (VOCAB - 5) + 5  # no padding: roberta counts it differently
    (word, *_) = layer.modules.values()
    embeds, whole = word(ids), layer(ids)
    for given in (embeds, embeds.astype(np.float64), embeds.tolist(), np.asfortranarray(embeds)):
        assert same_bits(layer(inputs_embeds=given), whole)
    assert same_bits(layer(inputs_embeds=embeds[0]), whole[0])
    assert same_bits(embeds, word(ids)), "the caller's array is not the layer's to change"
    again = layer.trace(ids)
    for value in layer.trace(ids).values():
        value[...] = 0  # a trace is the caller's own
    assert all(map(same_bits, layer.trace(ids).values(), again.values()))


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "gpt2"])
def test_ids_of_one_row_are_those_of_every_row(load: Make, name: str) -> None:
    layer, ids = load(name), some_ids(3, 4)
    positions = np.array([[3, 9, 0, 3]])
    y = layer(ids, position_ids=positions)
    assert same_bits(y, layer(ids, position_ids=np.repeat(positions, 3, axis=0)))
    assert same_bits(y, layer(ids, position_ids=positions[0]))
    assert same_bits(y, layer(ids, position_ids=positions.astype(np.int8)))
    assert not same_bits(y, layer(ids))
    if name in ("bert", "gpt2"):  # a mask as long as past and ids together, as a cached call passes it
        later = layer(ids[:, 2:], past_length=np.int64(2), attention_mask=np.ones((3, 4), int))
        assert same_bits(later, np.ascontiguousarray(layer(ids)[:, 2:]))


@pytest.mark.parametrize("name", CONFIGS)
def test_float64_computes_in_float64(folders: dict[str, Path], load: Make, name: str) -> None:
    ids = some_ids(3, 6)
    with minibert.load(folders[name], dtype="float64") as layer:
        y = layer(ids)
        assert y.dtype == np.float64 and layer.dtype == np.float64
        assert all(value.dtype in (np.float64, np.int64) for value in layer.trace(ids).values())
        off = np.abs(load(name)(ids) - y).max()
        assert off <= FLOAT64_TOLERANCE
        if name in ("bert", "roberta", "distilbert"):
            assert off > 0, "float32 under the name of float64 would not differ"
        assert layer.embed("we lived").dtype == np.float64


def test_submodules_by_the_reference_names(load: Make) -> None:
    bert, t = load("bert"), tensors(BERT)
    assert {"word_embeddings", "LayerNorm", "embed", "trace"} <= set(dir(bert)) and not hasattr(bert, "wte")
    for name in ("word", "position", "token_type"):
        module = getattr(bert, f"{name}_embeddings")
        assert module is bert[f"embeddings.{name}_embeddings"]
        assert same_bits(module.weight, t[f"embeddings.{name}_embeddings.weight"])
        assert same_bits(module([[1, 0]]), module.weight[[[1, 0]]])
        assert same_bits(module(1), module.weight[1])
    for part in ("weight", "bias"):
        assert same_bits(getattr(bert.LayerNorm, part), t[f"embeddings.LayerNorm.{part}"])
    assert bert.LayerNorm.eps == 1e-12
    gpt2, t5, electra = load("gpt2"), load("t5"), load("electra")
    assert same_bits(gpt2.wte(some_ids(2, 3)) + gpt2.wpe([0, 1, 2]), gpt2(some_ids(2, 3)))
    assert t5.shared is t5.embed_tokens
    x = electra.trace([[1, 2, 3]])
    assert same_bits(electra.embeddings_project(x["embeddings.LayerNorm"]), x["embeddings_project"])
    wrong: tuple[tuple[type[Exception], str, Any], ...] = (
        (IndexError, "token_type_embeddings", [2]), (TypeError, "word_embeddings", [0.5]),
        (ValueError, "LayerNorm", np.ones((2, 7))), (ValueError, "LayerNorm", 3.0),
        (TypeError, "LayerNorm", [[1.0] * 8, [1.0]]), (TypeError, "LayerNorm", [["a"] * 8]),
    )  # fmt: skip
    for kind, name, passed in wrong:
        with pytest.raises(kind):
            getattr(bert, name)(passed)


def test_submodules_give_the_same_bits_for_rows_that_lie_apart(load: Make) -> None:
    x = np.random.default_rng(0).standard_normal((16, 4, 6)).astype("f4")
    strided, fortran = x.transpose(1, 0, 2), np.asfortranarray(x)
    for module in (load("electra").LayerNorm, load("electra").embeddings_project):
        assert same_bits(module(strided), np.ascontiguousarray(module(x).transpose(1, 0, 2)))
        assert same_bits(module(fortran), module(x))


def test_config_shows_the_file_its_words_and_defaults(load: Make, folders: dict[str, Path]) -> None:
    assert load("t5").config["task_specific_params"]["translation_en_to_de"]["max_length"] == 300
    for name, longest in (("bert", 16), ("gpt2", 32), ("distilbert", 16)):  # by the common words
        config = load(name).config
        assert config.hidden_size == config["hidden_size"] == 8 and config.model_type == name
        assert config.max_position_embeddings == config["max_position_embeddings"] == longest == load(name).max_length
    assert load("roberta").max_length == 16 and load("t5").max_length is None  # whatever its config says
    assert dict(config) == json.loads((folders["distilbert"] / "config.json").read_text())
    assert config.pad_token_id == 0 and "pad_token_id" not in list(config)
    assert config.get("colour", 3) == 3 and not hasattr(config, "colour")
    with pytest.raises(KeyError, match="colour"):
        config["colour"]


def mapped(folder: Path) -> bool:
    gc.collect()
    return str(folder) in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("name", CONFIGS)
def test_close_drops_the_map_and_later_calls_say_so(folders: dict[str, Path], tmp_path: Path, name: str) -> None:
    folder = tmp_path / "own"  # that no other layer has mapped
    shutil.copytree(folders[name], folder)
    with suppress(IndexError), minibert.load(folder) as layer:
        y = layer([[5, 6]])
        layer.tokenize("we")
        layer.attention_position  # noqa: B018  this and the tokenizer are made on first use, and could hold on to tables
        layer([[10**6]])  # an error inside closes too
    for closed in (
        lambda: layer([[5, 6]]), lambda: layer.trace([[5, 6]]), lambda: layer.tokenize("we"),
        lambda: layer.tokenize("we", truncation=True, max_length=5), lambda: layer.embed(["we"]),
        lambda: layer.embed([]), lambda: layer.tokens([1]),
        *(partial(getattr, layer, each) for each in ("modules", "max_length", "attention_position", "word_embeddings")),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            closed()
    assert "closed" in repr(layer) and dir(layer)
    assert y.shape == (1, 2, 8)
    assert layer.config.model_type == name
    layer.close()
    if sys.platform == "linux":
        assert not mapped(folder)
        again = minibert.load(folder)
        weight = next(iter(again.modules.values())).weight
        kept = weight.copy()
        again.close()
        assert mapped(folder) and same_bits(np.array(weight), kept), "what was handed out outlives the layer"
        del weight
        assert not mapped(folder)


def test_a_real_layer_is_cut_and_spread_without_a_trace(minilm: Path) -> None:
    layer, ids = minibert.load(minilm), some_ids(12, 500, below=30522)
    types = (np.arange(500) > 250).astype(int)[None]
    whole = np.stack([layer(row[None], token_type_ids=types, threads=1)[0] for row in ids])
    for threads in (1, np.uint8(2), 5, None):
        assert same_bits(layer(ids, token_type_ids=types, threads=threads), whole)
    with np.errstate():  # NumPy's buffer is shorter while rows are normed
        np.setbufsize(4096)
        layer(ids, threads=2)
        assert np.getbufsize() == 4096
        with mock.patch.object(modules, "layer_norm", side_effect=MemoryError), pytest.raises(MemoryError):
            layer(ids)
        assert np.getbufsize() == 4096


def test_whether_a_layer_is_open_is_read_once(folders: dict[str, Path]) -> None:
    """As if another thread closed it between two reads of what it holds."""
    layer = minibert.load(folders["bert"])
    vars(layer)["kept"] = steps = vars(layer).pop("_steps")
    held_once = property(lambda self: vars(self).pop("kept", None))
    layer.__class__ = type("ReadOnce", (EmbeddingLayer,), {"_steps": held_once})
    assert layer.steps is steps
    with pytest.raises(ValueError):
        layer.steps  # noqa: B018


def test_a_tokenizer_opened_by_many_threads_at_once_is_one(folders: dict[str, Path]) -> None:
    for _ in range(40):
        layer, start = minibert.load(folders["bert"]), threading.Barrier(3)

        def opened(_: int, layer: EmbeddingLayer = layer, start: threading.Barrier = start) -> Any:
            start.wait()
            return layer.tokenizer

        with ThreadPoolExecutor(3) as pool:
            assert {id(one) for one in pool.map(opened, range(3))} == {id(layer.tokenizer)}


def test_a_tokenizer_that_fails_to_open_fails_every_time(tmp_path: Path) -> None:
    layer = minibert.load(write(tmp_path, BERT))
    for _ in range(2):
        with pytest.raises(minibert.TokenizerError):
            layer.tokenize("we")
    assert write_wordpiece(tmp_path) and layer.tokenize("we")["input_ids"].shape == (1, 3)


IDS = [[5, 6, 7], [8, 9, 10]]
MOST_BYTES = 4096  # measured: 250 for a folder, 1250 with a row of one's own; of a million bytes of tables, none

ROWS = (Tokens(path="embeddings.word_embeddings"), Positions(path="embeddings.position_embeddings"))
MINE = Family(model_type="mine", steps=(*ROWS, Norm(path="embeddings.LayerNorm", eps=1e-5)))
CONFIG = {"model_type": "mine", "vocab_size": 30_000, "hidden_size": 8, "max_position_embeddings": 16}


def state(layer: EmbeddingLayer) -> Any:
    return pickle.dumps(layer), repr(layer), layer.side, layer.dtype, layer.dim, dict(layer.config)


COPIED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (BERT, {}), (BERT, {"dtype": np.float64, "mmap": False}), (GPT2, {}), (T5, {"side": "decoder"}),
    (BERT, {"dtype": np.dtype("float64"), "lazy": True, "local_files_only": True}),
    (ROBERTA, {"family": minibert.FAMILIES["roberta"]}), (CONFIG, {"family": MINE}),
]  # fmt: skip


@pytest.mark.parametrize(("config", "options"), COPIED)
def test_a_copy_is_the_same_layer_opened_again(tmp_path: Path, config: dict[str, Any], options: Any) -> None:
    named = tensors(config)
    if options.get("side") == "decoder":
        named["decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = np.ones((32, 2), "f4")
    layer = minibert.load(write(tmp_path, config, named), **options)
    write_wordpiece(tmp_path)
    sent = [pickle.dumps(layer, protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    assert max(map(len, sent)) < MOST_BYTES
    for copied in (*map(pickle.loads, sent), copy.deepcopy(layer), copy.copy(layer)):
        assert copied is not layer and state(copied) == state(layer)
        assert same_bits(copied(IDS), layer(IDS))
        assert same_bits(copied.embed(["we lived", "a"]), layer.embed(["we lived", "a"]))
        copied.close()
    assert layer(IDS).any()  # no two share a table
    again = pickle.loads(pickle.dumps(layer))
    layer.close()
    assert same_bits(again(IDS), pickle.loads(pickle.dumps(again))(IDS))


def test_a_folder_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "models" / "bert")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "models")
    Path("link").symlink_to("bert")
    assert same_bits(minibert.load("link", lazy=True)(IDS), minibert.load("bert")(IDS))
    names = ("bert", "bert/", "./bert", Path("bert"), "../models/bert", "~/models/bert", Path("~/models/bert"))
    sent = [pickle.dumps(minibert.load(name)) for name in names]
    monkeypatch.chdir("/")
    monkeypatch.setenv("HOME", "/nowhere")
    assert len(set(sent)) == 1 and str(tmp_path / "models" / "bert").encode() in sent[0]
    layer = pickle.loads(sent[0])
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert same_bits(pool.submit(layer, IDS).result(CHILD_SECONDS), layer(IDS))
    (tmp_path / "models" / "bert").rename(tmp_path / "gone")
    with pytest.raises(minibert.CheckpointError):
        pickle.loads(sent[0])


@pytest.mark.parametrize("lazy", [False, True])
def test_a_hub_name_goes_with_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lazy: bool) -> None:
    files = {path.name: path for path in write(tmp_path / "own", CONFIG).iterdir()}
    with FakeHub() as hub:
        hub.add("someone/mine", files)
        use(monkeypatch, hub.endpoint, tmp_path / "home")
        layer = minibert.load("someone/mine", lazy=lazy, family=MINE)
        want, sent = layer(IDS), pickle.dumps(layer)
        hub.add("someone/mine", files | {"model.safetensors": b""}, commit=commit_of("another"))  # the branch goes on
        hub.forget()
        assert same_bits(pickle.loads(sent)(IDS), want)
        assert not hub.asked("api/models")  # nobody is asked what the commit stands for


def test_what_cannot_be_copied_says_so(tmp_path: Path) -> None:
    made = minibert.load(write(tmp_path))
    nameless = EmbeddingLayer(made.family, made.config, made.steps, made.dtype)
    assert same_bits(nameless(IDS), made(IDS))
    made.close()
    for use_of in (pickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(TypeError):
            use_of(nameless)
        with pytest.raises(ValueError):
            use_of(made)
