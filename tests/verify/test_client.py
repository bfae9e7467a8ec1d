"""A server that answers as OpenAI's does, and those that do not: what `verify --url` makes of them."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Printed, failure
from hypothesis import given
from hypothesis import strategies as st
from peaks import peak
from vector_port import VectorPort, write

from minibert.cli import main
from minibert.verify.sides.client import Client, _numbers

ASKED = ["we lived above the clouds", "the clouds", "", "a b c", "line\nline"]
VECTORS = np.array([[1.5, -2.0, 0.0], [0.25, 4.0, 1.0]], np.float32)


class OpenAI(BaseHTTPRequestHandler):
    """Answers with a port's vectors; what is set on the server says how it errs."""

    def do_POST(self) -> None:
        server: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.asked.append((self.path, self.headers.get("Authorization"), body["model"]))
        texts = body["input"]
        if server.answer is not None:
            self.send(*server.answer)
        elif server.no_empty and "" in texts:
            self.send(400, b'{"error": "no empty input"}')
        else:
            vectors = server.port(texts)
            rows = [
                {"index": i, "embedding": base64.b64encode(v.tobytes()).decode() if server.base64 else v.tolist()}
                for i, v in enumerate(vectors)
            ]
            self.send(200, json.dumps({"data": rows[::-1]}).encode())  # 'index' says the order

    def send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("served") / "model")


@pytest.fixture
def served(folder: Path) -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), OpenAI)
    vars(server).update(port=VectorPort(folder), asked=[], answer=None, base64=False, no_empty=False)
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/embeddings"])
def test_only_the_one_address_is_asked(path: str, served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", "secret")
    kept, vectors = Client(served.url + path, "name", "SERVER_KEY").vectors(ASKED * 3)
    assert kept == list(range(15)) and np.allclose(vectors[5:10], served.port(ASKED))
    assert set(served.asked) == {("/v1/embeddings", "Bearer secret", "name")}


def test_base64_and_a_server_that_refuses_a_text(served: Any) -> None:
    served.base64 = served.no_empty = True
    kept, vectors = Client(served.url, "name").vectors(ASKED)
    assert kept == [0, 1, 3, 4] and np.array_equal(vectors, served.port([ASKED[i] for i in kept]))


def rows(*indices: int | str, content: str = "[1, 2]") -> bytes:
    """An answer with one vector for each index."""
    each = (f'{{"index": {json.dumps(index)}, "embedding": {content}}}' for index in indices)
    return f'{{"data": [{", ".join(each)}]}}'.encode()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((200, b"<html>"), "expected JSON"),
        ((200, b'{"data": []}'), "expected 'data' with"),
        ((200, b'{"data": [1, 2, 3, 4, 5]}'), "not as OpenAI's"),
        ((401, b"no key"), "HTTP 401 Unauthorized: the key is missing or wrong"),
        ((403, b""), "HTTP 403 Forbidden: this key may not"),
        ((404, b""), "HTTP 404 Not Found: is it the right address"),
        ((429, b"slow down"), "HTTP 429 Too Many Requests: too many requests"),
        ((307, b""), "HTTP 307"),
        ((422, b"too long"), "HTTP 422: too long"),
        ((500, b"down"), "HTTP 500 Internal Server Error: the server failed: down"),
        ((200, b'{"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [1]}]}'), "found 2 of them"),
        ((200, rows(0, 1, 2, 3, 3)), "'index' counts"),
        ((200, rows(0, 1, 2, 3, "4")), "not as OpenAI's"),
        ((200, rows(0, 1, 2, 3, 4, content="1" * 400)), "not as OpenAI's"),
        ((200, rows(0, 1, 2, 3, 4, content='"AAA="')), "not as OpenAI's"),
        ((200, rows(0, 1, 2, 3, 4, content="[[1]]")), "not as OpenAI's"),
        ((200, b"[" * 60_000), "expected JSON"),
        ((200, b'{"data": [%s]}' % b",".join([b"{}"] * 5)), "not as OpenAI's"),
        ((200, rows(0, 1, 2, 3, 4, content="3")), "'embedding' is no list of numbers"),
    ],
)
def test_another_answer_is_an_error_that_names_the_address(answer: Any, message: str, served: Any) -> None:
    served.answer = answer
    with pytest.raises(ValueError, match=message) as caught:
        Client(served.url, "name").vectors(ASKED)
    assert served.url in str(caught.value)
    assert all(path == "/v1/embeddings" for path, _, _ in served.asked)


