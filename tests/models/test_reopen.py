"""A layer in another process: pickled or copied by the name, the commit and the options it was opened with."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import BERT, GPT2, ROBERTA, T5, pack, same_bits, tensors, write, write_wordpiece
from fake_hub import FakeHub, commit_of, use
from limits import CHILD_SECONDS
from safetensors.numpy import load_file

import minibert
from minibert import EmbeddingLayer, Family
from minibert.families.parts.steps import Norm, Positions, Tokens

IDS = [[5, 6, 7], [8, 9, 10]]
MOST_BYTES = 4096  # measured: 250 for a folder, 1250 with a row of one's own; of a million bytes of tables, none

STEPS = (Tokens(path="tok"), Positions(path="pos"), Norm(path="ln", eps=1e-5))
MINE = Family(model_type="mine", steps=STEPS, tree={"": "Mine"})
CONFIG = {"model_type": "mine", "vocab_size": 4000, "hidden_size": 64, "max_position_embeddings": 16}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    shapes = {"tok.weight": (4000, 64), "pos.weight": (16, 64), "ln.weight": (64,), "ln.bias": (64,)}
    random = np.random.default_rng(0)
    named = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    return write(tmp_path / "own", CONFIG, named)


def in_a_spawned_worker(work: Callable[..., Any], *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result(CHILD_SECONDS)


def state(layer: EmbeddingLayer) -> Any:
    return pickle.dumps(layer), repr(layer), layer.side, layer.dtype, layer.dim, dict(layer.config)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (BERT, {}),
        (BERT, {"dtype": np.float64, "mmap": False}),
        (BERT, {"dtype": np.dtype("float64"), "lazy": True, "local_files_only": True}),
        (ROBERTA, {"family": minibert.FAMILIES["roberta"]}),
        (GPT2, {}),
        (T5, {"side": "decoder"}),
    ],
)
def test_a_copy_is_the_same_layer_opened_again(tmp_path: Path, config: dict[str, Any], options: Any) -> None:
    named = tensors(config)
    if options.get("side") == "decoder":
        named["decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = np.ones((32, 2), "f4")
    layer = minibert.load(write(tmp_path, config, named), **options)
    write_wordpiece(tmp_path)
    for copied in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer), copy.copy(layer)):
        assert copied is not layer and state(copied) == state(layer)
        assert same_bits(copied(IDS), layer(IDS))
        assert same_bits(copied.embed(["we lived", "a"]), layer.embed(["we lived", "a"]))
        copied.close()
    assert layer(IDS).any()  # each has tables of its own
    again = pickle.loads(pickle.dumps(layer))
    layer.close()
    assert same_bits(again(IDS), pickle.loads(pickle.dumps(again))(IDS))


def test_a_folder_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "models" / "bert")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "models")
    Path("link").symlink_to("bert")
    assert same_bits(minibert.load("link")(IDS), minibert.load("bert")(IDS))
    names = ("bert", "bert/", "./bert", Path("bert"), "../models/bert", "~/models/bert", Path("~/models/bert"))
    sent = [pickle.dumps(minibert.load(name)) for name in names]
    monkeypatch.chdir("/")
    monkeypatch.setenv("HOME", "/nowhere")
    assert len(set(sent)) == 1 and str(tmp_path / "models" / "bert").encode() in sent[0]
    assert pickle.loads(sent[0])(IDS).shape == (2, 3, 8)
    (tmp_path / "models" / "bert").rename(tmp_path / "gone")
    with pytest.raises(minibert.CheckpointError, match="no such folder"):
        pickle.loads(sent[0])


def test_a_row_of_one_s_own_goes_along_and_the_tables_do_not(own: Path) -> None:
    layer = minibert.load(own, family=MINE)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        sent = pickle.dumps(layer, protocol)
        assert len(sent) < MOST_BYTES < (own / "model.safetensors").stat().st_size / 100
        there = pickle.loads(sent)
        assert repr(there) == repr(layer) and repr(there).startswith("Mine(") and same_bits(there(IDS), layer(IDS))
    assert len(pickle.dumps(minibert.load(write(own.parent / "bert")))) < MOST_BYTES


def test_spawned_workers_open_it_again(own: Path) -> None:
    layer = minibert.load(own, family=MINE)
    assert same_bits(in_a_spawned_worker(layer, IDS), layer(IDS))


@pytest.mark.parametrize("lazy", [False, True])
def test_a_hub_name_goes_with_its_commit(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lazy: bool
) -> None:
    files = {path.name: path for path in own.iterdir()}
    with FakeHub() as hub:
        hub.add("someone/mine", files)
        use(monkeypatch, hub.endpoint, tmp_path / "home")
        layer = minibert.load("someone/mine", lazy=lazy, family=MINE)
        want = layer(IDS)
        sent = pickle.dumps(layer)
        assert commit_of("someone/mine").encode() in sent and len(sent) < MOST_BYTES
        negative = pack({name: -x for name, x in load_file(own / "model.safetensors").items()})
        hub.add(
            "someone/mine", {**files, "model.safetensors": negative}, commit=commit_of("another")
        )  # the branch moves on
        assert not same_bits(minibert.load("someone/mine", family=MINE)(IDS), want)
        hub.forget()
        assert same_bits(pickle.loads(sent)(IDS), want)
        assert not hub.asked("api/models")  # nobody is asked what the commit stands for
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
        assert same_bits(in_a_spawned_worker(layer, IDS), want)


def test_what_cannot_be_copied_says_so(tmp_path: Path) -> None:
    made = minibert.load(write(tmp_path))
    nameless = EmbeddingLayer(made.family, made.config, made.steps, made.dtype)
    assert same_bits(nameless(IDS), made(IDS))
    made.close()
    for use_of in (pickle.dumps, copy.deepcopy, copy.copy):
        with pytest.raises(TypeError, match=r"cannot be pickled or copied, since it was not made by minibert\.load"):
            use_of(nameless)
        with pytest.raises(ValueError, match="this layer is closed; load it again"):
            use_of(made)
