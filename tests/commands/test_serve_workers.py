"""`minibert serve --workers`: one address, one map of the weights, sums of all; and what happens when a worker ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from serve_process import HALF, MODEL, RERANKER, serving
from served import SECONDS, Address, needs_server, opened

import minibert
from minibert.serve import workers
from minibert.serve.app import Server
from minibert.threads.cores import cores

installed = pytest.fixture(scope="module", autouse=True)(needs_server)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are for Linux")

# bytes that a worker of MiniLM in float16 has for itself after some requests; measured 22e6, and with its own copy of
# the converted weights 87e6
OWN = 40e6


def children(process: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def stopped(process: int) -> Iterator[None]:
    """Have a worker take no request meanwhile."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def numbers(address: Address) -> dict[str, str]:
    lines = address.ask("/metrics").body.decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


ASKED = 'minibert_requests_total{path="/v1/embeddings",status="200"}'
INSIDE = "minibert_requests_inside"
TEXTS = 'minibert_texts_total{model="a"}'


def test_any_worker_tells_the_sums_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several models, by a variable; a worker that takes the place of another goes on with its numbers.

    The process may have other children than workers: a shell's before it, or those that a container leaves to it.
    """
    shell = "sh", "-c", 'sleep 0 & exec "$@"', "sh"
    monkeypatch.setenv("MINIBERT_SERVE_WORKERS", "2")
    options = "--reranker", RERANKER, "--name", "a", "--log-format", "json"
    with serving(*options, said="a, uses-reranker", before=shell) as (process, address):
        stranger, first, second = children(process.pid)
        want = minibert.load_encoder(MODEL).encode("dog")
        for other, texts in ((first, ["dog"]), (second, ["dog", "we lived above the clouds"])):
            with stopped(other):
                found = address.embed(texts, model="a").json["data"][0]["embedding"]
                assert np.allclose(found, want, atol=1e-6)
                assert len(address.ask("/rerank", {"query": "a", "texts": ["b", "c"]}).json) == 2
        for other in (first, second):

            def told(other: int = other) -> bool:  # a worker that was stopped just after its answer is still inside
                with stopped(other):
                    found = numbers(address)
                    inside = address.ask("/info").json["requests_inside"]
                    return (found[ASKED], found[TEXTS], found[INSIDE], inside) == ("2", "3", "1", 1)

            until(told)
        os.kill(first, signal.SIGKILL)
        until(lambda: len(children(process.pid)) == 2 and not {first, stranger} & {*children(process.pid)})
        with stopped(second):
            assert address.embed("dog").status == 200
            until(lambda: (numbers(address)[ASKED], numbers(address)[TEXTS]) == ("3", "4"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
        (line,) = map(json.loads, process.stderr.read().splitlines())
    assert line["level"] == "warning"
    assert line["message"] == f"worker 0 (process {first}) ended by signal 9; another one takes its place"


def test_weights_are_there_once_converted_ones_too(minilm: Path, tmp_path: Path) -> None:
    """A worker that opened the model itself would have its own copy."""
    folder = tmp_path / "half"
    shutil.copytree(minilm, folder)
    stored = load_file(folder / "model.safetensors")
    half = {name: each.astype(np.float16) if each.dtype == np.float32 else each for name, each in stored.items()}
    (folder / "model.safetensors").unlink()  # the copy of a link would be the file itself
    save_file(half, folder / "model.safetensors", {"format": "pt"})
    where = "/v1/embeddings; the model has no prompt for queries"
    with serving("--workers", "2", models=(str(folder),), said="half", path=where) as (process, address):
        first, second = children(process.pid)
        for one, other in ((first, second), (second, first)):
            with stopped(other):
                assert address.embed(["we lived above the clouds"] * 20).status == 200
            sizes = dict(line.split()[:2] for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()[1:])
            own = 1024 * (int(sizes["Private_Clean:"]) + int(sizes["Private_Dirty:"]))
            assert own < OWN, f"{own} bytes"


def test_workers_end_with_the_process_that_started_them() -> None:
    with serving("--workers", "2") as (process, _):
        paths = [Path(f"/proc/{worker}") for worker in children(process.pid)]
        process.kill()
        until(lambda: not any(path.exists() for path in paths))


def test_places_are_those_of_all_workers_together() -> None:
    """One that is taken in one worker is none in the other."""
    with serving("--workers", "2", "--max-waiting", "1") as (process, address):
        first, second = children(process.pid)
        with stopped(first):
            client = socket.create_connection(("127.0.0.1", address.port), SECONDS)
            client.sendall(HALF)
            until(lambda: address.ask("/info").status == 503)
        with client, stopped(second):
            assert address.embed("dog").status == 503
        until(lambda: address.embed("dog").status == 200)


def test_workers_that_end_before_they_listen() -> None:
    """A loop that replaces each at once would never end."""
    program = (
        "import os, sys; from minibert.cli import main; from minibert.serve import workers\n"
        "workers.run = lambda *_: os._exit(7)\n"
        f"sys.exit(main(['serve', {MODEL!r}, '--port', '0', '--workers', '2']))"
    )
    tried = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS)
    said = tried.stderr.splitlines()
    assert (tried.returncode, len(said)) == (1, workers.TRIES)
    assert said[-1].endswith("the last of 3 that ended before they listened; the server ends")


def test_each_worker_has_its_share_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []

    class Here:
        """Workers of this process, one after the other."""

        def __init__(self, work: Callable[..., bool], listening: Any) -> None:
            self.work = work

        def run(self, count: int, ready: Callable[[], None]) -> bool:
            return all(self.work(number, ready) for number in range(count))

    monkeypatch.setattr(workers, "_Workers", Here)
    monkeypatch.setattr(workers, "run", lambda *_: bool(found.append(cores())))
    monkeypatch.setenv("MINIBERT_THREADS", "4")
    monkeypatch.setenv("RAYON_NUM_THREADS", "4")
    server = Server([opened(MODEL)], workers=2)
    for threads, want in ((None, [2, 2]), (5, [2, 3]), (1, [1, 1])):
        monkeypatch.setenv("MINIBERT_THREADS", "4")
        with socket.socket() as listening:
            assert workers.run_workers(server, listening, lambda: None, 2, threads)
        assert found == want
        found.clear()
    with socket.socket() as listening, pytest.raises(ValueError, match="threads must be an integer >= 1, found 0"):
        workers.run_workers(server, listening, lambda: None, 2, 0)
