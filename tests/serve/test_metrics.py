"""/metrics: what was done is counted, by one process or by several that share a folder."""

from __future__ import annotations

import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest
from needed import absent, missing
from reference_files import REFERENCE
from served import SECONDS, Answer, needs_server, opened, straight

from minibert.serve.app import Server

NAME, RERANKER = "sentences-residual", "uses-reranker"
LONG = "the clouds " * 40


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    needs_server()
    if absent("prometheus_client"):
        missing("prometheus-client not installed; it is in the extra `metrics`")


def numbers(answer: Answer) -> dict[str, float]:
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line.rsplit(" ", 1) for line in answer.body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_metrics_count_what_was_done() -> None:
    server = Server([opened(REFERENCE / NAME, 'org/a"b'), opened(REFERENCE / RERANKER)])
    server.record.open()
    answer = straight(server, "/v1/embeddings", b'{"input": ["%s", "dog"]}' % LONG.encode())
    tokens = answer.json["usage"]["total_tokens"]
    assert straight(server, "/v1/embeddings", b'{"input": []}').status == 400
    assert straight(server, "/rerank", b'{"query": "a", "texts": ["b", "c", "d"]}').status == 200
    for path in ("/other", "/another"):
        assert straight(server, path, b"").status == 404
    found = numbers(straight(server, "/metrics", b"", method="GET"))
    assert found['minibert_requests_total{path="/v1/embeddings",status="200"}'] == 1
    assert found['minibert_requests_total{path="/v1/embeddings",status="400"}'] == 1
    assert found['minibert_requests_total{path="other",status="404"}'] == 2, "no path of a client's own"
    assert found['minibert_texts_total{model="a\\"b"}'] == 2
    assert found['minibert_tokens_total{model="a\\"b"}'] == tokens
    assert found['minibert_truncated_total{model="a\\"b"}'] == 1
    assert found[f'minibert_texts_total{{model="{RERANKER}"}}'] == 3
    assert found['minibert_request_seconds_count{path="/v1/embeddings"}'] == 2
    assert found['minibert_request_seconds_sum{path="/rerank"}'] > 0


def test_without_prometheus_client_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    find = util.find_spec
    monkeypatch.setattr("minibert.serve.app.find_spec", lambda name: None if "prometheus" in name else find(name))
    server = Server([opened(REFERENCE / NAME)])
    server.record.open()
    assert straight(server, "/embed", b'{"inputs": "dog"}').status == 200
    answer = straight(server, "/metrics", b"", method="GET")
    assert (answer.status, "pip install 'prometheus-client>=" in answer.error) == (501, True)


ONE = """
import sys
from minibert.serve.app import Record
record = Record(["/embed"])
record.open()
record.counts["requests"].labels("/embed", "200").inc()
print("counted", flush=True)
sys.stdin.readline()
sys.stdout.write(record.text().decode())
record.close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="several processes share a folder by its lock")
def test_processes_of_one_folder_give_their_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts of a killed process stay; the last one removes the files, and the first those of a run that was
    killed.
    """
    folder = tmp_path / "shared"
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(folder))
    folder.mkdir()
    (folder / "counter_1.db").write_bytes(b"of another run")

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", ONE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout.readline() == "counted\n"
        return process

    killed, first, last = start(), start(), start()
    (folder / "counter_0.db").touch()  # as a worker's is between its making and its first number
    killed.kill()
    killed.communicate(timeout=SECONDS)
    for process, others in ((first, 1), (last, 0)):
        said, _ = process.communicate("\n", timeout=SECONDS)
        assert 'minibert_requests_total{path="/embed",status="200"} 3.0' in said
        assert bool([*folder.iterdir()]) == bool(others)
