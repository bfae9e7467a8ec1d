"""Engines of many machines send an encoder to workers, and call it on columns of batches; of a branch that moves they
send the commit of the first opening: tests/hub. And half a million texts in bounded memory.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from unittest import mock

import pytest
from checkpoints import VOCAB, numbers, same_bits
from limits import CHILD_SECONDS
from many_texts import WORDS
from reference_files import REFERENCE
from static_folders import static_folder

import minibert
from minibert.bulk.job import bulk
from minibert.bulk.stored import FORMATS, StoredVectors
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
    with mock.patch("minibert.models.run.pipeline.prefetch", asked), mock.patch("minibert.bulk.job.prefetch", asked):
        minibert.load_encoder(TINY, threads=count).encode(texts)
        opened = open_vectors(TINY, threads=count)
        with opened.model:
            bulk(Texts([str(tmp_path / "texts.txt")]), tmp_path / "out", opened, {})
    assert [call.args[1] for call in asked.call_args_list] == [ahead] * 3


COUNT = 500_000  # their vectors are 730 MiB
MORE = 1.25  # as a share; measured: 1.12 of four times as many

RUN = """
import sys
from minibert.cli import main
code = main(sys.argv[1:])
with open("/proc/self/status") as status:  # getrusage counts the process that started this one, too
    print(next(line for line in status if line.startswith("VmHWM")).split()[1])
sys.exit(code)
"""


@pytest.mark.release
@pytest.mark.skipif(sys.platform != "linux", reason="a process's peak of memory is Linux's to say")
@pytest.mark.parametrize("form", FORMATS)
def test_half_a_million_short_texts(form: str, tmp_path: Path) -> None:
    """For ten times as many texts, the peak of memory is still a few shards; a static model makes the test fast."""
    random, peaks, model = Random(0), list[int](), static_folder(tmp_path / "model", embeddings=numbers(VOCAB, 384))
    for count in (COUNT // 10, COUNT):
        source, out = tmp_path / "a.txt", tmp_path / "out"
        with source.open("w", encoding="utf-8") as file:
            file.writelines(" ".join(random.choices(WORDS, k=random.randint(3, 12))) + "\n" for _ in range(count))
        argv = ["bulk", source, "-o", out, "-m", model, "--format", form]
        done = subprocess.run([sys.executable, "-c", RUN, *argv], stdout=subprocess.PIPE, text=True, check=True)
        assert StoredVectors(out).rows == count
        shutil.rmtree(out)  # 0.8 GB
        peaks.append(int(done.stdout))
    assert peaks[1] < MORE * peaks[0]
