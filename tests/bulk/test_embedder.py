"""`Embedder`, what an engine calls: the numbers of one process, whatever the batch, the process and the thread."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from checkpoints import same_bits
from command_line import Patch
from fake_hub import FakeHub, commit_of, use
from limits import CHILD_SECONDS
from reference_files import REFERENCE
from safetensors.numpy import load_file, save_file

import minibert
from minibert import Embedder
from minibert.bulk.job import bulk
from minibert.bulk.texts import Texts
from minibert.equations.input_layer import Array
from minibert.models.open.vectors import open_vectors
from minibert.models.run import pipeline

TINY = REFERENCE / "sentences-dense"
MOST_BYTES = 4096  # measured: 278, and 312 with a prompt's name and a longer path
TEXTS = ["we lived above the clouds", "", "a", "the clouds, the clouds!", "lived we?"]


def many(count: int, seed: int = 0) -> list[str]:
    """Texts of 0 to 12 words, the same in every run."""
    generator = np.random.default_rng(seed)
    words = np.array(["we", "lived", "above", "the", "clouds", "a", ",", "xyz"])
    return [" ".join(generator.choice(words, size)) for size in generator.integers(0, 13, count)]


def vectors(embedder: Embedder, texts: Any) -> Array:
    found: Array = embedder({embedder.text_column: texts})[embedder.output_column]
    return found


@pytest.fixture(scope="module")
def encoder() -> minibert.Encoder:
    return minibert.load_encoder(TINY)


# -- the numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 5, 511, 513, 2049])
def test_the_numbers_are_those_of_encode(encoder: minibert.Encoder, count: int) -> None:
    texts = many(count)
    found = vectors(Embedder(TINY), texts)
    assert found.dtype == np.float32 and same_bits(found, encoder.encode(texts))


def test_prompts_reach_the_model() -> None:
    folder = REFERENCE / "sentences-prompts"
    encoder = minibert.load_encoder(folder)
    for prompt in ({"prompt_name": "query"}, {"prompt": "above the "}, {}):
        assert same_bits(vectors(Embedder(folder, **prompt), TEXTS), encoder.encode(TEXTS, **prompt))


# -- columns -------------------------------------------------------------------------------------------------------


def test_columns_stay_and_one_is_added() -> None:
    batch = {"id": np.arange(5), "body": TEXTS, "tags": [["x"]] * 5}
    found = Embedder(TINY, text_column="body", output_column="place")(batch)
    assert list(found) == ["id", "body", "tags", "place"] and found["place"].shape == (5, 6)
    assert all(found[name] is column for name, column in batch.items())
    assert list(batch) == ["id", "body", "tags"]  # an engine's own batch is as it was
    assert list(Embedder(TINY)({"text": TEXTS})) == ["text", "vector"]


@pytest.mark.parametrize("make", [np.array, pl.Series, lambda texts: pa.chunked_array([texts[:2], texts[2:]])])
def test_a_column_may_be_of_any_library(make: Callable[[list[str]], Any]) -> None:
    embedder = Embedder(TINY)
    assert same_bits(vectors(embedder, make(TEXTS)), vectors(embedder, TEXTS))


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        (pl.DataFrame({"text": TEXTS}), TypeError, 'a dict of columns, found DataFrame; .*batch_format="numpy"'),
        (TEXTS, TypeError, "a dict of columns, found list"),
        ({"body": TEXTS, "id": [1]}, ValueError, "no column 'text'; it has 'body', 'id'"),
        ({"text": TEXTS, "vector": [1]}, ValueError, "a column 'vector' already; name another one with output_column"),
        ({"text": "one row"}, TypeError, "column 'text' must be many texts, found one str; pass batches, not rows"),
        ({"text": np.array("one row")}, TypeError, r"found an array of shape \(\)"),
        ({"text": np.array([TEXTS])}, TypeError, r"found an array of shape \(1, 5\)"),
        ({"text": None}, TypeError, "texts must be a str or a list of str, found NoneType"),
        ({"text": [*["a"] * 600, 7]}, TypeError, r"texts\[600\] must be a str, found int"),
        ({"text": ["\ud800"]}, ValueError, r"texts\[0\] has a lone surrogate U\+D800"),
    ],
)
def test_a_batch_that_is_none_says_what_is_wrong(batch: Any, error: Any, message: str) -> None:
    embedder = Embedder(TINY)
    with pytest.raises(error, match=message):
        embedder(batch)
    assert vectors(embedder, ["a"]).any()  # and the next one is computed as if nothing had been


def test_without_a_model_s_name(monkeypatch: Patch, encoder: minibert.Encoder) -> None:
    monkeypatch.delenv("MINIBERT_MODEL", raising=False)
    with pytest.raises(ValueError, match="no model is named"):
        Embedder()
    monkeypatch.setenv("MINIBERT_MODEL", str(TINY))
    embedder = Embedder()
    monkeypatch.setenv("MINIBERT_MODEL", "/nowhere")  # as it may be on a worker's machine
    assert same_bits(vectors(pickle.loads(pickle.dumps(embedder)), TEXTS), encoder.encode(TEXTS))


# -- other processes -----------------------------------------------------------------------------------------------


def test_a_worker_gets_names_and_options_alone() -> None:
    embedder = Embedder(TINY)
    before = pickle.dumps(embedder)
    want = vectors(embedder, TEXTS)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        sent = pickle.dumps(embedder, protocol)  # after use too
        assert len(sent) < MOST_BYTES < (TINY / "model.safetensors").stat().st_size / 2
        assert same_bits(vectors(pickle.loads(sent), TEXTS), want)
    assert pickle.dumps(embedder) == before  # an engine that hashes it finds its cache again
    assert same_bits(vectors(copy.deepcopy(embedder), TEXTS), want)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        there = pool.submit(embedder, {"text": TEXTS}).result(CHILD_SECONDS)
    assert same_bits(there["vector"], want) and there["text"] == TEXTS


def test_a_folder_is_found_from_anywhere(tmp_path: Path, monkeypatch: Patch, encoder: minibert.Encoder) -> None:
    shutil.copytree(TINY, tmp_path / "models" / "tiny")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "models")
    for name in ("tiny", "./tiny", Path("tiny"), "../models/tiny", "~/models/tiny", Path("~/models/tiny")):
        monkeypatch.chdir(tmp_path / "models")
        monkeypatch.setenv("HOME", str(tmp_path))
        embedder = Embedder(name)
        monkeypatch.chdir("/")
        monkeypatch.setenv("HOME", "/nowhere")
        for one in (embedder, pickle.loads(pickle.dumps(embedder))):
            assert same_bits(vectors(one, TEXTS), encoder.encode(TEXTS))


def test_of_a_branch_that_moves_the_named_commit_is_taken(tmp_path: Path, monkeypatch: Patch) -> None:
    files: Mapping[str, Path] = {str(path.relative_to(TINY)): path for path in TINY.rglob("*") if path.is_file()}
    want = vectors(Embedder(TINY), TEXTS)
    with FakeHub() as hub:
        hub.add("someone/tiny", files)
        use(monkeypatch, hub.endpoint, tmp_path / "home")
        first = Embedder("someone/tiny", revision=commit_of("someone/tiny"))
        assert same_bits(vectors(first, TEXTS), want)
        save_file({name: -x for name, x in load_file(TINY / "model.safetensors").items()}, tmp_path / "other")
        hub.add("someone/tiny", {**files, "model.safetensors": tmp_path / "other"}, commit=commit_of("moved"))
        hub.forget()
        assert same_bits(vectors(pickle.loads(pickle.dumps(first)), TEXTS), want)
        assert not hub.asked("api/models")  # a hundred workers do not ask what the branch stands for
        assert not same_bits(vectors(Embedder("someone/tiny"), TEXTS), want)


WORKER = """
import json, pathlib, pickle, sys
embedder = pickle.loads(bytes.fromhex(sys.argv[1]))
embedder({"text": ["we lived above the clouds"] * 64})
found, current = {}, ""
for line in pathlib.Path("/proc/self/smaps").read_text().splitlines():
    key, value = (line.split() + [""])[:2]
    if not key.endswith(":"):
        current = line.split()[-1]
    elif current.endswith("model.safetensors") and value.isdigit():
        found[key] = found.get(key, 0) + int(value) * 1024
