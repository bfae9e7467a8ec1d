"""The section serve: eight clients of `minibert serve` for a minute, beside eight callers of `encode`.

Also `python -m bench.serve clients PORT SECONDS TEXTS` and `python -m bench.serve callers FOLDER SECONDS TEXTS`, which
do one side of a round and print a line of JSON: texts, and the seconds that each took. Linux only.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .measure import ROOT, Limit, Row, Settings, compare, environment, installed, unmeasured
from .models import real_model, short_texts

CLIENTS, TEXTS = 8, 600
ROUNDS, SECONDS = 6, 10.0  # together a minute of each side; --quick: three rounds


def serve(settings: Settings) -> list[Row]:
    """A text for each request, of 5 to 40 words; each client sends the next one when it has its answer."""
    model = real_model()
    if model is None or sys.platform != "linux" or not (installed("starlette") and installed("uvicorn")):
        return [
            unmeasured("MiniLM", "needs Linux, the extra `serve` and all-MiniLM-L6-v2, which scripts/demo installs")
        ]
    from tokenizers import Tokenizer

    sides: dict[str, list[dict[str, Any]]] = {"clients": [], "callers": []}
    memory = []
    with tempfile.NamedTemporaryFile("w+", suffix=".json") as file, server(str(model)) as (port, pid):
        json.dump(short_texts(Tokenizer.from_file(f"{model}/tokenizer.json"), TEXTS, 5, 40), file)
        file.flush()
        for number in range(settings.rounds(ROUNDS)):
            for side in list(sides)[:: 1 if number % 2 == 0 else -1]:
                sides[side].append(asked(side, {"clients": port, "callers": str(model)}[side], file.name))
            memory.append(anonymous(pid))
    clients, callers = ([each["seconds"] / each["texts"] for each in sides[side]] for side in ("clients", "callers"))
    last, first = ([each["last"] for each in sides[side]] for side in ("clients", "callers"))
    what, against = f"{CLIENTS} clients, a text each", f"encode, {CLIENTS} callers"
    return [
        compare(what, clients, callers, against, faster=True, limit=Limit(">=", 0.9), note="time for each text"),
        compare(f"{what}: the 99th percentile", last, first, against, note="of the time until an answer"),
        compare(
            f"{what}: memory at the end", memory[-1:], memory[:1], "after the first round", "B",
            limit=Limit("<=", 1.05), note=f"{sum(each['texts'] for each in sides['clients'])} requests",
        ),
    ]  # fmt: skip


@contextmanager
def server(model: str) -> Iterator[tuple[str, int]]:
    """Start the command: its port, and the number of its process."""
    command = [sys.executable, "-m", "minibert", "serve", model, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(), cwd=ROOT) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            yield line.partition("127.0.0.1:")[2].partition("/")[0], process.pid
        finally:
            process.terminate()


def asked(side: str, where: str, texts: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.serve", side, where, str(SECONDS), texts]
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def anonymous(pid: int) -> int:
    """Bytes that are a process's own."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"no Anonymous in /proc/{pid}/smaps_rollup")


# -- one side of a round -------------------------------------------------------------------------------------------


def together(make: Callable[[], Callable[[str], object]], texts: list[str], seconds: float) -> dict[str, Any]:
    """Have eight threads work text by text for so long: how many texts, and the 99th percentile of a text's time."""
    took: list[float] = []
    begin = threading.Barrier(CLIENTS)

    def one(number: int) -> None:
        work, own = make(), texts[number::CLIENTS]
        for text in own[:3]:
            work(text)
        begin.wait()
        end, i = time.monotonic() + seconds, 0
        while (before := time.monotonic()) < end:
            work(own[i % len(own)])
            took.append(time.monotonic() - before)
            i += 1

    threads = [threading.Thread(target=one, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"texts": len(took), "seconds": seconds, "last": sorted(took)[int(len(took) * 0.99)]}


def client(port: str) -> Callable[[str], object]:
    """As OpenAI's client asks: a connection that is kept, vectors as base64."""
    from http.client import HTTPConnection

    connection = HTTPConnection("127.0.0.1", int(port))

    def work(text: str) -> object:
        body = json.dumps({"input": text, "encoding_format": "base64"})
        connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        found = answer.read()
        assert answer.status == 200, found
        return found

    return work


def main(side: str, where: str, seconds: str, file: str) -> None:
    texts = json.loads(Path(file).read_text(encoding="utf-8"))
    if side == "clients":
        print(json.dumps(together(lambda: client(where), texts, float(seconds))))
        return
    import minibert

    encoder = minibert.load_encoder(where)
    print(json.dumps(together(lambda: encoder.encode, texts, float(seconds))))


if __name__ == "__main__":
    main(*sys.argv[1:])
