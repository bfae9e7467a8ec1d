"""Files of vectors that other programs write, and a server that answers as OpenAI's does."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Printed, failure
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from vector_port import VectorPort, write

from minibert.cli import main
from minibert.equations.input_layer import Array
from minibert.verify.server import Server, _numbers
from minibert.verify.texts import TEXTS
from minibert.verify.vector_files import read_texts, read_vectors

ASKED = ["we lived above the clouds", "the clouds", "", "a b c", "line\nline"]
VECTORS = np.array([[1.5, -2.0, 0.0], [0.25, 4.0, 1.0]], np.float32)


def written(folder: Path, name: str) -> Path:
    path = folder / name
    rows = [{"text": f"text {i}", "embedding": row} for i, row in enumerate(VECTORS.tolist())]
    if name.endswith(".npy"):
        np.save(path, VECTORS)
    elif name.endswith(".npz"):
        np.savez(path, ids=np.arange(2), embeddings=VECTORS)
    elif name.endswith(".safetensors"):
        save_file({"anything": VECTORS}, path)
    elif name.endswith(".jsonl"):
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    else:
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.table({key: [row[key] for row in rows] for key in ("text", "embedding")}), path)
    return path


@pytest.mark.parametrize("name", ["v.npy", "v.npz", "v.safetensors", "v.jsonl", "v.parquet"])
def test_vectors_are_read_from_every_format(name: str, tmp_path: Path) -> None:
    found, texts = read_vectors(written(tmp_path, name))
    assert np.array_equal(found, VECTORS)
    assert texts == (["text 0", "text 1"] if name[2:] in ("jsonl", "parquet") else None)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(3, np.float32), "one vector a row"),
        (np.zeros((2, 3), np.int8), "before they are quantized"),
        (np.zeros((0, 3), np.float32), "one vector a row"),
        (np.array([["a"]]), "is stored as <U1"),
    ],
)
def test_what_are_no_vectors_is_refused_by_file(array: Array, message: str, tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", array)
    with pytest.raises(ValueError, match=message) as caught:
        read_vectors(tmp_path / "v.npy")
    assert "v.npy" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[1]", "line 2: expected a JSON object"),
        ('{"text": "a"}', "line 2: there is no 'vector'"),
        ('{"text": 3, "vector": [1, 2, 3]}', "row 2: 'text' must be a text"),
        ('{"text": "a", "vector": [1, 2]}', "one vector a row"),
        ('{"text": "a", "vector": ["x", 2, 3]}', "one vector a row"),
        ('{"text": "a", "vector": null}', "one vector a row"),
    ],
)
def test_a_bad_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "v.jsonl").write_text('{"text": "a", "vector": [1, 2, 3]}\n' + line, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_vectors(tmp_path / "v.jsonl")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200), ending=st.sampled_from([".npy", ".npz", ".safetensors", ".jsonl", ".parquet"]))
def test_a_damaged_file_is_an_error_that_names_it(content: bytes, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"damaged{ending}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        read_vectors(path)


def test_an_npz_that_is_another_file_or_damaged_within_is_an_error_that_names_it(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).random((4, 8), np.float32)
    np.save(tmp_path / "v.npy", vectors)
    (tmp_path / "v.npy").rename(tmp_path / "array.npz")
    np.savez_compressed(tmp_path / "within.npz", vectors=vectors)
    whole = (tmp_path / "within.npz").read_bytes()
    (tmp_path / "within.npz").write_bytes(whole[:80] + bytes([255]) * 40 + whole[120:])
    for name in ("array.npz", "within.npz"):
        with pytest.raises(ValueError, match=f"{name}: not readable as NumPy"):
            read_vectors(tmp_path / name)


def test_texts_that_are_printed_can_be_read_again(tmp_path: Path, capsys: Printed) -> None:
    assert main(["verify", "--print-texts"]) == 0
    printed = capsys.readouterr().out
    assert printed.isascii()  # control characters and others are escaped
    (tmp_path / "t.jsonl").write_text(printed, encoding="utf-8")
    assert read_texts(tmp_path / "t.jsonl") == [each.text for each in TEXTS]
    (tmp_path / "t.txt").write_text("one\ntwo\n", encoding="utf-8")
    assert read_texts(tmp_path / "t.txt") == ["one", "two"]


# -- the server --------------------------------------------------------------------------------------------------


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
    server.port, server.asked, server.answer, server.base64, server.no_empty = (
        VectorPort(folder),
        [],
        None,
        False,
        False,
    )
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
    kept, vectors = Server(served.url + path, "name", "SERVER_KEY").vectors(ASKED * 3)
    assert kept == list(range(15)) and np.allclose(vectors[5:10], served.port(ASKED))
    assert set(served.asked) == {("/v1/embeddings", "Bearer secret", "name")}


def test_base64_and_a_server_that_refuses_a_text(served: Any) -> None:
    served.base64 = served.no_empty = True
    kept, vectors = Server(served.url, "name").vectors(ASKED)
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
        ((200, b"[" * 100_000), "expected JSON"),
    ],
)
def test_another_answer_is_an_error_that_names_the_address(answer: Any, message: str, served: Any) -> None:
    served.answer = answer
    with pytest.raises(ValueError, match=message) as caught:
        Server(served.url, "name").vectors(ASKED)
    assert served.url in str(caught.value)
    assert all(path == "/v1/embeddings" for path, _, _ in served.asked)


@pytest.mark.parametrize("status", [200, 307, 400, 401, 500])
def test_a_key_is_never_shown(status: int, served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", "sk-secret\n")  # as `export KEY=$(cat file)` may leave it
    for content in (b'{"error": "bad key sk-secret"}', b"Bearer sk-secret", b'{"data": "sk-secret"}'):
        served.answer = (status, content)
        with pytest.raises(ValueError, match=r"\*\*\*") as caught:
            Server(f"{served.url}/v1?token=sk-secret", "name", "SERVER_KEY").vectors(ASKED)
        assert "sk-secret" not in str(caught.value) and served.url in str(caught.value)
    assert {path for path, _, _ in served.asked} == {"/v1/embeddings?token=sk-secret"}
    assert {key for _, key, _ in served.asked} == {"Bearer sk-secret"}


@pytest.mark.parametrize("key", ["sk-one\nsk-two", "schlüssel"])
def test_a_key_that_can_be_none_is_refused_and_not_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", key)
    with pytest.raises(ValueError, match="SERVER_KEY has characters that no key has") as caught:
        Server("http://127.0.0.1", "name", "SERVER_KEY")
    assert key not in str(caught.value)


def test_an_answer_without_end_is_left(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    served.answer = (200, b" " * 300_000)
    monkeypatch.setattr("minibert.verify.server.LARGEST", 1 << 17)
    with pytest.raises(ValueError, match="more than 131,072 bytes"):
        Server(served.url, "name").vectors(ASKED)
    monkeypatch.setattr("minibert.verify.server.LARGEST", 1 << 30)
    monkeypatch.setattr("minibert.verify.server.LONGEST", -1)
    with pytest.raises(ValueError, match="takes more than -1 seconds"):
        Server(served.url, "name").vectors(ASKED)


def test_a_server_that_says_nothing_is_left_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr("minibert.verify.server.TIMEOUT", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConnectionError, match="does not answer: timed out"):
            Server(url, "name").vectors(["a"])


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "localhost:8080", "http://", "http://[", "https://name:pass1234@host"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="the address") as caught:
        Server(url, "name")
    assert "pass1234" not in str(caught.value)


def test_a_server_that_is_not_there_is_an_error(served: Any) -> None:
    served.shutdown()
    served.server_close()
    with pytest.raises(ConnectionError, match="does not answer"):
        Server(served.url, "name").vectors(["a"])


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=8))
def test_base64_is_float32_little_endian(numbers: list[float]) -> None:
    assert _numbers(base64.b64encode(np.array(numbers, "<f4").tobytes()).decode()).tolist() == numbers


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