@pytest.mark.parametrize("status", [200, 307, 400, 401, 500])
def test_a_key_is_never_shown(status: int, served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", "sk-secret\n")  # as `export KEY=$(cat file)` may leave it
    for content in (b'{"error": "bad key sk-secret"}', b"Bearer sk-secret", b'{"data": "sk-secret"}'):
        served.answer = (status, content)
        with pytest.raises(ValueError, match=r"\*\*\*") as caught:
            Client(f"{served.url}/v1?token=sk-secret", "name", "SERVER_KEY").vectors(ASKED)
        assert "sk-secret" not in str(caught.value) and served.url in str(caught.value)
    assert {path for path, _, _ in served.asked} == {"/v1/embeddings?token=sk-secret"}
    assert {key for _, key, _ in served.asked} == {"Bearer sk-secret"}


@pytest.mark.parametrize("key", ["sk-one\nsk-two", "schlüssel"])
def test_a_key_that_can_be_none_is_refused_and_not_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", key)
    with pytest.raises(ValueError, match="SERVER_KEY has characters that no key has") as caught:
        Client("http://127.0.0.1", "name", "SERVER_KEY")
    assert key not in str(caught.value)


LONG = "sk-" + "geheim" * 200


@pytest.mark.parametrize("said", [LONG * 30, LONG * 400, "x" * 110 + LONG, f"{LONG} token-7890/x y"])
@pytest.mark.parametrize("status", [200, 400, 500])
def test_no_part_of_a_secret_is_shown(said: str, status: int, served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is cut off is looked at first, and a query has secrets too, as it is written and as it is meant."""
    monkeypatch.setenv("SERVER_KEY", LONG)
    for content in (said, json.dumps({"error": said}), json.dumps({"data": [said] * len(ASKED)})):
        served.answer = (status, content.encode())
        with pytest.raises(ValueError, match="/v1/embeddings") as caught:
            Client(f"{served.url}?v=12&token=token-7890%2Fx+y&part={LONG[:9]}", "name", "SERVER_KEY").vectors(ASKED)
        assert not any(part in str(caught.value) for part in ("geheim", "token-7890"))


def test_an_answer_without_end_is_left(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    served.answer = (200, b" " * 300_000)
    monkeypatch.setattr("minibert.verify.sides.client.LARGEST", 1 << 17)
    with pytest.raises(ValueError, match="more than 131,072 bytes"):
        Client(served.url, "name").vectors(ASKED)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
DRIPPING = {
    "nothing": (b"", b""),
    "continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "header": (b"HTTP/1.1 200 OK\r\nx: ", b"y"),
    "body": (b"HTTP/1.1 200 OK\r\n\r\n", b" "),
    "error": (b"HTTP/1.1 500 Failed\r\n\r\n", b"x"),
    "chunk extension": (CHUNKED + b"1;", b"x"),
    "trailer": (CHUNKED + b"0\r\n", b"x: y\r\n"),
}


@pytest.mark.parametrize("name", DRIPPING)
def test_a_server_that_drips_is_left_after_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it drips: each byte comes soon enough."""
    begin, drop = DRIPPING[name]
    left = threading.Event()

    def drip(listening: socket.socket) -> None:
        with listening.accept()[0] as client, suppress(OSError):
            client.recv(1 << 16)
            client.sendall(begin)
            while not left.wait(0.02):
                client.sendall(drop)

    monkeypatch.setattr("minibert.verify.sides.client.LONGEST", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        dripping = threading.Thread(target=drip, args=(listening,))
        dripping.start()
        try:
            with pytest.raises(ValueError, match=r"/v1/embeddings: an answer takes more than 0\.5 seconds"):
                Client(f"http://127.0.0.1:{listening.getsockname()[1]}", "name").vectors(["a"])
        finally:
            left.set()
            dripping.join()


ITEM = '{"embedding": ['
HEAVY = {
    "lists": ("", "[],", "[]"),
    "objects": ("", "{},", "{}"),
    "vectors": ("", '{"embedding": []},', "{}"),
    "halves": (ITEM, "0.5,", "1]}"),
    "words": (ITEM, '"ab",', "1]}"),
    "digits": (ITEM, "11", "]}"),
    "spaces": (ITEM, "  ", "1]}"),
    "base64": ('{"embedding": "', "AA", '"}'),
    "letters": ('"', "é☃", '"'),
}


EIGHT = {"wide": ("1,", 500_000), "right": ("-0.12345678901234567,", 4096)}  # a number, and how many are in a vector


@pytest.mark.parametrize("name", [*HEAVY, *EIGHT])
def test_an_answer_takes_three_times_its_bytes_at_most(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python's lists and numbers it would take up to twenty times as much."""
    if name in EIGHT:
        number, often = EIGHT[name]
        data = ",".join([f"{ITEM}{number * often}1]}}"] * 8)
    else:
        begin, piece, end = HEAVY[name]
        data = f"{begin}{piece * 1_000_000}{end}"
    content = f'{{"data": [{data}]}}'.encode()
    client = Client("http://127.0.0.1", "name")
    monkeypatch.setattr(client, "_answer", lambda asked: bytearray(content))

    def ask() -> None:
        refused = pytest.raises(ValueError, match=r"expected 'data'|not as OpenAI's")
        with nullcontext() if name == "right" else refused:
            client.vectors(["a"] * (8 if name in EIGHT else 1))

    assert peak(ask) < 3.1 * len(content)


def test_a_server_that_says_nothing_is_left_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr("minibert.verify.sides.client.QUIET", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConnectionError, match="does not answer: timed out"):
            Client(url, "name").vectors(["a"])


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "localhost:8080?key=pass1234", "http://", "http://[", "https://name:pass1234@host",
        "htp://name:pass1234@host", "http://host:99999?key=pass1234", "http://é", "http://host/é", "http://☃.com",
        "http://host?key=pass1234 ", "http://host/\r\nx: y", " http://host",
    ],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="the address") as caught:
        Client(url, "name")
    assert "pass1234" not in str(caught.value)


def test_a_host_that_can_be_none_is_named() -> None:
    for host in ("a" * 300, "a..b"):
        with pytest.raises(ConnectionError, match=f"^http://{host}/v1/embeddings does not answer: "):
            Client(f"http://{host}", "name").vectors(["a"])


def test_a_server_that_is_not_there_is_an_error(served: Any) -> None:
    served.shutdown()
    served.server_close()
    with pytest.raises(ConnectionError, match="does not answer"):
        Client(served.url, "name").vectors(["a"])


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=8))
def test_base64_is_float32_little_endian(numbers: list[float]) -> None:
    assert _numbers(b'"%s"' % base64.b64encode(np.array(numbers, "<f4").tobytes())).tolist() == numbers