print(json.dumps(found))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells what of a file is mapped")
def test_a_worker_maps_the_weights_and_copies_no_page(minilm: Path) -> None:
    """So workers of one machine share them."""
    command = [sys.executable, "-c", WORKER, pickle.dumps(Embedder(minilm)).hex()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, env=environment, timeout=CHILD_SECONDS, check=True
    )
    found, size = json.loads(done.stdout), (minilm / "model.safetensors").stat().st_size
    assert found["Size:"] >= size and found["Rss:"] > size / 3  # the blocks are nearly half of the file
    assert found["Anonymous:"] == 0  # no page was copied by writing to it


# -- threads -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "ahead"), [(1, False), (2, True)])
def test_with_one_thread_nothing_is_tokenized_on_another(count: int, ahead: bool, tmp_path: Path) -> None:
    """`threads` decides, not the number of cores: with a process for each core, each has one thread."""
    texts = ["we"] * 2049  # more than one chunk
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    with mock.patch("minibert.models.run.pipeline.prefetch", side_effect=pipeline.prefetch) as asked:
        vectors(Embedder(TINY, threads=count), texts)
        minibert.load_encoder(TINY).encode(texts, threads=count)
        opened = open_vectors(TINY, threads=count)
        with opened.model:
            bulk(Texts([str(tmp_path / "texts.txt")]), tmp_path / "out", opened, {})
    assert [call.args[2] for call in asked.call_args_list] == [ahead] * 3


def test_many_threads_may_call_one_embedder_from_its_first_batch_on() -> None:
    batches = [many(count, seed) for seed, count in enumerate((1, 40, 513, 7, 0, 90, 600, 3) * 2)]
    want = [vectors(Embedder(TINY), texts) for texts in batches]
    embedder, start = Embedder(TINY), threading.Barrier(len(batches))

    def work(texts: list[str]) -> Array:
        start.wait(CHILD_SECONDS)
        return vectors(embedder, texts)

    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    try:
        with ThreadPoolExecutor(len(batches)) as pool:
            found = list(pool.map(work, batches))
    finally:
        sys.setswitchinterval(before)
    assert all(map(same_bits, found, want))
