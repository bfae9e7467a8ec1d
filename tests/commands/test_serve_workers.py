"""Several processes of the server, by gunicorn and by uvicorn: `minibert.serve.app:create`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from limits import until
from needed import absent, missing
from reference_files import REFERENCE
from served import MODEL, SECONDS, Address, needs_server

import minibert

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")

RERANKER = str(REFERENCE / "uses-reranker")
CREATE = "minibert.serve.app:create"
PROGRAMS = {
    "gunicorn": (
        "gunicorn", "-w", "2", "-k", "uvicorn_worker.UvicornWorker", "--no-control-socket", "--timeout", f"{SECONDS}",
        "--graceful-timeout", f"{SECONDS}", "-b", "127.0.0.1:0", f"{CREATE}()",
    ),
    "uvicorn": ("uvicorn", "--workers", "2", "--port", "0", "--factory", CREATE),
}  # fmt: skip
# uvicorn would end a worker that does not answer it for 5 s, on a busy machine, and start another; a variable, since
# older versions have no such option; no more than 20 s, since it waits so long for one that is killed while it is asked
PATIENT = {"UVICORN_TIMEOUT_WORKER_HEALTHCHECK": "20"}
ASKED = 'minibert_requests_total{path="/embed",status="200"}'


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    needs_server()
    if absent("gunicorn", "uvicorn_worker", "prometheus_client"):
        missing("gunicorn, uvicorn-worker or prometheus-client not installed; they are in the extra `test`")


def workers_of(process: int) -> set[int]:
    """Its children; uvicorn has one more, which watches what its workers share."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return {int(each) for each in children if b"resource_tracker" not in Path(f"/proc/{each}/cmdline").read_bytes()}


@contextmanager
def started(program: str, *options: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], Address]]:
    """Start it, and wait until it prints its address."""
    environment = os.environ | PATIENT | {f"MINIBERT_SERVE_{name}": value for name, value in variables.items()}
    command = [sys.executable, "-m", *PROGRAMS[program], *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            lines = iter(process.stderr.readline, "")
            at = next(found[1] for line in lines if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line)))
            yield process, Address(int(at))
        finally:
            process.kill()


def has_ended(process: int) -> bool:
    """Whether it is gone, or a zombie that no parent has waited for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def counting(process: int, shared: Path) -> set[int]:
    """The workers that count in a folder, which each holds open before it takes its first request."""
    open_files = {each: map(os.readlink, Path(f"/proc/{each}/fd").iterdir()) for each in workers_of(process)}
    return {each for each, names in open_files.items() if str(shared) in names}


def answered(process: int, shared: Path, address: Address) -> set[int]:
    """Ask, and give the workers that have answered: their numbers are in files with their names."""
    assert address.ask("/health").status == 200
    return {int(file.stem.rpartition("_")[2]) for file in shared.glob("*.db")} & workers_of(process)


@pytest.mark.parametrize("program", PROGRAMS)
def test_workers_answer_and_are_replaced(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models and options come from variables; the numbers of all are one sum, and their files go at the end."""
    shared = tmp_path / "metrics"
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(shared))
    want = minibert.load_encoder(MODEL).encode("dog", normalize_embeddings=True)
    with started(program, MODEL=MODEL, RERANKER=RERANKER, NAME="a") as (process, address):
        until(lambda: len(counting(process.pid, shared)) == 2 and address.ask("/health").status == 200)
        before = workers_of(process.pid)
        for count in (1, 2, 3):
            assert np.allclose(address.ask("/embed", {"inputs": "dog", "model": "a"}).json, [want], atol=1e-6)
            assert len(address.ask("/rerank", {"query": "a", "texts": ["b", "c"]}).json) == 2
            noted = f"\n{ASKED} {count}.0\n".encode()  # after the answer is sent
            until(lambda noted=noted: noted in address.ask("/metrics").body)
            if count == 1:
                os.kill(min(before), signal.SIGKILL)
                until(lambda: len(answered(process.pid, shared, address) - {min(before)}) == 2)
        assert any(shared.iterdir())
        process.terminate()
        process.communicate(timeout=SECONDS)
        assert process.returncode in (0, -signal.SIGTERM)
    assert not any(shared.iterdir())


def test_gunicorn_ends_within_its_grace_though_a_worker_is_stopped() -> None:
    with started("gunicorn", "--graceful-timeout", "2", MODEL=MODEL) as (process, address):
        until(lambda: address.ask("/health").status == 200 and len(workers_of(process.pid)) == 2)
        stopped = min(workers_of(process.pid))
        os.kill(stopped, signal.SIGSTOP)
        process.terminate()
        process.communicate(timeout=SECONDS)
        assert process.returncode == 0
        until(lambda: has_ended(stopped))


@pytest.mark.parametrize(("options", "variables", "says"), [
    ([], {"MAX_TEXTS": "many"}, "the variable MINIBERT_SERVE_MAX_TEXTS: expected an integer >= 1, found 'many'"),
    (["-k", "sync"], {}, "start gunicorn with -k uvicorn_worker.UvicornWorker"),
    (["-k", "sync", "--threads", "2"], {}, "start gunicorn with -k uvicorn_worker.UvicornWorker"),
])  # fmt: skip
def test_a_wrong_start_ends_gunicorn_in_words(options: list[str], variables: dict[str, str], says: str) -> None:
    """Workers that ended before they listened would be started again without end, as older versions of uvicorn do."""
    command = [sys.executable, "-m", *PROGRAMS["gunicorn"], *options]
    own = {f"MINIBERT_SERVE_{name}": value for name, value in ({"MODEL": MODEL} | variables).items()}
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=os.environ | own)
    assert says in done.stderr and done.returncode in (1, 3)  # 1: gunicorn fails where two workers end at once
    ours = Path(minibert.__file__).parent  # gunicorn's own traceback may stand there, where two workers end at once
    assert f'File "{ours}' not in done.stderr