# -- the command -------------------------------------------------------------------------------------------------


def test_the_command_names_a_mistake_of_a_file_and_of_a_server(
    folder: Path, served: Any, tmp_path: Path, capsys: Printed
) -> None:
    texts, vectors = tmp_path / "t.jsonl", tmp_path / "v.npy"
    texts.write_text("".join(f"{json.dumps({'text': text})}\n" for text in ASKED), encoding="utf-8")
    served.port = VectorPort(folder, "first token")
    np.save(vectors, served.port(ASKED))
    for source in (["--vectors", str(vectors)], ["--url", served.url, "--served-as", "x"]):
        assert main(["verify", str(folder), *source, "--texts", str(texts)]) == 1
        assert "\nmatches: pooling cls. The pooling is mean.\n" in capsys.readouterr().out
    assert {model for _, _, model in served.asked} == {"x"}
    served.port = lambda texts: np.full((len(texts), 8), [np.nan, 0, 1, 1, 1, 1, 1, 1], np.float32)
    assert main(["verify", str(folder), "--url", served.url, "--texts", str(texts)]) == 1
    assert "\nmatches: NaN or infinity, in the vectors of texts 1, 2, 3, 4, 5." in capsys.readouterr().out


def test_the_command_refuses_what_does_not_go_together(folder: Path, tmp_path: Path, capsys: Printed) -> None:
    np.save(tmp_path / "v.npy", VECTORS)
    vectors = ["--vectors", str(tmp_path / "v.npy")]
    name = str(folder)
    assert "has 2 vectors, but there are" in failure(capsys, "verify", name, *vectors)
    assert "--encoder is for intermediates" in failure(capsys, "verify", name, *vectors, "--encoder")
    assert "--served-as is for --url" in failure(capsys, "verify", name, *vectors, "--served-as", "x")
    assert "--texts is for --vectors" in failure(capsys, "verify", name, "--texts", "x")
    assert "name either" in failure(capsys, "verify", name, *vectors, "--url", "http://127.0.0.1")
    assert "no VERDICT_KEY" in failure(
        capsys, "verify", name, "--url", "http://127.0.0.1", "--api-key-env", "VERDICT_KEY"
    )
