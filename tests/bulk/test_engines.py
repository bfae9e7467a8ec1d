"""Engines of many machines send an encoder to workers, and call it on columns of batches."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
from checkpoints import same_bits
from command_line import Patch
from fake_hub import FakeHub, commit_of, use
from limits import CHILD_SECONDS
from reference_files import REFERENCE
from safetensors.numpy import load_file, save_file

import minibert
from minibert.bulk.job import bulk
from minibert.bulk.texts import Texts
from minibert.models.open.load_encoder import open_vectors
from minibert.threads.pool import prefetch

TINY = REFERENCE / "sentences-dense"
MOST_BYTES = 4096  # measured: 290
TEXTS = ["we lived above the clouds", "", "a", "the clouds, the clouds!", "lived we?"]


@pytest.fixture(scope="module")
def encoder() -> minibert.Encoder:
    return minibert.load_encoder(TINY)


def test_a_worker_gets_names_and_options_alone(encoder: minibert.Encoder) -> None:
    want = encoder.encode(TEXTS)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        sent = pickle.dumps(encoder, protocol)  # after use
        assert len(sent) < MOST_BYTES < (TINY / "model.safetensors").stat().st_size / 2
        assert same_bits(pickle.loads(sent).encode(TEXTS), want)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert same_bits(pool.submit(encoder.encode, TEXTS).result(CHILD_SECONDS), want)


def test_of_a_branch_that_moves_the_commit_of_the_first_opening_is_taken(tmp_path: Path, monkeypatch: Patch) -> None:
    files: Mapping[str, Path] = {str(path.relative_to(TINY)): path for path in TINY.rglob("*") if path.is_file()}
    want = minibert.load_encoder(TINY).encode(TEXTS)
    with FakeHub() as hub:
        hub.add("someone/tiny", files)
        use(monkeypatch, hub.endpoint, tmp_path / "home")
        first = minibert.load_encoder("someone/tiny")
        assert same_bits(first.encode(TEXTS), want)
        save_file({name: -x for name, x in load_file(TINY / "model.safetensors").items()}, tmp_path / "other")
        hub.add("someone/tiny", {**files, "model.safetensors": tmp_path / "other"}, commit=commit_of("moved"))
        hub.forget()
        assert same_bits(pickle.loads(pickle.dumps(first)).encode(TEXTS), want)
        assert not hub.asked("api/models")  # a hundred workers do not ask what the branch stands for
        assert not same_bits(minibert.load_encoder("someone/tiny").encode(TEXTS), want)


WORKER = """
import json, pathlib, pickle, sys
encoder = pickle.loads(bytes.fromhex(sys.argv[1]))
encoder.encode(["we lived above the clouds"] * 64)
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
    command = [sys.executable, "-c", WORKER, pickle.dumps(minibert.load_encoder(minilm, mmap=True)).hex()]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, env=environment, timeout=CHILD_SECONDS, check=True
    )
    found, size = json.loads(done.stdout), (minilm / "model.safetensors").stat().st_size
    assert found["Size:"] >= size and found["Rss:"] > size / 3  # the blocks are nearly half of the file
    assert found["Anonymous:"] == 0  # no page was copied by writing to it


@pytest.mark.parametrize(("count", "ahead"), [(1, False), (2, True)])
def test_with_one_thread_nothing_is_tokenized_on_another(count: int, ahead: bool, tmp_path: Path) -> None:
    """`threads` decides, not the number of cores: with a process for each core, each has one thread."""
    texts = ["we"] * 2049  # more than one chunk
    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    asked = mock.Mock(side_effect=prefetch)
    with (
        mock.patch("minibert.models.run.pipeline.prefetch", asked),
        mock.patch("minibert.bulk.job.prefetch", asked),
    ):
        minibert.load_encoder(TINY, threads=count).encode(texts)
        opened = open_vectors(TINY, threads=count)
        with opened.model:
            bulk(Texts([str(tmp_path / "texts.txt")]), tmp_path / "out", opened, {})
    assert [call.args[2] for call in asked.call_args_list] == [ahead] * 3
